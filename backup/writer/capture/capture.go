// Package capture reads the data for a backup from etcd's database: the rows of a range of revisions
// (Reader.ReadRows), the small buckets for leases, users and members, or a snapshot of the whole database
// (Reader.Snapshot).
//
// Each read uses one etcd transaction, which is closed before anything is encoded or sent. A long transaction would
// keep etcd from reusing pages. OpenClosed reads the database file of a closed etcd in the same way, so that the last
// writes can be stored during shutdown. Package capture does not know where backups are stored or how they are
// encoded.
package capture

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/format"
)

// ErrCompacted is returned if etcd was compacted at or after the requested revision. Rows may be missing, so only a
// full snapshot contains all current keys.
var ErrCompacted = errors.New("etcd was compacted")

// ErrClosed is returned if etcd closed or replaced its database during a read, which it does when it stops or
// installs a snapshot from the leader. The read can be retried.
var ErrClosed = errors.New("the etcd database was closed during the read")

// A Reader reads etcd's database. Its methods are safe for concurrent use.
type Reader struct {
	database func() backend.Backend
	open     atomic.Int64
	closed   atomic.Pointer[backend.Backend] // database that was closed during a read; one of its locks may never be released
}

// NewReader returns a Reader. The reader calls database for each read because etcd replaces its database when it
// installs a snapshot from the leader.
func NewReader(database func() backend.Backend) *Reader { return &Reader{database: database} }

// Open returns the number of open read transactions. Each open transaction keeps etcd from reusing pages.
func (r *Reader) Open() int64 { return r.open.Load() }

// view calls read within a read transaction and returns how long the transaction was open. read must copy the data
// that it keeps.
//
// The transaction is the concurrent one that etcd uses for range requests. When a transaction is opened, etcd copies
// the list of uncommitted rows (about 48 bytes per row, or nothing if another reader has just copied it). After that,
// no lock is held. ReadTx would block etcd's writers.
func (r *Reader) view(read func(tx backend.UnsafeReader)) (held time.Duration, err error) {
	r.open.Add(1)
	started := time.Now()
	defer func() {
		r.open.Add(-1)
		held = time.Since(started)
	}()
	database, err := r.current()
	if err != nil {
		return 0, err
	}
	defer r.recoverPanic(database, &err)
	tx := openTx(database)
	defer tx.RUnlock()
	read(tx)
	return held, nil
}

// openTx opens a transaction between two writes. In the middle of a write, readers may see its puts but not its
// deletions.
func openTx(database backend.Backend) backend.ReadTx {
	if batch := database.BatchTx(); batch != nil { // nil for a closed database
		batch.LockOutsideApply()
		defer batch.Unlock()
	}
	return database.ConcurrentReadTx()
}

// current returns the database that etcd is using now.
func (r *Reader) current() (backend.Backend, error) {
	database := r.database()
	if closed := r.closed.Load(); closed != nil && *closed == database {
		return nil, ErrClosed
	}
	return database, nil
}

// recoverPanic turns a panic caused by reading from a closed database into an error. etcd may close its database at
// any time. The panic leaves a database lock held, so the database is never read again.
func (r *Reader) recoverPanic(database backend.Backend, err *error) {
	if cause := recover(); cause != nil {
		r.closed.Store(&database)
		*err = fmt.Errorf("%w: %v", ErrClosed, cause)
	}
}

// A Request specifies the rows that ReadRows reads.
type Request struct {
	From    int64 // first revision
	UpTo    int64 // last revision; must not be in the future, because all of its rows must exist
	Beyond  bool  // also read later revisions
	Limit   int   // size in bytes after which no further revision is read
	Buckets bool  // also read the small buckets; requires Beyond, and has no effect if the limit is reached
	Left    bool  // accept rows that were left over by a compaction
}

// Rows is the result of a read transaction.
type Rows struct {
	Rows      []format.Row     // in order
	Bytes     int              // size of the rows
	End       int64            // last revision with rows; From-1 if there are none
	More      bool             // the limit was reached before UpTo
	Compacted int64            // etcd's scheduled compaction; 0 if there is none
	Buckets   []*format.Bucket // all small buckets, including empty ones; nil if they were not read
	Held      time.Duration    // time for which the transaction was open
}

// Number of revisions per lookup. A row takes 48 bytes until it is copied. A lookup takes less than a microsecond.
const (
	stride    = 256
	maxStride = 1 << 16 // used in gaps without rows, which a revision bump leaves behind
)

