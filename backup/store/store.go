// Package store defines the object storage for backups. Objects can be created, read, listed and deleted, but not
// modified. The folder, s3, gcs and azblob packages implement Store, and the locate package opens the store for the
// URL in --backup-store.
package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
)

// Object is an entry in a listing.
type Object struct {
	Name     string    // name relative to the store's prefix
	Size     int64     // bytes
	Modified time.Time // creation time according to the store's clock
}

// Store is an object store. A Store is safe for concurrent use, and multiple processes on multiple machines may use
// the same storage.
//
// Objects are never overwritten and are always either complete or absent, even if a writer is killed or loses its
// connection.
//
// If a name does not pass [CheckName], methods return an error without sending a request. Where possible, errors
// wrap one of the errors that this package defines. Error messages contain the object and the store, but no secrets
// and no text from a server.
//
// Every method returns soon after its context is done, or if no data is transferred for a minute (10 seconds for
// creating a small object). Methods retry a request a few times within seconds if doing so is safe. Retrying for
// longer is up to the caller. Calls to a folder cannot be interrupted if the file system hangs, so a goroutine that
// serves requests must never call a store.
type Store interface {
	// Put creates an object from content, which is read up to io.EOF in bounded memory. If the object exists, Put
	// returns ErrExists and does not change the object. If reading content fails, Put returns that error and creates
	// nothing.
	//
	// After ErrUnavailable, or if the context is done, the object may exist, or a request that is still in progress
	// may create it. PutOnce resolves this ambiguity.
	Put(ctx context.Context, name string, content io.Reader) error

	// Get reads length bytes from offset, or everything from offset if length is negative. If the object is too
	// short, fewer bytes are returned. If the object does not exist, Get returns ErrNotFound. The reader is valid
	// until ctx is done, must be closed and is not safe for concurrent use. The reader returns io.EOF only after
	// all requested bytes, and ErrUnavailable if the connection is lost.
	Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error)

	// List yields the objects whose names start with prefix and sort after the name after, in byte order, page by
	// page. The arguments prefix and after may be empty, and need not be complete names. Objects that are created or
	// deleted during the listing may or may not be included. Names that do not pass CheckName are skipped. An error
	// ends the listing.
	List(ctx context.Context, prefix, after string) iter.Seq2[Object, error]

	// Delete deletes an object. If the object does not exist, Delete returns nil. If the object cannot be deleted
	// yet, Delete returns ErrLocked.
	Delete(ctx context.Context, name string) error

	// String returns the URL of the store without the query and secrets.
	String() string
}

// ContextReader is a reader that returns the cause of the context once the context is done.
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

// Sweeper is implemented by stores in which interrupted uploads leave invisible data that takes up space.
type Sweeper interface {
	// Sweep removes interrupted uploads that are too old to belong to a slow writer. Multiple processes may call
	// Sweep concurrently. Calling Sweep at startup and once a day is sufficient.
	Sweep(ctx context.Context) (removed int, err error)
}

// Sweep removes the data of interrupted uploads if the store is a Sweeper.
func Sweep(ctx context.Context, s Store) (removed int, err error) {
	if sweeper, ok := s.(Sweeper); ok {
		return sweeper.Sweep(ctx)
	}
	return 0, nil
}

// Maximum lengths in bytes that every store supports, even with a prefix of a few hundred bytes.
const (
	maxName    = 512
	maxSegment = 200
)

// CheckName returns an error unless name is a valid object name: segments separated by slashes, each consisting of
// letters, digits and - . _ + = @, and not starting with a dot. Valid names have the same meaning in every store and
// file system.
func CheckName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("invalid object name of %d bytes: the length must be 1 to %d", len(name), maxName)
	}
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || len(segment) > maxSegment || segment[0] == '.' || strings.ContainsFunc(segment, isForbidden) {
			return fmt.Errorf("invalid object name %q: segment %q must have 1 to %d letters, digits or -._+=@, and no leading dot",
				name, segment, maxSegment)
		}
	}
	return nil
}

// CheckPrefix returns an error unless prefix and after are short enough for a name and consist of characters that are
// valid in names. Either may be empty.
func CheckPrefix(prefix, after string) error {
	for _, part := range []string{prefix, after} {
		if len(part) > maxName || strings.ContainsFunc(strings.ReplaceAll(part, "/", ""), isForbidden) {
			return fmt.Errorf("cannot list %q after %q: each may have up to %d letters, digits or -._+=@/", prefix, after, maxName)
		}
	}
	return nil
}

func isForbidden(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._+=@", r)
}

// InOrder converts a server's listing to the listing of a Store. InOrder strips base from names, and skips invalid
// names and names up to and including after. If the listing is out of order, InOrder returns an error, because a
// reader would miss objects. Implementations of Store use InOrder.
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
				yield(Object{}, fmt.Errorf("the store cannot be used: it lists %s after %s, which is out of order", name, last))
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

