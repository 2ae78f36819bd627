package endtoend_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/cmd/suites/harness"
)

// beginOldEtcd starts an old etcd version, instead of the wrapper, with the pod's data and configuration.
func beginOldEtcd(p *harness.Pod, version string) *harness.Command {
	p.T.Helper()
	program := harness.OldEtcd(p.T, version)
	text, err := yaml.Marshal(p.Config)
	require.NoError(p.T, err)
	file := filepath.Join(p.Dir, "old-etcd.yaml")
	require.NoError(p.T, os.WriteFile(file, text, 0o600))
	return p.BeginProgram(exec.Command(program, "--config-file="+file))
}

// The wrapper must not start in an etcd 3.4 cluster, which etcd-druid runs by default, because an etcd 3.6 member
// makes the other members panic at every start.
func TestEtcd3_4ClusterIsRefused(t *testing.T) {
	t.Parallel()
	pods := harness.Members(t, 3)
	var old []*harness.Command
	for _, p := range pods {
		old = append(old, beginOldEtcd(p, "3.4"))
	}
	putMany(pods[0], 0, 10)
	harness.Eventually(t, "the cluster version is 3.4", func() bool { return reportedVersions(pods[2]).Cluster == "3.4.0" })
	old[2].Stop()
	pods[2].WriteRecord("terminated")
	pods[2].ExpectTerminationMessage()

	run := pods[2].Start()
	assert.Equal(t, 78, run.Exit(harness.Patience))
	assert.Contains(t, terminationMessage(run.Pod), "etcd 3.4")
	assert.Equal(t, "terminated", pods[2].Record(), "the exit record is kept, because etcd was not started")

	putMany(pods[0], 10, 20)
	old[2] = beginOldEtcd(pods[2], "3.4")
	requireKeys(pods[2], 20)
	for _, each := range old {
		each.Stop()
	}
}

// A member without data must query the other members for the cluster version, and must not join an etcd 3.4 cluster.
func TestEtcd3_4ClusterGetsNoNewMember(t *testing.T) {
	t.Parallel()
	pods := harness.Members(t, 3)
	for _, p := range pods[:2] {
		beginOldEtcd(p, "3.4")
	}
	putMany(pods[0], 0, 10)
	pods[2].Config["initial-cluster-state"] = "existing"
	pods[2].ExpectTerminationMessage()

	run := pods[2].Start()
	assert.Equal(t, 78, run.Exit(harness.Patience))
	assert.Contains(t, terminationMessage(run.Pod), "etcd 3.4")
	putMany(pods[0], 10, 20)
}

func TestEtcd3_4DataOfASingleMemberAreServed(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	old := beginOldEtcd(p, "3.4")
	putMany(p, 0, 10)
	old.Stop()
	run := p.StartReady()
	requireKeys(p, 10)
	awaitVersion(p, "3.5.0")
	run.Shutdown()
}

// Data that contains v2 API requests must be rejected, because etcd 3.6 cannot replay them. etcd 3.4 appends a v2
// request to its log for each probe of /health.
func TestEtcd3_4DataWithV2RequestsAreRefused(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.ExpectTerminationMessage()
	old := beginOldEtcd(p, "3.4")
	putMany(p, 0, 10)
	response, err := http.Get(p.Endpoint() + "/health")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
	old.Stop()

	run := p.Start()
	assert.Equal(t, 70, run.Exit(harness.Patience))
	assert.Contains(t, terminationMessage(p), "etcd 3.4")

	// Do what the message advises.
	p.Config["snapshot-count"] = 1
	old = beginOldEtcd(p, "3.5")
	putMany(p, 10, 11)
	old.Stop()
	delete(p.Config, "snapshot-count")
	run = p.StartReady()
	requireKeys(p, 11)
	run.Shutdown()
}

// Data that contains two different member lists must be rejected. etcd 3.5 stores the list twice, and early 3.5
// releases remove a member from only one of the lists.
func TestEtcd3_5DataWithALeftoverMemberAreRefused(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.ExpectTerminationMessage()
	old := beginOldEtcd(p, "3.5")
	putMany(p, 0, 10)
	old.Stop()
	database, err := bolt.Open(p.DBPath(), 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, database.Update(func(tx *bolt.Tx) error {
		return tx.Bucket(schema.Members.Name()).Put([]byte("1234567890abcdef"),
			[]byte(`{"id":1311768467294899695,"peerURLs":["http://127.0.0.1:1"],"name":"removed"}`))
	}))
	require.NoError(t, database.Close())

	run := p.Start()
	assert.Equal(t, 70, run.Exit(harness.Patience))
	assert.Contains(t, terminationMessage(p), `still lists member 1234567890abcdef ("removed"), which was removed from the cluster`)

	// Do what the message advises.
	old = beginOldEtcd(p, "3.5")
	putMany(p, 10, 11)
	old.Stop()
	run = p.StartReady()
	requireKeys(p, 11)
	members, err := p.Etcd().MemberList(t.Context())
	require.NoError(t, err)
	assert.Len(t, members.Members, 1)
	run.Shutdown()
}
