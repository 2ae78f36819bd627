// Package ack implements --backup-ack=stored: each of etcd's replies is delayed until the store has all changes that
// the reply depends on.
package ack

import (
	"context"
	"sync"
	"time"
)

// Validity is the period, from the start of an upload, during which the store is known to belong to this cluster. A
// restore takes over a store no earlier than 90s after the last upload, so a member that cannot upload stops replying
// before another cluster continues its data. An idle writer uploads every 40s to keep the gate open.
const Validity = time.Minute

// A Gate delays each reply until the store has the changes that the reply depends on. A new Gate is closed until the
// writer calls Confirm. All methods are safe for concurrent use.
type Gate struct {
	wake chan struct{}    // receives a value when a reply starts waiting
	wall func() time.Time // returns the time without a monotonic reading, which stops while the machine is suspended

	mu       sync.Mutex
	revision int64         // last stored revision; 0 while the gate is closed
	until    time.Time     // when the Validity of the last upload ends
	requests uint64        // number of WaitAll calls so far
	complete uint64        // number of WaitAll calls, counted from the first, whose changes are stored
	err      error         // passed to Close; nil before that
	changed  chan struct{} // closed and replaced whenever one of these fields changes
}

// NewGate returns a closed gate.
func NewGate() *Gate {
	wall := func() time.Time { return time.Now().Round(0) }
	return &Gate{wake: make(chan struct{}, 1), wall: wall, changed: make(chan struct{})}
}

// Wait waits until the store has the given revision. Wait returns an error if ctx is done or Close has been called.
func (g *Gate) Wait(ctx context.Context, revision int64) error {
	return g.wait(ctx, func() bool { return g.revision >= revision })
}

// WaitAll waits until the store has all changes made before the call, including changes without a revision, such as
// leases and users.
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

// isOpen reports whether the store is known to belong to this cluster. The caller must hold mu.
func (g *Gate) isOpen() bool {
	return g.revision > 0 && time.Now().Before(g.until) && g.wall().Before(g.until.Round(0))
}

// IsOpen reports whether replies that do not depend on new changes can pass.
func (g *Gate) IsOpen() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.isOpen()
}

// Revision returns the last confirmed revision, or 0 if there is none.
func (g *Gate) Revision() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.revision
}

// Wake returns a channel that receives a value when a reply starts waiting.
func (g *Gate) Wake() <-chan struct{} {
	if g == nil {
		return nil
	}
	return g.wake
}

// Requests returns the number of calls to WaitAll so far. A read from etcd that starts after Requests returns
// includes all changes that these calls are waiting for.
func (g *Gate) Requests() uint64 {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.requests
}

// Confirm sets the last stored revision and the number of WaitAll calls whose changes are stored. The revision may be
// lower than before, because the store may have lost revisions. Revision 0 closes the gate. uploaded is the time at
// which the first attempt of the last successful upload started.
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

// Close makes all current and future calls of Wait and WaitAll return err.
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
