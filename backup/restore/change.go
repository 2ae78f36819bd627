package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/format/segment"
)

const (
	batchBytes  = 2 << 20 // of rows in one transaction, all of which bbolt holds in memory
	fillPercent = 0.9     // as etcd does: rows are only appended
)

// errNotEtcds is of a database that was not etcd's.
var errNotEtcds = fmt.Errorf("%w: it is no database of etcd, which has buckets named key and meta", ErrDamaged)

// change brings the database from the full's revision to the one that is wanted.
func change(ctx context.Context, source Source, file *os.File, options Options, told *teller) (result Result, err error) {
	changes := options.Above > 0 || options.Finish != nil || source.Rows != nil
	db, err := bolt.Open(file.Name(), 0, boltOptions(source, changes))
	if errors.Is(err, bolterrors.ErrInvalid) || errors.Is(err, bolterrors.ErrChecksum) || errors.Is(err, bolterrors.ErrVersionMismatch) {
		return Result{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return Result{}, fmt.Errorf("cannot open it: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.View(func(tx *bolt.Tx) error { return holds(tx, source.Revision) }); err != nil {
		return Result{}, err
	}
	if changes {
		if err := insertAndFinish(ctx, source, db, file, options, told); err != nil {
			return Result{}, err
		}
	}
	return result, db.View(func(tx *bolt.Tx) error {
		result.Revision, err = newestRevision(tx)
		return err
	})
}

// boltOptions are made for writing a lot and flushing once. The list of free pages is kept out of all transactions but
// the last, so that the next one to open the file need not look for them.
func boltOptions(source Source, changes bool) *bolt.Options {
	return &bolt.Options{
		ReadOnly:        !changes,
		NoSync:          true,
		NoGrowSync:      true,
		NoFreelistSync:  true,
		FreelistType:    bolt.FreelistMapType,
		InitialMmapSize: int(source.DatabaseBytes + source.RowBytes*rowOverhead + spare),
	}
}

func insertAndFinish(ctx context.Context, source Source, db *bolt.DB, file *os.File, options Options, told *teller) error {
	var changed Changes
	if source.Rows != nil {
		rows := &inserter{ctx: ctx, db: db, written: steadily(file, options.Scratch), told: told}
		var err error
		if changed, err = rows.insert(source); err != nil {
			return err
		}
	}
	db.NoFreelistSync = false
	return db.Update(func(tx *bolt.Tx) error {
		if err := holds(tx, changed.Revision); err != nil {
			return err
		}
		if err := finish(tx, changed, options); err != nil || source.Rows == nil {
			return err
		}
		return keepLeases(ctx, tx, changed)
	})
}

// finish does all that is not rows.
func finish(tx *bolt.Tx, changed Changes, options Options) error {
	if _, err := newestRevision(tx); err != nil {
		return err
	}
	for _, bucket := range changed.Buckets {
		if err := replace(tx, bucket); err != nil {
			return fmt.Errorf("cannot replace the bucket %q: %w", bucket.Name, err)
		}
	}
	if err := addLeases(tx, changed.Later); err != nil {
		return err
	}
	if err := schedule(tx, changed.Compacted); err != nil {
		return err
	}
	if options.Above > 0 {
		if err := bump(tx, options.Above); err != nil {
			return err
		}
	}
	if options.Finish == nil {
		return nil
	}
	return options.Finish(tx)
}

// replace gives a small bucket its new content.
func replace(tx *bolt.Tx, bucket *segment.Bucket) error {
	switch bucket.Name {
	case string(schema.Key.Name()):
		return errors.New("it holds the rows")
	case string(schema.Meta.Name()):
		return replaceMeta(tx, bucket)
	}
	_, err := refill(tx, bucket)
	return err
}

// replaceMeta leaves what the full's compaction had finished: the rows that a later one has deleted are there again.
func replaceMeta(tx *bolt.Tx, bucket *segment.Bucket) error {
	finished := bytes.Clone(tx.Bucket(schema.Meta.Name()).Get(schema.FinishedCompactKeyName))
	meta, err := refill(tx, bucket)
	switch {
	case err != nil:
		return err
	case finished == nil:
		return meta.Delete(schema.FinishedCompactKeyName)
	default:
		return meta.Put(schema.FinishedCompactKeyName, finished)
	}
}

func refill(tx *bolt.Tx, bucket *segment.Bucket) (*bolt.Bucket, error) {
	if err := tx.DeleteBucket([]byte(bucket.Name)); err != nil && !errors.Is(err, bolterrors.ErrBucketNotFound) {
		return nil, err
	}
	filled, err := tx.CreateBucket([]byte(bucket.Name))
	if err != nil {
		return nil, err
	}
	for key, value := range bucket.Entries() {
		if err := filled.Put(key, value); err != nil {
			return nil, err
		}
	}
	return filled, nil
}

// addLeases adds those that are not there yet.
func addLeases(tx *bolt.Tx, later []*segment.Bucket) error {
	leases := tx.Bucket(schema.Lease.Name())
	for _, bucket := range later {
		if bucket.Name != string(schema.Lease.Name()) || leases == nil {
			continue
		}
		for key, value := range bucket.Entries() {
			if leases.Get(key) != nil {
				continue
			}
			if err := leases.Put(key, value); err != nil {
				return err
			}
		}
	}
	return nil
}
