// Package store defines the storage that backups need: objects that are created once, read, listed and deleted. The
// packages folder, s3, gcs and azblob below it implement it, and locate opens a store for the URL in
// --backup-store.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"
)

// Object is an entry of a listing.
type Object struct {
	Name     string    // relative to the store's prefix
	Size     int64     // bytes
	Modified time.Time // creation time by the store's clock
}

// Store keeps objects. It is safe for concurrent use, by several processes on several machines too.
//
// An object is complete or absent, and is never overwritten. That holds at every instant, even if a writer is
// killed or cut off.
//
// Every method requires names that pass [CheckName], and rejects others before it sends a request. Errors wrap
// those of this package where one fits. They name the object and the store, and contain nothing that a server
// wrote, and no secret.
//
// Every method returns soon after its context ends, and on its own when no byte has moved for a minute, or for 10 s
// while it creates a small object. It repeats a request a few times within seconds where that is safe; longer
// retries are up to the caller. A folder is the exception: a file system that hangs cannot be interrupted, so never
// call a store from a goroutine that serves requests.
type Store interface {
	// Put creates an object from content, which it reads up to io.EOF in bounded memory. If the object exists, it
	// is not changed and Put returns ErrExists. If content returns an error, Put returns that error and creates
	// nothing.
	//
	// After ErrUnavailable, or if the context ends, the object may or may not exist, or may still be created by a
	// request in flight. PutOnce resolves this.
	Put(ctx context.Context, name string, content io.Reader) error

	// Get reads length bytes from offset; a negative length reads to the end. Reads beyond the end return fewer
	// bytes. If the object does not exist, Get returns ErrNotFound. The reader is valid as long as ctx, must be
	// closed and is not safe for concurrent use. It returns io.EOF only after all requested bytes; a lost
	// connection is reported as ErrUnavailable.
	Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error)

	// List yields the objects whose names have the prefix and sort after the name after, in byte order, page by
	// page. Both may be empty or parts of a name. An object that is created or deleted during the listing may or
	// may not be included. Names that CheckName rejects are skipped. An error ends the listing.
	List(ctx context.Context, prefix, after string) iter.Seq2[Object, error]

	// Delete removes an object. Deleting a missing object is not an error. ErrLocked means that the object may not
	// be removed yet.
	Delete(ctx context.Context, name string) error

	// String returns the URL of the store without query and secrets.
	String() string
}

// ContextReader returns the cause of its context once that is done.
type ContextReader struct {
	Context context.Context
	io.Reader
}

func (r ContextReader) Read(p []byte) (int, error) {
	if r.Context.Err() != nil {
		return 0, context.Cause(r.Context)
	}
	return r.Reader.Read(p)
}

// Sweeper is a store in which interrupted uploads leave remains, which are invisible but take up space.
type Sweeper interface {
	// Sweep removes remains that are too old to belong to a slow writer. It may be called concurrently by several
	// processes. Calling it at startup and once a day is sufficient.
	Sweep(ctx context.Context) (removed int, err error)
}

// Sweep removes the remains of interrupted uploads from stores that can have them.
func Sweep(ctx context.Context, s Store) (removed int, err error) {
	if sweeper, ok := s.(Sweeper); ok {
		return sweeper.Sweep(ctx)
	}
	return 0, nil
}

// Limits of names in bytes. Every store supports them, after a prefix of a few hundred bytes.
const (
	maxName    = 512
	maxSegment = 200
)

// CheckName returns an error unless name is the name of an object: segments separated by slashes, each of letters, digits and
// - . _ + = @, none starting with a dot. Such names mean the same in every store and every file system.
func CheckName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("object name of %d bytes: must have 1 to %d", len(name), maxName)
	}
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || len(segment) > maxSegment || segment[0] == '.' || strings.ContainsFunc(segment, isForbidden) {
			return fmt.Errorf("object name %q: %q is not 1 to %d letters, digits or -._+=@ without a leading dot",
				name, segment, maxSegment)
		}
	}
	return nil
}

// CheckPrefix returns an error unless prefix and after consist of characters that names may contain.
func CheckPrefix(prefix, after string) error {
	for _, part := range []string{prefix, after} {
		if len(part) > maxName || strings.ContainsFunc(strings.ReplaceAll(part, "/", ""), isForbidden) {
			return fmt.Errorf("listing of %q after %q: not a prefix of object names", prefix, after)
		}
	}
	return nil
}

