package dataversion_test

import (
	"context"
	"encoding/json"
	"flag"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/member"
	"etcd-wrapper/member/dataversion"
	"etcd-wrapper/recovery/peers"
)

// members contains all nodes of a cluster.
type members []*node

func newMembers(t *testing.T, count int) (all members) {
	t.Helper()
	for range count {
		all = append(all, newNode(t))
	}
	return all
}

func (all members) each(do func(n *node)) {
	for _, n := range all {
		do(n)
	}
}

func (all members) start(wanted dataversion.Version) {
	all.each(func(n *node) { n.start(wanted, cluster(all...), "new") })
	all.each((*node).ready)
}

// downgradedCluster returns a cluster that wrote its data at version 3.6 and that an enabled downgrade now keeps at
// 3.5.
func downgradedCluster(t *testing.T, count int) members {
	t.Helper()
	all := newMembers(t, count)
	all.start(dataversion.Of3_6)
	all.each(func(n *node) { n.awaitVersion(dataversion.Of3_6) })
	all[0].put(0, 20)
	all.each((*node).kill)
	all.start(dataversion.Of3_5)
	all.each(func(n *node) { n.awaitVersion(dataversion.Of3_5) })
	require.Equal(t, "true", all[0].downgrading())
	return all
}

// leader returns the leader and the other members.
func (all members) leader(t *testing.T) (leader *node, others members) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		for i, n := range all {
			ctx, done := context.WithTimeout(withTimeout(t), time.Second)
			status, err := n.connect().Status(ctx, n.client)
			done()
			if err == nil && status.Leader == status.Header.MemberId {
				return n, slices.Concat(all[:i], all[i+1:])
			}
		}
	}
	require.FailNow(t, "the cluster has no leader")
	return nil, nil
}

// join adds a node as a learner and starts it.
func (all members) join(n *node, wanted dataversion.Version) (id uint64) {
	n.t.Helper()
	id = all.add(n)
	n.start(wanted, cluster(append(slices.Clone(all), n)...), "existing")
	return id
}

// add adds a node as a learner. It retries, because etcd rejects new members for the first few seconds.
func (all members) add(n *node) (id uint64) {
	n.t.Helper()
	client := all[0].connect()
	all[0].eventually("the learner is added", func() bool {
		added, err := client.MemberAddAsLearner(withTimeout(n.t), []string{n.peer})
		if err == nil {
			id = added.Member.ID
		}
		return err == nil
	})
	return id
}

func (all members) promote(t *testing.T, id uint64) {
	t.Helper()
	client := all[0].connect()
	all[0].eventually("the learner is promoted", func() bool {
		_, err := client.MemberPromote(withTimeout(t), id)
		return err == nil
	})
}

func TestDowngrade_canceledForANewMember(t *testing.T) {
	t.Parallel()
	all := downgradedCluster(t, 1)
	added := newNode(t)
	added.start(dataversion.Of3_5, cluster(all[0], added), "existing")
	added.awaitLog("waiting for a downgrade of the cluster to finish")
	id := all.add(added)
	all[0].awaitLog(`"phase":"letting go"`)
	all.promote(t, id)
	added.requireKeys(20)
	added.awaitVersion(dataversion.Of3_5)
	require.Equal(t, "false", added.downgrading(), "the canceled downgrade is not requested again, because the new member announces 3.5")
}

func TestDowngrade_requestedAgain(t *testing.T) {
	optIn(t)
	all := downgradedCluster(t, 1)
	added := newNode(t)
	id := all.join(added, dataversion.Of3_6) // the new member announces 3.6, so the cluster is upgraded
	all[0].awaitVersion(dataversion.Of3_6)
	all[0].awaitLog("this is joining: learner")
	all.promote(t, id)
	all[0].awaitVersion(dataversion.Of3_5)
	added.awaitVersion(dataversion.Of3_5)
}

func TestDowngrade_lostLeader(t *testing.T) {
	optIn(t)
	all := downgradedCluster(t, 3)
	leader, others := all.leader(t)
	leader.kill()
	_, _ = others.leader(t)
	others[0].put(20, 30)
	others.each(func(n *node) { n.awaitVersion(dataversion.Of3_5) })
	leader.start(dataversion.Of3_5, cluster(all...), "new")
	leader.awaitVersion(dataversion.Of3_5)
	leader.requireKeys(30)
}

func TestDowngrade_newMemberAndLostLeader(t *testing.T) {
	optIn(t)
	all := downgradedCluster(t, 3)
	leader, others := all.leader(t)
	added := newNode(t)
	id := others.add(added)
	leader.kill()
	added.start(dataversion.Of3_5, cluster(append(slices.Clone(all), added)...), "existing")
	others.promote(t, id)
	added.requireKeys(20)
}

