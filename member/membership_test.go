package member_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/member"
	"etcd-wrapper/member/maintenance"
)

// newUpdatingBench returns a bench with UpdateMembership set.
func newUpdatingBench(t *testing.T, config *embed.Config) *bench {
	t.Helper()
	return benchOptions(config, func(o *member.Options) { o.UpdateMembership = true })
}

func TestMembership_promotion(t *testing.T) {
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
	require.True(t, learner.IsLearner(), "without UpdateMembership, the learner is not promoted")
	learner.mustClose(t)

	rejoining := second()
	rejoining.ListenPeerUrls, rejoining.AdvertisePeerUrls = joining.ListenPeerUrls, joining.AdvertisePeerUrls
	voter := newUpdatingBench(t, rejoining)
	require.NoError(t, voter.Open(soon(t)))
	defer voter.Close()
	require.Eventually(t, logs(voter, `is not promoted automatically: run \"etcdctl member promote `+voter.ID().String()), patience, tick)
	markForPromotion(t, client, rejoining.Name)
	require.Eventually(t, func() bool { return !voter.IsLearner() }, patience, tick)
	require.Eventually(t, func() bool { return voter.LinearizableRead(soon(t)) == nil }, patience, tick)
	require.Eventually(t, logs(voter, "this learner was promoted to a voting member"), patience, tick)
	require.Eventually(t, func() bool {
		all, err := client.Leases(soon(t))
		return err == nil && len(all.Leases) == 0
	}, patience, tick, "the lease that marks the learner is revoked after the promotion")
}

// markForPromotion marks a learner for promotion by granting a lease, as recovery does.
func markForPromotion(t *testing.T, client *clientv3.Client, name string) {
	t.Helper()
	_, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseGrant(soon(t), &etcdserverpb.LeaseGrantRequest{ID: maintenance.PromoteLease(name), TTL: 60})
	require.NoError(t, err)
}

func TestMembership_onlyRootMarksLearners(t *testing.T) {
	t.Parallel()
	b := openBench(t)
	client := root(t, []*bench{b})
	mark := func(client *clientv3.Client) error {
		_, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseGrant(soon(t), &etcdserverpb.LeaseGrantRequest{ID: maintenance.PromoteLease("etcd-1"), TTL: 60})
		return err
	}
	assert.Equal(t, codes.InvalidArgument, status.Code(mark(b.client(t))))
	require.NoError(t, mark(client))
}

// logs returns a condition that is true once the member's log contains the text.
func logs(b *bench, text string) func() bool {
	return func() bool { return strings.Contains(b.log.String(), text) }
}

// withNewURLs returns a configuration with the data directory and the name in c, but with different URLs.
func withNewURLs(t *testing.T, c *embed.Config) *embed.Config {
	t.Helper()
	changed := config(t, c.Dir)
	changed.Name = c.Name
	return changed
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

func TestMembership_newPeerURLs(t *testing.T) {
	t.Parallel()
	members := three(t)
	defer members[0].Close()
	before := members[2]
	before.mustClose(t)
	members[2] = newUpdatingBench(t, withNewURLs(t, before.config))
	require.NoError(t, members[2].Open(soon(t)))
	want := members[2].config.AdvertisePeerUrls[0].String()
	client := members[0].client(t)
	require.Eventually(t, func() bool {
		urls := peerURLs(t, client, before.config.Name)
		return len(urls) == 1 && urls[0] == want
	}, patience, tick)
	require.Eventually(t, logs(members[2], "updated this member's peer URLs in the cluster"), patience, tick)
	_, err := members[2].client(t).Put(soon(t), "key", "value")
	require.NoError(t, err)
}

func TestMembership_defaultPeerURL(t *testing.T) {
	t.Parallel()
	b := openBench(t)
	dir := b.config.Dir
	before := b.config.AdvertisePeerUrls[0].String()
	b.mustClose(t)
	unconfigured := config(t, dir)
	unconfigured.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "localhost:2380"}}
	restarted := newUpdatingBench(t, unconfigured)
	require.NoError(t, restarted.Open(soon(t)))
	defer restarted.Close()
	client := restarted.client(t)
	for range 5 {
		_, err := client.Put(soon(t), "key", "value")
		require.NoError(t, err)
		assert.Equal(t, []string{before}, peerURLs(t, client, "etcd-0"))
	}
}

