// Package capture reads what a backup needs from etcd's database: the rows of a range of revisions
// (Reader.ReadRows), the small buckets (leases, users, members), or a snapshot of the whole database
// (Reader.Snapshot).
//
// Each read uses one transaction of etcd's own kind, which is closed before anything is encoded or sent: a long
// transaction keeps etcd from reusing pages. OpenClosed reads the database file of an etcd that was closed in the
// same way, so that a stop can store the last writes. The package does not know where backups are stored or how
// they are encoded.
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

// ErrCompacted reports that etcd was compacted beyond the requested revision: rows may be missing from there on,
// and only a full snapshot has the current keys.
var ErrCompacted = errors.New("etcd was compacted")

// ErrClosed reports that the database was closed or replaced during the read, as etcd does when it stops or
// installs a snapshot of the leader. Reading again may succeed.
var ErrClosed = errors.New("the etcd database was closed during the read")

// A Reader reads the database of one etcd. Its methods may be called from any goroutine.
type Reader struct {
	database func() backend.Backend
	open     atomic.Int64
	closed   atomic.Pointer[backend.Backend] // a database that was closed during a read, whose lock may never be released
}

// NewReader returns a reader of etcd's database. It calls database for each read, since etcd replaces its database
// when it installs a snapshot of the leader.
func NewReader(database func() backend.Backend) *Reader { return &Reader{database: database} }

// Open returns the number of open read transactions. Each of them keeps etcd from reusing the pages that it sees.
func (r *Reader) Open() int64 { return r.open.Load() }

// view calls read in one read transaction and returns how long it was open. read must copy what it keeps.
//
// The transaction is the concurrent one that etcd uses for range requests: it copies the list of rows that wait for
// the next commit (about 48 bytes a row, or nothing if another reader has just done so) and then holds no lock.
// ReadTx would block etcd's writers.
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

// openTx opens a transaction between two writes. While etcd holds this lock, readers may see the puts of a write
// without its deletions.
func openTx(database backend.Backend) backend.ReadTx {
	if batch := database.BatchTx(); batch != nil { // nil in a closed database
		batch.LockOutsideApply()
		defer batch.Unlock()
	}
	return database.ConcurrentReadTx()
}

// current returns the database that etcd uses now.
func (r *Reader) current() (backend.Backend, error) {
	database := r.database()
	if closed := r.closed.Load(); closed != nil && *closed == database {
		return nil, ErrClosed
	}
	return database, nil
}

// recoverPanic converts the panic of a read from a closed database into an error. etcd may close its database
// during a read. The panic leaves a lock of the database held, so that database is never read again.
func (r *Reader) recoverPanic(database backend.Backend, err *error) {
	if cause := recover(); cause != nil {
		r.closed.Store(&database)
		*err = fmt.Errorf("%w: %v", ErrClosed, cause)
	}
}

// A Request defines what ReadRows reads.
type Request struct {
	From    int64 // first revision
	UpTo    int64 // last revision; must be a current or past revision of etcd, so that all of its rows exist
	Beyond  bool  // also read later revisions, if they exist
	Limit   int   // stop after the revision whose rows exceed this total size in bytes
	Buckets bool  // also read the small buckets; only with Beyond, and only if the limit is not reached
	Left    bool  // accept the rows that a compaction has left
}

// Rows is the result of one read transaction.
type Rows struct {
	Rows      []format.Row     // in order
	Bytes     int              // size of the rows
	End       int64            // last revision with rows; From-1 if there are none
	More      bool             // the limit was reached before UpTo
	Compacted int64            // etcd's scheduled compaction; 0 if there was none
	Buckets   []*format.Bucket // all small buckets, including empty ones; nil if not read
	Held      time.Duration    // time for which the transaction was open
}

// Number of revisions per lookup. A row costs 48 bytes until it is copied, a lookup less than a microsecond.
const (
	stride    = 256
	maxStride = 1 << 16 // for gaps without rows, which a revision bump leaves
)

// ReadRows reads the rows of a range of revisions, and only whole revisions. It returns ErrCompacted if the first
// of them is compacted, and ErrClosed if etcd closed its database meanwhile.
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

// read reads in strides. A limit on the number of rows would skip rows: etcd then returns those that wait for the
// next commit before older ones.
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
	if request.Beyond && !r.More { // few rows
		r.take(tx, max(request.From, request.UpTo+1), math.MaxInt64, request.Limit)
	}
}

// take copies the rows from one revision up to, but not including, another, or up to the first revision beyond the
// limit. It reports whether there were any. etcd returns the rows in the file and then those that wait for the next
// commit; a row may occur in both.
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

// firstKey returns the key of the first row that a revision can have.
func firstKey(revision int64) []byte {
	return mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes())
}

// small lists all buckets of etcd except that of the rows.
var small = slices.DeleteFunc(slices.Clone(schema.AllBuckets), func(b backend.Bucket) bool { return b.ID() == schema.Key.ID() })

// SmallBuckets returns the names of all buckets except that of the rows.
func SmallBuckets() (names []string) {
	for _, bucket := range small {
		names = append(names, string(bucket.Name()))
	}
	return names
}

// readBucket copies a bucket in the order of its keys. etcd visits the entries in the file first, in order, and
// then those that wait for the next commit, which may contain a key twice: the later one is valid. Only entries
// that are out of order take extra memory, since a bucket may have a million leases.
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

// merged returns a bucket with some entries added or replaced.
func merged(bucket *format.Bucket, late map[string][]byte) *format.Bucket {
	all := format.NewBucket(bucket.Name)
	keys := slices.Sorted(maps.Keys(late))
	for key, value := range bucket.Entries() {
		for len(keys) > 0 && keys[0] < string(key) {
			all.Add([]byte(keys[0]), late[keys[0]])
			keys = keys[1:]
		}
		if len(keys) > 0 && keys[0] == string(key) {
			continue // it is added with the next entry or at the end
		}
		all.Add(key, value)
	}
	for _, key := range keys {
		all.Add([]byte(key), late[key])
	}
	return all
}

// bookkeeping lists the entries of the meta bucket that etcd updates although nothing has changed.
var bookkeeping = [][]byte{
	schema.MetaConsistentIndexKeyName, schema.MetaTermKeyName, schema.ScheduledCompactKeyName, schema.FinishedCompactKeyName,
}

// Digest returns a digest of a small bucket that changes with its content, but not with etcd's bookkeeping.
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
