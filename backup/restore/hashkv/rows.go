package hashkv

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"math"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"google.golang.org/protobuf/encoding/protowire"
)

// rowsPerLook is how many rows are read between two looks at the context.
const rowsPerLook = 1024

const revisionBytes = 8 + 1 + 8 // main, '_', sub; a deletion has a letter more

type scan struct {
	request
	ctx  context.Context
	keys *bolt.Bucket
}

type bucketKey struct {
	main      int64
	tombstone bool
}

type row struct {
	bucketKey
	ordinal    uint32
	key, value []byte
}

// rows are those up to a revision.
func (s scan) rows(until int64) iter.Seq2[row, error] {
	return func(yield func(row, error) bool) {
		cursor, ordinal := s.keys.Cursor(), uint32(0)
		for key, value := cursor.First(); key != nil; key, value = cursor.Next() {
			at, err := parse(key)
			if err == nil && ordinal%rowsPerLook == 0 {
				err = context.Cause(s.ctx)
			}
			if err == nil && ordinal == math.MaxUint32 {
				err = fmt.Errorf("it has more than %d rows", ordinal)
			}
			if err == nil && at.main > until {
				return
			}
			if !yield(row{at, ordinal, key, value}, err) || err != nil {
				return
			}
			ordinal++
		}
	}
}

func parse(key []byte) (bucketKey, error) {
	if len(key) != revisionBytes && len(key) != revisionBytes+1 || key[8] != '_' {
		return bucketKey{}, fmt.Errorf("%.40x is no revision", key)
	}
	main := binary.BigEndian.Uint64(key)
	if main > math.MaxInt64 {
		return bucketKey{}, fmt.Errorf("%x is a negative revision", key)
	}
	return bucketKey{main: int64(main), tombstone: mvcc.IsTombstone(key)}, nil //nolint:gosec // compared above
}

// userKey is the key whose row this is. It is read by itself, as a whole mvccpb.KeyValue would copy the value.
func (r row) userKey() ([]byte, error) {
	for rest := r.value; len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return nil, fmt.Errorf("row %x: %w", r.key, protowire.ParseError(n))
		}
		rest = rest[n:]
		if number == 1 && kind == protowire.BytesType {
			key, n := protowire.ConsumeBytes(rest)
			if n < 0 {
				return nil, fmt.Errorf("row %x: %w", r.key, protowire.ParseError(n))
			}
			return key, nil
		}
		if n = protowire.ConsumeFieldValue(number, kind, rest); n < 0 {
			return nil, fmt.Errorf("row %x: %w", r.key, protowire.ParseError(n))
		}
		rest = rest[n:]
	}
	return nil, nil // the row of a bumped revision
}
