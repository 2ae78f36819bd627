// Package memory is an in-memory store for tests, with scripted faults.
package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"etcd-wrapper/backup/store"
)

// Store is an in-memory store, initially empty.
type Store struct {
	// Now returns the creation time of objects; nil means time.Now.
	Now func() time.Time

	mu      sync.Mutex
	objects map[string]object
	names   []string // sorted names of objects
	faults  []*Fault
	calls   []Call
}

type object struct {
	content  []byte
	modified time.Time
}

// New returns an empty store without faults.
func New() *Store { return &Store{objects: map[string]object{}} }

// String implements store.Store.
func (s *Store) String() string { return "memory://test/" }

// Put implements store.Store.
func (s *Store) Put(ctx context.Context, name string, content io.Reader) error {
	fault, err := s.begin(ctx, Put, name)
	if err != nil {
		return err
	}
	read, err := io.ReadAll(store.ContextReader{Context: ctx, Reader: content})
	if err != nil {
		return err
	}
	if !s.create(name, read, fault.Overwrite) {
		return fmt.Errorf("cannot create %s in %s: %w", name, s, store.ErrExists)
	}
	return s.loseReply(ctx, fault, Put, name)
}

// create stores an object and returns true, unless the object exists and overwrite is false.
func (s *Store) create(name string, content []byte, overwrite bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, exists := slices.BinarySearch(s.names, name)
	switch {
	case !exists:
		s.names = slices.Insert(s.names, i, name)
	case !overwrite:
		return false
	}
	now := time.Now
	if s.Now != nil {
		now = s.Now
	}
	s.objects[name] = object{content: content, modified: now()}
	return true
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	fault, err := s.begin(ctx, Get, name)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	found, exists := s.objects[name]
	s.mu.Unlock()
	defer call(fault.Then)
	if !exists {
		return nil, fmt.Errorf("cannot read %s in %s: %w", name, s, store.ErrNotFound)
	}
	content := found.content[min(offset, int64(len(found.content))):]
	if length >= 0 {
		content = content[:min(length, int64(len(content)))]
	}
	return io.NopCloser(store.ContextReader{Context: ctx, Reader: fault.cut(bytes.NewReader(content))}), nil
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	if err := store.CheckPrefix(prefix, after); err != nil {
		return store.Failed(err)
	}
	return func(yield func(store.Object, error) bool) {
		fault, err := s.begin(ctx, List, prefix)
		if err != nil {
			yield(store.Object{}, err)
			return
		}
		defer call(fault.Then)
		for _, object := range s.listing(prefix, after) {
			if ctx.Err() != nil {
				yield(store.Object{}, context.Cause(ctx))
				return
			}
			if hidden := fault.Hides != nil && fault.Hides(object.Name); !hidden && !yield(object, nil) {
				return
			}
		}
	}
}

func (s *Store) listing(prefix, after string) (found []store.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, _ := slices.BinarySearch(s.names, max(prefix, after))
	for _, name := range s.names[first:] {
		if !strings.HasPrefix(name, prefix) {
			break
		}
		if name > after {
			object := s.objects[name]
			found = append(found, store.Object{Name: name, Size: int64(len(object.content)), Modified: object.modified})
		}
	}
	return found
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, name string) error {
	fault, err := s.begin(ctx, Delete, name)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if i, exists := slices.BinarySearch(s.names, name); exists {
		s.names = slices.Delete(s.names, i, i+1)
		delete(s.objects, name)
	}
	s.mu.Unlock()
	return s.loseReply(ctx, fault, Delete, name)
}

// Clone returns a store with the same objects, but without faults or recorded calls.
func (s *Store) Clone() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Store{Now: s.Now, objects: maps.Clone(s.objects), names: slices.Clone(s.names)}
}

// Content returns the content of an object, bypassing faults.
func (s *Store) Content(name string) (content []byte, exists bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, exists := s.objects[name]
	return bytes.Clone(found.content), exists
}

// SetContent creates or replaces an object, bypassing faults. Tests use SetContent to simulate writes by another
// process.
func (s *Store) SetContent(name string, content []byte) {
	s.create(name, bytes.Clone(content), true)
}

// Op is a method of store.Store.
type Op string

// Methods of store.Store.
const (
	Any    Op = ""
	Put    Op = "create"
	Get    Op = "read"
	List   Op = "list"
	Delete Op = "delete"
)

// Call is a method call.
type Call struct {
	Op   Op
	Name string // object name, or prefix of a listing
}

