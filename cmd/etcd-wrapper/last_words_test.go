package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/exitcode"
)

func TestAWrongFlagIsTheTerminationMessage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	t.Setenv("ETCD_WRAPPER_TERMINATION_MESSAGE_PATH", path)
	var log bytes.Buffer
	assert.Equal(t, exitcode.Usage, run([]string{"statsu"}, streams{out: &log, log: &log}))
	assert.Empty(t, read(t, path), "a visitor's mistake")
	assert.Equal(t, exitcode.Usage, run([]string{"start-etcd", "--etcd-wrapper-port=0"}, streams{out: &log, log: &log}))
	assert.Contains(t, read(t, path), "--etcd-wrapper-port: 0 is not a port")
}

func TestTheLogForPeople(t *testing.T) {
	var out bytes.Buffer
	log := (&startCommand{LogFormat: "console", LogLevel: "info"}).newLog(&out)
	log.Debug().Msg("noise")
	log.Info().Str("from", "Query").Str("to", "Wait").Str("event", "replied").Int("times", 1).Dur("after", 1234*time.Microsecond).Msg("hello")
	assert.Regexp(t, `^\d\d:\d\d:\d\d\.\d{3} INF Query → Wait +hello after=1ms\n$`, out.String())
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}
