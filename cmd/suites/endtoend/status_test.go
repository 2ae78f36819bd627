package endtoend_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/readiness/status"
)

func TestStatusCommand(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.Sidecar.Takes = harness.Forever
	run := p.Start()
	awaitState(run, "Wait")

	out, log, code := p.Begin("status", "-v").Wait()
	assert.Equal(t, int(exitcode.NotReady), code, log)
	assert.Contains(t, out, "not ready\n")
	assert.NotContains(t, out, "\x1b", "output that is not a terminal has no colors")

	p.Sidecar.Finish()
	run.AwaitReady()
	out, log, code = p.Begin("status", "-v").Wait()
	assert.Zero(t, code, log)
	assert.Contains(t, out, "Serving, ready\n")
	assert.Contains(t, out, "StartEtcd → Serving")
	assert.Regexp(t, "validation +full: no clean exit record", out)

	out, log, code = p.Begin("status", "-o", "json").Wait()
	assert.Zero(t, code, log)
	var document status.Document
	require.NoError(t, json.Unmarshal([]byte(out), &document))
	assert.Equal(t, "Serving", document.State)

	run.Shutdown()
	_, log, code = p.Begin("status", "-v").Wait()
	assert.Equal(t, int(exitcode.ServerTaken), code, "exit status if no process is listening on the port")
	assert.Contains(t, log, fmt.Sprintf("no answer from etcd-wrapper on port %d", p.Port))
}

func TestStatusWatch_eachStepOnce(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.Sidecar.Takes, p.Sidecar.Broken[harness.StatusPath] = harness.Forever, harness.Block
	run := p.Start()
	run.AwaitLive()
	watch := p.Begin("status", "--watch")
	p.Sidecar.ClearFaults()
	awaitState(run, "Wait")
	harness.Eventually(t, "the watch prints a line", func() bool { return watch.Output() != "" })
	p.Sidecar.Finish()
	harness.Eventually(t, "the watch prints the readiness", func() bool { return strings.Contains(watch.Output(), "  ready\n") })
	interrupted := p.Begin("status", "--watch")
	harness.Eventually(t, "the second watch prints a line", func() bool { return interrupted.Output() != "" })
	interrupted.Stop()
	_, log, code := interrupted.Wait()
	assert.Equal(t, int(exitcode.CutShort), code)
	assert.Empty(t, log)
	run.Shutdown()
	out, log, code := watch.Wait()
	assert.Equal(t, int(exitcode.NotReady), code, log)
	changes := []string{"FetchConfig → StartEtcd", "StartEtcd → Serving", "  ready\n", "Serving → Terminating"}
	if len(run.Log.FindText("requests may be cut off")) == 0 { // otherwise, the last change is missing
		changes = append(changes, "Terminating → Terminated")
	}
	for _, line := range changes {
		assert.Equal(t, 1, strings.Count(out, line), "%s in\n%s", line, out)
	}
}

func TestStandalone_neverMentionsASidecar(t *testing.T) {
	t.Parallel()
	p := harness.NewStandalonePod(t, nil)
	run := p.StartReady()
	out, _, _ := p.Begin("status", "-v").Wait()
	assert.Regexp(t, `(?m)^backups +none \(no --backup-store\)$`, out)
	_, document := run.Request(http.MethodGet, "/lifecycle")
	_, metrics := run.Request(http.MethodGet, "/metrics")
	assert.Contains(t, metrics, "\netcd_wrapper_backup_configured 0\n")
	run.Shutdown()
	for what, text := range map[string]string{"status": out, "document": document, "metrics": metrics} {
		assert.NotContains(t, text, "sidecar", what)
	}
	for _, line := range run.Log.Matching(harness.Line{"level": "info"}) {
		assert.NotContains(t, line["message"], "sidecar")
	}
}
