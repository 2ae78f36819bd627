// Package capture reads out of a running etcd's database what a backup needs: the rows of a range of revisions, the small
// buckets beside them, or all of it. It reads beside etcd's own readers, in transactions that are closed before anything
// is encoded, waited for or sent, and knows neither where backups go nor what they look like.
package capture

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/storage/backend"
)

// GapError says that compaction has passed the revision that was asked for: rows from there on may be missing, and only
// the whole database tells what the keys are now.
type GapError struct {
	From      int64 // the first revision that was asked for
	Compacted int64 // the revision that etcd has compacted up to
}

// Error is for people.
func (e *GapError) Error() string {
	return fmt.Sprintf("etcd was compacted at revision %d before revision %d was captured", e.Compacted, e.From)
}

// ErrClosed says that the database was closed or replaced while it was read, as etcd does when it stops or takes over a
// leader's snapshot. Reading again may succeed.
var ErrClosed = errors.New("etcd's database was closed while it was read")

// Reader reads the database of one running etcd. Its methods may be called from any goroutine.
type Reader struct {
	database func() backend.Backend
	open     atomic.Int64
	closed   atomic.Pointer[backend.Backend] // found closed; a lock in it may be held for good
}

// NewReader returns the reader of the database that the function names. It is asked anew each time, since etcd replaces
// its database when it takes over a leader's snapshot.
func NewReader(database func() backend.Backend) *Reader { return &Reader{database: database} }

// Open says how many read transactions are open now. Each keeps etcd from reusing the pages that it sees.
func (r *Reader) Open() int64 { return r.open.Load() }

// view runs read inside of one read transaction and says how long that was open. What read keeps it must have copied.
//
// The transaction is etcd's concurrent one, as each of its own range requests takes: it copies the list of rows that wait
// for the next commit (some 48 bytes a row, nothing if another reader did so just before) and then holds no lock. The other
// one, ReadTx, would hold etcd's writers up for as long as it is read.
func (r *Reader) view(read func(tx backend.UnsafeReader)) (held time.Duration, err error) {
	r.open.Add(1)
	begun := time.Now()
	defer func() {
		r.open.Add(-1)
		held = time.Since(begun)
	}()
	database, err := r.current()
	if err != nil {
		return 0, err
	}
	defer r.survive(database, &err)
	tx := begin(database)
	defer tx.RUnlock()
	read(tx)
	return held, nil
}

// begin opens the transaction between two writes. etcd shows what a write puts before it has committed what the same write deletes,
// and holds this lock meanwhile.
func begin(database backend.Backend) backend.ReadTx {
	batch := database.BatchTx()
	batch.LockOutsideApply()
	defer batch.Unlock()
	return database.ConcurrentReadTx()
}

// current is the database of the moment.
func (r *Reader) current() (backend.Backend, error) {
	database := r.database()
	if closed := r.closed.Load(); closed != nil && *closed == database {
		return nil, ErrClosed
	}
	return database, nil
}

// survive makes an error of the panic that reading a closed database is. etcd has no lock that would keep it open, and
// leaves one held in it when it panics: so it is never read again.
func (r *Reader) survive(database backend.Backend, err *error) {
	if cause := recover(); cause != nil {
		r.closed.Store(&database)
		*err = fmt.Errorf("%w: %v", ErrClosed, cause)
	}
}