// ReadRows reads the rows of a range of revisions. Revisions are never split. ReadRows returns ErrCompacted if the
// first revision is compacted, and ErrClosed if etcd closes its database during the read.
func (r *Reader) ReadRows(request Request) (Rows, error) {
	rows := Rows{End: request.From - 1}
	var gap error
	held, err := r.view(func(tx backend.UnsafeReader) {
		rows.Compacted, _ = mvcc.UnsafeReadScheduledCompact(tx)
		if rows.Compacted >= request.From && !request.Left {
			gap = fmt.Errorf("%w at revision %d before revision %d was captured", ErrCompacted, rows.Compacted, request.From)
			return
		}
		rows.read(tx, request)
		for _, bucket := range small {
			if request.Beyond && request.Buckets && !rows.More {
				rows.Buckets = append(rows.Buckets, readBucket(tx, bucket))
			}
		}
	})
	if err != nil {
		return Rows{}, err
	}
	rows.Held = held
	return rows, gap
}

// read reads the rows in strides of revisions. Limiting the number of rows instead would skip rows, because etcd
// would return uncommitted rows before older ones.
func (r *Rows) read(tx backend.UnsafeReader, request Request) {
	step := int64(stride)
	for from := request.From; from <= request.UpTo && !r.More; {
		to := min(from+step, request.UpTo+1)
		if r.take(tx, from, to, request.Limit) {
			step = stride
		} else {
			step = min(2*step, maxStride)
		}
		from = to
	}
	if request.Beyond && !r.More { // there are only a few later rows
		r.take(tx, max(request.From, request.UpTo+1), math.MaxInt64, request.Limit)
	}
}

// take copies the rows of all revisions in [from, to), stopping at the first revision beyond the limit. take reports
// whether there were any rows. etcd returns committed rows before uncommitted rows, and may return a row twice.
func (r *Rows) take(tx backend.UnsafeReader, from, to int64, limit int) (found bool) {
	var previous []byte
	keys, values := tx.UnsafeRange(schema.Key, firstKey(from), firstKey(to), math.MaxInt64)
	for i, key := range keys {
		if bytes.Compare(key, previous) <= 0 {
			continue
		}
		revision := mvcc.BytesToBucketKey(key).Main
		if r.More = revision != r.End && r.Bytes >= limit; r.More {
			break
		}
		r.Rows = append(r.Rows, format.Row{Key: bytes.Clone(key), Value: bytes.Clone(values[i])})
		r.Bytes += len(key) + len(values[i])
		r.End, previous = revision, key
	}
	return len(keys) > 0
}

// firstKey returns the lowest possible row key of a revision.
func firstKey(revision int64) []byte {
	return mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes())
}

// small contains all etcd buckets except the bucket with the rows.
var small = slices.DeleteFunc(slices.Clone(schema.AllBuckets), func(b backend.Bucket) bool { return b.ID() == schema.Key.ID() })

// SmallBuckets returns the names of all buckets except the bucket with the rows.
func SmallBuckets() (names []string) {
	for _, bucket := range small {
		names = append(names, string(bucket.Name()))
	}
	return names
}

// readBucket copies a bucket in key order. etcd first returns the committed entries in order, and then the
// uncommitted ones, which may contain a key twice; the later entry is valid. A bucket may contain a million leases,
// so only entries that are out of order use extra memory.
func readBucket(tx backend.UnsafeReader, bucket backend.Bucket) *format.Bucket {
	copied, late := format.NewBucket(string(bucket.Name())), map[string][]byte{}
	var last []byte
	_ = tx.UnsafeForEach(bucket, func(k, v []byte) error {
		if len(late) == 0 && (last == nil || bytes.Compare(k, last) > 0) {
			copied.Add(k, v)
			last = k
		} else {
			late[string(k)] = bytes.Clone(v)
		}
		return nil
	})
	if len(late) == 0 {
		return copied
	}
	return merged(copied, late)
}

// merged returns a copy of a bucket with entries added or replaced.
func merged(bucket *format.Bucket, late map[string][]byte) *format.Bucket {
	all := format.NewBucket(bucket.Name)
	keys := slices.Sorted(maps.Keys(late))
	for key, value := range bucket.Entries() {
		for len(keys) > 0 && keys[0] < string(key) {
			all.Add([]byte(keys[0]), late[keys[0]])
			keys = keys[1:]
		}
		if len(keys) > 0 && keys[0] == string(key) {
			continue // the new entry is added before the next key or at the end
		}
		all.Add(key, value)
	}
	for _, key := range keys {
		all.Add([]byte(key), late[key])
	}
	return all
}

// bookkeeping lists entries of the meta bucket that etcd updates even if no data changes.
var bookkeeping = [][]byte{
	schema.MetaConsistentIndexKeyName, schema.MetaTermKeyName, schema.ScheduledCompactKeyName, schema.FinishedCompactKeyName,
}

// Digest returns a digest of a small bucket. The digest ignores entries that are only bookkeeping.
func Digest(bucket *format.Bucket) format.Digest {
	if bucket.Name != string(schema.Meta.Name()) {
		return bucket.Digest()
	}
	changed := format.NewBucket(bucket.Name)
	for key, value := range bucket.Entries() {
		if !slices.ContainsFunc(bookkeeping, func(own []byte) bool { return bytes.Equal(own, key) }) {
			changed.Add(key, value)
		}
	}
	return changed.Digest()
}