func TestLostData(t *testing.T) {
	for name, remove := range map[string]func(dir string) error{
		"data directory removed":            os.RemoveAll,
		"database removed":                  func(dir string) error { return os.Remove(filepath.Join(dir, "member", "snap", "db")) },
		"write-ahead log directory removed": func(dir string) error { return os.RemoveAll(filepath.Join(dir, "member", "wal")) },
		"write-ahead log segments removed": func(dir string) error {
			segments, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
			for _, segment := range segments {
				err = errors.Join(err, os.Remove(segment))
			}
			return err
		},
		"data directory replaced": func(dir string) error {
			if err := os.Rename(dir, dir+".old"); err != nil {
				return err
			}
			return os.CopyFS(dir, os.DirFS(dir+".old"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := openBench(t)
			require.NoError(t, b.LostData())
			require.NoError(t, remove(b.config.Dir))
			require.Eventually(t, func() bool { return b.LostData() != nil }, patience, tick)
			require.ErrorContains(t, b.LostData(), "was removed or replaced while etcd was running")
			_, err := b.Close()
			require.ErrorIs(t, err, b.LostData(), "the shutdown must not count as clean")
		})
	}
}

func TestClose_lostData(t *testing.T) {
	b := openBench(t)
	require.NoError(t, os.RemoveAll(b.config.Dir))
	_, err := b.Close()
	require.Error(t, err, "the shutdown must not count as clean, even if etcd crashes")
}

func TestLostData_defragmentation(t *testing.T) {
	b := openBench(t)
	_, err := b.client(t).Defragment(soon(t), endpoint(b.config))
	require.NoError(t, err)
	b.mustClose(t)
}

func TestOpen_changedNameOrAddress(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(config, before *embed.Config){
		"name":    func(config, before *embed.Config) { config.AdvertisePeerUrls = before.AdvertisePeerUrls },
		"address": func(config, before *embed.Config) { config.Name = before.Name },
		"both":    func(_, _ *embed.Config) {},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _, before := stoppedMember(t)
			config := renamed(t, dir)
			change(config, before)
			config.InitialCluster = config.InitialClusterFromName(config.Name)
			b := benchWith(t, config)
			require.NoError(t, b.Open(soon(t)))
			b.mustClose(t)
			assert.Equal(t, name == "both", strings.Contains(b.log.String(), "a different name and peer URLs"), "only a change of both is logged")
		})
	}
}

// renamed returns the configuration of a member that has a different name but the same data directory.
func renamed(t *testing.T, dir string) *embed.Config {
	t.Helper()
	c := config(t, dir)
	c.Name = "etcd-1"
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	return c
}

// preservedDirs returns the member directories that Open has renamed because their data was uninitialized.
func preservedDirs(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "member.uninitialized-*"))
	require.NoError(t, err)
	return found
}

// Open must preserve uninitialized data under another name and start without it. With such data, etcd would wait
// forever for an election.
func TestOpen_uninitializedData(t *testing.T) {
	dir := newDir(t)
	for round := range 2 { // in the second round, a preserved directory already exists
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "member")))
		datadirtest.Initialize(t, dir)
		b := newBench(t, dir)
		require.NoError(t, b.Open(soon(t)))
		_, err := b.client(t).Put(soon(t), "key", "value")
		require.NoError(t, err)
		b.mustClose(t)
		assert.Contains(t, b.log.String(), "starting with an empty data directory")
		assert.Len(t, preservedDirs(t, dir), round+1)
	}
}

// stoppedMember returns the data directory, the path of the only write-ahead log segment, and the configuration of a
// member that was stopped cleanly.
func stoppedMember(t *testing.T) (dir, segment string, config *embed.Config) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "[new].etcd") // the brackets must not be interpreted as a filepath.Match pattern
	b := newBench(t, dir)
	require.NoError(t, b.Open(soon(t)))
	require.Eventually(t, func() bool { return strings.Contains(b.log.String(), "set initial cluster version") }, patience, tick)
	_, err := b.client(t).Put(soon(t), "key", "value")
	require.NoError(t, err)
	b.mustClose(t)
	return dir, filepath.Join(dir, "member", "wal", "0000000000000000-0000000000000000.wal"), b.config
}

