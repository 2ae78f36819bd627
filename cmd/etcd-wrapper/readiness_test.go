package main_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// readinessBound is how long /readyz may be wrong.
const readinessBound = 3 * time.Second

// within says how long it takes until /readyz has a status.
func (w *wrapper) within(status int) time.Duration {
	w.t.Helper()
	began := time.Now()
	eventually(w.t, fmt.Sprintf("/readyz says %d", status), func() bool { return w.readyz() == status })
	return time.Since(began)
}

func TestFaultReadinessFollowsTheQuorum(t *testing.T) {
	t.Parallel()
	trial(t, "serving as one of three", "quorum lost and regained")
	places, runs := cluster(t, 3)
	runs[1].kill()
	runs[2].kill()
	lost := runs[0].within(http.StatusServiceUnavailable)
	assert.Less(t, lost, readinessBound)
	places[0].unavailable()
	again := places[1].start()
	eventually(t, "there is a quorum again", func() bool { return places[0].tryPut("key", "value", time.Second) == nil })
	back := runs[0].within(http.StatusOK)
	assert.Less(t, back, readinessBound)
	t.Logf("unready %s after the loss, ready %s after the return", lost, back)
	again.awaitReady()
}

// unavailable says that no write is acknowledged.
func (p *place) unavailable() { require.Error(p.t, p.tryPut("key", "lost", 500*time.Millisecond)) }

func TestFaultPausedMembersTakeTheQuorumWithThem(t *testing.T) {
	t.Parallel()
	trial(t, "serving as one of three", "SIGSTOP and SIGCONT of the others")
	_, runs := cluster(t, 3)
	for _, w := range runs[1:] {
		w.signal(syscall.SIGSTOP)
	}
	lost := runs[0].within(http.StatusServiceUnavailable)
	assert.Less(t, lost, readinessBound)
	for _, w := range runs[1:] {
		w.signal(syscall.SIGCONT)
	}
	for _, w := range runs {
		w.awaitReady()
	}
	t.Logf("unready %s after the others stood still", lost)
	for _, w := range runs {
		w.stopCleanly()
	}
}

func TestFaultLearnerIsNotReady(t *testing.T) {
	t.Parallel()
	trial(t, "joining as a learner", "promotion")
	voter, learner := newPlace(t), newPlace(t)
	first := voter.start()
	first.awaitReady()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	client := voter.etcd()
	added, err := client.MemberAddAsLearner(ctx, []string{fmt.Sprintf("http://127.0.0.1:%d", learner.peer)})
	require.NoError(t, err)
	learner.config["name"], learner.config["initial-cluster-state"] = "etcd-main-1", "existing"
	learner.config["initial-cluster"] = fmt.Sprintf("%s,etcd-main-1=http://127.0.0.1:%d", voter.config["initial-cluster"], learner.peer)
	second := learner.start()
	second.awaitLine(line{"to": "Serving"})
	_, why := second.request(http.MethodGet, "/readyz")
	assert.Contains(t, why, "not_learner")
	eventually(t, "it is promoted", func() bool {
		assert.Equal(t, http.StatusServiceUnavailable, second.readyz())
		_, err := client.MemberPromote(ctx, added.Member.ID)
		return err == nil
	})
	assert.Less(t, second.within(http.StatusOK), readinessBound)
}

func TestFaultFullQuotaIsDegradedAndReady(t *testing.T) {
	t.Parallel()
	trial(t, "serving", "alarm NOSPACE")
	p := newPlace(t)
	p.config["quota-backend-bytes"] = 1 << 20
	w := p.start()
	w.awaitReady()
	p.writeUntilItFails()
	eventually(t, "space is degraded", func() bool {
		_, body := w.request(http.MethodGet, "/readyz?verbose")
		return w.log.matching(line{"check": "space", "to": "degraded"}) != nil && body != ""
	})
	assert.Equal(t, http.StatusOK, w.readyz())
	w.stopCleanly()
}

func TestFaultAuthenticationDoesNotMakeItUnready(t *testing.T) {
	t.Parallel()
	trial(t, "serving", "authentication enabled")
	p := newPlace(t)
	w := p.start()
	w.awaitReady()
	enableAuthentication(t, p.etcd())
	began := time.Now()
	require.Error(t, p.tryPut("key", "value", time.Second), "it is on")
	eventually(t, "three reads later", func() bool {
		assert.Equal(t, http.StatusOK, w.readyz())
		return time.Since(began) > readinessBound
	})
	w.stopCleanly()
}

func enableAuthentication(t *testing.T, client *clientv3.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	_, err := client.UserAdd(ctx, "root", "secret")
	require.NoError(t, err)
	_, err = client.UserGrantRole(ctx, "root", "root")
	require.NoError(t, err)
	_, err = client.AuthEnable(ctx)
	require.NoError(t, err)
}

func TestFaultCertificatesRotatedOnDiskArePickedUp(t *testing.T) {
	t.Parallel()
	trial(t, "backing off", "certificates and CA rotated")
	p, old, renewed := placeWithoutSidecar(t), newAuthority(t, "old"), newAuthority(t, "new")
	bundle := filepath.Join(p.dir, "bundle.crt")
	copyFile(t, old.bundle(), bundle)
	p.speakTLS(renewed, bundle)
	own := old.issue("wrapper")
	p.trust = insecure()
	p.sidecar.listen()
	w := p.start("--etcd-wrapper-cert-path="+own.cert, "--etcd-wrapper-key-path="+own.key)
	w.awaitLine(line{"event": "no answer", "message": "certificate signed by unknown authority"})
	assert.Equal(t, "wrapper", p.shownToClients())

	copyFile(t, renewed.bundle(), bundle)
	other := renewed.issue("rotated")
	copyFile(t, other.cert, own.cert)
	copyFile(t, other.key, own.key)
	w.awaitReady()
	eventually(t, "the rotated certificate is shown", func() bool { return p.shownToClients() == "rotated" })
	w.stopCleanly()
}

// copyFile replaces a file as a rotation does: as a whole.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to+".next", content, 0o600))
	require.NoError(t, os.Rename(to+".next", to))
}
