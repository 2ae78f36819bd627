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
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/format"
)

// ErrCompacted is returned if etcd was compacted at or after the requested revision. Rows may be missing, so only a
// full snapshot contains all current keys.
var ErrCompacted = errors.New("etcd was compacted")

// ErrClosed is returned if etcd closed its database during a read because etcd is stopping, or replaced its database
// with a snapshot from the leader. The read can be retried.
var ErrClosed = errors.New("the etcd database was closed during the read")

// A Reader reads etcd's database. Its methods are safe for concurrent use.
type Reader struct {
	database func() backend.Backend
	open     atomic.Int64
	closed   atomic.Pointer[backend.Backend] // closed database; one of its locks may still be held
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
// the list of uncommitted rows (about 48 bytes per row, or nothing if another reader has just copied it). Unlike
// ReadTx, an open concurrent transaction does not hold a lock and therefore does not block etcd's writers.
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

// openTx opens a transaction between two writes. A transaction opened during a write might see the write's puts but
// not its deletions.
func openTx(database backend.Backend) backend.ReadTx {
	if batch := database.BatchTx(); batch != nil { // nil for a closed database
		batch.LockOutsideApply()
		defer batch.Unlock()
	}
	return database.ConcurrentReadTx()
}

// current returns the database that etcd is currently using.
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
	From    int64 // first revision to read
	UpTo    int64 // last revision to read; must not be later than etcd's current revision
	Beyond  bool  // also read all rows after UpTo
	Limit   int   // stop after the revision with which the rows reach this size in bytes
	Buckets bool  // also read the small buckets; requires Beyond, and has no effect if the limit is reached
	Left    bool  // if revisions are compacted, read their remaining rows instead of returning ErrCompacted
}

// Rows is the result of a read transaction.
type Rows struct {
	Rows      []format.Row     // in order
	Bytes     int              // total size of the rows' keys and values
	End       int64            // last revision with rows; From-1 if there are none
	More      bool             // there are more rows to read, because the limit was reached
	Compacted int64            // revision of etcd's last scheduled compaction; 0 if there is none
	Buckets   []*format.Bucket // all small buckets, including empty ones; nil if not read
	Held      time.Duration    // how long the transaction was open
}

// Number of revisions per lookup. A lookup takes less than a microsecond, and needs 48 bytes for each row that it
// finds.
const (
	stride    = 256
	maxStride = 1 << 16 // used where revisions have no rows, for example if a restore has skipped revisions
)

// ReadRows reads the rows of a range of revisions. The result contains either all rows of a revision or none. ReadRows
// returns ErrCompacted if the first revision is compacted, and ErrClosed if etcd closes its database during the read.
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

// read reads the rows of a limited number of revisions at a time. Limiting the number of rows instead would skip some,
// because etcd would then return uncommitted rows first and leave out older ones.
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
	if request.Beyond && !r.More { // a single lookup is enough, because few rows are written after UpTo was determined
		r.take(tx, max(request.From, request.UpTo+1), math.MaxInt64, request.Limit)
	}
}

// take copies the rows of all revisions in [from, to), stopping at the first revision beyond the limit. take reports
// whether there were any rows. etcd returns committed rows before uncommitted rows, and may return a row twice; take
// copies it only once.
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

// small lists the small buckets: all of etcd's buckets except the one that contains the rows.
var small = slices.DeleteFunc(slices.Clone(schema.AllBuckets), func(b backend.Bucket) bool { return b.ID() == schema.Key.ID() })

// SmallBuckets returns the names of the small buckets.
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

// merged returns a copy of a bucket in which the entries in late are added or replaced.
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

// bookkeeping lists the keys in the meta bucket that etcd updates even if no data changes.
var bookkeeping = [][]byte{
	schema.MetaConsistentIndexKeyName, schema.MetaTermKeyName, schema.ScheduledCompactKeyName, schema.FinishedCompactKeyName,
}

// Digest returns a digest of a small bucket. It ignores entries that etcd updates even if no data changes.
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

// A Snapshot is the whole database at one revision. While a snapshot is open, etcd cannot reuse the pages of that
// revision, cannot defragment, and cannot let the database grow beyond the 10 GB that it has mapped. Copy and close a
// snapshot as soon as possible.
type Snapshot struct {
	Revision  int64 // last revision with rows; 1 if there is none, as in etcd
	Compacted int64 // revision of etcd's last scheduled compaction; 0 if there is none
	Size      int64 // size of the database in bytes

	reader   *Reader
	snapshot backend.Snapshot
	opened   time.Time
	held     time.Duration
}

