package dataversion_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"etcd-wrapper/member/dataversion"
)

// database returns the path of the node's database.
func (n *node) database() string { return filepath.Join(n.dir, "member", "snap", "db") }

// requireReadableByOldEtcd starts etcd 3.5 on the node's data and fails the test if a key is missing.
func (n *node) requireReadableByOldEtcd(keys int) {
	n.t.Helper()
	n.startOldEtcd(cluster(n))
	n.requireKeys(keys)
	n.stop()
}

func TestOldEtcd_newerData(t *testing.T) {
	optIn(t)
	n := newNode(t)
	n.start(noVersion, cluster(n), "new")
	n.ready()
	n.stop()
	n.startOldEtcd(cluster(n))
	n.await()
	require.Contains(t, n.log.String(), "invalid downgrade", "etcd 3.5 must reject the data that a wrapper without this feature writes")
}

func TestOldEtcd_ownDataAfterOurs(t *testing.T) {
	optIn(t)
	for name, end := range map[string]func(n *node){"stopped": (*node).stop, "killed": (*node).kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.startOldEtcd(cluster(n))
			n.ready()
			n.put(0, 50)
			n.stop()
			n.start(dataversion.Of3_5, cluster(n), "new")
			n.ready()
			n.put(50, 100)
			end(n)
			n.requireReadableByOldEtcd(100)
		})
	}
}

func TestOldEtcd_afterKills(t *testing.T) {
	optIn(t)
	n := newNode(t)
	keys := 0
	for range 12 {
		n.start(dataversion.Of3_5, cluster(n), "new")
		n.ready()
		n.put(keys, keys+20)
		keys += 20
		<-time.After(time.Duration(rand.IntN(150)) * time.Millisecond) // kill the process at a random time
		n.kill()
		n.requireReadableByOldEtcd(keys)
	}
}

func TestOldEtcd_oldDatabase(t *testing.T) {
	optIn(t)
	n := newNode(t)
	n.start(dataversion.Of3_5, cluster(n), "new")
	n.ready()
	oldDatabase, err := os.ReadFile(n.database())
	require.NoError(t, err)
	n.put(0, 400)
	n.kill()
	require.NoError(t, os.WriteFile(n.database(), oldDatabase, 0o600))
	n.requireReadableByOldEtcd(400)
}

func TestOldEtcd_loweredData(t *testing.T) {
	optIn(t)
	n := downgradedCluster(t, 1)[0]
	n.awaitLog(`"readable":true`)
	oldDatabase, err := os.ReadFile(n.database())
	require.NoError(t, err)
	n.put(20, 420)
	n.kill()
	require.NoError(t, os.WriteFile(n.database(), oldDatabase, 0o600))
	n.requireReadableByOldEtcd(420)
}

func TestOldEtcd_restoredSnapshot(t *testing.T) {
	optIn(t)
	n := newNode(t)
	n.start(dataversion.Of3_6, cluster(n), "new")
	n.awaitVersion(dataversion.Of3_6)
	n.put(0, 30)
	saved := filepath.Join(t.TempDir(), "snapshot")
	_, err := snapshot.NewV3(zap.NewNop()).Save(withTimeout(t), clientv3.Config{Endpoints: []string{n.client}}, saved)
	require.NoError(t, err)
	n.stop()
	require.NoError(t, os.RemoveAll(n.dir))
	require.NoError(t, snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: saved, Name: n.name, OutputDataDir: n.dir, PeerURLs: []string{n.peer}, InitialCluster: cluster(n), InitialClusterToken: "etcd-cluster",
	}))
	n.start(dataversion.Of3_5, cluster(n), "new")
	n.awaitVersion(dataversion.Of3_5) // the member lowers the cluster version, which is 3.6 in the snapshot
	n.awaitLog(`"readable":true`)
	n.put(30, 40)
	n.kill()
	n.requireReadableByOldEtcd(40)
}

func TestOldEtcd_rollingReplacement(t *testing.T) {
	optIn(t)
	all := newMembers(t, 3)
	all.each(func(n *node) { n.startOldEtcd(cluster(all...)) })
	all.each((*node).ready)
	all[0].put(0, 10)
	keys := 10
	replace := func(start func(n *node)) {
		all.each(func(n *node) {
			n.stop()
			start(n)
			n.requireKeys(keys)
			n.put(keys, keys+10)
			keys += 10
		})
	}
	replace(func(n *node) { n.start(dataversion.Of3_5, cluster(all...), "new") })
	leader, others := all.leader(t)
	leader.kill()
	_, _ = others.leader(t)
	leader.start(dataversion.Of3_5, cluster(all...), "new")
	leader.requireKeys(keys)
	all.each(func(n *node) { n.awaitVersion(dataversion.Of3_5) })
	replace(func(n *node) { n.startOldEtcd(cluster(all...)) })
	all.each(func(n *node) { n.requireKeys(keys) })
}

func TestOldEtcd_mixedCluster(t *testing.T) {
	optIn(t)
	all := newMembers(t, 3)
	all.each(func(n *node) { n.startOldEtcd(cluster(all...)) })
	all.each((*node).ready)
	all[0].put(0, 10)
	all[0].stop()
	all[0].start(dataversion.Of3_5, cluster(all...), "new")
	all[0].ready()
	added := newNode(t)
	all.promote(t, all.join(added, dataversion.Of3_5))
	added.requireKeys(10)
	require.Equal(t, "3.5.0", added.versions().Cluster)
}

func TestOldEtcd_loweredDataAfterKills(t *testing.T) {
	optIn(t)
	n := newNode(t)
	n.start(dataversion.Of3_6, cluster(n), "new")
	n.awaitVersion(dataversion.Of3_6)
	keys := 0
	for range 8 {
		n.kill()
		n.start(dataversion.Of3_5, cluster(n), "new")
		n.ready()
		n.put(keys, keys+10)
		keys += 10
		<-time.After(time.Duration(rand.IntN(2500)) * time.Millisecond) // kill the process at a random time
	}
	n.awaitLog(`"readable":true`)
	n.kill()
	n.requireReadableByOldEtcd(keys)
}
