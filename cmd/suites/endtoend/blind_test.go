package endtoend_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/exitcode"
)

// Before the wrapper has etcd's certificate, it must already respond to the kubelet, which does not verify
// certificates, and to the status command in the same pod.
func TestTLS_answersInEveryPhase(t *testing.T) {
	t.Parallel()
	for state, holdIn := range map[string]func(*harness.Sidecar){
		"Query":       func(s *harness.Sidecar) { s.Broken[harness.StatusPath] = harness.Block },
		"Wait":        func(s *harness.Sidecar) { s.Takes = harness.Forever },
		"FetchConfig": func(s *harness.Sidecar) { s.Broken[harness.ConfigPath] = harness.Block },
	} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			p, ca := harness.NewPod(t), certificates.NewAuthority(t, "ca")
			p.EnableSidecarTLS(ca, ca.Bundle())
			p.RequireClientCerts(ca)
			holdIn(p.Sidecar)
			run := p.Start()
			awaitState(run, state)
			requireResponses(t, p, state)
			if state == "Wait" {
				p.Sidecar.Finish()
			}
			p.Sidecar.ClearFaults()
			run.AwaitReady()
			assert.Equal(t, "etcd-main-local", p.ServerCertName(), "the server's certificate is now etcd's instead of the temporary one")
			run.Shutdown()
		})
	}
}

// requireResponses requires that the member responds in time to probes and to the status command.
func requireResponses(t *testing.T, p *harness.Pod, state string) {
	t.Helper()
	probe := &http.Client{Transport: &http.Transport{TLSClientConfig: certificates.Insecure()}, Timeout: 5 * time.Second}
	for path, code := range map[string]int{"/readyz": http.StatusServiceUnavailable, "/livez": http.StatusOK} {
		start := time.Now()
		response, err := probe.Get(fmt.Sprintf("https://127.0.0.1:%d%s", p.Port, path))
		require.NoError(t, err, "%s in %s", path, state)
		assert.NoError(t, response.Body.Close())
		assert.Equal(t, code, response.StatusCode, "%s in %s", path, state)
		t.Logf("%s in %s: %d after %v", path, state, code, time.Since(start))
	}
	start := time.Now()
	out, log, code := p.Begin("status", "-v").Wait()
	t.Logf("status in %s: after %v", state, time.Since(start))
	assert.Equal(t, int(exitcode.MemberNotReady), code, log)
	// The state may be Wait or Query, because the wrapper alternates between the two during a validation.
	assert.Contains(t, out, ", not ready\n")
}

func TestTLS_plainConfigurationAfterTLSFlags(t *testing.T) {
	t.Parallel()
	p, ca := harness.NewPod(t), certificates.NewAuthority(t, "ca")
	client := ca.Issue("client")
	p.Flags = append(p.Flags, "--etcd-client-cert-path="+client.Cert, "--etcd-client-key-path="+client.Key)
	run := p.StartReady()
	_, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.Port), certificates.Insecure())
	require.Error(t, err, "the server uses TLS although etcd's configuration does not")
	run.Shutdown()
}

func TestExpiredServerCertificate_unreadyUntilRenewed(t *testing.T) {
	t.Parallel()
	p, ca := harness.NewPod(t), certificates.NewAuthority(t, "ca")
	ca.IssuesUntil(time.Now().Add(-time.Hour))
	p.RequireClientCerts(ca)
	run := p.Start()
	awaitState(run, "Serving")
	var out string
	harness.Eventually(t, "the certificates check fails and the member has a quorum", func() bool {
		out, _, _ = p.Begin("status", "-v").Wait()
		return strings.Contains(harness.OneLine(out), "failed certificates no client can connect: etcd's server certificate") && strings.Contains(out, "ok        quorum")
	})
	assert.Contains(t, out, "Serving, not ready: ")
	ca.IssuesUntil(time.Now().Add(1000 * time.Hour))
	ca.Issue("etcd-main-local")
	run.AwaitReady()
	run.Shutdown()
}
