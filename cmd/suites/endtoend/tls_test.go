package endtoend_test

import (
	"context"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/readiness/status"
)

func TestTLS_sidecarAndClients(t *testing.T) {
	t.Parallel()
	p, ca := harness.NewPod(t), certificates.NewAuthority(t, "ca")
	p.EnableSidecarTLS(ca, ca.Bundle())
	p.RequireClientCerts(ca)
	run := p.Start()
	run.AwaitReady() // /readyz requires HTTPS but no client certificate
	p.Put("key", "value")
	assert.Equal(t, "value", p.Get("key"))
	assert.Equal(t, "etcd-main-local", p.ServerCertName(), "the wrapper's own server uses etcd's certificate")
	require.Error(t, putWithoutCertificate(p), "etcd requires a client certificate")
	oneInitialization(p)
	code, _ := run.Request(http.MethodPost, "/stop")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, 0, run.Exit(harness.StopBudget))
	assert.Equal(t, "terminated", p.Record())
}

func TestReadyz_HTTPSByEtcdConfiguration(t *testing.T) {
	t.Parallel()
	p, ca := harness.NewPod(t), certificates.NewAuthority(t, "ca")
	p.RequireClientCerts(ca)
	p.Flags = nil
	run := p.StartReady()
	p.Put("key", "value")
	run.Shutdown()
}

func TestTLS_sidecarOfAnotherCA(t *testing.T) {
	t.Parallel()
	p, ca := harness.NewPod(t), certificates.NewAuthority(t, "ca")
	p.EnableSidecarTLS(certificates.NewAuthority(t, "another CA"), ca.Bundle())
	run := p.Start()
	run.AwaitLine(harness.Line{"event": "no answer", "message": "certificate signed by unknown authority"})
	harness.Eventually(t, "the wrapper retries", func() bool { return len(run.Log.Matching(harness.Line{"event": "no answer"})) > 2 })
	status, took := run.Stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
	assert.Less(t, took, harness.AbortBudget)
	for _, later := range []string{"Trigger", "FetchConfig", "StartEtcd"} {
		assert.NotContains(t, states(run), later)
	}
	assert.Empty(t, p.Sidecar.Filter(func(harness.Request) bool { return true }), "the sidecar receives no request")
	p.RequireNoData()
}

func TestTLS_bundleWithoutCertificate(t *testing.T) {
	t.Parallel()
	p := harness.NewPodWithStoppedSidecar(t)
	p.WriteRecord("terminated")
	for _, bundle := range []string{"", "/nowhere.crt", p.RecordPath()} {
		run := p.Start("--backup-restore-tls-enabled", "--backup-restore-ca-cert-bundle-path="+bundle)
		require.Equal(t, 64, run.Exit(harness.Patience))
		require.NotEmpty(t, run.Log.FindText("--backup-restore-ca-cert-bundle-path"), "the log names the flag")
	}
	assert.Equal(t, "terminated", p.Record())
}

func putWithoutCertificate(p *harness.Pod) error {
	p.T.Helper()
	client := harness.NewClient(p.T, clientv3.Config{Endpoints: []string{p.Endpoint()}, TLS: p.Trust})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err := client.Put(ctx, "key", "another value")
	return err
}

// If the CA bundle changes, the wrapper must ask for a restart. etcd reads the bundle only when it starts, so it would
// reject clients with certificates of the new CA.
func TestTLS_renewedCARequiresRestart(t *testing.T) {
	t.Parallel()
	ca := certificates.NewAuthority(t, "ca")
	p := harness.NewPod(t)
	p.RequireClientCerts(ca)
	run := p.StartReady()
	content, err := os.ReadFile(ca.Bundle())
	require.NoError(t, err)
	another, err := os.ReadFile(certificates.NewAuthority(t, "another").Bundle())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(ca.Bundle(), append(content, another...), 0o600))
	harness.Eventually(t, "the status is degraded", func() bool {
		headline := run.Status().Headline
		return headline.Health == status.HealthDegraded && strings.Contains(headline.Summary, changedAuthority)
	})
	assert.Equal(t, 200, run.Readyz())
	run.Shutdown()
	run = p.StartReady()
	assert.NotContains(t, run.Status().Headline.Summary, changedAuthority)
}

const changedAuthority = "has changed since etcd loaded it: restart this member"

func TestTLS_rejectedCertificateDegradesMember(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.RequireClientCerts(certificates.NewAuthority(t, "authority"))
	p.Config["advertise-client-urls"] = "https://etcd.example.org:2379"
	run := p.StartReady()
	harness.Eventually(t, "the check reports that the certificate does not match the advertised URL", func() bool {
		_, body := run.Request(http.MethodGet, "/readyz?verbose")
		return strings.Contains(body, "does not cover every advertised host (missing: etcd.example.org)")
	})
	assert.Equal(t, http.StatusOK, run.Readyz(), "the member stays ready, because clients that do not verify the host name can connect")
	run.Shutdown()
}
