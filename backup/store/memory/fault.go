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
	Put    Op = "put"
	Get    Op = "get"
	List   Op = "list"
	Delete Op = "delete"
)

// Call is one use of the store.
type Call struct {
	Op   Op
	Name string // of the object, or the prefix of a listing
}

// Fault is something that goes wrong. Of those that fit a call, the first one that was injected and is not used up happens.
type Fault struct {
	Op     Op     // Any means all
	Prefix string // of the names that it happens to; empty means all
	After  int    // so many calls that it could happen to are spared
	Times  int    // how often it happens; 0 means always

	Err       error         // is the answer; it may be nil with any of the following
	ReplyLost bool          // what was asked for is done all the same
	Hang      bool          // no answer comes until the context ends
	Delay     time.Duration // the answer comes late
	Cut       int64         // Get: after so many bytes, not 0, the connection is lost
	Overwrite bool          // Put: create-if-absent is ignored

	Hides func(name string) bool // List: which objects are left out
	First func()                 // Put: is called before the content is read
	Then  func()                 // Get and List: is called once the answer is settled, which it does not change
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

// Heal removes all faults.
func (s *Store) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Calls returns what was asked so far.
func (s *Store) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Call(nil), s.calls...)
}

// Asked counts the calls of an operation so far whose name, or prefix of a listing, begins so.
func (s *Store) Asked(op Op, prefix string) (times int) {
	for _, call := range s.Calls() {
		if (op == Any || op == call.Op) && strings.HasPrefix(call.Name, prefix) {
			times++
		}
	}
	return times
}

// begin notes a call and uses a fault up.
func (s *Store) begin(op Op, name string) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, Call{Op: op, Name: name})
	for _, fault := range s.faults {
		if fault.Times != 0 && (fault.Op == Any || fault.Op == op) && strings.HasPrefix(name, fault.Prefix) {
			if fault.After > 0 {
				fault.After--
				continue
			}
			fault.Times--
			copied := *fault
			return &copied
		}
	}
	return &Fault{}
}

// before is what happens to the request.
func (f *Fault) before(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if f.ReplyLost {
		return nil
	}
	return f.happen(ctx)
}

// after is what happens to the reply.
func (f *Fault) after(ctx context.Context) error {
	if !f.ReplyLost {
		return nil
	}
	return f.happen(ctx)
}

func (f *Fault) happen(ctx context.Context) error {
	if f.Hang {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
	return f.Err
}

// hides tells whether a listing leaves an object out.
func (f *Fault) hides(name string) bool { return f.Hides != nil && f.Hides(name) }

// answered ends a call.
func (f *Fault) answered() {
	if f.Then != nil {
		f.Then()
	}
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

// The answers that stores give in trouble.
var (
	ErrConflict    error = &store.Unavailable{Cause: errors.New("HTTP status 409 (ConditionalRequestConflict)")}
	ErrThrottled   error = &store.Unavailable{Cause: errors.New("HTTP status 429"), After: time.Second}
	ErrServerError error = &store.Unavailable{Cause: errors.New("HTTP status 500")}
	ErrOverloaded  error = &store.Unavailable{Cause: errors.New("HTTP status 503 (SlowDown)")}
	ErrLostReply   error = &store.Unavailable{Cause: errors.New("connection lost")}
	ErrUnreachable error = &store.Unavailable{Cause: errors.New("dial tcp: connection refused")}
	ErrExpired           = fmt.Errorf("HTTP status 400 (ExpiredToken): %w", store.ErrDenied)
	ErrDenied            = fmt.Errorf("HTTP status 403 (AccessDenied): %w", store.ErrDenied)
	ErrNoBucket          = fmt.Errorf("HTTP status 404 (NoSuchBucket): %w", store.ErrNoBucket)
	ErrLocked            = fmt.Errorf("HTTP status 403 (ObjectLocked): %w", store.ErrLocked)
	ErrSkewed            = fmt.Errorf("HTTP status 403 (RequestTimeTooSkewed): %w by 1h0m0s", store.ErrSkewed)
	ErrExists            = fmt.Errorf("HTTP status 412 (PreconditionFailed): %w", store.ErrExists)
)
