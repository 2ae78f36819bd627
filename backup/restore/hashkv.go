package restore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"iter"
	"maps"
	"math"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"google.golang.org/protobuf/encoding/protowire"
)

// lockTimeout limits the wait for another process to close the database.
const lockTimeout = time.Second

// ErrCompacted means that the database no longer contains all rows of the hash.
var ErrCompacted = errors.New("compacted")

// ErrFutureRevision means that the last revision of the database is before the requested one.
var ErrFutureRevision = errors.New("the database ends before that revision")

// HashKV returns the hash that etcd's HashKV (HashByRev) returns at `revision` on a member whose last compaction was
// at `compacted`; 0 and -1, etcd's value for none, are the same. The database may have been compacted at an earlier
// revision than that, but not at a later one. A compaction that the database has started and not finished counts as
// well if it may have deleted rows; the database does not show that, so the caller has to know. The database is
// opened for reading, and no process may have it open for writing.
//
// The error is ErrCompacted, ErrFutureRevision, the cause of ctx, or names an invalid row.
func HashKV(ctx context.Context, path string, compacted, revision int64) (hash uint32, err error) {
	return request{compacted: compacted, revision: revision}.compute(ctx, path)
}

// HashKVAtCompaction returns the hash that etcd stores when it compacts at `revision` and the compaction before was
// at `previous`. It differs from HashKV in one case: no key exists at that revision, and the last one was deleted by
// it.
func HashKVAtCompaction(ctx context.Context, path string, previous, revision int64) (hash uint32, err error) {
	return request{compacted: previous, revision: revision, compacts: true}.compute(ctx, path)
}

// A request describes one hash. etcd hashes the rows up to a revision, in their order. Of the rows at or below the
// compaction it omits those that a compaction at that revision would delete, so that members agree even if some have
// not finished compacting. etcd finds these rows with its index. To save memory, this package has no index: a bit for
// each row records whether it is retained, and a table of limited size finds the newest row of each key, for one part
// of the keys after the other.
type request struct {
	compacted, revision int64
	compacts            bool // computed by a compaction at revision
	tableSize           int  // keys at a time; 0 means the constant tableSize
}

