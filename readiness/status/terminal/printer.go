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
	"time"

	"github.com/mattn/go-isatty"

	"etcd-wrapper/readiness/status"
)

// Colourful reports whether a stream is a terminal whose owner has nothing against colours.
func Colourful(to io.Writer) bool {
	file, ok := to.(*os.File)
	return ok && isatty.IsTerminal(file.Fd()) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

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
	now    func() time.Time // ages are told by it
	colour bool
	until  map[bool]time.Time // steps up to here were printed: the machine's, and readiness's, which come late
	known  map[happened]bool  // what happened and was printed
	ready  bool
	live   bool   // it can be written over what was written
	below  string // what is below the changes, to be written over
}

// happened tells one thing that happened from another.
type happened struct {
	at         int64
	kind, what string
}

// NewPrinter returns a printer that writes to a stream, in colours if that is a terminal that has them.
func NewPrinter(to io.Writer) *Printer {
	file, ok := to.(*os.File)
	return &Printer{to: to, now: time.Now, colour: Colourful(to), live: ok && isatty.IsTerminal(file.Fd()), until: map[bool]time.Time{}, known: map[happened]bool{}}
}

// ofReadiness is the kind of what happened when the member became ready.
const ofReadiness = "readiness"

// lastSteps is how many transitions, and happenings, are shown at once.
const lastSteps = 10

// longReason is what is not said twice, in bytes.
const longReason = 100

// Print writes one document in full. The error is the stream's.
func (p *Printer) Print(d status.Document) error {
	var b strings.Builder
	now := p.now()
	fmt.Fprintf(&b, "%s\n%s\n\n", Wrapped("", whose(d)+p.headline(d)), Wrapped("", d.Reason))
	var facts [][]string
	for _, fact := range factsOf(d, now) {
		facts = append(facts, []string{fact.name, fact.is})
	}
	b.WriteString(Table(facts...))
	if d.Trends != nil {
		b.WriteString("\n" + trends(d.Trends))
	}
	b.WriteString("\nchecks\n" + p.checks(d.Checks))
	if len(d.Timeline) > 0 {
		b.WriteString("\nwhat happened\n")
	}
	for _, is := range d.Timeline[max(0, len(d.Timeline)-lastSteps):] {
		b.WriteString(p.happening("  ", is))
	}
	b.WriteString("\nlatest steps\n")
	for _, step := range d.Transitions[max(0, len(d.Transitions)-lastSteps):] {
		if len(step.Reason) > longReason && step.Reason == d.Reason {
			step.Reason = "as said above"
		}
		b.WriteString(stepLine("  ", step))
	}
	_, err := io.WriteString(p.to, b.String())
	return err
}

// headline is the first line, with the state strong and the rest in the colour of the health.
func (p *Printer) headline(d status.Document) string {
	is := status.HeadlineOf(d) // a wrapper of another version may not say
	return p.strong(is.Phase) + p.paint(map[string]int{status.HealthOK: green, status.HealthDegraded: yellow, status.HealthFailed: red}[is.Health], strings.TrimPrefix(is.Summary, is.Phase))
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
		return Wrapped("  "+p.status("failed")+"  ", all[0].Reason) + "\n"
	}
	var rows [][]string
	for _, check := range all {
		rows = append(rows, []string{"  " + p.status(check.Status), check.Name, check.Reason})
	}
	return Table(rows...)
}

// change is a line about something that happened.
type change struct {
	at   time.Time
	line string
}

// PrintChanges writes what happened, and the transitions, that an earlier document did not have, and that readiness has changed, in the
// order in which they happened. At a terminal the headline and the last hours stay below them. The error is the stream's.
func (p *Printer) PrintChanges(d status.Document) error {
	var changes []change
	for _, step := range d.Transitions {
		if kind := isOfReadiness(step); step.At.After(p.until[kind]) {
			changes = append(changes, change{step.At, stepLine("", step)})
			p.until[kind] = step.At
		}
	}
	for _, is := range d.Timeline {
		if is.Kind == ofReadiness && is.Health == status.HealthOK {
			continue // the document itself tells it; why it is lost only this does
		}
		if key := (happened{is.At.UnixNano(), is.Kind, is.Message}); !p.known[key] {
			p.known[key] = true
			changes = append(changes, change{is.At, p.happening("", is)})
		}
	}
	if d.Ready != p.ready {
		at := cmp.Or(d.ReadySince, p.now()) // a wrapper of another version may not say
		changes = append(changes, change{at, fmt.Sprintf("%s  %s\n", Moment(at), p.readiness(d.Ready))})
		p.ready = d.Ready
	}
	slices.SortStableFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })
	var b strings.Builder
	for _, change := range changes {
		b.WriteString(change.line)
	}
	if p.live {
		below := "\n" + Wrapped("", whose(d)+p.headline(d)) + "\n"
		if d.Trends != nil {
			below += "\n" + trends(d.Trends)
		}
		p.keepBelow(&b, below)
	}
	_, err := io.WriteString(p.to, b.String())
	return err
}

// keepBelow writes changes over what is below them, and that again.
func (p *Printer) keepBelow(changes *strings.Builder, below string) {
	if changes.Len() == 0 && below == p.below {
		return
	}
	text := changes.String()
	changes.Reset()
	if p.below != "" {
		fmt.Fprintf(changes, "\x1b[%dA\x1b[J", strings.Count(p.below, "\n"))
	}
	changes.WriteString(text + below)
	p.below = below
}

// happening is a line about what happened, in the colour of its health.
func (p *Printer) happening(indent string, is status.TimelineEvent) string {
	what := is.Message
	if colour := map[string]int{status.HealthDegraded: yellow, status.HealthFailed: red}[is.Health]; colour != 0 {
		what = p.paint(colour, what)
	}
	return Wrapped(indent+Moment(is.At)+"  ", what) + "\n"
}

// isOfReadiness is true of what is no step of the state machine.
func isOfReadiness(step status.Transition) bool {
	return step.Event == "ready" || step.Event == "not ready"
}

func stepLine(indent string, step status.Transition) string {
	line := Way(step.From, step.To)
	if isOfReadiness(step) {
		line = step.From + ": " + step.Event
	}
	if step.Count > 1 {
		line += fmt.Sprintf(" ×%d", step.Count)
	}
	line += " after " + Rounded(time.Duration(step.AfterSeconds*float64(time.Second))).String()
	if step.Reason != "" {
		line += ": " + step.Reason
	}
	return Wrapped(indent+Moment(step.At)+"  ", line) + "\n"
}

func (p *Printer) readiness(ready bool) string {
	if ready {
		return p.paint(green, "ready")
	}
	return p.paint(red, "not ready")
}

func (p *Printer) status(word string) string {
	colours := map[string]int{"ok": green, "degraded": yellow, "failed": red}
	return p.paint(colours[word], fmt.Sprintf("%-8s", word))
}

func (p *Printer) strong(text string) string { return p.paint(bold, text) }
