// Package logstream is the one log stream of the program: JSON lines, or a form for people at a terminal, that never
// wait for their reader and into which libraries log as well.
//
// The command opens the stream, puts libraries into it and makes the loggers that every other part gets.
package logstream

import (
	"io"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/internal/printable"
)

// writeTimes sets what zerolog keeps for the whole process. Loggers that are in use read it, so it is set once.
var writeTimes = sync.OnceFunc(func() {
	zerolog.TimeFieldFormat = time.RFC3339Nano
	zerolog.TimestampFunc = func() time.Time { return time.Now().UTC() }
})

// New returns a logger that writes a JSON object a line, from level upwards. Times are in UTC, wherever the process runs.
func New(to io.Writer, level zerolog.Level) zerolog.Logger {
	writeTimes()
	return zerolog.New(printable.Log(to)).Level(level).With().Timestamp().Logger()
}