func (q request) compute(ctx context.Context, path string) (hash uint32, err error) {
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if err != nil {
		return 0, fmt.Errorf("database %s: cannot open it: %w", path, err)
	}
	defer db.Close() // nothing was written
	err = db.View(func(tx *bolt.Tx) error {
		s := scan{ctx: ctx, request: q, keys: tx.Bucket(schema.Key.Name())}
		if err := s.checkComplete(tx.Bucket(schema.Meta.Name())); err != nil {
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

// checkComplete returns an error if the database lacks rows of the hash.
func (s scan) checkComplete(meta *bolt.Bucket) error {
	if s.keys == nil || meta == nil {
		return errors.New("it is not an etcd database")
	}
	last := int64(1) // the revision of an etcd without writes
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
		return fmt.Errorf("it was %w at revision %d, after the compaction of the hash at %d", ErrCompacted, done, s.compacted)
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

// keep finds the rows at or below the compaction that belong to the hash: the newest row of each key that exists at
// the revision. If no key exists then, etcd omits no row, and all rows that the compaction left belong to the hash.
func (s scan) keep() (bits, error) {
	if s.compacted <= 0 { // no row is that old
		return nil, nil
	}
	kept, err := s.markNewest(s.revision)
	if err != nil || kept.any() {
		return kept, err
	}
	if s.compacts && s.deletesLast() {
		return kept, nil // etcd's compaction retains the row of the deletion, so it does omit the others
	}
	return s.markNewest(s.compacted)
}

// deletesLast reports whether a key was deleted at the revision itself.
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

// tableSize is the number of keys in the table; 256 Ki take 12 MiB.
const tableSize = 256 << 10

// fingerprint identifies a key by 128 bits, with seeds of this process, so that a collision is practically
// impossible.
type fingerprint struct{ high, low uint64 }

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func fingerprintOf(key []byte) fingerprint {
	return fingerprint{maphash.Bytes(seeds[0], key), maphash.Bytes(seeds[1], key)}
}

// part is a range of fingerprints, inclusive.
type part struct{ from, to uint64 }

func (p part) has(f fingerprint) bool { return p.from <= f.high && f.high <= p.to }

func (p part) last() bool { return p.to == math.MaxUint64 }

// next returns the following part of the same size.
func (p part) next() part {
	from := p.to + 1
	return part{from, from + min(p.to-p.from, math.MaxUint64-from)}
}

func (p part) firstHalf() part { return part{p.from, p.from + (p.to-p.from)/2} }

// markNewest marks the newest row of each key that exists at a revision. Each pass over the rows handles as many keys as
// the table has room for.
func (s scan) markNewest(revision int64) (kept bits, err error) {
	for p := (part{0, math.MaxUint64}); ; p = p.next() {
		if p, err = s.pass(p, &kept, revision); err != nil || p.last() {
			return kept, err
		}
	}
}

// pass handles a part of the keys and returns it. It halves the part each time the table is full. Marks that it has
// set for keys outside the smaller part are corrected by the later passes that handle these keys.
func (s scan) pass(p part, kept *bits, revision int64) (part, error) {
	table := make(map[fingerprint]uint32)
	for r, err := range s.rows(revision) {
		if err != nil {
			return p, err
		}
		key, err := r.userKey()
		if err != nil {
			return p, err
		}
		if print := fingerprintOf(key); p.has(print) {
			r.replace(table, print, kept)
		}
		for len(table) > cmp.Or(s.tableSize, tableSize) {
			p = p.firstHalf()
			maps.DeleteFunc(table, func(f fingerprint, _ uint32) bool { return !p.has(f) })
		}
	}
	return p, nil
}

// replace makes r the newest row of its key.
func (r row) replace(table map[fingerprint]uint32, print fingerprint, kept *bits) {
	if before, found := table[print]; found {
		kept.clear(before)
	}
	if r.tombstone {
		delete(table, print)
		return
	}
	table[print] = r.ordinal
	kept.set(r.ordinal)
}

// bits has a bit for each row, by ordinal.
type bits []uint64

func (b *bits) set(i uint32) {
	for len(*b) <= int(i/64) {
		*b = append(*b, 0)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

func (b *bits) clear(i uint32) { (*b)[i/64] &^= 1 << (i % 64) }

func (b bits) has(i uint32) bool { return int(i/64) < len(b) && b[i/64]&(1<<(i%64)) != 0 }

func (b bits) any() bool { return slices.ContainsFunc(b, func(word uint64) bool { return word != 0 }) }

// rowsPerCheck is the number of rows between two checks of the context.
const rowsPerCheck = 1024

const revisionBytes = 8 + 1 + 8 // main, '_', sub; a deletion has one more byte

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

// rows yields the rows up to a revision.
func (s scan) rows(until int64) iter.Seq2[row, error] {
	return func(yield func(row, error) bool) {
		cursor, ordinal := s.keys.Cursor(), uint32(0)
		for key, value := cursor.First(); key != nil; key, value = cursor.Next() {
			at, err := parse(key)
			if err == nil && ordinal%rowsPerCheck == 0 {
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
		return bucketKey{}, fmt.Errorf("%.40x is not a revision", key)
	}
	main := binary.BigEndian.Uint64(key)
	if main > math.MaxInt64 {
		return bucketKey{}, fmt.Errorf("%x is a negative revision", key)
	}
	return bucketKey{main: int64(main), tombstone: mvcc.IsTombstone(key)}, nil //nolint:gosec // compared above
}

// userKey decodes only the key of a row; a whole mvccpb.KeyValue would copy the value.
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
	return nil, nil // etcd writes an empty row to bump the revision
}
