// Package logstream owns the one log stream of the program: JSON lines, or text at a terminal. Writers never wait for the
// reader of the stream, and libraries log to it too.
//
// The command opens the stream, redirects libraries to it and creates the loggers of all other packages.
package logstream

import (
	"io"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/internal/printable"
)

// writeTimes sets the time format of zerolog, which is global. Active loggers read it, so it is set once.
var writeTimes = sync.OnceFunc(func() {
	zerolog.TimeFieldFormat = time.RFC3339Nano
	zerolog.TimestampFunc = func() time.Time { return time.Now().UTC() }
})

// New returns a logger that writes a JSON object a line, from level upwards. Times are in UTC.
func New(to io.Writer, level zerolog.Level) zerolog.Logger {
	writeTimes()
	return zerolog.New(printable.Log(to)).Level(level).With().Timestamp().Logger()
}
