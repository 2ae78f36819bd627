package maintenance

import (
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"

	"etcd-wrapper/cmd/suites/ports"
)

// running starts etcd and returns its server once it is the leader.
func running(t *testing.T) *etcdserver.EtcdServer {
	t.Helper()
	config := embed.NewConfig()
	config.Dir, config.LogLevel = t.TempDir(), "panic"
	address := func() []url.URL {
		return []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", ports.Lease(t))}}
	}
	config.ListenClientUrls, config.ListenPeerUrls = address(), address()
	config.AdvertiseClientUrls, config.AdvertisePeerUrls = config.ListenClientUrls, config.ListenPeerUrls
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	require.NoError(t, err)
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()
	return etcd.Server
}

func TestClaimSchedule(t *testing.T) {
	t.Parallel()
	server := running(t)
	before := server.KV().Rev()
	p := newClaimSchedule(server, &Options{Active: func(types.ID) map[types.ID]bool { return nil }, Log: zerolog.Nop()})
	p.ttl = 4 * time.Second
	require.NoError(t, p.request(t.Context()))
	require.NoError(t, p.acquire(t.Context(), nil))
	first, stop := p.list(turn)[0], p.renew(t.Context())
	require.Eventually(t, func() bool {
		now := p.list(turn)
		assert.NotEmpty(t, now, "at no moment")
		return !slices.Contains(now, first)
	}, time.Minute, 10*time.Millisecond)
	stop()
	p.release(t.Context())
	assert.Empty(t, p.list(turn))
	assert.Equal(t, before, server.KV().Rev())
}
