package endtoend_test

import (
	"fmt"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/cmd/suites/harness"
)

// startWithChangedConfig starts a run whose sidecar changes the configuration during the validation. The sidecar
// reports the validation result only after it has served the new configuration.
func startWithChangedConfig(t *testing.T, p *harness.Pod, change func()) *harness.Run {
	t.Helper()
	old, err := yaml.Marshal(p.Config)
	require.NoError(t, err)
	p.Sidecar.Takes = harness.Forever
	p.Sidecar.Broken[harness.ConfigPath] = harness.Reply(http.StatusOK, string(old))
	change()
	run := p.Start()
	run.AwaitLine(harness.Line{"event": "config prefetched"})
	p.Sidecar.ClearFaults()
	before := len(p.Sidecar.Requests(harness.ConfigPath))
	harness.Eventually(t, "the configuration is requested two more times", func() bool {
		return len(p.Sidecar.Requests(harness.ConfigPath)) >= before+2
	})
	p.Sidecar.Finish()
	return run
}

func TestConfiguration_demandsTLSDuringValidation(t *testing.T) {
	t.Parallel()
	p, ca := harness.NewPod(t), certificates.NewAuthority(t, "ca")
	run := startWithChangedConfig(t, p, func() { p.RequireClientCerts(ca) })
	run.AwaitReady()
	p.Put("key", "value")
	require.Error(t, putWithoutCertificate(p), "etcd requires a client certificate")
	run.Shutdown()
}

func TestScaledUpMember_createsNoCluster(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	run := startWithChangedConfig(t, p, p.WithoutQuorum)
	run.AwaitLine(harness.Line{"message": "is starting a new election at term"})
	assert.NotEqual(t, http.StatusOK, run.Readyz())
	status, _ := run.Stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
}

// Three hibernated members that wake up must start with the prefetched configuration. Their sidecars query a cluster
// that cannot respond yet, which took 35 s for the initialization and 37 s for the configuration with real sidecars.
// The delays here are a tenth of that. After its first response, each sidecar blocks further configuration requests.
func TestHibernatedMembers_waitForTheSidecar(t *testing.T) {
	t.Parallel()
	pods, runs := harness.Cluster(t, 3)
	pods[0].Put("key", "value")
	for i, run := range runs {
		status, _ := run.Stop(syscall.SIGTERM)
		require.Equal(t, 0, status, "member %d", i)
	}
	for _, p := range pods {
		p.Sidecar.Takes = 3500 * time.Millisecond
		p.Sidecar.Faults[harness.ConfigPath] = []harness.Fault{respondAfter(3700 * time.Millisecond)}
		p.Sidecar.Broken[harness.ConfigPath] = harness.Block
	}
	runs = harness.StartAll(pods)
	assert.Equal(t, "value", pods[1].Get("key"))
	for _, run := range runs {
		_, _ = run.Stop(syscall.SIGTERM)
	}
}

func TestMismatchedCertificatePair_isRetried(t *testing.T) {
	t.Parallel()
	p, ca := harness.NewPod(t), certificates.NewAuthority(t, "ca")
	p.RequireClientCerts(ca)
	p.StartAndStop()
	security := p.Config["client-transport-security"].(map[string]any)
	path := fmt.Sprint(security["key-file"])
	restore := exchange(t, path, ca.Issue("another").Key)
	run := p.Start()
	run.AwaitLine(harness.Line{"event": "config unavailable", "message": "client-transport-security.key-file"})
	assert.Equal(t, "terminated", p.Record())
	restore()
	run.AwaitReady()
	run.Shutdown()
	assert.Equal(t, []string{"full", "sanity"}, p.Sidecar.Modes(), "there is only one validation per start")
}

// exchange replaces the content of a file with that of another file, and returns a function that restores the original
// content.
func exchange(t *testing.T, path, other string) (restore func()) {
	t.Helper()
	own, err := os.ReadFile(path)
	require.NoError(t, err)
	foreign, err := os.ReadFile(other)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, foreign, 0o600))
	return func() { require.NoError(t, os.WriteFile(path, own, 0o600)) }
}