// Fault describes a fault. A call triggers the first matching fault that has not been used up.
type Fault struct {
	Op     Op     // operation to match; Any matches all
	Prefix string // name prefix to match
	After  int    // number of matching calls to skip
	Times  int    // maximum number of matches; 0 means unlimited

	Err       error         // error to return; nil if only the fields below apply
	ReplyLost bool          // Put and Delete: take effect before Err is returned
	Hang      bool          // block until the context is done
	Delay     time.Duration // delay before the call returns
	Cut       int64         // Get: lose the connection after this many bytes; 0 means never
	Overwrite bool          // Put: overwrite an existing object

	Hides func(name string) bool // List: reports whether to omit an object
	First func()                 // called before the call takes effect
	Then  func()                 // called when Get or List ends, or when another call fails
}

// Inject adds faults.
func (s *Store) Inject(faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fault := range faults {
		if fault.Times == 0 {
			fault.Times = -1
		}
		s.faults = append(s.faults, &fault)
	}
}

// ClearFaults removes all faults.
func (s *Store) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Calls returns all calls so far.
func (s *Store) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Call(nil), s.calls...)
}

// CountCalls returns the number of calls of an operation whose names start with prefix.
func (s *Store) CountCalls(op Op, prefix string) (times int) {
	for _, call := range s.Calls() {
		if (op == Any || op == call.Op) && strings.HasPrefix(call.Name, prefix) {
			times++
		}
	}
	return times
}

// begin records a call and returns the fault that the call triggers. The error is not nil if the call must not take
// effect: the name is invalid, ctx is done, or the fault prevents the call.
func (s *Store) begin(ctx context.Context, op Op, name string) (Fault, error) {
	if op != List {
		if err := store.CheckName(name); err != nil {
			return Fault{}, err
		}
	}
	fault := s.take(op, name)
	call(fault.First)
	err := context.Cause(ctx)
	if err == nil && !fault.ReplyLost {
		err = fault.apply(ctx)
	}
	if err != nil {
		call(fault.Then)
	}
	return fault, s.failed(op, name, err)
}

// loseReply returns the error of a fault whose call takes effect despite the error (ReplyLost), or nil for any other
// fault.
func (s *Store) loseReply(ctx context.Context, fault Fault, op Op, name string) error {
	if !fault.ReplyLost {
		return nil
	}
	return s.failed(op, name, fault.apply(ctx))
}

func (s *Store) failed(op Op, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case op == List:
		return fmt.Errorf("cannot list objects in %s: %w", s, err)
	default:
		return fmt.Errorf("cannot %s %s in %s: %w", op, name, s, err)
	}
}

// take records a call and returns the fault that the call triggers, or an empty Fault.
func (s *Store) take(op Op, name string) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, Call{Op: op, Name: name})
	for _, fault := range s.faults {
		if fault.Times == 0 || fault.Op != Any && fault.Op != op || !strings.HasPrefix(name, fault.Prefix) {
			continue
		}
		if fault.After == 0 {
			fault.Times--
			return *fault
		}
		fault.After--
	}
	return Fault{}
}

func call(f func()) {
	if f != nil {
		f()
	}
}

func (f *Fault) apply(ctx context.Context) error {
	if f.Hang {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if f.Delay > 0 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(f.Delay):
		}
	}
	return f.Err
}

func (f *Fault) cut(content io.Reader) io.Reader {
	if f.Cut == 0 {
		return content
	}
	return io.MultiReader(io.LimitReader(content, f.Cut), broken{})
}

type broken struct{}

func (broken) Read([]byte) (int, error) {
	return 0, &store.Unavailable{Cause: errors.New("connection lost")}
}

// Errors of the types that real stores return.
var (
	ErrConflict    error = &store.Unavailable{Cause: errors.New("HTTP status 409 (ConditionalRequestConflict)")}
	ErrThrottled   error = &store.Unavailable{Cause: errors.New("HTTP status 429"), After: time.Second}
	ErrServerError error = &store.Unavailable{Cause: errors.New("HTTP status 500")}
	ErrLostReply   error = &store.Unavailable{Cause: errors.New("connection lost")}
	ErrUnreachable error = &store.Unavailable{Cause: errors.New("dial tcp: connection refused")}
	ErrExpired           = fmt.Errorf("HTTP status 400 (ExpiredToken): %w", store.ErrDenied)
	ErrDenied            = fmt.Errorf("HTTP status 403 (AccessDenied): %w", store.ErrDenied)
	ErrNoBucket          = fmt.Errorf("HTTP status 404 (NoSuchBucket): %w", store.ErrNoBucket)
	ErrLocked            = fmt.Errorf("HTTP status 403 (ObjectLocked): %w", store.ErrLocked)
	ErrSkewed            = fmt.Errorf("HTTP status 403 (RequestTimeTooSkewed): %w of 1h0m0s", store.ErrSkewed)
	ErrExists            = fmt.Errorf("HTTP status 412 (PreconditionFailed): %w", store.ErrExists)
)
