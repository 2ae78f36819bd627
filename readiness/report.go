package readiness

import (
	"fmt"
	"time"
)

// maxReadAge is how long a successful linearizable read vouches for the member, counted from the read's start.
const maxReadAge = 3 * time.Second

// Verdict is the outcome of one check.
type Verdict string

// The three verdicts. Only Failed makes the member unready.
const (
	OK       Verdict = "ok"
	Degraded Verdict = "degraded" // worth a look, but clients may use the member
	Failed   Verdict = "failed"
)

// Check is a named verdict. Reason says why it is not OK, and is empty when it is.
type Check struct {
	Name    string
	Verdict Verdict
	Reason  string
}

// Report is what the Monitor knew at one instant. It never changes; any goroutine may read it. The zero Report is not ready.
type Report struct {
	// LastRead is the start of the newest linearizable read that succeeded; zero when no read vouches for the member.
	LastRead time.Time
	since    time.Time // when the report before it was not as ready as this one, or the Monitor was made
	watched  bool
	checks   [checkCount]Check
}

// Ready tells whether clients may use the member at now. It allocates nothing.
func (r *Report) Ready(now time.Time) bool { return r.passes() && r.fresh(now) }

func (r *Report) passes() bool {
	for i := range r.checks {
		if verdict := r.checks[i].Verdict; verdict != OK && verdict != Degraded {
			return false
		}
	}
	return true
}

// Since is since when Ready has been what it is at now.
func (r *Report) Since(now time.Time) time.Time {
	if outdated := r.LastRead.Add(maxReadAge); !r.LastRead.IsZero() && r.passes() && now.After(outdated) {
		return outdated
	}
	return r.since
}

// follow makes a report the one after another.
func (r *Report) follow(last *Report, now time.Time) {
	r.since = last.Since(now)
	if r.Ready(now) != last.Ready(now) {
		r.since = now
	}
}

// Checks returns the verdicts as they stand at now: a read that has grown too old no longer counts. The slice is the
// caller's own.
func (r *Report) Checks(now time.Time) []Check {
	checks := r.checks
	if checks[quorum].Verdict == OK && !r.fresh(now) {
		age := now.Sub(r.LastRead).Round(time.Millisecond)
		checks[quorum] = failed(quorum, fmt.Sprintf("the last linearizable read started %v ago, more than %v", age, maxReadAge))
	}
	return checks[:]
}

func (r *Report) fresh(now time.Time) bool {
	return !r.LastRead.IsZero() && now.Sub(r.LastRead) <= maxReadAge
}

// notRunning is why every check fails before and after etcd.
const notRunning = "etcd does not run"

// unwatched is the report of a Monitor that watches nothing.
func unwatched() *Report {
	r := &Report{}
	for i := range r.checks {
		r.checks[i] = failed(i, notRunning)
	}
	return r
}

func failed(check int, reason string) Check {
	return Check{Name: checks[check].name, Verdict: Failed, Reason: reason}
}
