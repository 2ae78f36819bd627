package terminal

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// FormatStep formats a transition of a state machine, for example as "Query → Wait" or "Query stays".
func FormatStep(from, to string) string {
	if from == to {
		return from + " stays"
	}
	return from + " → " + to
}

// Round rounds a duration to milliseconds if it is shorter than a second, and to seconds otherwise.
func Round(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}

// FormatAge formats the age of a time. If the time is in the future, because it comes from another machine's clock,
// FormatAge formats how far it is ahead.
func FormatAge(at, now time.Time) string {
	if ahead := at.Sub(now); ahead >= time.Second {
		return fmt.Sprintf("%v ahead of this machine's clock", Round(ahead))
	}
	return fmt.Sprintf("%v ago", Round(max(0, now.Sub(at))))
}

// Size formats a number of bytes.
func Size(bytes int64) string {
	switch {
	case bytes < 1<<10:
		return fmt.Sprintf("%d bytes", bytes)
	case bytes < 1<<20:
		return fmt.Sprintf("%d KiB", bytes>>10)
	case bytes < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	default:
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	}
}

// FormatTime formats a time in the local time zone.
func FormatTime(at time.Time) string { return at.Local().Format("2006-01-02 15:04:05 MST") }

const (
	// columns is the line width if the output is not a terminal. A long word, such as a path, is not broken and may
	// make a line wider.
	columns = 80
	// narrow is the minimum number of columns that must be available for text to be wrapped.
	narrow = 12
)

// words matches words and times, which must not be broken.
var words = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+|\S+`)

// Wrapped returns the lead followed by the text, wrapped at 80 columns with continuation lines indented by the width
// of the lead. If the lead is too wide, the text is not wrapped.
func Wrapped(lead, text string) string { return wrapped(lead, text, columns) }

func (p *Printer) wrapped(lead, text string) string { return wrapped(lead, text, p.width) }

func wrapped(lead, text string, columns int) string {
	indent := width(lead)
	if indent > columns-narrow {
		return lead + text
	}
	var b strings.Builder
	b.WriteString(lead)
	at, last := indent, 0
	for _, word := range words.FindAllStringIndex(text, -1) {
		blanks, token := strings.Repeat(" ", word[0]-last), text[word[0]:word[1]]
		if at > indent && at+len(blanks)+width(token) > columns {
			blanks, at = "\n"+strings.Repeat(" ", indent), indent
		} else {
			at += len(blanks)
		}
		b.WriteString(blanks + token)
		at, last = at+width(token), word[1]
	}
	return b.String()
}

// Table formats rows, which must all have the same number of cells. Text in the last column is wrapped.
func Table(rows ...[]string) string { return table(columns, rows) }

func (p *Printer) table(rows ...[]string) string { return table(p.width, rows) }

func table(columns int, rows [][]string) string {
	widths := map[int]int{}
	for _, row := range rows {
		for i, cell := range row[:len(row)-1] {
			widths[i] = max(widths[i], width(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		last, lead := len(row)-1, ""
		for i, cell := range row[:last] {
			lead += padded(cell, widths[i]) + "  "
		}
		b.WriteString(strings.TrimRight(wrapped(lead, row[last], columns), " ") + "\n")
	}
	return b.String()
}

func padded(text string, to int) string { return text + strings.Repeat(" ", max(0, to-width(text))) }

// width returns the width of a string in columns, not counting colour escape sequences.
func width(text string) int {
	plain := 0
	for {
		before, after, painted := strings.Cut(text, "\x1b[")
		plain += utf8.RuneCountInString(before)
		if !painted {
			return plain
		}
		_, text, _ = strings.Cut(after, "m")
	}
}

// columnsOf returns the width of a terminal, or 80 if the file is not a terminal. It returns at most 160, because
// very long lines are hard to read.
func columnsOf(file *os.File) int {
	if file == nil {
		return columns
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col < columns/2 {
		return columns
	}
	return min(int(size.Col), 2*columns)
}
