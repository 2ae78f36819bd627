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

// factsInterval is the interval at which etcd's state in memory is read. It bounds how long the loss of the leader
// goes unnoticed.
const factsInterval = 100 * time.Millisecond

// Target is the running etcd member. It is called in process, so neither authentication nor certificates can
// interfere. The Monitor calls it from two goroutines, one of which only calls LinearizableRead.
type Target interface {
	// LinearizableRead reads through the quorum. It must return soon after ctx is done.
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
	// Unreadable returns why the older etcd that must be able to read the data cannot read it, or "".
	Unreadable() string
	// Away returns why clients should use other members for now, or "".
	Away() string
	// Unconfirmed returns why the backup store does not confirm changes that clients wait for, or "".
	Unconfirmed() string
	// Missing returns the cluster members that have no connection to this one.
	Missing() []string
	// Certificates returns why clients cannot connect, if a certificate they depend on is not valid, and which other
	// certificates have expired or will soon. Both are empty if all is well.
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

// Run checks t until ctx is done; after that the report is unready. It returns when its last read has returned, at
// most 1 s after ctx is done. The owner of the member runs it in a goroutine, one at a time, and waits for it before
// closing the member.
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
		// Do not log that a healthy member has just started.
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
	level, sentence := zerolog.InfoLevel, "readiness check "+is.Name+" ok"
	if is.Status != OK {
		level, sentence = zerolog.WarnLevel, fmt.Sprintf("readiness check %s %s: %s", is.Name, is.Status, is.Reason)
	}
	m.log.WithLevel(level).Str("check", is.Name).Str("from", was.Status).Str("to", is.Status).Msg(sentence)
}

const (
	// A lost quorum without any error goes unnoticed for at most readInterval, readTimeout and factsInterval: 1.4 s,
	// or 2.4 s if the last response was slow.
	readInterval  = 300 * time.Millisecond // time from the start of a successful read to the start of the next read
	readTimeout   = time.Second            // a read that takes longer means no quorum
	retryInterval = 100 * time.Millisecond // time from a failed read to the next read
	maxAbsence    = time.Minute            // longer than a member takes to restart
)

// A watch is the state of Monitor.Run; no other goroutine accesses it. At most one read is in flight, so waiting
// reads do not pile up in a member without a quorum.
type watch struct {
	target        Target
	leaderChanged <-chan struct{}
	hasLeader     bool

	results    chan error         // receives the result of the read in flight; buffered, so that a read never blocks after Run has returned
	cancel     context.CancelFunc // cancels the read in flight; nil if there is none
	started    time.Time          // start of the read in flight
	isOutdated bool               // the leader changed during the read in flight, so its result is ignored

	nextRead time.Time // the earliest start of the next read; zero means now
	lastRead time.Time // start of the newest successful read since the member last lost its leader
	lastErr  error     // error of the newest read that was not outdated

	completeAt time.Time // last time at which no member was missing; initially the start of the watch
}

func newWatch(t Target) *watch {
	return &watch{target: t, leaderChanged: t.LeaderChanged(), results: make(chan error, 1), completeAt: time.Now()}
}

