package hashkv

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// lockTimeout is how long to wait for another process to let go of the database.
const lockTimeout = time.Second

// ErrCompacted is of a database that no longer holds all the rows that the hash goes over.
var ErrCompacted = errors.New("compacted")

// ErrFutureRevision is of a database that ends before the revision.
var ErrFutureRevision = errors.New("the database ends before that revision")

// At returns what etcd's HashKV (HashByRev) at `revision` is on a member that has compacted at `compacted`, which need
// not be where the database was compacted, but not before; -1, which is etcd's word for never, and 0 are the same. A
// compaction that this database has begun and not finished counts as well if it may have deleted something; that cannot be
// seen, and the caller has to know. The database is opened for reading only, and nobody may have it open for writing.
//
// The error is ErrCompacted, ErrFutureRevision, that of ctx, or names the row that is none.
func At(ctx context.Context, path string, compacted, revision int64) (hash uint32, err error) {
	return request{compacted: compacted, revision: revision}.of(ctx, path)
}

// AtCompaction returns the hash that etcd stores when it compacts at `revision`, and has compacted at `previous` before.
// It differs from At in one case: no key is left at that revision, and the last one was deleted right there.
func AtCompaction(ctx context.Context, path string, previous, revision int64) (hash uint32, err error) {
	return request{compacted: previous, revision: revision, compacts: true}.of(ctx, path)
}

type request struct {
	compacted, revision int64
	compacts            bool // as a compaction at revision does it
	tableSize           int  // keys at a time; 0 is tableSize
}

func (q request) of(ctx context.Context, path string) (hash uint32, err error) {
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if err != nil {
		return 0, fmt.Errorf("database %s: cannot open it: %w", path, err)
	}
	defer db.Close() // nothing was written
	err = db.View(func(tx *bolt.Tx) error {
		s := scan{ctx: ctx, request: q, keys: tx.Bucket(schema.Key.Name())}
		if err := s.refuse(tx.Bucket(schema.Meta.Name())); err != nil {
			return err
		}
		hash, err = s.hash()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("hash of database %s at revision %d: %w", path, q.revision, err)
	}
	return hash, nil
}

// refuse says whether the database has what the hash goes over.
func (s scan) refuse(meta *bolt.Bucket) error {
	if s.keys == nil || meta == nil {
		return errors.New("it has no keys of etcd")
	}
	last := int64(1) // of an etcd that nobody has written to
	if key, _ := s.keys.Cursor().Last(); key != nil {
		newest, err := parse(key)
		if err != nil {
			return err
		}
		last = newest.main
	}
	done := int64(0)
	if value := meta.Get(schema.FinishedCompactKeyName); value != nil {
		finished, err := parse(value)
		if err != nil {
			return err
		}
		done = finished.main
	}
	switch {
	case done > max(s.compacted, 0):
		return fmt.Errorf("it was %w at revision %d, and the hash begins behind %d", ErrCompacted, done, s.compacted)
	case s.revision < s.compacted:
		return fmt.Errorf("it is older than the compaction at %d: %w", s.compacted, ErrCompacted)
	case s.revision > max(last, s.compacted):
		return fmt.Errorf("%w, at %d", ErrFutureRevision, max(last, s.compacted))
	}
	return nil
}

func (s scan) hash() (uint32, error) {
	kept, err := s.keep()
	if err != nil {
		return 0, err
	}
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	_, _ = sum.Write(schema.Key.Name())
	for r, err := range s.rows(s.revision) {
		if err != nil {
			return 0, err
		}
		if r.main > s.compacted || kept.has(r.ordinal) {
			_, _ = sum.Write(r.key)
			_, _ = sum.Write(r.value)
		}
	}
	return sum.Sum32(), nil
}

// keep finds the rows at or below the compaction that belong to the hash: the newest of each key that exists at the
// revision. If no key does, etcd leaves no row out, so that all count that the compaction has left.
func (s scan) keep() (bits, error) {
	if s.compacted <= 0 { // no row is that old
		return nil, nil
	}
	kept, err := s.newest(s.revision)
	if err != nil || kept.any() {
		return kept, err
	}
	if s.compacts && s.deletesLast() {
		return kept, nil // etcd's compaction keeps the deletion, and so does leave rows out
	}
	return s.newest(s.compacted)
}

// deletesLast says whether a key was deleted at the revision itself.
func (s scan) deletesLast() bool {
	cursor, first := s.keys.Cursor(), mvcc.RevToBytes(mvcc.Revision{Main: s.revision}, mvcc.NewRevBytes())
	for key, _ := cursor.Seek(first); key != nil; key, _ = cursor.Next() {
		at, err := parse(key)
		if err != nil || at.main != s.revision {
			return false
		}
		if at.tombstone {
			return true
		}
	}
	return false
}
