package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness/status/terminal"
)

// TerminationMessage returns the message that `kubectl describe pod` shows after a run: how, why and in which state
// the run ended, the exit record that the next start will find, and how long each phase took.
func (r *Report) TerminationMessage(outcome lifecycle.Outcome) string {
	run := r.run.Snapshot()
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", outcome.Status, firstLine(outcome.Reason))
	if i := slices.IndexFunc(run.History, isStop); i >= 0 {
		left := run.History[i]
		fmt.Fprintf(&b, "state before the stop: %s, for %s\n", left.From, format(time.Duration(left.AfterSeconds*float64(time.Second))))
	}
	fmt.Fprintf(&b, "exit record: %s\n", r.recordLeft())
	fmt.Fprintf(&b, "durations: %s\n", r.durations())
	if missing := r.runtime.FlushError(); missing != nil {
		fmt.Fprintf(&b, "backups: %s; the next start resumes the upload\n", firstLine(missing.Error()))
	}
	if c := run.Condition; c.Class != "" && !strings.Contains(outcome.Reason, c.Text) { // do not repeat the first line
		fmt.Fprintf(&b, "last problem: %s, %s ago%s: %s\n", c.Class, format(time.Since(c.At)), endedSuffix(c), firstLine(c.Text))
	}
	return b.String()
}

// isStop reports whether a transition started the shutdown.
func isStop(t lifecycle.Transition) bool { return t.To == lifecycle.Terminating && t.From != t.To }

// recordTimeout limits how long reading the exit record may take, because a hanging volume must not delay the message.
const recordTimeout = 200 * time.Millisecond

// recordLeft reads the exit record from the volume and describes how the next start will validate the data.
func (r *Report) recordLeft() string {
	left := make(chan string, 1)
	go func() {
		word, err := r.runtime.Record()
		if err != nil {
			left <- "none, so the next start runs a full validation"
			return
		}
		left <- string(word) + ", so the next start runs a sanity validation"
	}()
	select {
	case record := <-left:
		return record
	case <-time.After(recordTimeout):
		return "unknown: the volume is not responding"
	}
}

// durations describes how long the run, starting and stopping etcd, and draining client requests took.
func (r *Report) durations() string {
	start, stop, drain := r.runtime.Durations()
	listed := "run " + format(time.Since(r.started))
	if start > 0 {
		listed += ", etcd start " + format(start)
	}
	if stop > 0 {
		listed += ", etcd stop " + format(stop)
	}
	if drain > 0 {
		listed += " (draining " + format(drain) + ")"
	}
	return listed
}

// endedSuffix returns ", since resolved" if the condition was resolved before the run ended.
func endedSuffix(condition lifecycle.Condition) string {
	if condition.Ended.IsZero() {
		return ""
	}
	return ", since resolved"
}

// KilledMessage returns the message that `kubectl describe pod` shows if the process is killed or panics.
func (r *Report) KilledMessage(crashNote string) string {
	run := r.run.Snapshot()
	return fmt.Sprintf(`etcd-wrapper did not record how it ended: it was killed (SIGKILL, out of memory) or it crashed.
where to look: the container's exit code and reason (137, OOMKilled), the end of its log (kubectl logs --previous), and the stack trace of a crash in %s on the volume, if there is one
last status: %s; since %s: %s
`, crashNote, firstLine(r.Document().Headline.Summary), run.PhaseSince.UTC().Format(time.RFC3339), firstLine(r.reason(run)))
}

func format(d time.Duration) string { return terminal.Round(d).String() }

// firstLine returns the first line of a string, which leaves out the stack trace of a panic.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