func TestDowngrade_canceledByAFollower(t *testing.T) {
	optIn(t)
	all := newMembers(t, 3)
	all.start(noVersion)
	all.each(func(n *node) { n.awaitVersion(dataversion.Of3_6) })
	leader, others := all.leader(t)
	others[0].kill()
	others[0].start(dataversion.Of3_5, cluster(all...), "new")
	others[0].ready()
	_, err := leader.connect().Downgrade(withTimeout(t), clientv3.DowngradeEnable, "3.5")
	require.NoError(t, err)
	leader.awaitVersion(dataversion.Of3_5)
	added := newNode(t)
	id := all.join(added, dataversion.Of3_5)
	all.promote(t, id)
	added.requireKeys(0)
}

func TestNewMember_startsAt3_5(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start(dataversion.Of3_5, cluster(n), "new")
	n.ready()
	// etcd may be serving before the leader has set the cluster version.
	first := "not_decided"
	n.eventually("the cluster has a version", func() bool {
		first = n.versions().Cluster
		return first != "not_decided"
	})
	require.Equal(t, "3.5.0", first, "the leader sets version 3.5 from the beginning")
	require.Regexp(t, `^3\.5\.\d+\+3\.6\.\d+$`, n.versions().Server)
	n.awaitLog("the cluster is at version 3.5")
	require.NotContains(t, n.log.String(), `"cluster-version":"3.6"`)
	n.stop()
}

func TestDowngrade_dataAt3_6(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start(dataversion.Of3_6, cluster(n), "new")
	n.awaitVersion(dataversion.Of3_6)
	n.put(0, 5)
	n.kill()

	n.start(dataversion.Of3_5, cluster(n), "new")
	n.awaitVersion(dataversion.Of3_5)
	n.awaitLog(`"phase":"holding"`)
	require.Equal(t, "true", n.downgrading(), "the downgrade remains enabled until the member has been restarted")
	n.kill()

	n.start(dataversion.Of3_5, cluster(n), "new")
	n.requireKeys(5)
	n.eventually("etcd disables the downgrade", func() bool { return n.downgrading() == "false" })
	n.awaitLog(`"phase":"kept"`)
	n.awaitVersion(dataversion.Of3_5)
	n.stop()

	n.start(dataversion.Of3_6, cluster(n), "new")
	n.awaitVersion(dataversion.Of3_6)
	n.requireKeys(5)
	n.stop()
}

func TestDowngrade_endsForTheNewerVersion(t *testing.T) {
	optIn(t)
	n := newNode(t)
	n.start(dataversion.Of3_6, cluster(n), "new")
	n.awaitVersion(dataversion.Of3_6)
	n.stop()
	n.start(dataversion.Of3_5, cluster(n), "new")
	n.awaitVersion(dataversion.Of3_5)
	n.stop()
	n.start(dataversion.Of3_6, cluster(n), "new")
	n.awaitVersion(dataversion.Of3_6)
	require.Equal(t, "false", n.downgrading())
	n.stop()
}

// allTests enables tests that are slow or need etcd 3.5.
var allTests = flag.Bool("downgrade", false, "also run the tests that are slow or that start etcd 3.5 on the data")

// asMember is the environment variable that makes the test binary run a member with the given configuration.
const asMember = "DATAVERSION_TEST_MEMBER"

func TestMain(m *testing.M) {
	if configuration := os.Getenv(asMember); configuration != "" {
		os.Exit(runMember(configuration))
	}
	os.Exit(m.Run())
}

// settings is the configuration of a member process.
type settings struct {
	Name, Dir, Client, Peer, Cluster, State, Wanted string
}

// runMember runs a member in this process until SIGTERM, then closes it cleanly.
func runMember(configuration string) int {
	var s settings
	if err := json.Unmarshal([]byte(configuration), &s); err != nil {
		panic(err)
	}
	log := zerolog.New(os.Stderr)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config := s.etcd()
	m := member.New(config, member.Options{
		Log: log, DataVersion: dataversion.Parse(s.Wanted),
		Crash: func(reason error) {
			log.Error().Err(reason).Msg("crashed")
			os.Exit(2)
		},
		AwaitPeers: func(ctx context.Context, report func(string)) (dataversion.Version, error) {
			others, err := peers.New(config, peers.Options{})
			if err != nil {
				panic(err)
			}
			defer others.Close()
			return others.AwaitVersion(ctx, peers.DowngradeWait, report)
		},
	})
	err := m.Open(ctx)
	if err == nil {
		err = m.Watch(ctx)
	}
	_, closed := m.Close()
	if ctx.Err() == nil || closed != nil {
		log.Error().AnErr("closed", closed).Err(err).Msg("ended")
		return 70
	}
	return 0
}

func (s settings) etcd() *embed.Config {
	config := embed.NewConfig()
	config.Name, config.Dir, config.InitialCluster, config.ClusterState = s.Name, s.Dir, s.Cluster, s.State
	client, peer := parse(s.Client), parse(s.Peer)
	config.ListenClientUrls, config.AdvertiseClientUrls = client, client
	config.ListenPeerUrls, config.AdvertisePeerUrls = peer, peer
	config.UnsafeNoFsync = true // even without fsync, data survives if only the process is killed
	return config
}

func parse(raw string) []url.URL {
	u, err := url.Parse(raw)
	if err != nil {
		panic(err)
	}
	return []url.URL{*u}
}
