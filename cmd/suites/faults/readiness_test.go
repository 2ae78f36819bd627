package faults_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/cmd/suites/harness"
)

// readinessBound limits the time until /readyz reports a change.
const readinessBound = 3 * time.Second

func TestFaultReadiness_followsQuorum(t *testing.T) {
	t.Parallel()
	trial(t, "serving, three members", "quorum lost and regained")
	pods, runs := harness.Cluster(t, 3)
	runs[1].Kill()
	runs[2].Kill()
	lost := runs[0].AwaitReadyz(http.StatusServiceUnavailable)
	assert.Less(t, lost, readinessBound)
	requireUnavailable(pods[0])
	again := pods[1].Start()
	harness.Eventually(t, "a write succeeds, because there is a quorum again", func() bool { return pods[0].TryPut("key", "value", time.Second) == nil })
	regained := runs[0].AwaitReadyz(http.StatusOK)
	assert.Less(t, regained, readinessBound)
	t.Logf("unready %s after the quorum was lost, ready %s after it was regained", lost, regained)
	again.AwaitReady()
}

// requireUnavailable requires that a write fails.
func requireUnavailable(p *harness.Pod) {
	require.Error(p.T, p.TryPut("key", "lost", 500*time.Millisecond))
}

func TestFaultReadiness_pausedMembers(t *testing.T) {
	t.Parallel()
	trial(t, "serving, three members", "SIGSTOP and SIGCONT of the other members")
	_, runs := harness.Cluster(t, 3)
	for _, run := range runs[1:] {
		run.Signal(syscall.SIGSTOP)
	}
	lost := runs[0].AwaitReadyz(http.StatusServiceUnavailable)
	assert.Less(t, lost, readinessBound)
	for _, run := range runs[1:] {
		run.Signal(syscall.SIGCONT)
	}
	for _, run := range runs {
		run.AwaitReady()
	}
	t.Logf("unready %s after the other members were suspended", lost)
	for _, run := range runs {
		run.Shutdown()
	}
}

func TestFaultReadiness_learner(t *testing.T) {
	t.Parallel()
	trial(t, "joining as a learner", "promotion")
	voter, learner := harness.NewPod(t), harness.NewPod(t)
	voter.StartReady()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	client := voter.Etcd()
	added, err := client.MemberAddAsLearner(ctx, []string{fmt.Sprintf("http://127.0.0.1:%d", learner.PeerPort)})
	require.NoError(t, err)
	learner.Config["name"], learner.Config["initial-cluster-state"] = "etcd-main-1", "existing"
	learner.Config["initial-cluster"] = fmt.Sprintf("%s,etcd-main-1=http://127.0.0.1:%d", voter.Config["initial-cluster"], learner.PeerPort)
	second := learner.Start()
	second.AwaitLine(harness.Line{"to": "Serving"})
	_, why := second.Request(http.MethodGet, "/readyz")
	assert.Contains(t, why, "not_learner")
	harness.Eventually(t, "the learner is promoted", func() bool {
		assert.Equal(t, http.StatusServiceUnavailable, second.Readyz())
		_, err := client.MemberPromote(ctx, added.Member.ID)
		return err == nil
	})
	assert.Less(t, second.AwaitReadyz(http.StatusOK), readinessBound)
}

func TestFaultReadiness_exceededQuota(t *testing.T) {
	t.Parallel()
	trial(t, "serving", "alarm NOSPACE")
	p := harness.NewPod(t)
	p.Config["quota-backend-bytes"] = 1 << 20
	run := p.StartReady()
	harness.Eventually(t, "the quota is exceeded", func() bool {
		return errors.Is(p.TryPut("key", string(make([]byte, 1<<20)), harness.StopBudget/10), rpctypes.ErrNoSpace)
	})
	harness.Eventually(t, "the space check is degraded", func() bool {
		_, body := run.Request(http.MethodGet, "/readyz?verbose")
		return run.Log.Matching(harness.Line{"check": "space", "to": "degraded"}) != nil && body != ""
	})
	assert.Equal(t, http.StatusOK, run.Readyz())
	run.Shutdown()
}

func TestFaultReadiness_authentication(t *testing.T) {
	t.Parallel()
	trial(t, "serving", "authentication enabled")
	p := harness.NewPod(t)
	p.Config["bcrypt-cost"] = 4 // with the default cost, hashing a password takes a minute while all tests are running
	run := p.StartReady()
	enableAuthentication(t, p.Etcd())
	start := time.Now()
	require.Error(t, p.TryPut("key", "value", time.Second), "writes without authentication must fail")
	harness.Eventually(t, "the member stays ready during several readiness checks", func() bool {
		assert.Equal(t, http.StatusOK, run.Readyz())
		return time.Since(start) > readinessBound
	})
	run.Shutdown()
}

func enableAuthentication(t *testing.T, client *clientv3.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	_, err := client.UserAdd(ctx, "root", "secret")
	require.NoError(t, err)
	_, err = client.UserGrantRole(ctx, "root", "root")
	require.NoError(t, err)
	_, err = client.AuthEnable(ctx)
	require.NoError(t, err)
}

func TestFaultRotatedCertificates(t *testing.T) {
	t.Parallel()
	trial(t, "backing off", "certificates and CA rotated")
	p, old, renewed := harness.NewPodWithStoppedSidecar(t), certificates.NewAuthority(t, "old"), certificates.NewAuthority(t, "new")
	bundle := filepath.Join(p.Dir, "bundle.crt")
	copyFile(t, old.Bundle(), bundle)
	p.EnableSidecarTLS(renewed, bundle)
	p.RequireClientCerts(old)
	p.Trust = certificates.Insecure() // the server first uses a temporary certificate
	p.Sidecar.Listen()
	run := p.Start()
	run.AwaitLine(harness.Line{"event": "no answer", "message": "certificate signed by unknown authority"})

	copyFile(t, renewed.Bundle(), bundle)
	run.AwaitReady()
	assert.Equal(t, "etcd-main-local", p.ServerCertName())

	served, other := p.Config["client-transport-security"].(map[string]any), old.Issue("rotated")
	copyFile(t, other.Cert, served["cert-file"].(string))
	copyFile(t, other.Key, served["key-file"].(string))
	harness.Eventually(t, "the server uses the rotated certificate", func() bool { return p.ServerCertName() == "rotated" })
	run.Shutdown()
}

// copyFile atomically replaces a file with a copy of another, as a certificate rotation does.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to+".next", content, 0o600))
	require.NoError(t, os.Rename(to+".next", to))
}
