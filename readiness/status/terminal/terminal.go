// Package terminal is how status documents, and the steps and durations in them, look to people at a terminal.
//
// `etcd-wrapper status` prints with it; the log's form for people writes steps and durations the same way.
package terminal

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mattn/go-isatty"
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
