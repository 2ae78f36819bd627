package readiness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/readiness/status"
)

// factsInterval is the interval at which etcd's in-memory state is read. It is short, because the loss of the leader
// is detected only by reading this state.
const factsInterval = 100 * time.Millisecond

// A Target is a running etcd member in this process. The Monitor calls the methods of a Target from two goroutines,
// one of which only calls LinearizableRead.
type Target interface {
	// LinearizableRead performs a linearizable read. LinearizableRead must return soon after ctx is done.
	LinearizableRead(ctx context.Context) error
	// LeaderChanged returns a channel that is closed the next time the leader changes.
	LeaderChanged() <-chan struct{}
	// HasLeader and the methods below must never block.
	HasLeader() bool
	IsLearner() bool
	Alarms() (corrupt, noSpace bool)
	// ListenerError returns why the client listener has failed, or nil if it has not.
	ListenerError() error
	// LostData returns an error if etcd's files have been removed or replaced.
	LostData() error
	// LowSpace returns a description of the volume if it is nearly full, or "" if it is not.
	LowSpace() string
	// Unreadable returns why the required etcd version cannot read the data, or "" if it can.
	Unreadable() string
	// RedirectReason returns why clients should temporarily use other members, or "" if they should not.
	RedirectReason() string
	// Unconfirmed returns why replies to clients are held back until their changes are stored, or "" if they are not.
	Unconfirmed() string
	// Missing describes the members to which this member has no connection.
	Missing() []string
	// Certificates checks the certificates. ended is the reason why no client can connect, and soon lists all other
	// problems. Either is "" if there is no such problem.
	Certificates(now time.Time) (ended, soon string)
}

// A Monitor continuously checks a member and publishes the results.
type Monitor struct {
	log    zerolog.Logger
	report atomic.Pointer[Report]
}

// NewMonitor returns a Monitor that reports the member as not ready until Run is called. The Monitor logs every status
// change of a check.
func NewMonitor(log zerolog.Logger) *Monitor {
	m, none := &Monitor{log: log}, emptyReport()
	none.since = time.Now()
	m.report.Store(none)
	return m
}

// Report returns the latest report. Report is safe for concurrent use.
func (m *Monitor) Report() *Report { return m.report.Load() }

// Run checks t until ctx is done, and then publishes a report that the member is not ready. Run returns once its last
// read has returned, at most 1 s after ctx is done. Calls to Run must not overlap, and Run must return before the
// member is closed.
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
		m.log.Error().Msg("abandoning a linearizable read that did not return after it was canceled")
	}
}

func (m *Monitor) publish(next *Report) {
	last := m.replace(next)
	for i, check := range next.checks {
		// Do not log checks that pass as soon as the member has started.
		matters := last.watched || check.Status != OK
		if previous := last.checks[i]; matters && check.Status != previous.Status {
			m.logChange(previous, check)
		}
	}
}

// replace publishes next and returns the previous report. Only Run calls it.
func (m *Monitor) replace(next *Report) (last *Report) {
	next.setSince(m.report.Load(), time.Now())
	return m.report.Swap(next)
}

// logChange logs that the status of a check has changed. The message contains the values of the fields, so that
// operators need not read them.
func (m *Monitor) logChange(previous, check Check) {
	level, sentence := zerolog.InfoLevel, "readiness check "+check.Name+" ok"
	if check.Status != OK {
		level, sentence = zerolog.WarnLevel, fmt.Sprintf("readiness check %s %s: %s", check.Name, check.Status, check.Reason)
	}
	m.log.WithLevel(level).Str("check", check.Name).Str("from", previous.Status).Str("to", check.Status).Msg(sentence)
}

const (
	// A lost quorum is detected within readInterval + readTimeout + factsInterval = 1.4 s, or 2.4 s if the last
	// response was slow.
	readInterval  = 300 * time.Millisecond // time from the start of a successful read to the start of the next
	readTimeout   = time.Second            // a slower read is treated as failed
	retryInterval = 100 * time.Millisecond // pause after a failed read
	maxAbsence    = time.Minute            // longest absence of a member without a warning; longer than a restart takes
)