// Snapshot makes etcd commit its pending writes and opens a read transaction. The caller must close the snapshot.
func (r *Reader) Snapshot() (s *Snapshot, err error) {
	// Read from the database first. If it is closed, the read panics, whereas backend.Snapshot would terminate the
	// process.
	if _, err := r.view(func(tx backend.UnsafeReader) { mvcc.UnsafeReadScheduledCompact(tx) }); err != nil {
		return nil, err
	}
	database, err := r.current()
	if err != nil {
		return nil, err
	}
	defer r.recoverPanic(database, &err)
	s = &Snapshot{reader: r, snapshot: database.Snapshot(), opened: time.Now()}
	r.open.Add(1)
	tx, ok := s.snapshot.(readTx)
	if !ok {
		_ = s.Close()
		return nil, fmt.Errorf("cannot read the revision of an etcd snapshot of type %T", s.snapshot)
	}
	s.Size = s.snapshot.Size()
	s.Revision = lastRevision(tx)
	s.Compacted, _ = mvcc.UnsafeReadScheduledCompact(txReader{tx})
	return s, nil
}

// Digests returns the digests of the small buckets by name. The snapshot must be open.
func (s *Snapshot) Digests() map[string]format.Digest {
	digests := map[string]format.Digest{}
	for _, bucket := range small {
		content := readBucket(txReader{s.snapshot.(readTx)}, bucket)
		digests[content.Name] = Digest(content)
	}
	return digests
}

func lastRevision(tx readTx) int64 {
	if rows := tx.Bucket(schema.Key.Name()); rows != nil {
		if key, _ := rows.Cursor().Last(); key != nil {
			return mvcc.BytesToBucketKey(key).Main
		}
	}
	return 1
}

// Close closes the transaction. Close can be called more than once.
func (s *Snapshot) Close() error {
	if s.snapshot == nil {
		return nil
	}
	err := s.snapshot.Close()
	s.snapshot, s.held = nil, time.Since(s.opened)
	s.reader.open.Add(-1)
	return err
}

// Held returns how long the transaction was open. The snapshot must be closed.
func (s *Snapshot) Held() time.Duration { return s.held }

// WriteTo writes the database and closes the transaction. When writing to a file, WriteTo bypasses the page cache if
// possible, because etcd's flushes would otherwise have to wait for the kernel to write the cached pages.
func (s *Snapshot) WriteTo(ctx context.Context, to io.Writer) error {
	defer s.Close()
	file, _ := to.(*os.File)
	written, err := s.snapshot.WriteTo(&paced{ctx: ctx, Writer: to, file: file})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // err contains only the text of the cause, because bbolt does not wrap errors
	}
	if err != nil {
		return fmt.Errorf("cannot copy the database at revision %d: %w", s.Revision, err)
	}
	if written != s.Size {
		return fmt.Errorf("copied only %d of %d bytes of the database at revision %d", written, s.Size, s.Revision)
	}
	return s.Close()
}

// paced wraps the destination of a copy. It copies data in pieces, and stops after the current piece if ctx is done.
type paced struct {
	io.Writer
	ctx  context.Context
	file *os.File // the destination, or nil if it is not a file
}

// piece is the number of bytes to copy at a time.
const piece = 4 << 20

func (p *paced) Write(b []byte) (int, error) {
	if p.ctx.Err() != nil {
		return 0, context.Cause(p.ctx)
	}
	return p.Writer.Write(b)
}

// ReadFrom implements io.ReaderFrom. bbolt passes the data pages as a section of the database file.
func (p *paced) ReadFrom(from io.Reader) (copied int64, err error) {
	if limited, ok := from.(*io.LimitedReader); ok && p.file != nil {
		copied, err = p.direct(limited)
		if !errors.Is(err, errors.ErrUnsupported) {
			return copied, err
		}
	}
	return io.CopyBuffer(onlyWriter{p}, from, make([]byte, piece))
}

// onlyWriter hides ReadFrom from io.Copy.
type onlyWriter struct{ io.Writer }

// lockTimeout is the timeout for opening a database that another process may have locked.
const lockTimeout = time.Second

// Identity describes a member. For a closed etcd, it describes the member at the time of closing.
type Identity struct {
	MemberID, ClusterID string // etcd's IDs in hexadecimal
	Leader              bool   // whether the member is the leader or, if closed, must upload its data
	Members             int    // number of members of a closed cluster; 0 if unknown
	Term                uint64 // raft term; if 0, OpenClosed sets it to the term of the last applied entry
}

