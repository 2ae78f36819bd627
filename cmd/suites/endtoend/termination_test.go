package endtoend_test

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/exitcode"
)

func TestTerminationMessage_cleanStop(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.ExpectTerminationMessage()
	p.StartAndStop()
	assert.Regexp(t, `^clean stop: stop requested \(terminated\)
state before the stop: Serving, for \d[\dms.]*
exit record: terminated, so the next start runs a sanity validation
durations: run \d[\dms.]*, etcd start \d[\dms.]*, etcd stop \d[\dms.]*
$`, terminationMessage(p))
}

func TestTerminationMessage_problems(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.ExpectTerminationMessage()
	p.Sidecar.Broken[harness.ConfigPath] = harness.Reply(http.StatusOK, "name: [")
	assert.Equal(t, int(exitcode.BadConfig), p.Start().Exit(harness.Patience))
	message := terminationMessage(p)
	assert.Regexp(t, `(?m)^invalid etcd configuration or impossible request: .*YAML`, message)
	assert.Contains(t, message, "\nstate before the stop: FetchConfig, ")
	assert.Contains(t, message, "\nexit record: none, so the next start runs a full validation\n")
	assert.Equal(t, 1, strings.Count(message, "YAML"), "the message contains the fatal error once: %s", message)
}

func TestTerminationMessage_expiredSidecarCertificate(t *testing.T) {
	t.Parallel()
	p, ca := harness.NewPod(t), certificates.NewAuthority(t, "ca")
	p.ExpectTerminationMessage()
	ca.IssuesUntil(time.Now().Add(-time.Hour))
	p.EnableSidecarTLS(ca, ca.Bundle())
	run := p.Start()
	harness.Eventually(t, "the log contains the reason", func() bool {
		return len(run.Log.FindText("certificate has expired or is not yet valid")) > 0
	})
	status, _ := run.Stop(syscall.SIGTERM)
	require.Zero(t, status)
	message := terminationMessage(p)
	assert.Contains(t, message, "last problem: certificate, ")
	assert.Contains(t, message, "certificate has expired")
}
