package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/exitcode"
)

func TestTheTerminationMessageTellsOfACleanStop(t *testing.T) {
	sidecar, hostPort := newSidecar(t, singleMember(t))
	wrapper := start(t, "--backup-restore-host-port", hostPort)
	sidecar.say("Successful")
	wrapper.await("/readyz")
	assert.Zero(t, wrapper.stop())
	assert.Regexp(t, `^clean stop: stop asked for \(terminated\)
state: Serving, left after \d+m?s
exit record: terminated, so the next start validates in sanity mode
durations: run \d+m?s, etcd's start \d+m?s, its close \d+m?s, of that draining 0s
$`, read(t, wrapper.terminationMessage()))
	for line := range strings.Lines(read(t, wrapper.logFile())) {
		assert.True(t, json.Valid([]byte(line)), line)
	}
}

func TestTheTerminationMessageTellsOfTrouble(t *testing.T) {
	sidecar, hostPort := newSidecar(t, "name: [")
	wrapper := start(t, "--backup-restore-host-port", hostPort)
	sidecar.say("Successful")
	_ = wrapper.command.Wait() // the status tells
	assert.Equal(t, int(exitcode.BadConfig), wrapper.command.ProcessState.ExitCode())
	message := read(t, wrapper.terminationMessage())
	assert.Regexp(t, `(?m)^etcd's configuration is invalid: .*YAML`, message)
	assert.Contains(t, message, "\nstate: FetchConfig, ")
	assert.Contains(t, message, "\nexit record: none, so the next start validates in full\n")
	assert.Contains(t, message, "\nlast trouble: configuration, ")
}

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
