package logstream

import (
	"bytes"
	"io"
	stdlog "log"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
)

func TestTheLogForPeople(t *testing.T) {
	var out bytes.Buffer
	log := New(ForPeople(&out), zerolog.InfoLevel)
	log.Debug().Msg("noise")
	log.Info().Str("from", "Query").Str("to", "Wait").Str("event", "replied").Int("times", 1).Dur("after", 1234*time.Microsecond).Msg("hello")
	assert.Regexp(t, `^\d\d:\d\d:\d\d\.\d{3} INF Query → Wait +hello after=1ms\n$`, out.String())
}

// A certificate of a stranger, or a URL with a password, ends up in errors, and those in the log.
func TestTheLogShowsNeitherPasswordsNorWhatATerminalObeys(t *testing.T) {
	for format, open := range map[string]func(io.Writer) io.Writer{
		"json": func(to io.Writer) io.Writer { return to }, "console": ForPeople,
	} {
		var out bytes.Buffer
		log := New(open(&out), zerolog.InfoLevel)
		log.Warn().Str("error", "x509: \x1b[2J\u009b31m").Strs("urls", []string{"http://user:hunter2@etcd:2379", "\u009b31m"}).
			Msg("certificate of \x1b]0;title\a http://user:hunter2@etcd:2379")
		for _, harm := range []string{"\x1b", "\a", "\u009b", "hunter2"} {
			assert.NotContains(t, out.String(), harm, format)
		}
		assert.Contains(t, out.String(), "redacted@etcd:2379")
	}
}

func TestLibrariesLogIntoTheStream(t *testing.T) {
	var out bytes.Buffer
	CaptureLibraries(New(&out, zerolog.InfoLevel))
	defer CaptureLibraries(zerolog.Nop())
	stdlog.Print("of a library")
	assert.Contains(t, out.String(), `"component":"library"`)
	assert.Contains(t, out.String(), "of a library")
}
