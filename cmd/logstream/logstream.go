// Package logstream provides the log stream of the program: JSON lines, or text on a terminal. Writers never wait for
// the reader of the stream. The output of libraries goes to the same stream.
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

// writeTimes sets zerolog's global time format. writeTimes runs only once, because active loggers read the format.
var writeTimes = sync.OnceFunc(func() {
	zerolog.TimeFieldFormat = time.RFC3339Nano
	zerolog.TimestampFunc = func() time.Time { return time.Now().UTC() }
})

// New returns a logger that writes one JSON object per line, with times in UTC.
func New(to io.Writer, level zerolog.Level) zerolog.Logger {
	writeTimes()
	return zerolog.New(printable.Log(to)).Level(level).With().Timestamp().Logger()
}
