package maintenance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Gate keeps those who read the whole database apart from its defragmentation. That holds every lock of the database while it
// waits for open read transactions to end, so that one reader which takes its time, such as a snapshot that its client does not
// fetch, would stop all reads and writes of the member.
//
// Whoever holds a read transaction for longer than a request says so with Begin: a client's snapshot, a backup, a verification.
// Whoever defragments asks with Close. Any number of readers may be inside at once. The zero Gate is open. Its methods may be
// called from any goroutine.
type Gate struct {
	mu      sync.Mutex
	readers []*Reader
	closed  *closing // nil while the gate is open
}

// Reader is somebody who reads the whole database.
type Reader struct {
	Name  string // a noun, such as "the snapshot for 10.0.0.7:40312"
	Since time.Time
}

// closing is one time that the gate is closed.
type closing struct {
	why  string
	over chan struct{}
}

// BusyError is why the gate could not be closed. It is a sentence that says what to wait for.
type BusyError struct {
	Readers []Reader // those inside, the first comer first; empty if somebody else has closed the gate
	Closed  string   // why it is closed, if it is
}

// Error implements error.
func (e *BusyError) Error() string {
	if e.Closed != "" {
		return e.Closed + " is under way: wait for its end"
	}
	names := make([]string, len(e.Readers))
	for i, reader := range e.Readers {
		names[i] = fmt.Sprintf("%s (since %s)", reader.Name, reader.Since.UTC().Format("15:04:05Z"))
	}
	return "the database is being read: wait for the end of " + strings.Join(names, " and ")
}

// Begin lets a reader in, and waits while the gate is closed. what is a noun. The reader must call end, which may be called
// again, once its read transaction is closed, and must not wait for a network before that if it can help it. The error says
// what was waited for when ctx ended.
func (g *Gate) Begin(ctx context.Context, what string) (end func(), err error) {
	for {
		reader, closed := g.enter(what)
		if closed == nil {
			return sync.OnceFunc(func() { g.leave(reader) }), nil
		}
		select {
		case <-closed.over:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s had to wait for %s, and gave up: %w", what, closed.why, ctx.Err())
		}
	}
}

func (g *Gate) enter(what string) (*Reader, *closing) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		return nil, g.closed
	}
	reader := &Reader{Name: what, Since: time.Now()}
	g.readers = append(g.readers, reader)
	return reader, nil
}

func (g *Gate) leave(reader *Reader) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.readers = slices.DeleteFunc(g.readers, func(r *Reader) bool { return r == reader })
}

// Close closes the gate if nobody is inside and it is open, and never waits. why is a noun, such as "a defragmentation".
// The caller must call open, which may be called again. The error is a *BusyError.
func (g *Gate) Close(why string) (open func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed != nil:
		return nil, &BusyError{Closed: g.closed.why}
	case len(g.readers) > 0:
		return nil, &BusyError{Readers: g.inside()}
	}
	g.closed = &closing{why: why, over: make(chan struct{})}
	return sync.OnceFunc(g.open), nil
}

func (g *Gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.closed.over)
	g.closed = nil
}

// Inside are the readers that are inside now, the first comer first.
func (g *Gate) Inside() []Reader {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inside()
}

func (g *Gate) inside() (readers []Reader) {
	for _, reader := range g.readers {
		readers = append(readers, *reader)
	}
	return readers
}