func isForbidden(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._+=@", r)
}

// InOrder converts the listing of a server into that of a Store: it removes base from names, skips invalid names
// and names up to after, and fails if the listing is out of order, because a reader would miss objects. It is for
// implementations of Store.
func InOrder(listed iter.Seq2[Object, error], base, after string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		last := ""
		for object, err := range listed {
			if err != nil {
				yield(Object{}, err)
				return
			}
			name, ours := strings.CutPrefix(object.Name, base)
			if !ours || CheckName(name) != nil || name <= after {
				continue
			}
			if name <= last {
				yield(Object{}, fmt.Errorf("the store lists %s after %s: it cannot be used because its listings are out of order", name, last))
				return
			}
			object.Name, last = name, name
			if !yield(object, nil) {
				return
			}
		}
	}
}

// Failed returns a listing that yields only an error.
func Failed(err error) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) { yield(Object{}, err) }
}

// Errors about one object, for errors.Is.
var (
	// ErrExists is returned when an existing object is created again. The existing object is not changed.
	ErrExists = errors.New("object exists")
	// ErrNotFound is returned when a missing object is read from an existing bucket.
	ErrNotFound = errors.New("object not found")
	// ErrLocked is returned when an object under an object lock, a retention period or a legal hold is deleted.
	// Retry later.
	ErrLocked = errors.New("object is locked")
)

// A Failure is a reason why the store as a whole does not serve a request. Failures may end without any change on
// our side, so callers retry. Any other error, except for those about a single object, is a mistake in the request
// that a retry cannot fix.
type Failure string

// The failures. They are errors, so errors.Is finds them; FailureOf returns the one in an error.
const (
	// ErrDenied: credentials are missing, wrong or expired, or grant too little. They are read again for the next
	// request, since they may have been renewed.
	ErrDenied Failure = "permission denied"
	// ErrNoBucket: the bucket, container or folder does not exist.
	ErrNoBucket Failure = "bucket not found"
	// ErrUnavailable: the store is unreachable, overloaded, full or broken. RetryAfter returns the pause that it
	// asks for.
	ErrUnavailable Failure = "store unavailable"
	// ErrSkewed: the store refuses requests because this machine's clock differs too much from its own.
	ErrSkewed Failure = "clock differs from the store's"
)

// FailureOf returns the failure in err, or "" if err is nil or a different error. A deadline that passed during a
// request counts as ErrUnavailable.
func FailureOf(err error) Failure {
	if failure, ok := errors.AsType[Failure](err); ok {
		return failure
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return ErrUnavailable
	}
	return ""
}

// Error implements error.
func (f Failure) Error() string { return string(f) }

// NextStep returns what an operator can do about an error: the advice of the first error in its tree that offers
// any. An error with a NextStep method overrides the advice of the Failure that it wraps.
func NextStep(err error) string {
	type advisor interface {
		error
		NextStep() string
	}
	if advisor, ok := errors.AsType[advisor](err); ok {
		return advisor.NextStep()
	}
	return ""
}

// NextStep returns what an operator can do about the failure. Errors of the HTTP stores other than ErrUnavailable
// end with it.
func (f Failure) NextStep() string {
	switch f {
	case ErrDenied:
		return "check that the credentials are valid and grant access"
	case ErrNoBucket:
		return "create it, or correct --backup-store"
	case ErrSkewed:
		return "set this machine's clock"
	case ErrUnavailable:
		return "check that the store is running and can be reached from here"
	default:
		return ""
	}
}

// Unavailable is an ErrUnavailable with its cause.
type Unavailable struct {
	Cause error         // nil if unknown
	After time.Duration // pause that the store requests, or 0
}

// Error implements error.
func (u *Unavailable) Error() string {
	if u.Cause == nil {
		return ErrUnavailable.Error()
	}
	return fmt.Sprintf("%v: %v", ErrUnavailable, u.Cause)
}

// Unwrap returns ErrUnavailable and the cause.
func (u *Unavailable) Unwrap() []error {
	return []error{ErrUnavailable, u.Cause}
}

// RetryAfter returns the pause that the store requested, or 0.
func RetryAfter(err error) time.Duration {
	if unavailable, ok := errors.AsType[*Unavailable](err); ok {
		return unavailable.After
	}
	return 0
}