// Errors about a single object, for use with errors.Is.
var (
	// ErrExists means that an object cannot be created because it exists. The existing object is not changed.
	ErrExists = errors.New("object exists")
	// ErrNotFound means that an object does not exist in an existing bucket.
	ErrNotFound = errors.New("object not found")
	// ErrLocked means that an object lock, a retention period or a legal hold prevents the deletion of an object.
	// Retry later.
	ErrLocked = errors.New("object is locked")
)

// A Failure is a reason why a store cannot serve requests. Callers retry after a Failure, because its cause may
// disappear without any change on the client side. Other errors, except errors about a single object, mean that the
// request is invalid, so a retry cannot succeed.
type Failure string

// Failures, for errors.Is and FailureOf.
const (
	// ErrDenied means that credentials are missing, invalid or expired, or do not grant access. Credentials are read
	// again for the next request, because they may have been renewed.
	ErrDenied Failure = "permission denied"
	// ErrNoBucket means that the bucket, container or folder does not exist.
	ErrNoBucket Failure = "bucket not found"
	// ErrUnavailable means that the store is unreachable, overloaded, full or broken. RetryAfter returns the pause
	// that the store requested, if any.
	ErrUnavailable Failure = "store unavailable"
	// ErrSkewed means that the store rejects requests because this machine's clock differs too much from the store's
	// clock.
	ErrSkewed Failure = "clock skew relative to the store"
)

// FailureOf returns the failure in err, or "" if there is none. If a deadline was exceeded during a request,
// FailureOf returns ErrUnavailable.
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

// NextStep returns the suggested next step for an error. The suggestion is taken from the first error in the error
// tree that has a NextStep method. An error that wraps a Failure may override the suggestion of the Failure.
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

// NextStep returns the suggested next step for the failure. Error messages of the HTTP stores end with the
// suggestion, except for ErrUnavailable.
func (f Failure) NextStep() string {
	switch f {
	case ErrDenied:
		return "check the credentials and their permissions"
	case ErrNoBucket:
		return "create the bucket or correct --backup-store"
	case ErrSkewed:
		return "correct this machine's clock"
	case ErrUnavailable:
		return "check that the store is running and reachable from this host"
	default:
		return ""
	}
}

// Unavailable is an ErrUnavailable with a cause.
type Unavailable struct {
	Cause error         // nil if unknown
	After time.Duration // pause requested by the store, or 0
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

// RetryAfter returns the pause requested by the store, or 0.
func RetryAfter(err error) time.Duration {
	if unavailable, ok := errors.AsType[*Unavailable](err); ok {
		return unavailable.After
	}
	return 0
}

// Digest holds the SHA-256 and size of some content.
type Digest struct {
	SHA256 [sha256.Size]byte
	Size   int64 // bytes
}

// PutOnce ensures that an object exists with exactly the given content, and returns the digest of the content. If the
// result of Put is ambiguous, PutOnce reads the object back and compares digests. After an error or a restart,
// callers may call PutOnce with the same content again until it succeeds.
//
// ErrExists means that another writer has created the object with different content. Any other error means that the
// object could not be created or could not be read back. After ErrUnavailable, a request that is still in progress
// may create the object.
func PutOnce(ctx context.Context, s Store, name string, content io.Reader) (Digest, error) {
	source := &source{content: content, hash: sha256.New()}
	err := s.Put(ctx, name, source)
	if err != nil && source.failed == nil && !errors.Is(err, ErrExists) && !errors.Is(err, ErrUnavailable) {
		return Digest{}, err
	}
	want, failed := source.digest()
	if failed != nil {
		return Digest{}, fmt.Errorf("cannot read the content for %s: %w", name, failed)
	}
	if err != nil {
		err = resolve(ctx, s, name, want, err)
	}
	return want, err
}

// resolve determines the outcome of a Put that returned an ambiguous error, by reading the object back. It returns
// nil if the object has the expected content, and ErrExists if it has different content.
func resolve(ctx context.Context, s Store, name string, want Digest, put error) error {
	stored, err := digestOf(ctx, s, name, want.Size)
	switch {
	case err == nil && stored == want:
		return nil
	case err == nil:
		return fmt.Errorf("%s in %s has different content: %w", name, s, ErrExists)
	case errors.Is(err, ErrNotFound) && errors.Is(put, ErrExists):
		return fmt.Errorf("%s in %s already exists but cannot be found; delete the object if this persists: %w", name, s, &Unavailable{})
	case errors.Is(err, ErrNotFound):
		return put
	case errors.Is(err, ErrUnavailable) && errors.Is(put, ErrUnavailable):
		return put // both errors have the same cause, so one is enough
	default:
		return fmt.Errorf("cannot determine who created %s in %s (%s): %w", name, s, put.Error(), err)
	}
}

// digestOf returns the digest of an object. It reads at most one byte more than the expected size, which is enough to
// detect a longer object.
func digestOf(ctx context.Context, s Store, name string, size int64) (Digest, error) {
	stored, err := s.Get(ctx, name, 0, size+1)
	if err != nil {
		return Digest{}, err
	}
	defer stored.Close()
	return (&source{content: stored, hash: sha256.New()}).digest()
}

// source hashes content as it is read, and records a read error so that PutOnce can distinguish it from an error of
// the store.
type source struct {
	content io.Reader
	hash    hash.Hash
	size    int64
	failed  error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.content.Read(p)
	s.hash.Write(p[:n])
	s.size += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed = err
	}
	return n, err
}

