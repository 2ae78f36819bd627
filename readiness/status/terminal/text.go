package terminal

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

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

// Age says how long ago a moment was. The clock that told it may be ahead of the reader's.
func Age(at, now time.Time) string {
	if ahead := at.Sub(now); ahead >= time.Second {
		return fmt.Sprintf("%v ahead of this machine's clock", Rounded(ahead))
	}
	return fmt.Sprintf("%v ago", Rounded(max(0, now.Sub(at))))
}

// Size is a number of bytes as people read it.
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

// Moment is a time in the reader's zone.
func Moment(at time.Time) string { return at.Local().Format("2006-01-02 15:04:05 MST") }

const (
	// columns is how wide lines are at most, unless a single word is wider: a command or a path that was cut could not be copied.
	columns = 80
	// narrow is how many columns are too few for a text to be wrapped in.
	narrow = 12
)

// words are what stays in one line: a moment does.
var words = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+|\S+`)

// Wrapped is a text behind a lead, in lines of at most 80 columns that break at blanks. Those after the first begin under the text. Behind
// a lead that leaves no room it is one line.
func Wrapped(lead, text string) string {
	indent := width(lead)
	if indent > columns-narrow {
		return lead + text
	}
	var b strings.Builder
	b.WriteString(lead)
	at, last := indent, 0
	for _, word := range words.FindAllStringIndex(text, -1) {
		blanks, is := strings.Repeat(" ", word[0]-last), text[word[0]:word[1]]
		if at > indent && at+len(blanks)+width(is) > columns {
			blanks, at = "\n"+strings.Repeat(" ", indent), indent
		} else {
			at += len(blanks)
		}
		b.WriteString(blanks + is)
		at, last = at+width(is), word[1]
	}
	return b.String()
}

// Table aligns rows of as many cells each. The last column wraps.
func Table(rows ...[]string) string {
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
		b.WriteString(strings.TrimRight(Wrapped(lead, row[last]), " ") + "\n")
	}
	return b.String()
}

func padded(text string, to int) string { return text + strings.Repeat(" ", max(0, to-width(text))) }

// width is how many columns a text takes. Colours take none.
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