// Closed provides read access to the database of a closed etcd through the same methods as a running etcd, so that
// the last writes can be stored. The methods are safe for concurrent use until Close is called.
type Closed struct {
	identity Identity
	database *closedBackend
	revision int64
	size     int64
	applied  uint64
}

// errClosed is returned by operations that require a running etcd.
var errClosed = errors.New("etcd is closed")

// OpenClosed opens the database file of a closed etcd.
func OpenClosed(path string, identity Identity) (*Closed, error) {
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if err != nil {
		return nil, fmt.Errorf("cannot open database %s: %w", path, err)
	}
	e := &Closed{identity: identity, database: &closedBackend{db: db}}
	tx := e.database.ConcurrentReadTx()
	defer tx.RUnlock()
	e.revision, e.size = lastRevision(tx.(*closedTx).Tx), tx.(*closedTx).Size()
	applied, term := schema.UnsafeReadConsistentIndex(tx)
	e.applied, e.identity.Term = applied, cmp.Or(identity.Term, term)
	return e, nil
}

// Close closes the database file.
func (e *Closed) Close() error { return e.database.db.Close() }

// Backend returns the database for reading. Write methods must not be called.
func (e *Closed) Backend() backend.Backend { return e.database }

// Size returns the size of the database in bytes.
func (e *Closed) Size() int64 { return e.size }

// Revision returns the last revision.
func (e *Closed) Revision() int64 { return e.revision }

// AppliedIndex returns the index of the last log entry applied to the database.
func (e *Closed) AppliedIndex() uint64 { return e.applied }

// Identity returns the identity of the member.
func (e *Closed) Identity() Identity { return e.identity }

// Members returns the number of members in the cluster, or 0 if it is unknown.
func (e *Closed) Members() int { return e.identity.Members }

// Hashes returns nil because etcd keeps its hashes in memory.
func (*Closed) Hashes() []format.Hash { return nil }

// Hash returns an error, because only a running etcd can compute its hash.
func (*Closed) Hash(int64) (format.Hash, error) { return format.Hash{}, errClosed }

// closedBackend implements the read methods of backend.Backend. All other methods panic.
type closedBackend struct {
	backend.Backend
	db *bolt.DB
}

// ConcurrentReadTx implements backend.Backend.
func (d *closedBackend) ConcurrentReadTx() backend.ReadTx {
	tx, err := d.db.Begin(false)
	if err != nil {
		panic(err) // etcd's own backend also panics after it is closed
	}
	return &closedTx{txReader: txReader{tx}, Tx: tx}
}

// BatchTx implements backend.Backend and returns nil, because a closed database is never written to.
func (*closedBackend) BatchTx() backend.BatchTx { return nil }

// Snapshot implements backend.Backend.
func (d *closedBackend) Snapshot() backend.Snapshot {
	return d.ConcurrentReadTx().(*closedTx)
}

// closedTx implements backend.ReadTx and backend.Snapshot.
type closedTx struct {
	txReader
	*bolt.Tx
}

// RLock implements backend.ReadTx. The transaction is already open.
func (t *closedTx) RLock() {}

// RUnlock implements backend.ReadTx.
func (t *closedTx) RUnlock() { _ = t.Rollback() } // the transaction is read-only

// Close implements backend.Snapshot.
func (t *closedTx) Close() error { return t.Rollback() }

// readTx is the part of a bbolt read transaction that etcd's snapshot type also implements.
type readTx interface {
	Bucket(name []byte) *bolt.Bucket
}

// txReader implements backend.UnsafeReader on top of a bbolt transaction.
type txReader struct{ tx readTx }

// UnsafeRange implements backend.UnsafeReader.
func (r txReader) UnsafeRange(of backend.Bucket, key, end []byte, limit int64) (keys, values [][]byte) {
	bucket := r.tx.Bucket(of.Name())
	if bucket == nil {
		return nil, nil
	}
	if end == nil {
		if value := bucket.Get(key); value != nil {
			return [][]byte{key}, [][]byte{value}
		}
		return nil, nil
	}
	cursor := bucket.Cursor()
	for k, v := cursor.Seek(key); k != nil && bytes.Compare(k, end) < 0; k, v = cursor.Next() {
		keys, values = append(keys, k), append(values, v)
		if limit > 0 && int64(len(keys)) == limit {
			break
		}
	}
	return keys, values
}

// UnsafeForEach implements backend.UnsafeReader.
func (r txReader) UnsafeForEach(of backend.Bucket, visit func(key, value []byte) error) error {
	bucket := r.tx.Bucket(of.Name())
	if bucket == nil {
		return nil
	}
	return bucket.ForEach(visit)
}
