package faults_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/cmd/suites/ports"
)

// plainMembers starts a cluster of three plain etcd members in this process.
func plainMembers(t *testing.T) (members []*embed.Etcd) {
	t.Helper()
	var configs []*embed.Config
	var cluster []string
	for i := range 3 {
		c := embed.NewConfig()
		c.Name, c.Dir, c.LogLevel, c.QuotaBackendBytes = fmt.Sprintf("plain-%d", i), t.TempDir(), "fatal", 8<<30
		client, peer := loopback(t), loopback(t)
		c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		configs, cluster = append(configs, c), append(cluster, c.InitialClusterFromName(c.Name))
	}
	for _, c := range configs {
		c.InitialCluster = strings.Join(cluster, ",")
		member, err := embed.StartEtcd(c)
		require.NoError(t, err)
		t.Cleanup(member.Close)
		members = append(members, member)
	}
	for _, member := range members {
		harness.Receive(t, "plain etcd is ready", member.Server.ReadyNotify())
	}
	return members
}

func loopback(t *testing.T) url.URL {
	t.Helper()
	return url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", ports.Lease(t))}
}

// The test measures the longest gap between writes while a user defragments plain etcd members one at a time, the
// leader last.
func TestMaintenance_plainEtcd(t *testing.T) {
	if !*day {
		t.Skip("takes a minute: make test-maintenance")
	}
	members := plainMembers(t)
	slices.SortFunc(members, func(a, b *embed.Etcd) int { return leading(a) - leading(b) })
	var endpoints []string
	for _, member := range members {
		endpoints = append(endpoints, member.Config().AdvertiseClientUrls[0].String())
	}
	connect := func() *clientv3.Client { return harness.NewClient(t, clientv3.Config{Endpoints: endpoints}) }
	c := connect()
	grow(t, c, "/kept/", *inUse)
	grow(t, c, "/garbage/", *inUse)
	thin(t, c, "/garbage/")
	end := harness.StartLatencyClients(t, 16, connect)
	watch := harness.StartWatch()
	for _, endpoint := range endpoints {
		_, err := c.Defragment(t.Context(), endpoint)
		require.NoError(t, err)
	}
	took, writers := watch.Duration(), end()
	longest := harness.Longest(writers)
	t.Logf("plain etcd: the longest gap of %d writers while three members were defragmented in %s: %s; of the writer with it these failed: %v",
		len(writers), took, longest.Longest.Round(time.Millisecond), longest.Failed)
}

// leading returns 1 for the leader and 0 for any other member.
func leading(member *embed.Etcd) int {
	if member.Server.Leader() == member.Server.MemberID() {
		return 1
	}
	return 0
}
