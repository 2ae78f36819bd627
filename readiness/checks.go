package readiness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// The places of the checks in a Report.
const (
	quorum = iota
	learner
	corrupt
	listener
	space
	dataVersion
	upkeep
	validity
	checkCount
)

// judgement finds out about a member and says why the verdict is not OK; empty if it is.
type judgement func(*watch) (Verdict, string)

// checks are all checks, in the order in which they are shown. A new one is a new row.
var checks = [checkCount]struct {
	name  string
	judge judgement
}{
	quorum:   {"quorum", (*watch).judgeQuorum},
	learner:  {"not_learner", (*watch).judgeVote},
	corrupt:  {"no_corrupt_alarm", (*watch).judgeCorruptAlarm},
	listener: {"client_listener", (*watch).judgeListener},
	space:    {"space", (*watch).judgeSpace},

	dataVersion: {"data_version", (*watch).judgeDataVersion},
	upkeep:      {"defragmentation", (*watch).judgeUpkeep},
	validity:    {"certificates", (*watch).judgeCertificates},
}

// report has every check judge anew.
func (w *watch) report() *Report {
	r := &Report{LastRead: w.lastRead, watched: true}
	for i, check := range checks {
		verdict, reason := check.judge(w)
		r.checks[i] = Check{Name: check.name, Verdict: verdict, Reason: reason}
	}
	return r
}

// judgeQuorum says whether the quorum can be relied on, and whom to look for if not.
func (w *watch) judgeQuorum() (Verdict, string) {
	reason := w.withoutQuorum()
	if reason == "" {
		return OK, ""
	}
	if names := w.target.Missing(); len(names) > 0 {
		reason += "; no connection to " + strings.Join(names, ", ") + ": see that they run and can be reached"
	}
	return Failed, reason
}

// withoutQuorum is empty if the quorum can be relied on. A read that ignores its timeout counts as failed while it still
// hangs.
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

func (w *watch) judgeVote() (Verdict, string) {
	if w.target.IsLearner() {
		return Failed, "the member is a learner, which has no vote and serves no linearizable reads"
	}
	return OK, ""
}

func (w *watch) judgeCorruptAlarm() (Verdict, string) {
	if raised, _ := w.target.Alarms(); raised {
		return Failed, "etcd has raised the alarm CORRUPT: its members' data differ"
	}
	return OK, ""
}

func (w *watch) judgeListener() (Verdict, string) {
	if err := w.target.ListenerError(); err != nil {
		return Failed, fmt.Sprintf("the client listener has ended: %v", err)
	}
	return OK, ""
}

func (w *watch) judgeSpace() (Verdict, string) {
	if _, raised := w.target.Alarms(); raised {
		return Degraded, "etcd has raised the alarm NOSPACE: reads work, writes are refused"
	}
	return OK, ""
}

func (w *watch) judgeDataVersion() (Verdict, string) {
	if reason := w.target.Unreadable(); reason != "" {
		return Degraded, reason
	}
	return OK, ""
}

// judgeUpkeep sends clients to other members, where there are any, while this one's database stands still.
func (w *watch) judgeUpkeep() (Verdict, string) {
	if reason := w.target.Away(); reason != "" {
		return Failed, reason
	}
	return OK, ""
}

// judgeCertificates lets nobody be sent to a member that nobody can connect to.
func (w *watch) judgeCertificates() (Verdict, string) {
	switch ended, soon := w.target.Certificates(time.Now()); {
	case ended != "":
		return Failed, ended
	case soon != "":
		return Degraded, soon
	default:
		return OK, ""
	}
}
