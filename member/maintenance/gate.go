package maintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"etcd-wrapper/member/state"
)

// Gate prevents defragmentations while the whole database is being read, and vice versa. A defragmentation holds all
// locks of the database while it is waiting for open read transactions. A single slow reader, such as a snapshot
// that the client does not fetch, would therefore block all reads and writes of the member.
//
// Client snapshots, backups and verifications call Acquire, because they hold a read transaction for a long time. A
// defragmentation calls Close. Any number of readers may hold the Gate at the same time. The zero Gate is open. The
// methods of Gate are safe for concurrent use.
type Gate struct {
	mu      sync.Mutex
	readers []*state.DatabaseReader
	closed  *period // nil while the gate is open
}

// describeReaders describes the readers for which a defragmentation must wait.
func describeReaders(readers []state.DatabaseReader) string {
	names := make([]string, len(readers))
	for i, reader := range readers {
		names[i] = fmt.Sprintf("%s (since %s)", reader.Name, reader.Since.UTC().Format("15:04:05Z"))
	}
	return "the database is being read: wait for " + strings.Join(names, " and ") + " to finish"
}

// Acquire admits a reader and blocks while the gate is closed. what describes the reader in a noun phrase. The
// reader must call end once its read transaction is closed, and should not wait for the network before that. end may
// be called more than once. If ctx is done first, the error contains the reason passed to Close.
func (g *Gate) Acquire(ctx context.Context, what string) (end func(), err error) {
	for {
		reader, closed := g.enter(what)
		if closed == nil {
			return sync.OnceFunc(func() { g.leave(reader) }), nil
		}
		select {
		case <-closed.over:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s gave up waiting for %s: %w", what, closed.why, ctx.Err())
		}
	}
}

func (g *Gate) enter(what string) (*state.DatabaseReader, *period) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		return nil, g.closed
	}
	reader := &state.DatabaseReader{Name: what, Since: time.Now()}
	g.readers = append(g.readers, reader)
	return reader, nil
}

func (g *Gate) leave(reader *state.DatabaseReader) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.readers = slices.DeleteFunc(g.readers, func(r *state.DatabaseReader) bool { return r == reader })
}

// Close closes the gate if it is open and has no readers. Close never blocks. why is a noun phrase such as "a
// defragmentation". The caller must call open afterwards, and may do so more than once. The error describes what to
// wait for.
func (g *Gate) Close(why string) (open func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed != nil:
		return nil, fmt.Errorf("%s is in progress; wait for it to finish", g.closed.why)
	case len(g.readers) > 0:
		return nil, errors.New(describeReaders(g.inside()))
	}
	g.closed = &period{why: why, over: make(chan struct{})}
	return sync.OnceFunc(g.open), nil
}

func (g *Gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.closed.over)
	g.closed = nil
}

// Inside returns the current readers, sorted by Since.
func (g *Gate) Inside() []state.DatabaseReader {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inside()
}

func (g *Gate) inside() (readers []state.DatabaseReader) {
	for _, reader := range g.readers {
		readers = append(readers, *reader)
	}
	return readers
}
