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

func TestConsole_lines(t *testing.T) {
	var out bytes.Buffer
	log := New(Console(&out, ConsoleOptions{}), zerolog.InfoLevel)
	log.Debug().Msg("noise")
	log.Info().Str("from", "Query").Str("to", "Wait").Str("event", "replied").Int("times", 1).Dur("after_ms", 1234*time.Microsecond).Msg("hello")
	assert.Regexp(t, `^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC INF Query → Wait +hello after=1ms\n$`, out.String())
}

func TestConsole_errorOnce(t *testing.T) {
	var out bytes.Buffer
	log := New(Console(&out, ConsoleOptions{}), zerolog.InfoLevel)
	log.Error().Str("error", "the disk is full").Msg("etcd-wrapper exits: the disk is full")
	log.Error().Str("error", "permission denied").Msg("cannot write")
	assert.NotContains(t, out.String(), `error="the disk is full"`)
	assert.Contains(t, out.String(), `error="permission denied"`)
}

func TestLog_isInUTC(t *testing.T) {
	local := time.Local
	time.Local = time.FixedZone("far east", 9*3600)
	defer func() { time.Local = local }()
	var out bytes.Buffer
	log := New(&out, zerolog.InfoLevel)
	log.Info().Msg("hello")
	assert.Regexp(t, `"time":"[^"]+Z"`, out.String())
}

func TestConsole_colours(t *testing.T) {
	for _, colour := range []bool{true, false} {
		var out bytes.Buffer
		log := New(Console(&out, ConsoleOptions{Colour: colour}), zerolog.InfoLevel)
		log.Warn().Msg("hello")
		assert.Equal(t, colour, bytes.Contains(out.Bytes(), []byte("\x1b[")), "%q", out.String())
	}
}

func TestConsole_hidesEtcdsInfoLines(t *testing.T) {
	for _, all := range []bool{false, true} {
		var out bytes.Buffer
		log := New(Console(&out, ConsoleOptions{All: all}), zerolog.InfoLevel)
		etcd := log.With().Str("component", "etcd").Logger()
		etcd.Info().Msg("chatter")
		etcd.Warn().Msg("slow disk")
		log.Info().Msg("own word")
		assert.Equal(t, all, bytes.Contains(out.Bytes(), []byte("chatter")))
		assert.Contains(t, out.String(), "slow disk")
		assert.Contains(t, out.String(), "own word")
	}
}

// Log lines must be printed safely, because errors may contain an unknown server's certificate or a URL with a
// password.
func TestLog_hidesPasswordsAndControlCharacters(t *testing.T) {
	for format, open := range map[string]func(io.Writer) io.Writer{
		"json":    func(to io.Writer) io.Writer { return to },
		"console": func(to io.Writer) io.Writer { return Console(to, ConsoleOptions{}) },
	} {
		var out bytes.Buffer
		log := New(open(&out), zerolog.InfoLevel)
		log.Warn().Str("error", "x509: \x1b[2J\u009b31m").Str("component", "grpc").Strs("urls", []string{"http://user:hunter2@etcd:2379", "\u009b31m"}).
			Msg("certificate of \x1b]0;title\a http://user:hunter2@etcd:2379")
		for _, harm := range []string{"\x1b", "\a", "\u009b", "hunter2"} {
			assert.NotContains(t, out.String(), harm, format)
		}
		assert.Contains(t, out.String(), "redacted@etcd:2379")
	}
}

func TestCaptureOutput(t *testing.T) {
	var out bytes.Buffer
	CaptureOutput(New(&out, zerolog.InfoLevel))
	defer CaptureOutput(zerolog.Nop())
	stdlog.Print("of a library")
	assert.Contains(t, out.String(), `"component":"library"`)
	assert.Contains(t, out.String(), "of a library")
}
