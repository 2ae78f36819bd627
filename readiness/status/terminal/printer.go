// Package terminal is how status documents, and the steps and durations in them, look to people at a terminal.
//
// `etcd-wrapper status` prints with it; the log's form for people writes steps and durations the same way.
package terminal

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mattn/go-isatty"

	"etcd-wrapper/readiness/status"
)

// Colourful reports whether a stream is a terminal whose owner has nothing against colours.
func Colourful(to io.Writer) bool {
	file, ok := to.(*os.File)
	return ok && isatty.IsTerminal(file.Fd()) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// Way is a step of the state machine, as "Query → Wait" or "Query stays".
func Way(from, to string) string {
	if from == to {
		return from + " stays"
	}
	return from + " → " + to
}

// Rounded is a duration in milliseconds below a second, and in seconds above.
func Rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}

// Size is a number of bytes as people read it.
func Size(bytes int64) string {
	if bytes < 1<<10 {
		return fmt.Sprintf("%d bytes", bytes)
	}
	return size(bytes)
}

// Moment is a time in the reader's zone.
func Moment(at time.Time) string { return moment(at) }

// What terminals understand (ECMA-48).
const (
	bold   = 1
	red    = 31
	green  = 32
	yellow = 33
)

func (p *Printer) paint(colour int, text string) string {
	if !p.colour {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", colour, text)
}

// Printer prints documents for people. One goroutine at a time may use it.
type Printer struct {
	to     io.Writer
	colour bool
	until  map[bool]time.Time // steps up to here were printed: the machine's, and readiness's, which come late
	ready  bool
}

// NewPrinter returns a printer that writes to a stream, in colours if that is a terminal that has them.
func NewPrinter(to io.Writer) *Printer {
	return &Printer{to: to, colour: Colourful(to), until: map[bool]time.Time{}}
}

// lastSteps is how many transitions are shown at once.
const lastSteps = 10

// longReason is what is not said twice, in bytes.
const longReason = 100

// Print writes one document in full. The error is the stream's.
func (p *Printer) Print(d status.Document) error {
	var b strings.Builder
	now := time.Now()
	fmt.Fprintf(&b, "%s%s\n%s\n\n", whose(d), p.headline(d), d.Reason)
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, fact := range factsOf(d, now) {
		fmt.Fprintf(table, "%s\t%s\n", fact.name, fact.is) //nolint:errcheck // a strings.Builder takes everything
	}
	table.Flush() //nolint:errcheck // a strings.Builder takes everything
	b.WriteString("\nchecks\n" + p.checks(d.Checks))
	fmt.Fprintf(&b, "\nlatest steps\n")
	for _, step := range d.Transitions[max(0, len(d.Transitions)-lastSteps):] {
		if len(step.Reason) > longReason && step.Reason == d.Reason {
			step.Reason = "as said above"
		}
		b.WriteString("  " + stepLine(step))
	}
	_, err := io.WriteString(p.to, b.String())
	return err
}

// headline is the first line, with the state strong and the rest in the colour of the health.
func (p *Printer) headline(d status.Document) string {
	is := status.HeadlineOf(d) // a wrapper of another version may not say
	return p.strong(is.Phase) + p.paint(map[string]int{status.HealthOK: green, status.HealthDegraded: yellow, status.HealthFailed: red}[is.Health], strings.TrimPrefix(is.Line, is.Phase))
}

func whose(d status.Document) string {
	if d.Pod == "" {
		return ""
	}
	return d.Pod + ": "
}

// checks is one line if all fail for one reason: etcd does not run.
func (p *Printer) checks(all []status.Check) string {
	differs := func(c status.Check) bool { return c.Status != "failed" || c.Reason != all[0].Reason }
	if len(all) > 0 && !slices.ContainsFunc(all, differs) {
		return fmt.Sprintf("  %s  %s\n", p.verdict("failed"), all[0].Reason)
	}
	var b strings.Builder
	for _, check := range all {
		fmt.Fprintf(&b, "  %s  %s  %s\n", p.verdict(check.Status), check.Name, check.Reason)
	}
	return b.String()
}

// change is a line about something that happened.
type change struct {
	at   time.Time
	line string
}

// PrintChanges writes the transitions that an earlier document did not have, and that readiness has changed, in the order
// in which they happened. The error is the stream's.
func (p *Printer) PrintChanges(d status.Document) error {
	var changes []change
	for _, step := range d.Transitions {
		if kind := isOfReadiness(step); step.At.After(p.until[kind]) {
			changes = append(changes, change{step.At, stepLine(step)})
			p.until[kind] = step.At
		}
	}
	if d.Ready != p.ready {
		at := cmp.Or(d.ReadySince, time.Now()) // a wrapper of another version may not say
		changes = append(changes, change{at, fmt.Sprintf("%s  %s\n", moment(at), p.readiness(d.Ready))})
		p.ready = d.Ready
	}
	slices.SortStableFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })
	var b strings.Builder
	for _, change := range changes {
		b.WriteString(change.line)
	}
	_, err := io.WriteString(p.to, b.String())
	return err
}

// isOfReadiness is true of what is no step of the state machine.
func isOfReadiness(step status.Transition) bool {
	return step.Event == "ready" || step.Event == "not ready"
}

func stepLine(step status.Transition) string {
	way := Way(step.From, step.To)
	if isOfReadiness(step) {
		way = step.From + ": " + step.Event
	}
	if step.Times > 1 {
		way += fmt.Sprintf(" ×%d", step.Times)
	}
	took := Rounded(time.Duration(step.After * float64(time.Second)))
	return fmt.Sprintf("%s  %-26s  after %-7s  %s\n", moment(step.At), way, took, step.Reason)
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