// A watch contains the state of Monitor.Run. At most one read is in flight at a time, so that reads do not pile up
// while the member has no quorum.
type watch struct {
	target        Target
	leaderChanged <-chan struct{}
	hasLeader     bool

	results    chan error         // receives the result of the read in flight; buffered so that an abandoned read can finish
	cancel     context.CancelFunc // cancels the read in flight; nil if there is none
	started    time.Time          // start time of the read in flight
	isOutdated bool               // whether the leader has changed since, so that the result of the read must be ignored

	nextRead time.Time // earliest start time of the next read; zero means now
	lastRead time.Time // start time of the last successful read since the member last lost its leader
	lastErr  error     // error from the last read that was not ignored

	completeAt time.Time // last time at which this member was connected to all others
}

func newWatch(t Target) *watch {
	return &watch{target: t, leaderChanged: t.LeaderChanged(), results: make(chan error, 1), completeAt: time.Now()}
}

// observeLeader detects that the member has lost or found a leader. etcd sends no notification of a loss.
func (w *watch) observeLeader() {
	has := w.target.HasLeader()
	if has == w.hasLeader {
		return
	}
	w.hasLeader = has
	w.restartRead()
	if !has {
		w.lastRead = time.Time{} // a read through the old leader does not prove that the next leader has a quorum
	}
}

// handleLeaderChange restarts the read after a leader change. It gets the channel for the next change first, so as not
// to miss that change.
func (w *watch) handleLeaderChange() {
	w.leaderChanged = w.target.LeaderChanged()
	w.restartRead()
}

// restartRead makes a new read due immediately. It cancels the read in flight, which may be waiting for the old
// leader, and marks its result as outdated.
func (w *watch) restartRead() {
	w.nextRead = time.Time{}
	if w.cancel != nil {
		w.isOutdated = true
		w.cancel()
	}
}

// startRead starts a read if one is due, none is in flight, and there is a leader.
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

// awaitRead cancels the read in flight, if any, and waits until it has returned. It returns false if that takes longer
// than readTimeout.
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

// maxReadAge is the maximum age of the last successful read, measured from its start, at which the member counts as
// ready.
const maxReadAge = 3 * time.Second

// Statuses of a check. Only the status Failed makes the member not ready.
const (
	OK       = status.HealthOK
	Degraded = status.HealthDegraded // needs attention, but the member is usable
	Failed   = status.HealthFailed
)

// A Check is the result of one readiness check.
type Check = status.Check

// A Report contains the results of all checks at one point in time. A Report is immutable and safe for concurrent
// use. The zero Report means that the member is not ready.
type Report struct {
	// LastRead is the start time of the last successful linearizable read since the member last lost its leader, or
	// zero if there is none.
	LastRead time.Time
	since    time.Time // when Ready last changed between two reports, or when the Monitor was created
	watched  bool      // whether the member was checked; false for a report without a running member
	checks   [checkCount]Check
}

// Ready reports whether the member is ready at the time now. Ready does not allocate.
func (r *Report) Ready(now time.Time) bool { return r.hasNoFailedCheck() && r.fresh(now) }

func (r *Report) hasNoFailedCheck() bool {
	for i := range r.checks {
		if status := r.checks[i].Status; status != OK && status != Degraded {
			return false
		}
	}
	return true
}

// ReadySince returns the time at which Ready changed to the value that it has at the time now.
func (r *Report) ReadySince(now time.Time) time.Time {
	if outdated := r.LastRead.Add(maxReadAge); !r.LastRead.IsZero() && r.hasNoFailedCheck() && now.After(outdated) {
		return outdated
	}
	return r.since
}

// setSince sets since to now if the readiness differs from the last report, and otherwise to the time of the last
// change.
func (r *Report) setSince(last *Report, now time.Time) {
	r.since = last.ReadySince(now)
	if r.Ready(now) != last.Ready(now) {
		r.since = now
	}
}

// Checks returns the results of all checks at the time now. The quorum check is reported as failed if the last read is
// too old by then. The caller may modify the slice.
func (r *Report) Checks(now time.Time) []Check {
	checks := r.checks
	if checks[quorum].Status != Failed && !r.fresh(now) {
		age := now.Sub(r.LastRead).Round(time.Millisecond)
		checks[quorum] = failed(quorum, fmt.Sprintf("the last successful linearizable read started %v ago (limit %v)", age, maxReadAge))
	}
	return checks[:]
}

// fresh reports whether the last successful read is recent enough at the time now.
func (r *Report) fresh(now time.Time) bool {
	return !r.LastRead.IsZero() && now.Sub(r.LastRead) <= maxReadAge
}

