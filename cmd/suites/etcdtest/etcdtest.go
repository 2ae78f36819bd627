// Package etcdtest runs real etcd servers for backup tests.
package etcdtest

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"

	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/ports"
)

// Patience limits how long a test waits for an expected event. It is long enough for a busy machine.
const Patience = 3 * time.Minute

// Etcd is an embedded etcd server with a client that is connected to it.
type Etcd struct {
	*embed.Etcd
	Client *clientv3.Client
}

// Start runs a single-member cluster in the given directory until the test ends, and waits until it is serving.
func Start(t testing.TB, dir string) *Etcd {
	t.Helper()
	listen := func() []url.URL {
		return []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", ports.Lease(t))}}
	}
	client, peer := listen(), listen()
	config := embed.NewConfig()
	config.Dir, config.Name, config.LogLevel = dir, "etcd-0", "fatal"
	config.ListenClientUrls, config.AdvertiseClientUrls = client, client
	config.ListenPeerUrls, config.AdvertisePeerUrls = peer, peer
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.TickMs, config.ElectionMs = 20, 200
	config.QuotaBackendBytes, config.BcryptCost = 8<<30, 4 // with the default cost, hashing a password takes a minute on a busy machine
	etcd, err := embed.StartEtcd(config)
	require.NoError(t, err)
	t.Cleanup(etcd.Close)
	select {
	case <-etcd.Server.ReadyNotify():
	case <-time.After(Patience):
		require.Fail(t, "etcd did not become ready")
	}
	connected, err := clientv3.New(clientv3.Config{Endpoints: []string{client[0].String()}, DialTimeout: Patience})
	require.NoError(t, err)
	t.Cleanup(func() { _ = connected.Close() })
	return &Etcd{Etcd: etcd, Client: connected}
}

// Revision returns the current revision.
func (e *Etcd) Revision() int64 { return e.Server.KV().Rev() }
