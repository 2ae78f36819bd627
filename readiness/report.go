package readiness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"etcd-wrapper/readiness/status"
)

// maxReadAge bounds the age of a successful linearizable read that makes the member ready, counted from the read's
// start.
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

// report runs all checks. Reasons for Failed exclude clients; reasons for Degraded need attention.
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

// checkQuorum fails without a quorum. It degrades once a member has been missing for longer than a restart takes,
// because the loss of one more may end the quorum.
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

// quorumProblem returns why the quorum cannot be relied on, or "". A read that ignores its timeout counts as failed
// while it hangs.
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
		return ""
	}
}