// Open must fail if the write-ahead log is missing, because etcd would wait forever for an election or for its peers.
func TestOpen_lostLog(t *testing.T) {
	dir, segment, _ := stoppedMember(t)
	require.NoError(t, os.Remove(segment))
	b := newBench(t, dir)
	require.ErrorContains(t, b.Open(soon(t)), "has no voters, but this is not a new member")
	opened, err := b.Close()
	assert.True(t, opened, "the data was rejected, so the next start must not treat it as valid")
	require.Error(t, err)
}

// The tests below are not parallel, because etcd publishes the raft status of only the most recently started member.

// newSlowElectionBench returns a bench whose election timeout is longer than the test.
func newSlowElectionBench(t *testing.T, dir string) *bench {
	t.Helper()
	cfg := config(t, dir)
	cfg.TickMs, cfg.ElectionMs = 10_000, 50_000 // the maximum that etcd allows
	return benchWith(t, cfg)
}

func TestElectSelf_singleMember(t *testing.T) {
	dir := newDir(t)
	for _, start := range []string{"first start", "second start"} {
		b := newSlowElectionBench(t, dir)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		require.NoError(t, b.Open(ctx), start)
		cancel()
		_, err := b.client(t).Put(soon(t), "key", "value")
		require.NoError(t, err)
		b.mustClose(t)
	}
}

// A member must not campaign if the last log entry adds a second voter.
func TestElectSelf_secondVoterInTheLog(t *testing.T) {
	t.Parallel()
	b := openBench(t)
	dir := b.config.Dir
	other := freeURL(t)
	_, err := b.client(t).MemberAdd(soon(t), []string{other.String()})
	require.NoError(t, err)
	b.mustClose(t)

	restarted := newBench(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	opened := make(chan error, 1)
	go func() { opened <- restarted.Open(ctx) }()
	require.Eventually(t, func() bool { return strings.Count(restarted.log.String(), "is starting a new") >= 2 }, patience, tick)
	cancel()
	require.Error(t, <-opened)
	restarted.mustClose(t)
	assert.False(t, strings.Contains(restarted.log.String(), "MsgTimeoutNow"), "electSelf must not make raft campaign")
}

// electSelf must not make raft read entries that etcd has already removed from memory.
func TestElectSelf_longLog(t *testing.T) {
	dir := newDir(t)
	cfg := config(t, dir)
	cfg.SnapshotCatchUpEntries = 1
	b := benchWith(t, cfg)
	require.NoError(t, b.Open(soon(t)))
	client := b.client(t)
	for range 500 {
		_, err := client.Put(soon(t), "key", "value")
		require.NoError(t, err)
	}
	b.mustClose(t)
	for range 20 {
		cfg := config(t, dir)
		cfg.SnapshotCatchUpEntries = 1
		restarted := benchWith(t, cfg)
		require.NoError(t, restarted.Open(soon(t)))
		restarted.mustClose(t)
	}
}

// A removed member must not campaign in the cluster that removed it.
func TestElectSelf_removedMember(t *testing.T) {
	t.Parallel()
	members := threeWith(t, func(c *embed.Config, _ *member.Options) { c.StrictReconfigCheck = false })
	defer members[0].Close()
	removed := members[2]
	members[2] = newBench(t, t.TempDir()) // threeWith's cleanup closes this member instead of the removed one
	_, err := members[0].client(t).MemberRemove(soon(t), uint64(removed.ID()))
	require.NoError(t, err)
	require.Error(t, removed.Watch(soon(t)))
	_, _ = removed.Close()
	cfg := config(t, removed.config.Dir)
	cfg.Name, cfg.InitialCluster = removed.config.Name, removed.config.InitialCluster
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = removed.config.ListenPeerUrls, removed.config.AdvertisePeerUrls
	restarted := benchWith(t, cfg)
	require.Error(t, restarted.Open(soon(t)))
	_, _ = restarted.Close()
	assert.False(t, strings.Contains(restarted.log.String(), "MsgTimeoutNow"), "electSelf must not make raft campaign")
}
