package dataversion

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"
)

// peer is a peer that holds a downgrade for a number of questions, or without an end if that is negative.
func peer(t *testing.T, cluster string, holds int64) string {
	t.Helper()
	return serving(t, voice("3.6.16", cluster, holds))
}

func serving(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func voice(version, cluster string, holds int64) http.Handler {
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

// silent is a peer that has no answer: it has no leader, or is none of etcd's.
func silent(t *testing.T) string {
	t.Helper()
	return serving(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
}

func joins(t *testing.T, urls ...string) *peers {
	t.Helper()
	config := embed.NewConfig()
	config.Name = "new"
	config.InitialCluster = "new=http://127.0.0.1:1"
	for i, url := range urls {
		config.InitialCluster += fmt.Sprintf(",peer-%d=%s", i, url)
	}
	p, err := peersOf(config)
	require.NoError(t, err)
	t.Cleanup(p.client.CloseIdleConnections)
	return p
}

func TestANewMemberWaitsUntilItsPeersLetGo(t *testing.T) {
	t.Parallel()
	var said []string
	v, err := joins(t, silent(t), peer(t, "3.5.0", 2)).await(t.Context(), time.Minute, func(reason string) { said = append(said, reason) })
	require.NoError(t, err)
	require.Equal(t, Of3_5, v)
	require.Equal(t, []string{"waits until its peers let go of a downgrade, during which etcd admits no new member"}, said, "once")
}

func TestANewMemberDoesNotWaitForNothing(t *testing.T) {
	t.Parallel()
	never := func(string) { t.Error("it waits") }
	v, err := joins(t, peer(t, "3.5.0", 0), peer(t, "3.6.0", 0), peer(t, "not_decided", 0)).await(t.Context(), time.Minute, never)
	require.NoError(t, err)
	require.Equal(t, Of3_6, v, "the highest")
	v, err = joins(t, silent(t)).await(t.Context(), time.Minute, never)
	require.NoError(t, err)
	require.Equal(t, Version{}, v)
}

// With auto-tls etcd makes certificates for itself and verifies none; otherwise it speaks to nobody who shows such a one.
func TestANewMemberAsksPeersWithAutoTLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(voice("3.6.16", "3.5.0", 0))
	defer server.Close()
	for auto, want := range map[bool]Version{true: Of3_5, false: {}} {
		config := embed.NewConfig()
		config.Name, config.InitialCluster, config.PeerAutoTLS = "new", "new=https://127.0.0.1:1,peer="+server.URL, auto
		v, err := AwaitPeers(t.Context(), config, func(string) { t.Error("it waits") })
		require.NoError(t, err)
		require.Equal(t, want, v)
	}
}

func TestANewMemberDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	_, err := joins(t, peer(t, "3.5.0", -1)).await(t.Context(), time.Millisecond, func(string) {})
	require.ErrorContains(t, err, "etcdctl downgrade cancel")
	ctx, stop := context.WithCancel(t.Context())
	_, err = joins(t, peer(t, "3.5.0", -1)).await(ctx, time.Minute, func(string) { stop() })
	require.ErrorIs(t, err, context.Canceled)
}

func TestAnInitialClusterThatCannotBeReadIsLeftToEtcd(t *testing.T) {
	t.Parallel()
	config := embed.NewConfig()
	config.InitialCluster = strings.Repeat("nonsense", 2)
	v, err := AwaitPeers(t.Context(), config, func(string) { t.Error("it waits") })
	require.NoError(t, err)
	require.Equal(t, Version{}, v)
}
