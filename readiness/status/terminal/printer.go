package terminal

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mattn/go-isatty"

	"etcd-wrapper/readiness/status"
)

// HasColour reports whether a stream is a terminal that supports colours, and NO_COLOR is not set.
func HasColour(to io.Writer) bool {
	file, ok := to.(*os.File)
	return ok && isatty.IsTerminal(file.Fd()) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// Terminal colours (ECMA-48).
const (
	bold   = 1
	red    = 31
	green  = 32
	yellow = 33
)

func (p *Printer) inColour(colour int, text string) string {
	if !p.colour {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", colour, text)
}

// A Printer prints documents on a terminal. It is not safe for concurrent use.
type Printer struct {
	to     io.Writer
	now    func() time.Time
	colour bool
	until  map[bool]time.Time // time of the last printed transition: readiness changes (true) and all others (false)
	known  map[eventKey]bool  // timeline events that have already been printed
	ready  bool               // readiness that was printed last
	live   bool               // whether the output is a terminal, on which lines can be overwritten
	below  string             // headline, progress bars and trends, which redraw overwrites
	width  int                // terminal width in columns

	// Verbose makes Print print the whole document.
	Verbose bool
}

// eventKey identifies a timeline event.
type eventKey struct {
	at            int64
	kind, message string
}

// NewPrinter returns a Printer for a stream. It uses colours if the stream supports them.
func NewPrinter(to io.Writer) *Printer {
	file, ok := to.(*os.File)
	return &Printer{to: to, now: time.Now, colour: HasColour(to), live: ok && isatty.IsTerminal(file.Fd()), until: map[bool]time.Time{}, known: map[eventKey]bool{}, width: columnsOf(file)}
}

// kindReadiness is the kind of the timeline events for readiness changes.
const kindReadiness = "readiness"

const (
	lastEvents  = 10  // maximum number of transitions and timeline events
	briefEvents = 4   // maximum number of timeline events without Verbose
	longReason  = 100 // a reason longer than this, in bytes, is printed only once
)

// brief lists the lines that are printed without Verbose.
var brief = map[string]bool{
	"ready since": true, "not ready since": true, "error": true, "next step": true, "leader": true, "database": true, "volume": true,
	"recovery": true, "defragmentation": true, "backups": true, "in the store": true, "running full snapshot": true, "last restore test": true,
	"certificate": true, "configuration": true, "last exit": true,
}

// Print prints the most important lines of a document on one screen, or all lines if p is Verbose. Print returns
// write errors.
func (p *Printer) Print(d status.Document) error {
	var b strings.Builder
	b.WriteString(p.wrapped("", name(d)+p.headline(d)) + "\n")
	if p.Verbose || !d.Ready && d.State != "Serving" {
		b.WriteString(p.wrapped("", d.Reason) + "\n")
	}
	for _, c := range status.HeadlineOf(d).Conditions {
		command := c.Command + ", "
		if c.Command == "etcd-wrapper status" { // the user has just run this command
			command = ""
		}
		b.WriteString(p.wrapped("  ", c.Subject+": see "+command+c.Runbook) + "\n")
	}
	var rows [][]string
	shown := false
	for _, line := range statusLines(d, p.now()) {
		if line.name != "" {
			shown = p.Verbose || brief[line.name]
		}
		if shown {
			rows = append(rows, []string{line.name, line.text})
		}
	}
	b.WriteString("\n" + p.table(rows...))
	if p.Verbose {
		if d.Trends != nil {
			b.WriteString("\n" + p.trends(d.Trends))
		}
		b.WriteString("\nchecks\n" + p.checks(d.Checks))
	}
	events := lastEvents
	if !p.Verbose {
		events = briefEvents
	}
	if len(d.Timeline) > 0 {
		b.WriteString("\ntimeline\n")
	}
	for _, event := range d.Timeline[max(0, len(d.Timeline)-events):] {
		// Without Verbose, the line about the recovery already describes the restore.
		if p.Verbose || event.Kind != "restore" {
			b.WriteString(p.event("  ", event))
		}
	}
	if p.Verbose {
		b.WriteString("\nlatest steps\n")
		for _, step := range d.Transitions[max(0, len(d.Transitions)-lastEvents):] {
			if len(step.Reason) > longReason && step.Reason == d.Reason {
				step.Reason = "see above"
			}
			b.WriteString(p.step("  ", step))
		}
	}
	_, err := io.WriteString(p.to, b.String())
	return err
}

var healthColours = map[string]int{status.HealthOK: green, status.HealthDegraded: yellow, status.HealthFailed: red}

// headline returns the headline with the phase in bold and the rest in the colour of the health.
func (p *Printer) headline(d status.Document) string {
	h := status.HeadlineOf(d) // computed here, because older wrappers do not send d.Headline
	return p.inColour(bold, h.Phase) + p.inColour(healthColours[h.Health], strings.TrimPrefix(h.Summary, h.Phase))
}

// name returns the name of the pod, if known, as a prefix of the headline.
func name(d status.Document) string {
	if d.Pod == "" {
		return ""
	}
	return d.Pod + ": "
}

// checks returns a line for each check, or a single line if all checks fail for the same reason.
func (p *Printer) checks(all []status.Check) string {
	checkStatus := func(health string) string {
		return "  " + p.inColour(healthColours[health], fmt.Sprintf("%-8s", health))
	}
	if reason := status.CommonReason(all); reason != "" {
		return p.wrapped(checkStatus(status.HealthFailed)+"  ", reason) + "\n"
	}
	var rows [][]string
	for _, check := range all {
		rows = append(rows, []string{checkStatus(check.Status), check.Name, check.Reason})
	}
	return p.table(rows...)
}

// A change is a printed line about an event, a transition or a readiness change.
type change struct {
	at   time.Time
	line string
}

// PrintChanges prints the events, transitions and readiness changes in the document that have not been printed yet, in
// chronological order. On a terminal, PrintChanges keeps the headline, progress bars and trends below the changes. It
// returns write errors.
func (p *Printer) PrintChanges(d status.Document) error {
	var changes []change
	for _, step := range d.Transitions {
		if kind := isReadinessChange(step); step.At.After(p.until[kind]) {
			changes = append(changes, change{step.At, p.step("", step)})
			p.until[kind] = step.At
		}
	}
	for _, event := range d.Timeline {
		if event.Kind == kindReadiness && event.Health == status.HealthOK {
			continue // printed below, like all readiness changes; only the reason of a lost readiness is added here
		}
		if key := (eventKey{event.At.UnixNano(), event.Kind, event.Message}); !p.known[key] {
			p.known[key] = true
			changes = append(changes, change{event.At, p.event("", event)})
		}
	}
	if d.Ready != p.ready {
		at := cmp.Or(d.ReadySince, p.now()) // older wrappers do not send ReadySince
		colour := map[bool]int{true: green, false: red}[d.Ready]
		changes = append(changes, change{at, fmt.Sprintf("%s  %s\n", FormatTime(at), p.inColour(colour, readyWord(d.Ready)))})
		p.ready = d.Ready
	}
	slices.SortStableFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })
	var b strings.Builder
	for _, change := range changes {
		b.WriteString(change.line)
	}
	if p.live {
		below := "\n" + p.wrapped("", name(d)+p.headline(d)) + "\n" + p.progress(d)
		if d.Trends != nil {
			below += "\n" + p.trends(d.Trends)
		}
		p.redraw(&b, below)
	}
	_, err := io.WriteString(p.to, b.String())
	return err
}

