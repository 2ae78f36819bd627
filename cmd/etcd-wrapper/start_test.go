package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/exitcode"
)

func TestUsageError_isTheTerminationMessage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	t.Setenv("ETCD_WRAPPER_TERMINATION_MESSAGE_PATH", path)
	var log bytes.Buffer
	assert.Equal(t, exitcode.Usage, run([]string{"statsu"}, streams{out: &log, log: &log}))
	assert.Empty(t, read(t, path), "only start-etcd writes the termination message")
	assert.Equal(t, exitcode.Usage, run([]string{"start-etcd", "--etcd-wrapper-port=0"}, streams{out: &log, log: &log}))
	assert.Contains(t, read(t, path), "--etcd-wrapper-port must not be 0")
}

func TestUsageError_keepsThePathOfTheMessage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	t.Setenv("ETCD_WRAPPER_TERMINATION_MESSAGE_PATH", path+"-of-another")
	var log bytes.Buffer
	assert.Equal(t, exitcode.Usage, run([]string{"start-etcd", "--bakup", "--termination-message-path=" + path}, streams{out: &log, log: &log}))
	assert.Contains(t, read(t, path), "unknown flag --bakup")
}

// On macOS, the limit is always unknown, which must not be an error.
func TestUnknownMemoryLimit_isAWarning(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "") // restores the variable after the test
	require.NoError(t, os.Unsetenv("GOMEMLIMIT"))
	t.Setenv("AUTOMEMLIMIT", "unknown")
	t.Setenv("ETCD_WRAPPER_TERMINATION_MESSAGE_PATH", "")
	var log bytes.Buffer
	run([]string{"start-etcd", "--volume-dir=" + filepath.Join(t.TempDir(), "absent")}, streams{out: &log, log: &log})
	assert.Contains(t, log.String(), `{"level":"warn","error":"cannot parse AUTOMEMLIMIT: unknown"`)
	assert.Contains(t, log.String(), "cannot read the container's memory limit")
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}
