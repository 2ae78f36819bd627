package archive

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/errgroup"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// Errors for errors.Is, in addition to those of packages store and format: store.ErrNotFound for a missing object,
// format.ErrDamaged and format.ErrUntrusted for one that cannot be verified. The message names the object.
var (
	// ErrForeign reports that something belongs to another cluster.
	ErrForeign = errors.New("another cluster's")
	// ErrNotKept reports that a target cannot be restored; the message lists what can.
	ErrNotKept = errors.New("not kept")
	// ErrHole reports that segments do not follow one another.
	ErrHole = errors.New("the chain has a hole")
	// ErrNameless reports that the newest generation has backups and no generation.json. Continuing from the
	// generation before would lose them. It wraps format.ErrDamaged.
	ErrNameless = fmt.Errorf("%w: it is missing, although there are backups below it", format.ErrDamaged)
	// ErrUnsigned reports that the backups are signed, and that this process has no key to sign with: readers that
	// require signatures would stop at its first object.
	ErrUnsigned = errors.New("signed, and what this process writes would not be, as --backup-signing-key is not given")
)

// NotVerified reports whether the content that was read is wrong, as opposed to reading having failed.
func NotVerified(err error) bool {
	return errors.Is(err, format.ErrDamaged) || errors.Is(err, format.ErrUntrusted) || errors.Is(err, ErrForeign)
}

// Unusable reports whether an object is missing, cannot be verified, or has parts that do not follow one another.
// Other errors mean that it could not be read.
func Unusable(err error) bool {
	return NotVerified(err) || errors.Is(err, ErrHole) || errors.Is(err, store.ErrNotFound)
}

// An Archive reads and writes the backups in a store. It creates each name once, and deletes nothing but a segment that it
// has stored too late.
type Archive struct{ *Reader }

// New returns the archive in a store. It makes no request.
func New(s store.Store, keys *format.Keys) *Archive {
	known, _ := lru.New[string, lastRead](maxCached) // fails only for sizes below 1
	return &Archive{&Reader{objectStore: objectStore{s, keys, known}}}
}

// A Reader reads the backups in a store. Its methods make requests, and may be called from any goroutine.
type Reader struct {
	objectStore
	endings sync.Map // of the generations that were seen to have ended
}

// An objectStore reads the objects of an archive one by one.
type objectStore struct {
	store store.Store
	keys  *format.Keys
	cache *lru.Cache[string, lastRead]
}

// Store returns the store that holds the archive.
func (r *objectStore) Store() store.Store { return r.store }

// Keys returns the keys that statements are signed, and data encrypted, with.
func (r *objectStore) Keys() *format.Keys { return r.keys }

// String returns the store's URL.
func (r *objectStore) String() string { return r.store.String() }

// readStatement reads an object that consists of a statement, and returns its line.
func (r *objectStore) readStatement(ctx context.Context, name, kind string, into any) ([]byte, error) {
	content, err := r.store.Get(ctx, name, 0, format.MaxLine+1)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	buffered := bufio.NewReader(content)
	line, err := format.ReadLine(buffered)
	if format.Ended(err) {
		err = fmt.Errorf("%w: it is empty", format.ErrDamaged)
	}
	if err == nil {
		err = r.keys.Check(line, kind, into)
	}
	if err == nil {
		if _, more := buffered.ReadByte(); !format.Ended(more) {
			err = errors.Join(more, format.ErrDamaged)
		}
	}
	return line, r.wrapName(name, err)
}

// putStatement creates an object that consists of a statement.
func (a *Archive) putStatement(ctx context.Context, name string, statement any) error {
	line, err := a.keys.Sign(statement)
	if err != nil {
		return fmt.Errorf("cannot sign %s: %w", name, err)
	}
	_, err = store.PutOnce(ctx, a.store, name, bytes.NewReader(line))
	return err
}

// newHeader returns the heading of a statement.
func newHeader(kind string) format.Heading { return format.Heading{Format: format.Format, Kind: kind} }

// wrapName adds the name of the object to an error.
func (r *objectStore) wrapName(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s in %s: %w", name, r.store, err)
}

// mismatchError reports that the content of an object does not match its name.
func (r *objectStore) mismatchError(name string) error {
	return r.wrapName(name, fmt.Errorf("%w: its content does not match its name", format.ErrDamaged))
}

// otherClusterError reports that an object belongs to another cluster.
func (r *objectStore) otherClusterError(name, of, instead string) error {
	return fmt.Errorf("%s in %s is %w: of cluster %s instead of %s", name, r.store, ErrForeign, of, instead)
}

// selectError returns the first of two errors that is not nil, but prefers missing trust: the object need not be
// damaged.
func selectError(a, b error) error {
	if errors.Is(b, format.ErrUntrusted) && !errors.Is(a, format.ErrUntrusted) {
		return b
	}
	return cmp.Or(a, b)
}

// MaxTime returns the later of two times.
func MaxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// A Fault is an error about an object that is missing or cannot be verified.
type Fault struct {
	Object string          // name; empty if no object exists there
	From   format.Position // position up to which everything was read; zero for a full snapshot
	Err    error
}

// Error implements error.
func (f *Fault) Error() string { return f.Err.Error() }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Err }

// asFault turns an error into a Fault if it is about the content of the store and not about reaching it.
func asFault(err error, object string, from format.Position) error {
	if Unusable(err) {
		return &Fault{Object: object, From: from, Err: err}
	}
	return err
}

// faultList are the objects that a path must avoid.
type faultList []*Fault

// add returns the list with one more; false if it was included already.
func (f faultList) add(fault *Fault) (faultList, bool) {
	known := slices.ContainsFunc(f, func(o *Fault) bool { return o.Object == fault.Object && o.From == fault.From })
	return append(slices.Clone(f), fault), !known
}

// errorOf returns why an object is unusable; nil if nothing is known.
func (f faultList) errorOf(object string) error {
	if i := slices.IndexFunc(f, func(o *Fault) bool { return o.Object == object }); i >= 0 {
		return f[i].Err
	}
	return nil
}

// Origin is the first position of a generation that a restore has created and that has no full snapshot yet.
var Origin = format.Position{Revision: 1}

// A lastRead is the last manifest of an object, or why it cannot be verified. Objects never change, and a replaced one
// has another size or time.
type lastRead struct {
	manifest *format.Manifest
	err      error
}

// maxCached limits the objects for which that is cached.
const maxCached = 1 << 15

// maxParallel limits the manifests that are read in parallel.
const maxParallel = 8

// forEach calls do for 0 to n-1, some of them in parallel, and returns the first error.
func forEach(n int, do func(int) error) error {
	var group errgroup.Group
	group.SetLimit(maxParallel)
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	return group.Wait()
}
