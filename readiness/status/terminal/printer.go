package terminal

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"etcd-wrapper/readiness/status"
)

// Printer prints documents for people. One goroutine at a time may use it.
type Printer struct {
	to     io.Writer
	colour bool
	until  time.Time // transitions up to here were printed
	ready  bool
}

// NewPrinter returns a printer that writes to a stream, in colours if that is a terminal that has them.
func NewPrinter(to io.Writer) *Printer { return &Printer{to: to, colour: Colourful(to)} }

// lastSteps is how many transitions are shown at once.
const lastSteps = 10

// Print writes one document in full. The error is the stream's.
func (p *Printer) Print(d status.Document) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s\n%s\n\n", p.strong(d.State), p.readiness(d.Ready), d.Reason)
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, fact := range facts(d) {
		fmt.Fprintf(table, "%s\t%s\n", fact[0], fact[1]) //nolint:errcheck // a strings.Builder takes everything
	}
	table.Flush() //nolint:errcheck // a strings.Builder takes everything
	b.WriteString("\nchecks\n")
	if alike(d.Checks) {
		fmt.Fprintf(&b, "  %s  all: %s\n", p.verdict(d.Checks[0].Status), d.Checks[0].Reason)
	} else {
		for _, check := range d.Checks {
			fmt.Fprintf(&b, "  %s  %s  %s\n", p.verdict(check.Status), check.Name, check.Reason)
		}
	}
	fmt.Fprintf(&b, "\nlatest steps\n")
	for _, step := range d.Transitions[max(0, len(d.Transitions)-lastSteps):] {
		b.WriteString("  " + stepLine(step))
	}
	_, err := io.WriteString(p.to, b.String())
	return err
}

// alike reports whether there is one reason for all checks: etcd does not run.
func alike(checks []status.Check) bool {
	return len(checks) > 1 && checks[0].Reason != "" && !slices.ContainsFunc(checks, func(c status.Check) bool {
		return c.Status != checks[0].Status || c.Reason != checks[0].Reason
	})
}

// facts are what there is to know about a run, each with its name.
func facts(d status.Document) [][2]string {
	began := d.PhaseSince
	if began.IsZero() { // a wrapper of an older version
		began = d.Since
	}
	all := [][2]string{{"since", fmt.Sprintf("%s (%s)", clock(began), Rounded(time.Since(began)))}}
	if d.Attempt > 1 {
		all = append(all, [2]string{"attempt", fmt.Sprint(d.Attempt)})
	}
	if !d.NextRetry.IsZero() {
		all = append(all, [2]string{"next step", "within " + Rounded(max(0, time.Until(d.NextRetry))).String()})
	}
	if e := d.LastError; e != nil {
		all = append(all, trouble(e, d.Reason))
	}
	if v := d.Validation; v != nil {
		all = append(all, [2]string{"validation", v.Mode + ": " + v.Reason})
	}
	if d.SidecarWord != "" {
		all = append(all, [2]string{"sidecar said", d.SidecarWord})
	}
	lastExit := d.LastExit
	if d.LastExitReason != "" {
		lastExit += ": " + d.LastExitReason
	}
	all = append(all, [2]string{"last exit", lastExit})
	if d.MemberID != "" {
		all = append(all, [2]string{"member", d.MemberID})
	}
	for _, file := range d.Certificates {
		if file.ExpiresSoon(time.Now()) {
			all = append(all, [2]string{"certificate", fmt.Sprintf("%s %s: %s", file.Name, validity(file.Expires), file.Path)})
		}
	}
	return append(all, [2]string{"versions", fmt.Sprintf("wrapper %s, etcd %s, %s", d.Versions.Wrapper, d.Versions.Etcd, d.Versions.Go)})
}

// trouble says since when it lasts and how often it was met, or that it is over. What the reason of the state says
// already is not repeated.
func trouble(e *status.Error, reason string) [2]string {
	name, told := "trouble", clock(e.At)
	if e.Times > 1 {
		told += fmt.Sprintf(", %d times since %s", e.Times, clock(e.Since))
	}
	if !e.Ended.IsZero() {
		name = "last trouble"
		told += ", over since " + clock(e.Ended)
	}
	told += ", " + e.Class
	if !strings.Contains(reason, e.Message) {
		told += ": " + e.Message
	}
	return [2]string{name, told}
}

func validity(expires time.Time) string {
	if time.Now().After(expires) {
		return "has expired at " + expires.Format(time.RFC3339)
	}
	return "expires at " + expires.Format(time.RFC3339)
}

// PrintChanges writes the transitions that an earlier document did not have, and that readiness has changed. The error is
// the stream's.
func (p *Printer) PrintChanges(d status.Document) error {
	var b strings.Builder
	for _, step := range d.Transitions {
		if step.At.After(p.until) {
			b.WriteString(stepLine(step))
			p.until = step.At
		}
	}
	if d.Ready != p.ready {
		fmt.Fprintf(&b, "%s  %s\n", clock(time.Now()), p.readiness(d.Ready))
		p.ready = d.Ready
	}
	_, err := io.WriteString(p.to, b.String())
	return err
}

func stepLine(step status.Transition) string {
	way := Way(step.From, step.To)
	if step.Times > 1 {
		way += fmt.Sprintf(" ×%d", step.Times)
	}
	took := Rounded(time.Duration(step.After * float64(time.Second)))
	return fmt.Sprintf("%s  %-26s  after %-7s  %s\n", clock(step.At), way, took, step.Reason)
}

func (p *Printer) readiness(ready bool) string {
	if ready {
		return p.paint(green, "ready")
	}
	return p.paint(red, "not ready")
}

func (p *Printer) verdict(word string) string {
	colours := map[string]int{"ok": green, "degraded": yellow, "failed": red}
	return p.paint(colours[word], fmt.Sprintf("%-8s", word))
}

func (p *Printer) strong(text string) string { return p.paint(bold, text) }
