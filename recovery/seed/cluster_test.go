package seed

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

func TestBuild_membersOfOneCluster(t *testing.T) {
	source, _ := old(t)
	members, token := types.URLsMap{}, NewToken()
	for i := range 3 {
		members[fmt.Sprintf("etcd-%d", i)] = types.URLs{freeURL(t)}
	}
	servers := make([]*embed.Etcd, len(members))
	started := make(chan error)
	for i := range servers {
		s := Seed{DataDir: filepath.Join(t.TempDir(), "new.etcd"), Name: fmt.Sprintf("etcd-%d", i), Token: token, Members: members}
		build(t, s, source, 500)
		go func() {
			var err error
			servers[i], err = datadirtest.Start(s.DataDir, as(s))
			started <- err
		}()
	}
	for range members {
		require.NoError(t, <-started)
	}
	defer func() {
		for _, server := range servers {
			server.Close()
		}
	}()
	client := v3client.New(servers[1].Server)
	requireKeys(t, client)
	put, err := client.Put(t.Context(), "after", "the restore")
	require.NoError(t, err)
	require.EqualValues(t, 502, put.Header.Revision)
	listed, err := client.MemberList(t.Context())
	require.NoError(t, err)
	require.Len(t, listed.Members, 3)
	require.Eventually(t, func() bool { // the others follow
		return servers[2].Server.KV().Rev() == 502
	}, patience, 10*time.Millisecond)
}

func as(s Seed) func(*embed.Config) {
	return func(config *embed.Config) {
		config.Name = s.Name
		config.ListenPeerUrls, config.AdvertisePeerUrls = s.Members[s.Name], s.Members[s.Name]
		config.InitialCluster = config.InitialClusterFromName(s.Name)
		config.TickMs, config.ElectionMs = 100, 1000
	}
}

func freeURL(t *testing.T) url.URL {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return url.URL{Scheme: "http", Host: listener.Addr().String()}
}
