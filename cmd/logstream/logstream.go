// Package logstream provides the program's log stream, which contains JSON lines, or text if it is written to a
// terminal. A slow reader of the stream never blocks a writer. The output of libraries is redirected to the same
// stream.
//
// Package main opens the stream, redirects the libraries and creates the loggers of all other packages.
package logstream

import (
	"io"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/internal/printable"
)

// writeTimes sets zerolog's global time format. The format is set only once, because loggers that are in use read it.
var writeTimes = sync.OnceFunc(func() {
	zerolog.TimeFieldFormat = time.RFC3339Nano
	zerolog.TimestampFunc = func() time.Time { return time.Now().UTC() }
})

// New returns a logger that writes one JSON object per line, with times in UTC.
func New(to io.Writer, level zerolog.Level) zerolog.Logger {
	writeTimes()
	return zerolog.New(printable.Log(to)).Level(level).With().Timestamp().Logger()
}