// observeLeader detects the loss of a leader without a successor, for which there is no notification.
func (w *watch) observeLeader() {
	has := w.target.HasLeader()
	if has == w.hasLeader {
		return
	}
	w.hasLeader = has
	w.restartRead()
	if !has {
		w.lastRead = time.Time{} // a read confirmed by the old leader proves nothing about the next one
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

// maxReadAge is the maximum age of a successful linearizable read that makes the member ready, counted from the
// read's start.
const maxReadAge = 3 * time.Second

// The statuses of a check. Only Failed makes the member unready.
const (
	OK       = status.HealthOK
	Degraded = status.HealthDegraded // needs attention, but clients may use the member
	Failed   = status.HealthFailed
)

// A Check is the result for one aspect of the member.
type Check = status.Check

// A Report holds the results of all checks at one instant. It is immutable, so any goroutine may read it. The zero
// Report is not ready.
type Report struct {
	// LastRead is the start of the newest successful linearizable read since the member last lost its leader; zero if
	// there is none.
	LastRead time.Time
	since    time.Time // time of the last change of Ready between two reports, or of the Monitor's creation
	watched  bool
	checks   [checkCount]Check
}

// Ready reports whether clients may use the member at now. It allocates nothing.
func (r *Report) Ready(now time.Time) bool { return r.hasNoFailedCheck() && r.fresh(now) }

func (r *Report) hasNoFailedCheck() bool {
	for i := range r.checks {
		if status := r.checks[i].Status; status != OK && status != Degraded {
			return false
		}
	}
	return true
}

// ReadySince returns the time at which Ready took the value that it has at now.
func (r *Report) ReadySince(now time.Time) time.Time {
	if outdated := r.LastRead.Add(maxReadAge); !r.LastRead.IsZero() && r.hasNoFailedCheck() && now.After(outdated) {
		return outdated
	}
	return r.since
}

// setSince sets since, given the previous report.
func (r *Report) setSince(last *Report, now time.Time) {
	r.since = last.ReadySince(now)
	if r.Ready(now) != last.Ready(now) {
		r.since = now
	}
}

// Checks returns the results at now: the check of the quorum fails if the last read has become too old. The caller
// owns the slice.
func (r *Report) Checks(now time.Time) []Check {
	checks := r.checks
	if checks[quorum].Status != Failed && !r.fresh(now) {
		age := now.Sub(r.LastRead).Round(time.Millisecond)
		checks[quorum] = failed(quorum, fmt.Sprintf("the last linearizable read started %v ago, more than %v", age, maxReadAge))
	}
	return checks[:]
}

func (r *Report) fresh(now time.Time) bool {
	return !r.LastRead.IsZero() && now.Sub(r.LastRead) <= maxReadAge
}

// notRunning is the reason of every check before etcd starts and after it stops.
const notRunning = "etcd does not run"

// emptyReport returns the report of a Monitor without a member: every check fails.
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

// Indices of the checks in a Report.
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

// report runs all checks. Failed makes the member unready; Degraded only needs attention.
func (w *watch) report() *Report {
	r, t := &Report{LastRead: w.lastRead, watched: true}, w.target
	isCorrupt, noSpace := t.Alarms()
	ended, soon := t.Certificates(time.Now())
	for i, reasons := range [checkCount]struct{ failed, degraded string }{
		quorum:   w.checkQuorum(),
		learner:  {failed: onlyIf(t.IsLearner(), "the member is a learner, which has no vote and serves no linearizable reads")},
		corrupt:  {failed: onlyIf(isCorrupt, "etcd has raised the alarm CORRUPT: its members' data differ")},
		listener: {failed: errorText("the client listener has ended: ", t.ListenerError())},
		space:    {degraded: onlyIf(noSpace, "writes are refused (compact, delete or raise quota-backend-bytes)")},
		// Without etcd's files, clients must write to other members. etcd panics once the volume has no space.
		volume:      {errorText("", t.LostData()), t.Scarce()},
		dataVersion: {degraded: t.Unreadable()},
		maintenance: {failed: t.Away()},
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

// checkQuorum fails without a quorum. It reports Degraded once a member has been missing for longer than a restart
// takes, because losing one more may lose the quorum.
func (w *watch) checkQuorum() (reasons struct{ failed, degraded string }) {
	missing := w.target.Missing()
	if len(missing) == 0 {
		w.completeAt = time.Now()
	}
	noConnection := "no connection to " + strings.Join(missing, ", ")
	const advice = ": check with etcd-wrapper status on each that it runs, can be reached, and what it waits for"
	reasons.failed = w.quorumError()
	if reasons.failed != "" && len(missing) > 0 {
		reasons.failed += "; " + noConnection + advice
	}
	if time.Since(w.completeAt) >= maxAbsence {
		reasons.degraded = fmt.Sprintf("%s for more than %v%s", noConnection, maxAbsence, advice)
	}
	return reasons
}

// quorumError returns why there is no reliable quorum, or "". A read that ignores its timeout counts as failed while
// it hangs. With --backup-ack=stored the store is part of the quorum.
func (w *watch) quorumError() string {
	hangs := w.cancel != nil && time.Since(w.started) >= readTimeout
	switch {
	case !w.hasLeader:
		return "the cluster has no leader"
	case hangs, errors.Is(w.lastErr, context.DeadlineExceeded):
		return fmt.Sprintf("a linearizable read got no answer within %v", readTimeout)
	case w.lastErr != nil:
		return fmt.Sprintf("a linearizable read failed: %v", w.lastErr)
	case w.lastRead.IsZero():
		return "no linearizable read has succeeded since the leader became known"
	default:
		return w.target.Unconfirmed()
	}
}
