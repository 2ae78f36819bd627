package seed

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"etcd-wrapper/backup/restore"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

func TestMembersThatRestoreTheSameRevisionAreOneCluster(t *testing.T) {
	source, _ := old(t)
	members, token := []Member{}, NewToken()
	for i := range 3 {
		members = append(members, Member{Name: fmt.Sprintf("etcd-%d", i), PeerURLs: []string{freeURL(t).String()}, Learner: i == 2})
	}
	servers := make([]*embed.Etcd, len(members))
	started := make(chan error)
	for i, m := range members {
		s := Seed{DataDir: filepath.Join(t.TempDir(), "new.etcd"), Name: m.Name, Token: token, Members: members}
		_, err := s.Build(t.Context(), source, restore.Options{Above: 500})
		require.NoError(t, err)
		go func() {
			var err error
			servers[i], err = datadirtest.Start(s.DataDir, as(m))
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
	for _, m := range listed.Members {
		require.Equal(t, m.Name == "etcd-2", m.IsLearner)
	}
	require.Eventually(t, func() bool { // the learner follows
		return servers[2].Server.KV().Rev() == 502
	}, patience, 10*time.Millisecond)
}

func as(m Member) func(*embed.Config) {
	return func(config *embed.Config) {
		peer, _ := url.Parse(m.PeerURLs[0])
		config.Name = m.Name
		config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
		config.InitialCluster = config.InitialClusterFromName(m.Name)
		config.TickMs, config.ElectionMs = 100, 1000
	}
}

func freeURL(t *testing.T) *url.URL {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return &url.URL{Scheme: "http", Host: listener.Addr().String()}
}