// notRunning is the reason given for all failed checks before etcd is started and after it has been stopped.
const notRunning = "etcd is not running"

// emptyReport returns a report in which all checks have failed.
func emptyReport() *Report {
	r := &Report{}
	for i := range r.checks {
		r.checks[i] = failed(i, notRunning)
	}
	return r
}

func failed(check int, reason string) Check {
	return Check{Name: names[check], Status: Failed, Reason: reason}
}

// Indexes of the checks in a Report.
const (
	quorum = iota
	learner
	corrupt
	listener
	space
	volume
	dataVersion
	maintenance
	validity
	checkCount
)

// names lists the names of the checks in the order in which they are shown.
var names = [checkCount]string{
	"quorum", "not_learner", "no_corrupt_alarm", "client_listener", "space", "volume", "data_version", "defragmentation", "certificates",
}

// report runs all checks.
func (w *watch) report() *Report {
	r, t := &Report{LastRead: w.lastRead, watched: true}, w.target
	isCorrupt, noSpace := t.Alarms()
	ended, soon := t.Certificates(time.Now())
	for i, reasons := range [checkCount]struct{ failed, degraded string }{
		quorum:   w.checkQuorum(),
		learner:  {failed: onlyIf(t.IsLearner(), "the member is a learner, which cannot vote or serve linearizable reads")},
		corrupt:  {failed: onlyIf(isCorrupt, "the CORRUPT alarm is raised: the members have different data")},
		listener: {failed: errorText("the client listener failed: ", t.ListenerError())},
		space:    {degraded: onlyIf(noSpace, "writes are rejected: compact, delete keys or raise quota-backend-bytes")},
		// Lost data fails the check, because clients must not write to this member. Low space only degrades it: the
		// member is usable until the volume is full, which makes etcd panic.
		volume:      {errorText("", t.LostData()), t.LowSpace()},
		dataVersion: {degraded: t.Unreadable()},
		maintenance: {failed: t.RedirectReason()},
		validity:    {ended, soon},
	} {
		r.checks[i] = Check{Name: names[i], Status: OK}
		switch {
		case reasons.failed != "":
			r.checks[i].Status, r.checks[i].Reason = Failed, reasons.failed
		case reasons.degraded != "":
			r.checks[i].Status, r.checks[i].Reason = Degraded, reasons.degraded
		}
	}
	return r
}

func onlyIf(holds bool, reason string) string {
	if holds {
		return reason
	}
	return ""
}

func errorText(prefix string, err error) string {
	if err == nil {
		return ""
	}
	return prefix + err.Error()
}

// checkQuorum returns why the quorum check has failed or is degraded. It has failed if there is no quorum. It is
// degraded if a member has been missing for longer than a restart takes, because the loss of another member could
// then cost the quorum.
func (w *watch) checkQuorum() (reasons struct{ failed, degraded string }) {
	missing := w.target.Missing()
	if len(missing) == 0 {
		w.completeAt = time.Now()
	}
	noConnection := "no connection to " + strings.Join(missing, ", ")
	const advice = ": check that each is running and reachable; etcd-wrapper status shows what it is waiting for"
	reasons.failed = w.quorumError()
	if reasons.failed != "" && len(missing) > 0 {
		reasons.failed += "; " + noConnection + advice
	}
	if time.Since(w.completeAt) >= maxAbsence {
		reasons.degraded = fmt.Sprintf("%s for more than %v%s", noConnection, maxAbsence, advice)
	}
	return reasons
}

// quorumError returns why there is no quorum, or "" if there is one. A read that runs longer than readTimeout is
// treated as failed. With --backup-ack=stored, a member is also treated as having no quorum while the store does not
// confirm its writes.
func (w *watch) quorumError() string {
	hangs := w.cancel != nil && time.Since(w.started) >= readTimeout
	switch {
	case !w.hasLeader:
		return "the cluster has no leader"
	case hangs, errors.Is(w.lastErr, context.DeadlineExceeded):
		return fmt.Sprintf("a linearizable read did not complete within %v", readTimeout)
	case w.lastErr != nil:
		return fmt.Sprintf("a linearizable read failed: %v", w.lastErr)
	case w.lastRead.IsZero():
		return "no linearizable read has succeeded since the member found a leader"
	default:
		return w.target.Unconfirmed()
	}
}
