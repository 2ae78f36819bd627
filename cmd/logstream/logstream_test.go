package logstream

import (
	"bytes"
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

func TestLibrariesLogIntoTheStream(t *testing.T) {
	var out bytes.Buffer
	CaptureLibraries(New(&out, zerolog.InfoLevel))
	defer CaptureLibraries(zerolog.Nop())
	stdlog.Print("of a library")
	assert.Contains(t, out.String(), `"component":"library"`)
	assert.Contains(t, out.String(), "of a library")
}
