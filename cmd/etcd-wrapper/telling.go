package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"etcd-wrapper/readiness/status"
)

// telling prints documents for people.
type telling struct {
	to     io.Writer
	colour bool
	until  time.Time // transitions up to here were told
	ready  bool
}

// lastSteps is how many transitions are shown at once.
const lastSteps = 10

// everything tells one document in full.
func (t *telling) everything(d status.Document) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s\n%s\n\n", t.strong(d.State), t.readiness(d.Ready), d.Reason)
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, fact := range facts(d) {
		fmt.Fprintf(table, "%s\t%s\n", fact[0], fact[1]) //nolint:errcheck // a strings.Builder takes everything
	}
	table.Flush() //nolint:errcheck // a strings.Builder takes everything
	b.WriteString("\nchecks\n")
	for _, check := range d.Checks {
		fmt.Fprintf(&b, "  %s  %s  %s\n", t.verdict(check.Status), check.Name, check.Reason)
	}
	fmt.Fprintf(&b, "\nlatest steps\n")
	for _, step := range d.Transitions[max(0, len(d.Transitions)-lastSteps):] {
		b.WriteString("  " + stepLine(step))
	}
	_, err := io.WriteString(t.to, b.String())
	return err
}

// facts are what there is to know about a run, each with its name.
func facts(d status.Document) [][2]string {
	all := [][2]string{{"since", fmt.Sprintf("%s (%s)", clock(d.Since), rounded(time.Since(d.Since)))}}
	if d.Attempt > 1 {
		all = append(all, [2]string{"attempt", fmt.Sprint(d.Attempt)})
	}
	if !d.NextRetry.IsZero() {
		all = append(all, [2]string{"next step", "within " + rounded(max(0, time.Until(d.NextRetry))).String()})
	}
	if e := d.LastError; e != nil {
		all = append(all, [2]string{"last trouble", fmt.Sprintf("%s %s: %s", clock(e.At), e.Class, e.Message)})
	}
	if v := d.Validation; v != nil {
		all = append(all, [2]string{"validation", v.Mode + ": " + v.Reason})
	}
	if d.SidecarWord != "" {
		all = append(all, [2]string{"sidecar said", d.SidecarWord})
	}
	all = append(all, [2]string{"last exit", d.LastExit})
	if d.MemberID != "" {
		all = append(all, [2]string{"member", d.MemberID})
	}
	for _, file := range d.Certificates {
		if time.Until(file.Expires) < expiresSoon {
			all = append(all, [2]string{"certificate", fmt.Sprintf("%s %s: %s", file.Name, validity(file.Expires), file.Path)})
		}
	}
	return append(all, [2]string{"versions", fmt.Sprintf("wrapper %s, etcd %s, %s", d.Versions.Wrapper, d.Versions.Etcd, d.Versions.Go)})
}

func validity(expires time.Time) string {
	if time.Now().After(expires) {
		return "has expired at " + expires.Format(time.RFC3339)
	}
	return "expires at " + expires.Format(time.RFC3339)
}

// news tells the transitions that are new, and when readiness has changed.
func (t *telling) news(d status.Document) error {
	var b strings.Builder
	for _, step := range d.Transitions {
		if step.At.After(t.until) {
			b.WriteString(stepLine(step))
			t.until = step.At
		}
	}
	if d.Ready != t.ready {
		fmt.Fprintf(&b, "%s  %s\n", clock(time.Now()), t.readiness(d.Ready))
		t.ready = d.Ready
	}
	_, err := io.WriteString(t.to, b.String())
	return err
}

func stepLine(step status.Transition) string {
	way := step.From + " → " + step.To
	if step.From == step.To {
		way = step.From + " stays"
	}
	if step.Times > 1 {
		way += fmt.Sprintf(" ×%d", step.Times)
	}
	took := rounded(time.Duration(step.After * float64(time.Second)))
	return fmt.Sprintf("%s  %-26s  after %-7s  %s\n", clock(step.At), way, took, step.Reason)
}

func (t *telling) readiness(ready bool) string {
	if ready {
		return t.paint(green, "ready")
	}
	return t.paint(red, "not ready")
}

func (t *telling) verdict(word string) string {
	colours := map[string]int{"ok": green, "degraded": yellow, "failed": red}
	return t.paint(colours[word], fmt.Sprintf("%-8s", word))
}

func (t *telling) strong(text string) string { return t.paint(bold, text) }

// What terminals understand (ECMA-48).
const (
	bold   = 1
	red    = 31
	green  = 32
	yellow = 33
)

func (t *telling) paint(colour int, text string) string {
	if !t.colour {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", colour, text)
}

func clock(at time.Time) string { return at.Local().Format(time.TimeOnly) }

func rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
