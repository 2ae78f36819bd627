// Package ack implements --backup-ack=stored: etcd's replies wait until the store has confirmed every change that
// they depend on.
package ack

import (
	"context"
	"sync"
	"time"
)

// Validity is the time after the start of an upload during which the store counts as this cluster's. Another
// cluster takes the store over no earlier than 90 s after the last upload, so a member that cannot upload has
// stopped replying by then. An idle writer uploads every 40 s.
const Validity = time.Minute

// A Gate holds replies back until the store has confirmed the changes that they depend on. It starts closed. The
// writer of the backups calls Confirm. All methods may be called from any goroutine.
type Gate struct {
	wake chan struct{}    // signaled when a reply starts to wait
	wall func() time.Time // returns the wall-clock time, because the monotonic clock stops while a machine is suspended

	mu       sync.Mutex
	revision int64     // last stored revision; 0 while the gate is closed
	until    time.Time // end of the validity of the last upload
	requests uint64    // number of calls of WaitAll
	complete uint64    // number of answered calls of WaitAll
	err      error     // why nothing will be confirmed anymore
	changed  chan struct{}
}

// NewGate returns a closed gate.
func NewGate() *Gate {
	wall := func() time.Time { return time.Now().Round(0) }
	return &Gate{wake: make(chan struct{}, 1), wall: wall, changed: make(chan struct{})}
}

// Wait returns nil once the store has a revision, or an error if ctx or the gate has ended.
func (g *Gate) Wait(ctx context.Context, revision int64) error {
	return g.wait(ctx, func() bool { return g.revision >= revision })
}

// WaitAll returns nil once the store has all changes that precede the call, including those without a revision,
// such as leases and users.
func (g *Gate) WaitAll(ctx context.Context) error {
	g.mu.Lock()
	g.requests++
	request := g.requests
	g.mu.Unlock()
	return g.wait(ctx, func() bool { return g.complete >= request })
}

func (g *Gate) wait(ctx context.Context, stored func() bool) error {
	for {
		g.mu.Lock()
		passes, err, changed := g.isOpen() && stored(), g.err, g.changed
		g.mu.Unlock()
		if err != nil || passes {
			return err
		}
		select {
		case g.wake <- struct{}{}:
		default:
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// isOpen reports whether the store is known to be this cluster's. The caller holds the lock.
func (g *Gate) isOpen() bool {
	return g.revision > 0 && time.Now().Before(g.until) && g.wall().Before(g.until.Round(0))
}

// IsOpen reports whether replies that depend on no new change pass.
func (g *Gate) IsOpen() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.isOpen()
}

// Revision returns the last confirmed revision; 0 if there is none.
func (g *Gate) Revision() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.revision
}

// Wake returns a channel that receives when a reply has started to wait.
func (g *Gate) Wake() <-chan struct{} {
	if g == nil {
		return nil
	}
	return g.wake
}

// Requests returns the number of the last call of WaitAll. A read of etcd after Requests sees everything that this
// call waits for.
func (g *Gate) Requests() uint64 {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.requests
}

// Confirm sets the last revision in the store and the last call of WaitAll that is answered. A lower revision than
// before means that the store has lost revisions. uploaded is when the first attempt of the last successful upload
// started.
func (g *Gate) Confirm(revision int64, request uint64, uploaded time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	until := uploaded.Add(Validity)
	if revision == g.revision && request <= g.complete && until.Equal(g.until) {
		return
	}
	g.revision, g.complete, g.until = revision, max(g.complete, request), until
	g.announce()
}

// Close ends all waits, present and future, with an error.
func (g *Gate) Close(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
	g.announce()
}

func (g *Gate) announce() {
	close(g.changed)
	g.changed = make(chan struct{})
}
