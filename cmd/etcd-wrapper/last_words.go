package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
)

// lastWords are what `kubectl describe pod` shows of a run that has ended: how and why, from which state, what the next
// start will find, and how long things took.
func (a account) lastWords(outcome lifecycle.Outcome) string {
	run := a.driver.Snapshot()
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", outcome.Status, firstLine(outcome.Reason))
	if i := slices.IndexFunc(run.History, ends); i >= 0 {
		left := run.History[i]
		fmt.Fprintf(&b, "state: %s, left after %s\n", left.From, rounded(left.After))
	}
	fmt.Fprintf(&b, "exit record: %s\n", a.pod.recordLeft())
	fmt.Fprintf(&b, "durations: run %s%s\n", rounded(time.Since(a.pod.began)), a.pod.spent.tell())
	if trouble := run.Trouble; trouble.Class != "" {
		fmt.Fprintf(&b, "last trouble: %s, %s ago: %s\n", trouble.Class, rounded(time.Since(trouble.At)), firstLine(trouble.Text))
	}
	return b.String()
}

// ends reports whether a transition began the end.
func ends(t lifecycle.Transition) bool { return t.To == lifecycle.Terminating && t.From != t.To }

// recordLeft is read anew: what counts is what the next start finds.
func (p *pod) recordLeft() string {
	word, err := exitcode.NewRecord(p.flags.recordPath()).Read()
	if err != nil {
		return "none, so the next start validates in full"
	}
	return string(word) + ", so the next start validates in sanity mode"
}

// tell lists what happened, each with a comma before it.
func (d *durations) tell() string {
	told := ""
	if start := d.start.Load(); start > 0 {
		told += fmt.Sprintf(", etcd's start %s", rounded(time.Duration(start)))
	}
	if stop := d.stop.Load(); stop > 0 {
		told += fmt.Sprintf(", its close %s, of that draining %s", rounded(time.Duration(stop)), rounded(time.Duration(d.drain.Load())))
	}
	return told
}

// firstLine keeps the trace of a panic out of a message for people.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
