package backups

import (
	"fmt"
	"io"
	"time"

	"etcd-wrapper/readiness/status/terminal"
)

const (
	redraw = 200 * time.Millisecond // at most so often
	settle = time.Second            // before a rate means anything
)

// clearLine goes to the beginning of a terminal's line and empties it (ECMA-48).
const clearLine = "\r\x1b[K"

// Meter shows at a terminal how far something is: bytes, rate and time left, in one line that is written again and again. It
// belongs to one goroutine. The zero value shows nothing.
type Meter struct {
	to    io.Writer // nil shows nothing
	now   func() time.Time
	began time.Time
	drawn time.Time
}

// NewMeter returns a meter that writes to a terminal; to is nil if there is none.
func NewMeter(to io.Writer) *Meter { return &Meter{to: to, now: time.Now} }

// Show says that so many bytes are done. total is 0 if it is not known.
func (m *Meter) Show(what string, done, total int64) {
	if m.to == nil {
		return
	}
	now := m.now()
	if m.began.IsZero() {
		m.began = now
	}
	if now.Sub(m.drawn) < redraw {
		return
	}
	m.drawn = now
	fmt.Fprint(m.to, clearLine, what, ": ", amount(done, total, now.Sub(m.began))) //nolint:errcheck // nobody is left to tell
}

// Clear takes the line away, for what is said next.
func (m *Meter) Clear() {
	if m.to != nil && !m.drawn.IsZero() {
		fmt.Fprint(m.to, clearLine) //nolint:errcheck // nobody is left to tell
	}
}

func amount(done, total int64, took time.Duration) string {
	text := terminal.Size(done)
	if total > 0 {
		text += " of " + terminal.Size(total)
	}
	if took < settle || done <= 0 {
		return text
	}
	rate := float64(done) / took.Seconds()
	text += fmt.Sprintf(", %s/s", terminal.Size(int64(rate)))
	if left := float64(total-done) / rate; total > done {
		text += fmt.Sprintf(", %v left", terminal.Rounded(time.Duration(left*float64(time.Second))))
	}
	return text
}
