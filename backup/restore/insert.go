package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/format/segment"
)

// inserter appends rows to the bucket of keys, many in one transaction.
type inserter struct {
	ctx  context.Context
	db   *bolt.DB
	told *teller
	// written is told of bytes that were committed.
	written func(bytes int64)

	tx      *bolt.Tx
	keys    *bolt.Bucket
	last    []byte // the key of the newest row
	values  []byte // of the transaction: bbolt wants them to stay until it commits
	pending int64  // rows of the transaction
}

// insert returns when all rows are in the database, and none if there was an error.
func (i *inserter) insert(source Source) (changed Changes, err error) {
	defer func() {
		if i.tx != nil {
			err = errors.Join(err, i.tx.Rollback())
		}
	}()
	if err := i.begin(); err != nil {
		return Changes{}, err
	}
	if last, _ := i.keys.Cursor().Last(); last != nil {
		full := mvcc.Revision{Main: mvcc.BytesToRev(last).Main, Sub: math.MaxInt64} // it has all rows of its last revision
		i.last = append(mvcc.RevToBytes(full, mvcc.NewRevBytes()), 't')
	}
	behind := bytes.Clone(i.last)
	if changed, err = insertMeanwhile(i.ctx, source.Rows, i.row); err != nil {
		return Changes{}, err
	}
	changed.behind = behind
	return changed, i.commit()
}

func (i *inserter) begin() (err error) {
	if i.tx, err = i.db.Begin(true); err != nil {
		return err
	}
	if i.keys = i.tx.Bucket(schema.Key.Name()); i.keys == nil {
		return errNotEtcds
	}
	i.keys.FillPercent = fillPercent
	i.values, i.pending = i.values[:0], 0
	return nil
}

func (i *inserter) commit() error {
	tx, bytes := i.tx, int64(len(i.values))
	i.tx = nil
	if err := tx.Commit(); err != nil {
		return err
	}
	i.told.add(bytes, i.pending)
	i.written(bytes)
	return context.Cause(i.ctx)
}

// row inserts one row. It copies what it keeps.
func (i *inserter) row(row segment.Row) error {
	if bytes.Compare(row.Key, i.last) <= 0 {
		return fmt.Errorf("%w: row %x does not come behind the ones before it", ErrDamaged, row.Key)
	}
	if i.pending > 0 && len(i.values)+len(row.Value) > batchBytes {
		if err := i.commit(); err != nil {
			return err
		}
		if err := i.begin(); err != nil {
			return err
		}
	}
	start := len(i.values)
	if cap(i.values)-start < len(row.Value) {
		i.values, start = make([]byte, 0, max(batchBytes, len(row.Value))), 0
	}
	i.values = append(i.values, row.Value...)
	i.last = append(i.last[:0], row.Key...)
	i.pending++
	return i.keys.Put(row.Key, i.values[start:])
}