// redraw overwrites the last lines with the changes, followed by the new last lines.
func (p *Printer) redraw(changes *strings.Builder, below string) {
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

// event formats an event in the colour of its health.
func (p *Printer) event(indent string, e status.TimelineEvent) string {
	text := e.Message
	if e.Health != status.HealthOK {
		text = p.inColour(healthColours[e.Health], text)
	}
	return p.wrapped(indent+FormatTime(e.At)+"  ", text) + "\n"
}

// isReadinessChange reports whether a transition is a readiness change instead of a transition of the lifecycle.
func isReadinessChange(step status.Transition) bool {
	return step.Event == "ready" || step.Event == "not ready"
}

func (p *Printer) step(indent string, step status.Transition) string {
	line := FormatStep(string(step.From), string(step.To))
	if isReadinessChange(step) {
		line = string(step.From) + ": " + string(step.Event)
	}
	if step.Count > 1 {
		line += fmt.Sprintf(" ×%d", step.Count)
	}
	line += " after " + duration(step.AfterSeconds).String()
	if step.Reason != "" {
		line += ": " + step.Reason
	}
	return p.wrapped(indent+FormatTime(step.At)+"  ", line) + "\n"
}

// progress returns a progress bar for each long-running operation.
func (p *Printer) progress(d status.Document) string {
	var rows [][]string
	add := func(name string, share float64, text string) {
		filled := int(barWidth * min(1, max(0, share)))
		rows = append(rows, []string{"  " + name, strings.Repeat("█", filled) + strings.Repeat("░", barWidth-filled), fmt.Sprintf("%3.0f%%%s", 100*share, text)})
	}
	if r := d.Recovery; r != nil && r.State == "Build" && r.TotalBytes > 0 {
		add("restore", float64(r.RestoredBytes)/float64(r.TotalBytes), " of "+Size(r.TotalBytes)+remaining(r.RemainingSeconds))
	}
	if m := d.Maintenance; m != nil && m.Phase == "running" {
		add("defragmentation", m.Progress, "")
	}
	if b := d.Backup; b != nil && b.RunningFullSnapshot != nil && b.RunningFullSnapshot.TotalBytes > 0 {
		run := b.RunningFullSnapshot
		add("full snapshot", float64(run.SentBytes)/float64(run.TotalBytes), " of "+Size(run.TotalBytes)+remaining(run.RemainingSeconds))
	}
	return p.table(rows...)
}

// trends returns a line for each time series, with its latest and its maximum value.
func (p *Printer) trends(t *status.Trends) string {
	covers := time.Duration(float64(len(t.Write)) * t.Interval * float64(time.Second))
	rows := [][]string{}
	for _, series := range []struct {
		name   string
		points status.Points
		text   func(float64) string
	}{
		{"writes", t.Write, formatSeconds},
		{"reads", t.Read, formatSeconds},
		{"log fsync p99", t.Fsync, formatSeconds},
		{"database", t.DBSize, formatBytes},
		{"in use", t.DBInUse, formatBytes},
		{"backup lag", t.BackupLag, formatSeconds},
		{"revisions", t.Revisions, formatRate},
	} {
		measured := slices.DeleteFunc(slices.Clone(series.points), isMissing)
		if len(measured) > 0 {
			now, highest := float64(measured[len(measured)-1]), float64(slices.Max(measured))
			rows = append(rows, []string{"  " + series.name, sparkline(series.points), series.text(now) + ", max " + series.text(highest)})
		}
	}
	return fmt.Sprintf("the last %v\n", Round(covers)) + p.table(rows...)
}

func isMissing(point float32) bool { return math.IsNaN(float64(point)) }

const (
	lineWidth = 40 // maximum number of columns of a time series
	barWidth  = 30 // width of a progress bar in columns
)

// sparkline draws a time series on a scale that starts at 0. If several points share a column, sparkline draws their
// maximum. At least one point must not be missing.
func sparkline(points status.Points) string {
	highest := slices.Max(slices.DeleteFunc(slices.Clone(points), isMissing))
	var b strings.Builder
	for group := range slices.Chunk(points, (len(points)+lineWidth-1)/lineWidth) {
		switch measured := slices.DeleteFunc(slices.Clone(group), isMissing); {
		case len(measured) == 0:
			b.WriteByte(' ')
		case highest <= 0:
			b.WriteRune('▁')
		default:
			b.WriteRune([]rune("▁▂▃▄▅▆▇█")[int(7*(slices.Max(measured)/highest))])
		}
	}
	return b.String()
}

// formatBytes formats a number of bytes. It rounds to KiB, because points have only four significant digits.
func formatBytes(v float64) string { return Size(int64(math.Round(v/1024)) * 1024) }

// formatSeconds formats a number of seconds with three significant digits.
func formatSeconds(v float64) string {
	d := time.Duration(v * float64(time.Second))
	for unit := time.Microsecond; unit <= time.Second; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit).String()
		}
	}
	return Round(d).String()
}

func formatRate(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f/s", v)
	}
	return fmt.Sprintf("%.3g/s", v)
}
