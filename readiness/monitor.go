package readiness

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// factsInterval is how often the facts that etcd holds in memory are looked at: the bound for noticing a lost leader.
const factsInterval = 100 * time.Millisecond

// Target is the running etcd member as the Monitor sees it: in process, so neither authentication nor certificates can
// break it. The Monitor calls it from two goroutines, one of them only for LinearizableRead.
type Target interface {
	// LinearizableRead asks the quorum. It has to return soon after ctx ended.
	LinearizableRead(ctx context.Context) error
	// LeaderChanged is closed at the next change of leader.
	LeaderChanged() <-chan struct{}
	// HasLeader and what follows answer from memory and never block.
	HasLeader() bool
	IsLearner() bool
	Alarms() (corrupt, noSpace bool)
	// ListenerError says why the client listener died; nil while it lives.
	ListenerError() error
	// LostData returns why etcd's files are no longer on the volume; nil while they are.
	LostData() error
	// Scarce says why the volume soon has no room left; empty if it has.
	Scarce() string
	// Unreadable says why the older etcd that has to be able to read the data could not; empty if it could.
	Unreadable() string
	// Away says why clients should turn to other members for now; empty if they need not.
	Away() string
	// Missing names the members of the cluster that there is no connection to.
	Missing() []string
	// Certificates says why nobody can connect for want of a valid certificate, and which others have ended or will
	// soon; both are empty if all is well.
	Certificates(now time.Time) (ended, soon string)
}

// Monitor watches one member at a time and publishes what it finds.
type Monitor struct {
	log    zerolog.Logger
	report atomic.Pointer[Report]
}

// NewMonitor returns a Monitor that watches nothing yet, so nothing is ready. It logs a line when a check changes.
func NewMonitor(log zerolog.Logger) *Monitor {
	m, none := &Monitor{log: log}, unwatched()
	none.since = time.Now()
	m.report.Store(none)
	return m
}

// Report returns the newest findings. Any goroutine may call it, at any time.
func (m *Monitor) Report() *Report { return m.report.Load() }

// Run watches t until ctx ends; from then on nothing is ready. It returns once its last read has returned, at the latest
// 1 s after ctx ended. The owner of the member calls it in a goroutine, one at a time, and waits for it before the
// member goes away.
func (m *Monitor) Run(ctx context.Context, t Target) {
	w := newWatch(t)
	beat := time.NewTicker(factsInterval)
	defer beat.Stop()
	for ctx.Err() == nil {
		w.observeLeader()
		w.readIfDue(ctx)
		m.publish(w.report())
		select {
		case <-ctx.Done():
		case <-beat.C:
		case <-w.leaderChanged:
			w.leaderMoved()
		case err := <-w.results:
			w.readEnded(err)
		}
	}
	m.replace(unwatched())
	if !w.awaitRead() {
		m.log.Error().Msg("a linearizable read ignores that it was cancelled; leaving it behind")
	}
}

func (m *Monitor) publish(next *Report) {
	last := m.replace(next)
	for i, is := range next.checks {
		// That a member which has just been started is well is not worth a line.
		matters := last.watched || is.Status != OK
		if was := last.checks[i]; matters && is.Status != was.Status {
			m.logChange(was, is)
		}
	}
}

// replace is for the goroutine in Run.
func (m *Monitor) replace(next *Report) (last *Report) {
	next.follow(m.report.Load(), time.Now())
	return m.report.Swap(next)
}

// logChange says it in a sentence: nobody looks for it in the fields.
func (m *Monitor) logChange(was, is Check) {
	level, sentence := zerolog.InfoLevel, "readiness check "+is.Name+" is ok again"
	if is.Status != OK {
		level, sentence = zerolog.WarnLevel, fmt.Sprintf("readiness check %s is %s: %s", is.Name, is.Status, is.Reason)
	}
	m.log.WithLevel(level).Str("check", is.Name).Str("from", string(was.Status)).Str("to", string(is.Status)).Msg(sentence)
}

const (
	// With factsInterval, at which it is seen that a read is due, the first two bound how long a quorum that is lost in
	// silence can go unnoticed: 1.4 s, and 2.4 s at most if the last answer was slow.
	readInterval  = 300 * time.Millisecond // from the start of a successful read to the start of the next
	readTimeout   = time.Second            // after this long without an answer there is no quorum
	retryInterval = 100 * time.Millisecond // from a failed read to the next: an outage shall end soon after its cause
	maxAbsence    = time.Minute            // a member that restarts is back before
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

	completeAt time.Time // when no member was missing last; the start of the watch before that
}

func newWatch(t Target) *watch {
	return &watch{target: t, leaderChanged: t.LeaderChanged(), results: make(chan error, 1), completeAt: time.Now()}
}

// observeLeader notices what no notification says: that a leader was lost and none has followed.
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
