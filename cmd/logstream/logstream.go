// Package logstream owns the log stream of the program: JSON lines, or text on a terminal. Writers never wait for the
// reader of the stream, and libraries log to it as well.
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

// writeTimes sets zerolog's global time format. It does so once, because active loggers read it.
var writeTimes = sync.OnceFunc(func() {
	zerolog.TimeFieldFormat = time.RFC3339Nano
	zerolog.TimestampFunc = func() time.Time { return time.Now().UTC() }
})

// New returns a logger that writes one JSON object per line, with times in UTC. level is the minimum level.
func New(to io.Writer, level zerolog.Level) zerolog.Logger {
	writeTimes()
	return zerolog.New(printable.Log(to)).Level(level).With().Timestamp().Logger()
}
