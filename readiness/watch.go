package readiness

import (
	"context"
	"time"
)

const (
	// With factsInterval, at which it is seen that a read is due, the first two bound how long a quorum that is lost in
	// silence can go unnoticed: 1.4 s, and 2.4 s at most if the last answer was slow.
	readInterval  = 300 * time.Millisecond // from the start of a successful read to the start of the next
	readTimeout   = time.Second            // after this long without an answer there is no quorum
	retryInterval = 100 * time.Millisecond // from a failed read to the next: an outage shall end soon after its cause
)

// watch is what the goroutine in Monitor.Run knows of its target; no other goroutine touches it. At most one read is in
// flight, so a member without quorum does not collect waiting reads.
type watch struct {
	target        Target
	leaderChanged <-chan struct{}
	hasLeader     bool

	results    chan error         // of the read in flight; holds one, so that a read never waits for an owner that left
	cancel     context.CancelFunc // of the read in flight; nil when there is none
	started    time.Time          // start of the read in flight
	superseded bool               // the leader changed during the read in flight: its answer does not count

	nextRead time.Time // the next read is not started before; zero: at once
	lastRead time.Time // start of the newest read that succeeded under the present leadership
	lastErr  error     // how the newest read that counts ended
}

func newWatch(t Target) *watch {
	return &watch{target: t, leaderChanged: t.LeaderChanged(), results: make(chan error, 1)}
}

// observeLeader notices what the notification cannot tell: that a leader was lost and none has followed.
func (w *watch) observeLeader() {
	has := w.target.HasLeader()
	if has == w.hasLeader {
		return
	}
	w.hasLeader = has
	w.supersedeRead()
	if !has {
		w.lastRead = time.Time{} // what the old leader confirmed says nothing about the next one
	}
}

// leaderMoved asks for the next notification first, so that none is missed.
func (w *watch) leaderMoved() {
	w.leaderChanged = w.target.LeaderChanged()
	w.supersedeRead()
}

// supersedeRead makes a new read due at once. The one in flight may hang on a leader that is gone, so it is cancelled.
func (w *watch) supersedeRead() {
	w.nextRead = time.Time{}
	if w.cancel != nil {
		w.superseded = true
		w.cancel()
	}
}

// readIfDue starts a read, unless there is no leader who could answer it.
func (w *watch) readIfDue(ctx context.Context) {
	now := time.Now()
	if w.cancel != nil || !w.hasLeader || now.Before(w.nextRead) {
		return
	}
	ctx, w.cancel = context.WithTimeout(ctx, readTimeout)
	w.started, w.superseded = now, false
	target, results := w.target, w.results
	go func() { results <- target.LinearizableRead(ctx) }()
}

func (w *watch) readEnded(err error) {
	w.cancel()
	w.cancel = nil
	switch {
	case w.superseded:
	case err == nil:
		w.lastRead, w.lastErr, w.nextRead = w.started, nil, w.started.Add(readInterval)
	default:
		w.lastErr, w.nextRead = err, time.Now().Add(retryInterval)
	}
}

// awaitRead cancels the read in flight and waits for it. It returns false if the read ignores the cancellation.
func (w *watch) awaitRead() bool {
	if w.cancel == nil {
		return true
	}
	w.cancel()
	select {
	case w.lastErr = <-w.results:
		return true
	case <-time.After(readTimeout):
		return false
	}
}
