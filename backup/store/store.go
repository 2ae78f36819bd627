// Package store is what backups need of the place where they are kept: objects that are created once, read, listed and
// deleted. Folder, s3, gcs and azblob below it are the places; locate opens one from the URL of --backup-store.
package store

import (
	"context"
	"io"
	"iter"
	"time"
)

// Object is an entry of a listing.
type Object struct {
	Name     string    // relative to the store's prefix
	Size     int64     // bytes
	Modified time.Time // when it was created, by the store's clock
}

// Store is where backups are kept. Its methods may be called from any goroutine, also for one name at once, and by several
// processes on several machines.
//
// An object is complete or absent, and is never overwritten. That holds at every instant, whoever is killed or cut off.
//
// Every method takes names that pass [CheckName]; others are refused before anything is asked. Errors wrap the sentinels of
// this package where one fits, and name the object and the store, never what a server wrote, nor a secret.
//
// Every method returns soon after its context ends, and by itself when nothing has moved for a minute, or for 10 s while it creates a
// small object. It repeats a request
// a few times within seconds where that is safe; waiting longer and asking again is the caller's business. The folder is the
// exception: a file system that hangs cannot be interrupted, so never call a store from a goroutine that serves.
type Store interface {
	// Put creates an object with everything that content holds until io.EOF, in bounded memory, whatever its length. If there
	// is one of that name, it stays as it is and the error is ErrExists. If content returns an error, Put returns it, and
	// nothing is created.
	//
	// ErrUnavailable leaves open whether the object was created, or will still be by a request that is on its way, and so does
	// the end of the context. PutOnce finds out.
	Put(ctx context.Context, name string, content io.Reader) error

	// Get reads length bytes from offset on, both in bytes; a negative length reads to the end. What lies beyond the end is
	// not there: the reader then ends early, perhaps at once. An object that is absent is ErrNotFound. The reader belongs to
	// one goroutine, lives as long as ctx and must be closed. It returns io.EOF only if all that was promised was read;
	// a connection that was lost is ErrUnavailable.
	Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error)

	// List yields the objects whose names begin with prefix and come after the name after, in the order of the bytes of their
	// names, a page at a time. Both may be empty, and neither has to be a whole name. An object that was created or deleted
	// meanwhile may be missing or listed. What somebody else put there under a name that CheckName refuses is left out.
	// An error comes last.
	List(ctx context.Context, prefix, after string) iter.Seq2[Object, error]

	// Delete removes an object; one that is absent is no error. ErrLocked says that it may not be removed yet.
	Delete(ctx context.Context, name string) error

	// String names the place for people, as a URL without query and without a secret.
	String() string
}

// Sweeper is a store that can be left with remains of uploads that were cut off. They are invisible, but cost space.
type Sweeper interface {
	// Sweep removes what is older than a writer can be slow, and says how many it removed. It may be called at any time, by
	// several processes at once; once at start and once a day is enough.
	Sweep(ctx context.Context) (removed int, err error)
}

// Sweep removes the remains of uploads that were cut off, where the store leaves that to its user.
func Sweep(ctx context.Context, s Store) (removed int, err error) {
	if sweeper, ok := s.(Sweeper); ok {
		return sweeper.Sweep(ctx)
	}
	return 0, nil
}
