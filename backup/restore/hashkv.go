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

// ErrCompacted: the database no longer contains all rows of the hash.
var ErrCompacted = errors.New("compacted")

// ErrFutureRevision: the database ends before the revision.
var ErrFutureRevision = errors.New("the database ends before that revision")

// HashKV returns what etcd's HashKV (HashByRev) at `revision` is on a member that has compacted at `compacted`, which need
// not be where the database was compacted, but not before; -1, which is etcd's word for never, and 0 are the same. A
// compaction that this database has begun and not finished counts as well if it may have deleted something; that cannot be
// seen, and the caller has to know. The database is opened for reading only, and nobody may have it open for writing.
//
// The error is ErrCompacted, ErrFutureRevision, that of ctx, or names the row that is none.
func HashKV(ctx context.Context, path string, compacted, revision int64) (hash uint32, err error) {
	return request{compacted: compacted, revision: revision}.of(ctx, path)
}

// HashKVAtCompaction returns the hash that etcd stores when it compacts at `revision`, and has compacted at `previous` before.
// It differs from HashKV in one case: no key is left at that revision, and the last one was deleted right there.
func HashKVAtCompaction(ctx context.Context, path string, previous, revision int64) (hash uint32, err error) {
	return request{compacted: previous, revision: revision, compacts: true}.of(ctx, path)
}

// A request asks for one hash. etcd's goes over the rows up to a revision, in their order. Of the rows at or below the compaction
// it leaves out those that a compaction at that revision would delete, so that members agree that have not all finished compacting.
// etcd asks its index which rows these are. Here nothing of the size of the index is held: a bit for each row says whether it is
// kept, and a bounded table finds the newest row of each key, one part of the keys after the other.
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

// refuse returns an error if the database lacks rows of the hash.
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

// fingerprint identifies a key by 128 bits with seeds of this process, so that no two keys share one.
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

func (p part) half() part { return part{p.from, p.from + (p.to-p.from)/2} }

// newest marks the rows that are the newest of their key at a revision, and no deletion. Each pass over the rows does one
// part of the keys, as many as the table has room for.
func (s scan) newest(revision int64) (kept bits, err error) {
	for p := (part{0, math.MaxUint64}); ; p = p.next() {
		if p, err = s.pass(p, &kept, revision); err != nil || p.last() {
			return kept, err
		}
	}
}

// pass does a part of the keys and returns which: it is halved as often as the table is full. What was marked until then
// of the keys that fall out is put right in their own pass.
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
			p = p.half()
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

// rowsPerLook is the number of rows between two checks of the context.
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

// rows yields the rows up to a revision.
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
	return nil, nil // the row of a bumped revision
}
