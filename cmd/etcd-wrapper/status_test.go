package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/exitcode"
	"etcd-wrapper/readiness/status"
)

func TestStatusTellsHowTheWrapperIs(t *testing.T) {
	config := singleMember(t)
	sidecar, hostPort := newSidecar(t, config)
	wrapper := start(t, "--backup-restore-host-port", hostPort)
	sidecar.say("New")
	wrapper.enters("Wait")

	out, log, code := wrapper.run("status")
	assert.Equal(t, int(exitcode.NotReady), code, log)
	assert.Contains(t, out, "not ready\n")
	assert.NotContains(t, out, "\x1b", "no colour but on a terminal")

	sidecar.say("Successful")
	wrapper.await("/readyz")
	out, log, code = wrapper.run("status")
	assert.Zero(t, code, log)
	assert.Contains(t, out, "Serving, ready\n")
	assert.Contains(t, out, "StartEtcd → Serving")
	assert.Contains(t, out, "validation    full: no clean exit record")

	out, log, code = wrapper.run("status", "-o", "json")
	assert.Zero(t, code, log)
	var document status.Document
	require.NoError(t, json.Unmarshal([]byte(out), &document))
	assert.Equal(t, "Serving", document.State)

	assert.Zero(t, wrapper.stop())
	_, log, code = wrapper.run("status")
	assert.Equal(t, int(exitcode.ServerTaken), code, "nobody answers any more")
	assert.Contains(t, log, "no answer from etcd-wrapper on port "+wrapper.port)
}

func TestWatchTellsEachStepOnce(t *testing.T) {
	config := singleMember(t)
	sidecar, hostPort := newSidecar(t, config)
	wrapper := start(t, "--backup-restore-host-port", hostPort)
	wrapper.await("/livez")
	watch := wrapper.begin("status", "--watch")
	sidecar.say("New")
	wrapper.enters("Wait")
	require.Eventually(t, func() bool { return watch.printed() != "" }, patience, 10*time.Millisecond)
	sidecar.say("Successful")
	require.Eventually(t, func() bool { return strings.Contains(watch.printed(), "  ready\n") }, patience, 10*time.Millisecond)
	assert.Zero(t, wrapper.stop())
	out, log, code := watch.wait()
	assert.Equal(t, int(exitcode.NotReady), code, log)
	for _, line := range []string{"FetchConfig → StartEtcd", "StartEtcd → Serving", "  ready\n", "Serving → Terminating", "Terminating → Terminated"} {
		assert.Equal(t, 1, strings.Count(out, line), "%s in\n%s", line, out)
	}
}
