package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"iter"
	"maps"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/format"
)

// lockTimeout limits how long to wait for another process to close the database.
const lockTimeout = time.Second

// ErrCompacted means that a compaction may have deleted rows of the database that the hash covers.
var ErrCompacted = errors.New("compacted")

// ErrFutureRevision means that the requested revision is later than the last revision of the database.
var ErrFutureRevision = errors.New("revision is newer than the database")

// A HashRequest identifies a hash computed by etcd.
type HashRequest struct {
	Compacted int64 // revision of the member's last compaction; 0 and -1 both mean none, as in etcd
	Revision  int64 // last revision that the hash covers
	// Compaction means that etcd stored the hash during a compaction at Revision that followed a compaction at
	// Compacted. The stored hash differs from HashByRev only if Revision deleted the last key.
	Compaction bool
}

// HashKV returns the hash that etcd's HashKV (HashByRev) returns, or that etcd stores during a compaction. The
// database may have been compacted at an earlier revision than the member, but not at a later one. A later compaction
// that the database has not finished is a problem too if it has already deleted rows. HashKV cannot detect this, so
// callers must rule it out. HashKV opens the database for reading; no process may have the database open for writing.
//
// etcd hashes the rows up to a revision in order. Of the rows at or below the compaction, etcd omits those that a
// compaction at that revision would delete, so that members agree even if some of them have not finished compacting.
// etcd finds these rows with its index. To save memory, this package keeps one bit per row instead, which records
// whether the row is retained, and uses a table of limited size to find the newest row of each key, in multiple
// passes if necessary.
//
// The error is ErrCompacted, ErrFutureRevision, ErrDamaged for an invalid row, or the cause of ctx.
func HashKV(ctx context.Context, path string, q HashRequest) (uint32, error) {
	return hashKV(ctx, path, q, tableSize)
}

func hashKV(ctx context.Context, path string, q HashRequest, tableSize int) (hash uint32, err error) {
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if err != nil {
		return 0, fmt.Errorf("cannot open database %s: %w", path, err)
	}
	defer db.Close() // the database is only read, so a close error is harmless
	err = recoverPanic(func() error {
		return db.View(func(tx *bolt.Tx) error {
			if err := q.checkComplete(tx); err != nil {
				return err
			}
			hash, err = scan{HashRequest: q, tableSize: tableSize, ctx: ctx, keys: tx.Bucket(schema.Key.Name())}.hash()
			return err
		})
	})
	if err != nil {
		return 0, fmt.Errorf("cannot compute the hash of database %s at revision %d: %w", path, q.Revision, err)
	}
	return hash, nil
}

// checkComplete returns ErrCompacted or ErrFutureRevision if the database does not contain all rows that the hash
// covers.
func (q HashRequest) checkComplete(tx *bolt.Tx) error {
	last, err := lastRevision(tx)
	if err != nil {
		return err
	}
	finished := revisionIn(tx.Bucket(schema.Meta.Name()), schema.FinishedCompactKeyName)
	switch {
	case finished > max(q.Compacted, 0):
		return fmt.Errorf("the database was %w at revision %d, after the requested compaction at %d", ErrCompacted, finished, q.Compacted)
	case q.Revision < q.Compacted:
		return fmt.Errorf("the revision is older than the compaction at %d: %w", q.Compacted, ErrCompacted)
	case q.Revision > max(last, q.Compacted):
		return fmt.Errorf("%w, which ends at %d", ErrFutureRevision, max(last, q.Compacted))
	}
	return nil
}

// scan reads the rows of a database for a request.
type scan struct {
	HashRequest
	tableSize int // maximum number of keys per pass
	ctx       context.Context
	keys      *bolt.Bucket
}

func (s scan) hash() (uint32, error) {
	kept, err := s.keep()
	if err != nil {
		return 0, err
	}
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	_, _ = sum.Write(schema.Key.Name())
	for r, err := range s.rows(s.Revision) {
		if err != nil {
			return 0, err
		}
		if r.revision > s.Compacted || kept.has(r.ordinal) {
			_, _ = sum.Write(r.Key)
			_, _ = sum.Write(r.Value)
		}
	}
	return sum.Sum32(), nil
}

