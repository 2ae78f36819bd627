package segment

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
)

// Bucket is the whole content of one of etcd's small buckets, such as lease or authUsers. It may be large all the same, so it
// is kept in one piece of memory.
type Bucket struct {
	Name string

	count   uint64
	entries []byte // each: length of the key, key, length of the value, value; lengths as uvarints
}

// NewBucket returns an empty one.
func NewBucket(name string) *Bucket { return &Bucket{Name: name} }

// Add adds an entry; the keys must come in order.
func (b *Bucket) Add(key, value []byte) {
	b.count++
	b.entries = binary.AppendUvarint(b.entries, uint64(len(key)))
	b.entries = append(b.entries, key...)
	b.entries = binary.AppendUvarint(b.entries, uint64(len(value)))
	b.entries = append(b.entries, value...)
}

// Len is how many entries there are.
func (b *Bucket) Len() int { return int(b.count) }

// Digest tells contents apart.
func (b *Bucket) Digest() Digest { return sha256.Sum256(b.entries) }

// Entries yields keys and values in order. They belong to the bucket.
func (b *Bucket) Entries() iter.Seq2[[]byte, []byte] {
	return func(yield func([]byte, []byte) bool) {
		for rest := b.entries; len(rest) > 0; {
			var key, value []byte
			key, rest, _ = cut(rest)
			value, rest, _ = cut(rest)
			if !yield(key, value) {
				return
			}
		}
	}
}

var errBucket = errors.New("entries of a bucket don't fit it")

// cut takes bytes off that begin with their length.
func cut(b []byte) (first, rest []byte, err error) {
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) {
		return nil, nil, errBucket
	}
	return b[n : n+int(length) : n+int(length)], b[n+int(length):], nil
}

// check is for buckets that were read.
func (b *Bucket) check() error {
	var count uint64
	var before []byte
	for rest := b.entries; len(rest) > 0; count++ {
		key, behind, err := cut(rest)
		if err != nil {
			return err
		}
		if _, rest, err = cut(behind); err != nil {
			return err
		}
		if count > 0 && bytes.Compare(before, key) >= 0 {
			return fmt.Errorf("entries of bucket %.40q are out of order", b.Name)
		}
		before = key
	}
	if count != b.count || b.Name == "" {
		return errBucket
	}
	return nil
}
