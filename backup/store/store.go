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
	Name     string    // relative to the prefix of the store
	Size     int64     // bytes
	Modified time.Time // creation time by the store's clock
}

// Store keeps objects. It is safe for concurrent use, by several processes on several machines too.
//
// An object is complete or absent, and is never overwritten. That holds at every instant, even if a writer is killed or cut off.
//
// Every method requires names that pass [CheckName], and rejects others before it sends a request. Errors wrap those of this
// package where one fits. They name the object and the store, and contain nothing that a server wrote, and no secret.
//
// Every method returns soon after its context ends, and on its own when no byte has moved for a minute, or for 10 s while it creates
// a small object. It repeats a request a few times within seconds where that is safe; longer retries are up to the caller. A folder
// is the exception: a file system that hangs cannot be interrupted, so never call a store from a goroutine that serves requests.
type Store interface {
	// Put creates an object from content, which it reads to io.EOF in bounded memory. If the object exists, it stays as it is and
	// Put returns ErrExists. If content returns an error, Put returns it and creates nothing.
	//
	// After ErrUnavailable, or if the context ends, the object may or may not exist, or may still be created by a request in
	// flight. PutOnce finds out.
	Put(ctx context.Context, name string, content io.Reader) error

	// Get reads length bytes from offset; a negative length reads to the end. Beyond the end there is nothing to read: the reader
	// ends early. If the object does not exist, Get returns ErrNotFound. The reader is valid as long as ctx, must be closed and is not
	// safe for concurrent use. It returns io.EOF only after all that was promised; a lost connection is ErrUnavailable.
	Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error)

	// List yields the objects whose names have the prefix and sort after the name after, in byte order, page by page. Both may be
	// empty or parts of a name. An object that is created or deleted meanwhile may be missing or listed. Names that CheckName
	// rejects are skipped. An error comes last.
	List(ctx context.Context, prefix, after string) iter.Seq2[Object, error]

	// Delete removes an object. An object that does not exist is not an error. ErrLocked means that it may not be removed yet.
	Delete(ctx context.Context, name string) error

	// String returns the URL of the store without query and secrets.
	String() string
}

// Sweeper is a store in which interrupted uploads leave remains. They are invisible but take space.
type Sweeper interface {
	// Sweep removes remains that are too old to belong to a slow writer. It is safe for concurrent use by several processes. Once
	// at start and once a day is enough.
	Sweep(ctx context.Context) (removed int, err error)
}

// Sweep removes the remains of interrupted uploads from stores that can have them.
func Sweep(ctx context.Context, s Store) (removed int, err error) {
	if sweeper, ok := s.(Sweeper); ok {
		return sweeper.Sweep(ctx)
	}
	return 0, nil
}
