package memory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"etcd-wrapper/backup/store"
)

// Op is a method of store.Store.
type Op string

// The methods.
const (
	Any    Op = ""
	Put    Op = "create"
	Get    Op = "read"
	List   Op = "list"
	Delete Op = "delete"
)

// Call is a call of a method.
type Call struct {
	Op   Op
	Name string // of the object, or the prefix of a listing
}

// Fault describes a failure. For each call, the first injected fault that matches and is not used up is applied.
type Fault struct {
	Op     Op     // Any means all
	Prefix string // of the names to match
	After  int    // number of matching calls that are spared
	Times  int    // how often it is applied; 0 means always

	Err       error         // the result; may be nil with the following
	ReplyLost bool          // the call takes effect anyway
	Hang      bool          // no result until the context ends
	Delay     time.Duration // the result is late
	Cut       int64         // Get: the connection is lost after this number of bytes, if not 0
	Overwrite bool          // Put: create-if-absent is ignored

	Hides func(name string) bool // List: objects to omit
	First func()                 // called before the call takes effect
	Then  func()                 // Get and List: called when the result is settled
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

// CountCalls counts the calls of an operation whose name or prefix starts with prefix.
func (s *Store) CountCalls(op Op, prefix string) (times int) {
	for _, call := range s.Calls() {
		if (op == Any || op == call.Op) && strings.HasPrefix(call.Name, prefix) {
			times++
		}
	}
	return times
}

// begin records a call, and returns its fault or the error that it causes before the call takes effect.
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

// loseReply returns the error that a fault causes after the call took effect.
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
		return fmt.Errorf("cannot list in %s: %w", s, err)
	default:
		return fmt.Errorf("cannot %s %s in %s: %w", op, name, s, err)
	}
}

// take returns the fault of a call.
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

// Errors as stores return them.
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
	ErrSkewed            = fmt.Errorf("HTTP status 403 (RequestTimeTooSkewed): %w by 1h0m0s", store.ErrSkewed)
	ErrExists            = fmt.Errorf("HTTP status 412 (PreconditionFailed): %w", store.ErrExists)
)
