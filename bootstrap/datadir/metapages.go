package datadir

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"

	bolt "go.etcd.io/bbolt"
)

// A database begins with two meta pages. Each transaction writes one of them, in turn, and bbolt opens the database with
// the newer one that is whole. If one is damaged nothing is lost: the transaction before is still there, and etcd replays
// the log from it.

// Where things are in a meta page, in bytes (bbolt's internal/common/page.go and meta.go).
const (
	pageFlags    = 8
	metaBegins   = 16
	metaSum      = metaBegins + 56
	metaEnds     = metaSum + 8
	metaPageFlag = 4
)

// damagedMetaPages are the numbers of meta pages that are not as bbolt writes them.
func damagedMetaPages(tx *bolt.Tx) (damaged []int, err error) {
	file, err := os.Open(tx.DB().Path())
	if err != nil {
		return nil, err
	}
	defer file.Close() // nothing was written
	for number := range 2 {
		head := make([]byte, metaEnds)
		if _, err := io.ReadFull(io.NewSectionReader(file, int64(number*tx.DB().Info().PageSize), metaEnds), head); err != nil {
			return nil, fmt.Errorf("cannot read meta page %d: %w", number, err)
		}
		if !isMetaPage(head, uint64(number)) { //nolint:gosec // 0 or 1
			damaged = append(damaged, number)
		}
	}
	return damaged, nil
}

func isMetaPage(head []byte, number uint64) bool {
	sum := fnv.New64a()
	_, _ = sum.Write(head[metaBegins:metaSum]) // never fails
	return binary.NativeEndian.Uint64(head) == number &&
		binary.NativeEndian.Uint16(head[pageFlags:]) == metaPageFlag &&
		binary.NativeEndian.Uint64(head[metaSum:]) == sum.Sum64()
}

// verifyPages runs bbolt's own check. That panics over a damaged meta page, which bbolt itself can do without; then
// every bucket is read instead, which finds the same but for pages that belong to nobody or to two.
func verifyPages(ctx context.Context, tx *bolt.Tx, m *member) error {
	damaged, err := damagedMetaPages(tx)
	if err != nil {
		return err
	}
	if len(damaged) == 0 {
		return checkPages(ctx, tx)
	}
	m.warn("database %s: meta page %d is damaged; etcd goes on with the other one, and replays the log from there", m.database, damaged[0])
	return tx.ForEach(func(name []byte, bucket *bolt.Bucket) error {
		if err := readAll(ctx, bucket); err != nil {
			return fmt.Errorf("bucket %q: %w", name, err)
		}
		return nil
	})
}

// readAll visits every page of a bucket. bbolt panics over what is no page.
func readAll(ctx context.Context, bucket *bolt.Bucket) error {
	var previous []byte
	count := 0
	return bucket.ForEach(func(key, _ []byte) error {
		if previous != nil && string(previous) >= string(key) {
			return errors.New("its keys are out of order")
		}
		if count++; count%recordsPerLook == 0 && ctx.Err() != nil {
			return fmt.Errorf("reading it was stopped: %w", context.Cause(ctx))
		}
		previous = key
		return nil
	})
}
