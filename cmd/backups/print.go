package backups

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/internal/printable"
	"etcd-wrapper/readiness/status/terminal"
)

// JSON prints a document for programs.
func JSON(to io.Writer, document any) error {
	encoder := json.NewEncoder(to)
	encoder.SetIndent("", "  ")
	return encoder.Encode(document)
}

// Print prints the overview for people, with times in their zone.
func (o Overview) Print(to io.Writer) error {
	var b strings.Builder
	now := time.Now()
	fmt.Fprintf(&b, "%s\n", printable.Line(o.Store))
	if len(o.Generations) == 0 && len(o.Sidecar) == 0 {
		b.WriteString("\nno backups\n")
	}
	for _, generation := range o.Generations {
		generation.print(&b, now)
	}
	printSidecar(&b, o.Sidecar)
	_, err := io.WriteString(to, b.String())
	return err
}

func (g GenerationOverview) print(b *strings.Builder, now time.Time) {
	fmt.Fprintf(b, "\ngeneration %d, cluster %s, since %s", g.Number, printable.Line(g.Cluster), terminal.Moment(g.Created))
	if g.Parent != 0 {
		fmt.Fprintf(b, ", restored from generation %d at revision %d", g.Parent, g.ParentRevision)
	}
	b.WriteString("\n\n")
	var windows [][]string
	for _, window := range g.Windows {
		windows = append(windows, []string{
			"can go back to", fmt.Sprintf("revision %d to %d", window.From, window.To), terminal.Moment(window.Begin) + " to " + terminal.Moment(window.End),
		})
		if window.Beyond != "" {
			windows = append(windows, []string{"", "what follows cannot be read", window.Beyond})
		}
	}
	b.WriteString(table(windows...))
	if len(g.Windows) == 0 {
		b.WriteString("nothing can be gone back to\n")
	}
	fmt.Fprintf(b, "last verified   %s\n", g.Verified.words(now))
	fmt.Fprintf(b, "segments        %s, %s\n\n", count(g.Segments.Objects, "object"), terminal.Size(g.Segments.Bytes))
	printFulls(b, g.Fulls, now)
}

func printFulls(b *strings.Builder, fulls []FullOverview, now time.Time) {
	rows := [][]string{{"FULL", "REVISION", "TIME", "SIZE", "DATABASE", "MADE BECAUSE OF", "VERIFIED"}}
	for _, full := range fulls {
		if full.Error != "" {
			rows = append(rows, []string{printable.Line(full.Name), "", "", terminal.Size(full.Bytes), "", "", "cannot be used: " + full.Error})
			continue
		}
		rows = append(rows, []string{
			full.Name, strconv.FormatInt(full.Revision, 10), terminal.Moment(full.Time), full.size(), terminal.Size(full.Database),
			full.Reason, full.Verified.words(now),
		})
	}
	b.WriteString(table(rows...))
}

func (f FullOverview) size() string {
	if f.Encrypted {
		return terminal.Size(f.Bytes) + ", encrypted"
	}
	return terminal.Size(f.Bytes)
}

// words is a verdict for people.
func (v *Verification) words(now time.Time) string {
	if v == nil {
		return "not yet"
	}
	what := "yes"
	if v.Outcome != string(archive.Verified) {
		what = "FAILED: " + v.Why
	}
	return fmt.Sprintf("%s, revision %d, %v ago", what, v.Revision, terminal.Rounded(now.Sub(v.At)))
}
