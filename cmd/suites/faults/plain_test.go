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

// For comparison, the test measures the longest gap between a client's writes while the members of a plain etcd
// cluster are defragmented one at a time, with the leader last.
func TestMaintenance_plainEtcd(t *testing.T) {
	if !*day {
		t.Skip("skipped: part of make test-maintenance")
	}
	members := plainMembers(t)
	slices.SortFunc(members, func(a, b *embed.Etcd) int { return sortKey(a) - sortKey(b) })
	var endpoints []string
	for _, member := range members {
		endpoints = append(endpoints, member.Config().AdvertiseClientUrls[0].String())
	}
	connect := func() *clientv3.Client { return harness.NewClient(t, clientv3.Config{Endpoints: endpoints}) }
	c := connect()
	grow(t, c, "/kept/", *inUse)
	grow(t, c, "/garbage/", *inUse)
	deleteValues(t, c, "/garbage/")
	end := harness.StartLatencyClients(t, 16, connect)
	watch := harness.StartWatch()
	for _, endpoint := range endpoints {
		_, err := c.Defragment(t.Context(), endpoint)
		require.NoError(t, err)
	}
	took, writers := watch.Duration(), end()
	longest := harness.Longest(writers)
	t.Logf("plain etcd: longest write gap of %d clients while three members were defragmented in %s: %s; errors of that client: %v",
		len(writers), took, longest.Longest.Round(time.Millisecond), longest.Failed)
}

// sortKey returns 1 for the leader and 0 for any other member, so that the leader is sorted last.
func sortKey(member *embed.Etcd) int {
	if member.Server.Leader() == member.Server.MemberID() {
		return 1
	}
	return 0
}