// keep finds the rows at or below the compaction that belong to the hash: the newest row of each key that exists at
// the revision. If no key exists at the revision, etcd does not omit any rows, and all rows that the compaction left
// belong to the hash.
func (s scan) keep() (bits, error) {
	if s.Compacted <= 0 { // no row is at or below the compaction
		return nil, nil
	}
	kept, err := s.markLatest(s.Revision)
	if err != nil || kept.any() {
		return kept, err
	}
	if s.Compaction && s.deletesLast() {
		return kept, nil // etcd retains the row of the deletion and therefore omits the others
	}
	return s.markLatest(s.Compacted)
}

// deletesLast reports whether the requested revision deleted a key.
func (s scan) deletesLast() bool {
	cursor, prefix := s.keys.Cursor(), revisionKey(s.Revision)[:8]
	for key, _ := cursor.Seek(prefix); bytes.HasPrefix(key, prefix); key, _ = cursor.Next() {
		if (format.Row{Key: key}).Tombstone() {
			return true
		}
	}
	return false
}

// tableSize is the maximum number of keys in the table of a pass, which takes up 12 MiB.
const tableSize = 256 << 10

// fingerprint identifies a key by 128 bits. The seeds are random per process, so collisions are practically
// impossible.
type fingerprint [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// markLatest marks the newest row of each key that exists at a revision. markLatest starts with a single pass over
// the rows. Whenever the table is full, the current pass continues with half of its keys, and the number of passes
// doubles. Keys that were dropped or are read again get their final marks from the last pass that handles them.
func (s scan) markLatest(revision int64) (kept bits, err error) {
	passes := uint64(1)
	for pass := uint64(0); pass < passes; pass++ {
		newest := map[fingerprint]int{}
		others := func(key fingerprint, _ int) bool { return key[0]%passes != pass }
		for r, err := range s.rows(revision) {
			if err != nil {
				return nil, err
			}
			name, _, err := keyAndLease(r.Value)
			if err != nil {
				return nil, fmt.Errorf("%w: row %x: %w", ErrDamaged, r.Key, err)
			}
			if key := (fingerprint{maphash.Bytes(seeds[0], name), maphash.Bytes(seeds[1], name)}); !others(key, 0) {
				r.replace(newest, key, &kept)
			}
			for len(newest) > s.tableSize {
				passes *= 2
				maps.DeleteFunc(newest, others)
			}
		}
	}
	return kept, nil
}

// replace makes r the newest row of its key.
func (r row) replace(newest map[fingerprint]int, key fingerprint, kept *bits) {
	if previous, found := newest[key]; found {
		kept.clear(previous)
	}
	if r.Tombstone() {
		delete(newest, key)
		return
	}
	newest[key] = r.ordinal
	kept.set(r.ordinal)
}

// bits contains one bit per row, indexed by the row's ordinal.
type bits []uint64

func (b *bits) set(i int) {
	for len(*b) <= i/64 {
		*b = append(*b, 0)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

func (b bits) clear(i int) { b[i/64] &^= 1 << (i % 64) }

func (b bits) has(i int) bool { return i/64 < len(b) && b[i/64]&(1<<(i%64)) != 0 }

func (b bits) any() bool { return slices.ContainsFunc(b, func(word uint64) bool { return word != 0 }) }

// rowsPerCheck is the number of rows between two checks of the context.
const rowsPerCheck = 1024

type row struct {
	format.Row
	revision int64
	ordinal  int // position among all rows, from 0
}

// rows yields the rows up to a revision.
func (s scan) rows(until int64) iter.Seq2[row, error] {
	return func(yield func(row, error) bool) {
		cursor, ordinal := s.keys.Cursor(), 0
		for key, value := cursor.First(); key != nil; key, value = cursor.Next() {
			r := row{Row: format.Row{Key: key, Value: value}, ordinal: ordinal}
			revision, err := r.Revision()
			switch {
			case err != nil:
				err = fmt.Errorf("%w: row %.20x: %w", ErrDamaged, key, err)
			case revision > until:
				return
			case ordinal%rowsPerCheck == 0:
				err = context.Cause(s.ctx)
			}
			r.revision = revision
			if !yield(r, err) || err != nil {
				return
			}
			ordinal++
		}
	}
}