// digest returns the digest of the whole content. It reads the rest of the content first, because Put may have
// returned before reading all of it.
func (s *source) digest() (digest Digest, err error) {
	if s.failed == nil {
		_, _ = io.Copy(io.Discard, s) // Read records an error in s.failed
	}
	if s.failed != nil {
		return Digest{}, s.failed
	}
	s.hash.Sum(digest.SHA256[:0])
	digest.Size = s.size
	return digest, nil
}

const probeText = "Created by etcd-wrapper to check whether the store supports create-if-absent. Safe to delete.\n"

// Capabilities describes which features a store supports.
type Capabilities struct {
	// CreateIfAbsent means that the store refuses to create an existing object. A store that overwrites objects must
	// have a single writer, because two writers would overwrite each other's backups.
	CreateIfAbsent bool
	// Delete is nil if objects can be deleted, and otherwise an error that wraps ErrDenied or ErrLocked.
	Delete error
}

// String describes the capabilities in a form suitable for users.
func (a Capabilities) String() string {
	sentence := "the store supports create-if-absent: multiple members can write to it"
	if !a.CreateIfAbsent {
		sentence = "the store does not support create-if-absent and overwrites objects: only one member may write to it"
	}
	if a.Delete != nil {
		sentence += "; old backups cannot be deleted"
	}
	return sentence
}

// Probe checks whether the store is reachable and writable, and what it supports, by creating an object under probe/
// twice and deleting it. If Probe returns an error, the capabilities are not known.
func Probe(ctx context.Context, s Store) (Capabilities, error) {
	name := "probe/" + rand.Text()
	if _, err := PutOnce(ctx, s, name, bytes.NewReader([]byte(probeText))); err != nil {
		return Capabilities{}, fmt.Errorf("cannot probe %s: %w", s, err)
	}
	again := s.Put(ctx, name, bytes.NewReader([]byte("overwritten: "+probeText)))
	abilities := Capabilities{CreateIfAbsent: errors.Is(again, ErrExists), Delete: s.Delete(ctx, name)}
	if again != nil && !abilities.CreateIfAbsent {
		return Capabilities{}, fmt.Errorf("cannot probe %s: %w", s, again)
	}
	if abilities.Delete != nil && !errors.Is(abilities.Delete, ErrDenied) && !errors.Is(abilities.Delete, ErrLocked) {
		return Capabilities{}, fmt.Errorf("cannot probe %s: %w", s, abilities.Delete)
	}
	return abilities, nil
}

// clocks is the name prefix of the objects from which Clock reads the time.
const clocks = "probe/clock-"

// Clock returns the time according to the store's clock. Clock creates an object, reads the creation time from a
// listing, and deletes the object. Clock also deletes objects that are at least an hour old and that earlier calls
// could not delete, oldest first. ErrLocked ends the deletion without an error. If the deletion fails for any other
// reason, Clock returns both the time and an error.
func Clock(ctx context.Context, s Store) (now time.Time, err error) {
	name := clocks + rand.Text()
	if _, err := PutOnce(ctx, s, name, bytes.NewReader([]byte(probeText))); err != nil {
		return now, fmt.Errorf("cannot read the clock of %s: %w", s, err)
	}
	all := map[string]time.Time{}
	for object, err := range s.List(ctx, clocks, "") {
		if err != nil {
			return now, fmt.Errorf("cannot read the clock of %s: %w", s, err)
		}
		all[object.Name] = object.Modified
	}
	now, listed := all[name]
	if !listed {
		return now, fmt.Errorf("cannot read the clock of %s: %s: %w", s, name, ErrNotFound)
	}
	maps.DeleteFunc(all, func(other string, at time.Time) bool { return other != name && now.Sub(at) < time.Hour }) // a younger object may be in use
	for _, old := range slices.SortedFunc(maps.Keys(all), func(a, b string) int { return all[a].Compare(all[b]) }) {
		if err = s.Delete(ctx, old); err != nil {
			break // newer objects are probably locked too, or deletions are denied
		}
	}
	if err != nil && !errors.Is(err, ErrLocked) {
		return now, fmt.Errorf("cannot remove the object used to read the clock of %s: %w", s, err)
	}
	return now, nil
}

// Modified returns the creation time of an object according to the store's clock, or ErrNotFound.
func Modified(ctx context.Context, s Store, name string) (time.Time, error) {
	for object, err := range s.List(ctx, name, "") {
		if err != nil {
			return time.Time{}, err
		}
		if object.Name == name {
			return object.Modified, nil
		}
	}
	return time.Time{}, fmt.Errorf("%s: %w", name, ErrNotFound)
}
