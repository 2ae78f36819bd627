package readiness

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// factsInterval is the pause between two looks at what etcd holds in memory. It bounds how long a lost leader goes
// unnoticed.
const factsInterval = 100 * time.Millisecond

// Target is the running etcd member. It is called in process, so neither authentication nor certificates can
// interfere. The Monitor calls it from two goroutines, one of which only calls LinearizableRead.
type Target interface {
	// LinearizableRead reads through the quorum. It must return soon after ctx ends.
	LinearizableRead(ctx context.Context) error
	// LeaderChanged returns a channel that is closed at the next change of leader.
	LeaderChanged() <-chan struct{}
	// HasLeader and the methods below answer from memory and never block.
	HasLeader() bool
	IsLearner() bool
	Alarms() (corrupt, noSpace bool)
	// ListenerError returns why the client listener ended, or nil while it is open.
	ListenerError() error
	// LostData returns why etcd's files are no longer on the volume, or nil while they are there.
	LostData() error
	// Scarce returns why the volume is nearly full, or "".
	Scarce() string
	// Unreadable returns why the older etcd that must be able to read the data could not, or "".
	Unreadable() string
	// Away returns why clients should use other members for now, or "".
	Away() string
	// Missing returns the members of the cluster without a connection to this one.
	Missing() []string
	// Certificates returns why no client can connect for want of a valid certificate, and which other certificates
	// have expired or will soon. Both are empty if all is well.
	Certificates(now time.Time) (ended, soon string)
}

// A Monitor checks one member at a time and publishes the results.
type Monitor struct {
	log    zerolog.Logger
	report atomic.Pointer[Report]
}

// NewMonitor returns a Monitor without a member, so it reports unready. It logs each change of a check.
func NewMonitor(log zerolog.Logger) *Monitor {
	m, none := &Monitor{log: log}, emptyReport()
	none.since = time.Now()
	m.report.Store(none)
	return m
}

// Report returns the newest report. Any goroutine may call it, at any time.
func (m *Monitor) Report() *Report { return m.report.Load() }

// Run checks t until ctx ends; after that the report is unready. It returns once its last read has returned, at most
// 1 s after ctx ended. The owner of the member runs it in a goroutine, one at a time, and waits for it before it
// closes the member.
func (m *Monitor) Run(ctx context.Context, t Target) {
	w := newWatch(t)
	beat := time.NewTicker(factsInterval)
	defer beat.Stop()
	for ctx.Err() == nil {
		w.observeLeader()
		w.startRead(ctx)
		m.publish(w.report())
		select {
		case <-ctx.Done():
		case <-beat.C:
		case <-w.leaderChanged:
			w.handleLeaderChange()
		case err := <-w.results:
			w.readEnded(err)
		}
	}
	m.replace(emptyReport())
	if !w.awaitRead() {
		m.log.Error().Msg("a linearizable read ignores its cancellation and is abandoned")
	}
}

func (m *Monitor) publish(next *Report) {
	last := m.replace(next)
	for i, is := range next.checks {
		// A member that has just started and is healthy needs no line.
		matters := last.watched || is.Status != OK
		if was := last.checks[i]; matters && is.Status != was.Status {
			m.logChange(was, is)
		}
	}
}

// replace publishes next. Only the goroutine in Run calls it.
func (m *Monitor) replace(next *Report) (last *Report) {
	next.setSince(m.report.Load(), time.Now())
	return m.report.Swap(next)
}

// logChange puts the whole change into the message, so that operators need not read the fields.
func (m *Monitor) logChange(was, is Check) {
	level, sentence := zerolog.InfoLevel, "readiness check "+is.Name+" is ok again"
	if is.Status != OK {
		level, sentence = zerolog.WarnLevel, fmt.Sprintf("readiness check %s is %s: %s", is.Name, is.Status, is.Reason)
	}
	m.log.WithLevel(level).Str("check", is.Name).Str("from", was.Status).Str("to", is.Status).Msg(sentence)
}

const (
	// Together with factsInterval, at which a due read is noticed, the first two bound how long a quorum that is lost
	// in silence goes unnoticed: 1.4 s, or 2.4 s if the last response was slow.
	readInterval  = 300 * time.Millisecond // from the start of a successful read to the start of the next
	readTimeout   = time.Second            // a read without a response for this long means no quorum
	retryInterval = 100 * time.Millisecond // from a failed read to the next, so that an outage ends soon after its cause
	maxAbsence    = time.Minute            // longer than a member takes to restart
)

// A watch is the state of Monitor.Run; no other goroutine touches it. At most one read is in flight, so a member
// without a quorum does not collect waiting reads.
type watch struct {
	target        Target
	leaderChanged <-chan struct{}
	hasLeader     bool

	results    chan error         // of the read in flight; buffered, so that a read never blocks after Run has returned
	cancel     context.CancelFunc // of the read in flight; nil when there is none
	started    time.Time          // start of the read in flight
	isOutdated bool               // the leader changed during the read in flight, so its result does not count

	nextRead time.Time // the earliest start of the next read; zero means now
	lastRead time.Time // start of the newest successful read since the member last lost its leader
	lastErr  error     // error of the newest read that counts

	completeAt time.Time // last time at which no member was missing; at first the start of the watch
}

func newWatch(t Target) *watch {
	return &watch{target: t, leaderChanged: t.LeaderChanged(), results: make(chan error, 1), completeAt: time.Now()}
}

// observeLeader notices the loss of a leader that no other one has followed: no notification reports it.
func (w *watch) observeLeader() {
	has := w.target.HasLeader()
	if has == w.hasLeader {
		return
	}
	w.hasLeader = has
	w.restartRead()
	if !has {
		w.lastRead = time.Time{} // a read that the old leader confirmed says nothing about the next one
	}
}

// handleLeaderChange gets the next channel first, so that it misses no change.
func (w *watch) handleLeaderChange() {
	w.leaderChanged = w.target.LeaderChanged()
	w.restartRead()
}

// restartRead makes a new read due now. It cancels the one in flight, which may hang on the previous leader.
func (w *watch) restartRead() {
	w.nextRead = time.Time{}
	if w.cancel != nil {
		w.isOutdated = true
		w.cancel()
	}
}

// startRead starts a read if one is due, none is in flight and there is a leader to answer it.
func (w *watch) startRead(ctx context.Context) {
	now := time.Now()
	if w.cancel != nil || !w.hasLeader || now.Before(w.nextRead) {
		return
	}
	ctx, w.cancel = context.WithTimeout(ctx, readTimeout)
	w.started, w.isOutdated = now, false
	target, results := w.target, w.results
	go func() { results <- target.LinearizableRead(ctx) }()
}

func (w *watch) readEnded(err error) {
	w.cancel()
	w.cancel = nil
	switch {
	case w.isOutdated:
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
