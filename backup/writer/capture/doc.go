// Package capture reads what a backup needs from etcd's database: the rows of a range of revisions (Reader.ReadRows), the small
// buckets (leases, users, members), or a snapshot of the whole database (Reader.Snapshot).
//
// Each read uses one transaction of etcd's own kind, which is closed before anything is encoded or sent: a long transaction keeps etcd
// from reusing pages. OpenClosed reads the database file of an etcd that was closed in the same way, so that a stop can store the last
// writes. The package does not know where backups are stored or how they are encoded.
package capture

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/storage/backend"
)

// ErrCompacted reports that etcd was compacted beyond the requested revision: rows may be missing from there on, and only a full snapshot
// has the current keys.
var ErrCompacted = errors.New("etcd was compacted")

// ErrClosed reports that the database was closed or replaced during the read, as etcd does when it stops or installs a snapshot of the
// leader. Reading again may succeed.
var ErrClosed = errors.New("etcd's database was closed while it was read")

// A Reader reads the database of one etcd. Its methods may be called from any goroutine.
type Reader struct {
	database func() backend.Backend
	open     atomic.Int64
	closed   atomic.Pointer[backend.Backend] // a database that was found closed, in which a lock may be held forever
}

// NewReader returns a reader of the database that the function returns. It calls the function for each read, since etcd replaces its
// database when it installs a snapshot of the leader.
func NewReader(database func() backend.Backend) *Reader { return &Reader{database: database} }

// Open returns the number of open read transactions. Each of them keeps etcd from reusing the pages that it sees.
func (r *Reader) Open() int64 { return r.open.Load() }

// view calls read in one read transaction and returns how long it was open. read must copy what it keeps.
//
// The transaction is the concurrent one that etcd uses for range requests: it copies the list of rows that wait for the next commit
// (about 48 bytes a row, or nothing if another reader has just done so) and then holds no lock. ReadTx would block etcd's writers.
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

// openTx opens a transaction between two writes. While etcd holds this lock, readers may see the puts of a write without its deletions.
func openTx(database backend.Backend) backend.ReadTx {
	if batch := database.BatchTx(); batch != nil { // nil in a database that was closed
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

// recoverPanic turns a panic about a closed database into an error. No lock of etcd keeps the database open during a read. The panic leaves a
// lock in it held, so that database is never read again.
func (r *Reader) recoverPanic(database backend.Backend, err *error) {
	if cause := recover(); cause != nil {
		r.closed.Store(&database)
		*err = fmt.Errorf("%w: %v", ErrClosed, cause)
	}
}
