package endtoend_test

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/cmd/suites/harness"
)

func TestQuorumLoss_unreadyUntilTheMemberReturns(t *testing.T) {
	t.Parallel()
	pods, runs := harness.Cluster(t, 2)
	pods[0].Put("key", "value")
	runs[1].Kill()
	assert.Less(t, runs[0].AwaitReadyz(http.StatusServiceUnavailable), 5*time.Second)
	again := pods[1].StartReady()
	runs[0].AwaitReady()
	assert.Equal(t, "value", pods[1].Get("key"))
	assert.Equal(t, []string{"full", "full"}, pods[1].Sidecar.Modes())
	again.Kill()
	t.Logf("duration of the stop without a quorum: %s", runs[0].Shutdown())
}

func TestAllMembers_stopAtOnce(t *testing.T) {
	t.Parallel()
	pods, runs := harness.Cluster(t, 3)
	pods[0].Put("key", "value")
	watch := harness.StartWatch()
	for _, run := range runs {
		run.Signal(syscall.SIGTERM)
	}
	for i, run := range runs {
		require.Equal(t, 0, run.Exit(harness.Patience), "member %d", i)
		t.Logf("member %d took %s", i, watch.Duration())
		assert.Less(t, watch.Duration(), harness.StopBudget)
		assert.Equal(t, "terminated", pods[i].Record())
	}
	for i, p := range pods {
		runs[i] = p.Start()
	}
	for i, p := range pods {
		runs[i].AwaitReady()
		assert.Equal(t, "value", p.Get("key"))
		assert.Equal(t, []string{"full", "sanity"}, p.Sidecar.Modes())
	}
}

// peerTLS makes the members use mutual TLS between peers.
func peerTLS(pods []*harness.Pod) {
	authority := certificates.NewAuthority(pods[0].T, "peers")
	for _, p := range pods {
		pair := authority.Issue(fmt.Sprintf("peer-%d", p.PeerPort))
		securePeers(p, map[string]any{
			"cert-file": pair.Cert, "key-file": pair.Key, "client-cert-auth": true, "trusted-ca-file": authority.Bundle(),
		})
	}
}

// autoPeerTLS makes the members use TLS between peers, with certificates that etcd creates itself.
func autoPeerTLS(pods []*harness.Pod) {
	for _, p := range pods {
		securePeers(p, map[string]any{"auto-tls": true})
	}
}

// clientTLS makes clients use mutual TLS.
func clientTLS(pods []*harness.Pod) {
	authority := certificates.NewAuthority(pods[0].T, "clients")
	for _, p := range pods {
		p.RequireClientCerts(authority)
	}
}

func securePeers(p *harness.Pod, security map[string]any) {
	p.Config["peer-transport-security"] = security
	p.Config["listen-peer-urls"], p.Config["initial-advertise-peer-urls"] = p.PeerURL(), p.PeerURL()
}
