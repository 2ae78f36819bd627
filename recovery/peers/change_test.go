package peers

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/exitcode"
	"etcd-wrapper/member/dataversion"
)

// newPeer returns a peer that reports a downgrade in progress for the given number of requests, or forever if the
// number is negative.
func newPeer(version, cluster string, holds int64) http.Handler {
	left := atomic.Int64{}
	left.Store(holds)
	mux := http.NewServeMux()
	mux.HandleFunc("/downgrade/enabled", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "%t", holds < 0 || left.Add(-1) >= 0)
	})
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"etcdserver":"%s","etcdcluster":"%s","storage":"3.5.0"}`, version, cluster)
	})
	return mux
}

// newJoining returns the Peers of a member that joins the given peers.
func newJoining(t *testing.T, peers ...http.Handler) *Peers {
	t.Helper()
	config := embed.NewConfig()
	config.Name = "new"
	config.InitialCluster = "new=http://127.0.0.1:1"
	for i, peer := range peers {
		server := httptest.NewServer(peer)
		t.Cleanup(server.Close)
		config.InitialCluster += fmt.Sprintf(",peer-%d=%s", i, server.URL)
	}
	p, err := New(config, Options{})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

var unavailable = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })

func TestAwaitVersion_untilADowngradeEnds(t *testing.T) {
	t.Parallel()
	var reasons []string
	report := func(reason string) { reasons = append(reasons, reason) }
	v, err := newJoining(t, unavailable, newPeer("3.6.16", "3.5.0", 2)).AwaitVersion(t.Context(), time.Minute, report)
	require.NoError(t, err)
	require.Equal(t, dataversion.Of3_5, v)
	require.Equal(t, []string{"waiting for a downgrade of the cluster to finish; etcd admits no new members during a downgrade"}, reasons, "once")
}

func TestAwaitVersion_withoutADowngrade(t *testing.T) {
	t.Parallel()
	never := func(string) { t.Error("it waits") }
	p := newJoining(t, newPeer("3.6.16", "3.5.0", 0), newPeer("3.6.16", "3.6.0", 0), newPeer("3.6.16", "not_decided", 0))
	v, err := p.AwaitVersion(t.Context(), time.Minute, never)
	require.NoError(t, err)
	require.Equal(t, dataversion.Of3_6, v, "the highest")
	v, err = newJoining(t, unavailable).AwaitVersion(t.Context(), time.Minute, never)
	require.NoError(t, err)
	require.Zero(t, v)
}

func TestAwaitVersion_peersThatAreTooOld(t *testing.T) {
	t.Parallel()
	for server, refused := range map[string]bool{"3.4.34": true, "3.5.27": false, "3.5.27+3.6.16": false, "3.7.1": false, "odd": false} {
		// The peers have not agreed on a cluster version yet because this member has not started.
		p := newJoining(t, unavailable, newPeer("3.6.16", "3.6.0", 0), newPeer(server, "3.0.0", 0))
		_, err := p.AwaitVersion(t.Context(), time.Minute, func(string) { t.Error("it waits") })
		assert.Equal(t, refused, exitcode.StatusOf(err, exitcode.Clean) == exitcode.BadConfig, "%s: %v", server, err)
	}
}

func TestAwaitVersion_downgradeThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	p := newJoining(t, newPeer("3.6.16", "3.5.0", -1))
	_, err := p.AwaitVersion(t.Context(), time.Millisecond, func(string) {})
	require.ErrorContains(t, err, "etcdctl downgrade cancel")
	ctx, stop := context.WithCancel(t.Context())
	_, err = p.AwaitVersion(ctx, time.Minute, func(string) { stop() })
	require.ErrorIs(t, err, context.Canceled)
}

func TestRequestOwnURLs(t *testing.T) {
	w := newTown(t)
	at := httptest.NewServer(nil)
	here, err := url.Parse(at.URL)
	require.NoError(t, err)
	w.peers.config.ListenPeerUrls, w.peers.urls = []url.URL{*here}, []string{at.URL}
	require.ErrorContains(t, w.peers.requestOwnURLs(t.Context(), w.peers.urls), "cannot listen on the peer URLs", "somebody else does")
	at.Close()
	require.NoError(t, w.peers.requestOwnURLs(t.Context(), w.peers.urls))
	require.NoError(t, w.peers.requestOwnURLs(t.Context(), w.peers.urls), "it has let go")

	other := newTown(t)
	other.peers.config.ListenPeerUrls, other.peers.urls = w.peers.config.ListenPeerUrls, w.peers.urls
	require.ErrorContains(t, other.peers.requestOwnURLs(t.Context(), other.peers.urls), "cannot listen")
	other.peers.config.ListenPeerUrls = nil
	require.ErrorContains(t, other.peers.requestOwnURLs(t.Context(), other.peers.urls), "another process is responding at")
	w.peers.Close()
	require.ErrorContains(t, other.peers.requestOwnURLs(t.Context(), other.peers.urls), "cannot reach itself")
}

func TestQuery_cannotListen(t *testing.T) {
	all := rolled(t)
	require.NoError(t, all[0].serve())
	all[1].config.ListenPeerUrls = all[0].config.ListenPeerUrls
	c := all[1].Query(t.Context(), Self{Volume: Nothing})
	assert.ErrorContains(t, c.Missing, "cannot listen on the peer URLs")
	assert.ErrorContains(t, c.Missing, "m-2 does not respond")
}
