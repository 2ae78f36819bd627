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
func (r *Report) Ready(now time.Time) bool { return r.passes() && r.fresh(now) }

func (r *Report) passes() bool {
	for i := range r.checks {
		if status := r.checks[i].Status; status != OK && status != Degraded {
			return false
		}
	}
	return true
}

// Since returns the time at which Ready took the value that it has at now.
func (r *Report) Since(now time.Time) time.Time {
	if outdated := r.LastRead.Add(maxReadAge); !r.LastRead.IsZero() && r.passes() && now.After(outdated) {
		return outdated
	}
	return r.since
}

// follow sets since, given the report before this one.
func (r *Report) follow(last *Report, now time.Time) {
	r.since = last.Since(now)
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

// unwatched returns the report of a Monitor without a member: every check fails.
func unwatched() *Report {
	r := &Report{}
	for i := range r.checks {
		r.checks[i] = failed(i, notRunning)
	}
	return r
}

func failed(check int, reason string) Check {
	return Check{Name: checks[check].name, Status: Failed, Reason: reason}
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

// A judgement returns the status of one aspect of the member, and the reason if the status is not OK.
type judgement func(*watch) (status, reason string)

// checks lists all checks in the order in which they are shown. A new check is a new row.
var checks = [checkCount]struct {
	name  string
	judge judgement
}{
	quorum:   {"quorum", (*watch).judgeQuorum},
	learner:  {"not_learner", (*watch).judgeVote},
	corrupt:  {"no_corrupt_alarm", (*watch).judgeCorruptAlarm},
	listener: {"client_listener", (*watch).judgeListener},
	space:    {"space", (*watch).judgeSpace},
	volume:   {"volume", (*watch).judgeVolume},

	dataVersion: {"data_version", (*watch).judgeDataVersion},
	maintenance: {"defragmentation", (*watch).judgeMaintenance},
	validity:    {"certificates", (*watch).judgeCertificates},
}

// report runs all checks.
func (w *watch) report() *Report {
	r := &Report{LastRead: w.lastRead, watched: true}
	for i, check := range checks {
		status, reason := check.judge(w)
		r.checks[i] = Check{Name: check.name, Status: status, Reason: reason}
	}
	return r
}

// judgeQuorum fails without a quorum. It degrades once a member has been missing for longer than a restart takes,
// because the loss of one more may end the quorum.
func (w *watch) judgeQuorum() (status, reason string) {
	missing := w.target.Missing()
	if len(missing) == 0 {
		w.completeAt = time.Now()
	}
	lookFor := "no connection to " + strings.Join(missing, ", ")
	const advice = ": see that they run and can be reached"
	switch reason := w.withoutQuorum(); {
	case reason != "" && len(missing) > 0:
		return Failed, reason + "; " + lookFor + advice
	case reason != "":
		return Failed, reason
	case time.Since(w.completeAt) >= maxAbsence:
		return Degraded, fmt.Sprintf("%s for more than %v%s", lookFor, maxAbsence, advice)
	default:
		return OK, ""
	}
}

// withoutQuorum returns why the quorum cannot be relied on, or "". A read that ignores its timeout counts as failed
// while it hangs.
func (w *watch) withoutQuorum() string {
	hangs := w.cancel != nil && time.Since(w.started) >= readTimeout
	switch {
	case !w.hasLeader:
		return "the cluster has no leader"
	case hangs, errors.Is(w.lastErr, context.DeadlineExceeded):
		return fmt.Sprintf("a linearizable read got no answer within %v", readTimeout)
	case w.lastErr != nil:
		return fmt.Sprintf("a linearizable read failed: %v", w.lastErr)
	case w.lastRead.IsZero():
		return "no linearizable read has succeeded since the leader is known"
	default:
		return ""
	}
}

func (w *watch) judgeVote() (status, reason string) {
	if w.target.IsLearner() {
		return Failed, "the member is a learner, which has no vote and serves no linearizable reads"
	}
	return OK, ""
}

func (w *watch) judgeCorruptAlarm() (status, reason string) {
	if raised, _ := w.target.Alarms(); raised {
		return Failed, "etcd has raised the alarm CORRUPT: its members' data differ"
	}
	return OK, ""
}

func (w *watch) judgeListener() (status, reason string) {
	if err := w.target.ListenerError(); err != nil {
		return Failed, fmt.Sprintf("the client listener has ended: %v", err)
	}
	return OK, ""
}

func (w *watch) judgeSpace() (status, reason string) {
	if _, raised := w.target.Alarms(); raised {
		return Degraded, "writes are refused (compact, delete or raise quota-backend-bytes)"
	}
	return OK, ""
}

// judgeVolume fails if etcd's files are gone, so that clients write to other members. It warns before the volume is
// full, because etcd panics then.
func (w *watch) judgeVolume() (status, reason string) {
	if err := w.target.LostData(); err != nil {
		return Failed, err.Error()
	}
	return ifAny(Degraded, w.target.Scarce())
}

func (w *watch) judgeDataVersion() (status, reason string) {
	return ifAny(Degraded, w.target.Unreadable())
}

// judgeMaintenance fails if clients should use other members while this one's database is blocked.
func (w *watch) judgeMaintenance() (status, reason string) { return ifAny(Failed, w.target.Away()) }

// judgeCertificates fails if no client can connect to the member for want of a valid certificate.
func (w *watch) judgeCertificates() (status, reason string) {
	ended, soon := w.target.Certificates(time.Now())
	if ended != "" {
		return Failed, ended
	}
	return ifAny(Degraded, soon)
}

// ifAny returns a status with its reason, or OK if there is no reason.
func ifAny(status, reason string) (string, string) {
	if reason == "" {
		return OK, ""
	}
	return status, reason
}
