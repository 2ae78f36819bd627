package member_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"etcd-wrapper/member"
	"etcd-wrapper/member/maintenance"
)

// placed returns a bench with the option FindsPlace.
func placed(t *testing.T, config *embed.Config) *bench {
	t.Helper()
	return benchOptions(config, func(o *member.Options) { o.FindsPlace = true })
}

func TestPlacement_promotion(t *testing.T) {
	t.Parallel()
	first := openBench(t)
	client := first.client(t)
	fill(t, client, 2)

	dir := newDir(t)
	second := func() *embed.Config {
		c := config(t, dir)
		c.Name, c.ClusterState = "etcd-1", embed.ClusterStateFlagExisting
		return c
	}
	joining := second()
	joining.InitialCluster = first.config.InitialCluster + "," + joining.InitialClusterFromName(joining.Name)
	_, err := client.MemberAddAsLearner(soon(t), []string{joining.AdvertisePeerUrls[0].String()})
	require.NoError(t, err)
	learner := benchWith(t, joining)
	require.NoError(t, learner.Open(soon(t)))
	require.True(t, learner.IsLearner(), "nobody has asked for its vote")
	learner.mustClose(t)

	again := second()
	again.ListenPeerUrls, again.AdvertisePeerUrls = joining.ListenPeerUrls, joining.AdvertisePeerUrls
	voter := placed(t, again)
	require.NoError(t, voter.Open(soon(t)))
	defer voter.Close()
	require.Eventually(t, says(voter, "is not promoted automatically: run etcdctl member promote "+voter.ID().String()), patience, tick)
	promise(t, client, again.Name)
	require.Eventually(t, func() bool { return !voter.IsLearner() }, patience, tick)
	require.Eventually(t, func() bool { return voter.LinearizableRead(soon(t)) == nil }, patience, tick)
	require.Eventually(t, says(voter, "this learner was promoted to a voting member"), patience, tick)
	require.Eventually(t, func() bool {
		all, err := client.Leases(soon(t))
		return err == nil && len(all.Leases) == 0
	}, patience, tick, "what was promised is done")
}

// promise grants the lease with which recovery marks a learner for promotion.
func promise(t *testing.T, client *clientv3.Client, name string) {
	t.Helper()
	_, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseGrant(soon(t), &etcdserverpb.LeaseGrantRequest{ID: maintenance.PromoteLease(name), TTL: 60})
	require.NoError(t, err)
}

func TestPlacement_onlyRootMarksLearners(t *testing.T) {
	t.Parallel()
	b := openBench(t)
	client := root(t, []*bench{b})
	ask := func(client *clientv3.Client) error {
		_, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseGrant(soon(t), &etcdserverpb.LeaseGrantRequest{ID: maintenance.PromoteLease("etcd-1"), TTL: 60})
		return err
	}
	assert.Equal(t, codes.InvalidArgument, status.Code(ask(b.client(t))))
	require.NoError(t, ask(client))
}

func says(b *bench, text string) func() bool {
	return func() bool { return strings.Contains(b.log.String(), text) }
}

// moved returns the configuration of a member with a different peer URL.
func moved(t *testing.T, c *embed.Config) *embed.Config {
	t.Helper()
	again := config(t, c.Dir)
	again.Name = c.Name
	return again
}

func peerURLs(t *testing.T, client *clientv3.Client, name string) []string {
	t.Helper()
	reply, err := client.MemberList(soon(t))
	require.NoError(t, err)
	for _, m := range reply.Members {
		if m.Name == name {
			return m.PeerURLs
		}
	}
	return nil
}

func TestPlacement_newPeerURLs(t *testing.T) {
	t.Parallel()
	members := three(t)
	defer members[0].Close()
	mover := members[2]
	mover.mustClose(t)
	members[2] = placed(t, moved(t, mover.config))
	require.NoError(t, members[2].Open(soon(t)))
	want := members[2].config.AdvertisePeerUrls[0].String()
	client := members[0].client(t)
	require.Eventually(t, func() bool {
		urls := peerURLs(t, client, mover.config.Name)
		return len(urls) == 1 && urls[0] == want
	}, patience, tick)
	require.Eventually(t, says(members[2], "updated this member's peer URLs in the cluster"), patience, tick)
	_, err := members[2].client(t).Put(soon(t), "key", "value")
	require.NoError(t, err)
}

func TestPlacement_defaultPeerURL(t *testing.T) {
	t.Parallel()
	b := openBench(t)
	dir := b.config.Dir
	was := b.config.AdvertisePeerUrls[0].String()
	b.mustClose(t)
	silent := config(t, dir)
	silent.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "localhost:2380"}}
	again := placed(t, silent)
	require.NoError(t, again.Open(soon(t)))
	defer again.Close()
	client := again.client(t)
	for range 5 {
		_, err := client.Put(soon(t), "key", "value")
		require.NoError(t, err)
		assert.Equal(t, []string{was}, peerURLs(t, client, "etcd-0"))
	}
}
