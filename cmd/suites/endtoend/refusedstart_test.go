package endtoend_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/cmd/suites/harness"
)

// The first line of the termination message must contain the problem and how to fix it.
func TestRefusedStart_firstLine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		invalidate   func(p *harness.Pod)
		status       int
		problem, fix string
	}{
		"the volume is a file": {func(p *harness.Pod) {
			p.Flags = append(p.Flags, "--volume-dir="+filepath.Join(p.Dir, "etcd.yaml"))
		}, 64, "--volume-dir: ", "is a file; specify the directory that contains the data directory"},
		"the volume does not exist": {func(p *harness.Pod) {
			p.Flags = append(p.Flags, "--volume-dir="+p.Volume+"-mistyped")
		}, 64, "does not exist", "fix the path, or create the directory for a new cluster"},
		"a list instead of text": {func(p *harness.Pod) { p.Config["data-dir"] = []string{"a"} }, 78, "data-dir: must be text", "not a list"},
		"different peer URLs": {func(p *harness.Pod) {
			p.Config["initial-advertise-peer-urls"] = "http://127.0.0.1:1"
		}, 78, "initial-advertise-peer-urls: ", "use the same URLs in both"},
		"data of a newer etcd version": {func(p *harness.Pod) {
			p.StartAndStop()
			setClusterVersion(p, "3.8.0")
		}, 78, "the data belongs to a cluster at version 3.8", "start an etcd-wrapper release that runs etcd 3.8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := harness.NewStandalonePod(t, nil)
			p.ExpectTerminationMessage()
			c.invalidate(p)
			p.WriteConfigFile()
			assert.Equal(t, c.status, p.Start().Exit(harness.Patience))
			line, _, _ := strings.Cut(terminationMessage(p), "\n")
			assert.Contains(t, line, c.problem)
			assert.Contains(t, line, c.fix)
			assert.NotContains(t, line, "Go struct")
			_, err := os.Stat(p.Volume + "-mistyped")
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}

// A member without data may be about to create a cluster or to join an existing one. Once all members have responded
// and a new cluster is to be created, its peer URLs must match initial-cluster.
func TestRefusedStart_foundingMember(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sidecar bool
		listed  string // peer URL of the first member in initial-cluster, without the port
		more    string // additional name and URL in initial-cluster
	}{
		"additional URL":                 {false, "http://127.0.0.1", ",etcd-main-0=http://127.0.0.1:1"},
		"additional URL, with a sidecar": {true, "http://127.0.0.1", ",etcd-main-0=http://127.0.0.1:1"},
		"different host name":            {false, "http://localhost", ""},
		"different IP address":           {false, "http://127.0.0.9", ""},
		"different scheme":               {false, "https://127.0.0.1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pods := harness.Members(t, 2)
			if !c.sidecar {
				pods = harness.StandaloneMembers(t, 2)
			}
			first := pods[0]
			for _, p := range pods {
				p.Config["initial-cluster"] = fmt.Sprintf("etcd-main-0=%s:%d%s,etcd-main-1=%s", c.listed, first.PeerPort, c.more, pods[1].PeerURL())
				p.WriteConfigFile()
			}
			first.ExpectTerminationMessage()
			run := first.Start()
			pods[1].Start()
			assert.Equal(t, 78, run.Exit(harness.Patience))
			line, _, _ := strings.Cut(terminationMessage(first), "\n")
			assert.Contains(t, line, "etcd configuration: initial-advertise-peer-urls: ")
			assert.Contains(t, line, "use the same URLs in both")
			assert.NotContains(t, line, "missing from")
			first.RequireNoData()
		})
	}
}

// setClusterVersion changes the cluster version in the database.
func setClusterVersion(p *harness.Pod, version string) {
	p.T.Helper()
	database, err := bolt.Open(p.DBPath(), 0o600, nil)
	require.NoError(p.T, err)
	require.NoError(p.T, database.Update(func(tx *bolt.Tx) error {
		return tx.Bucket(schema.Cluster.Name()).Put(schema.ClusterClusterVersionKeyName, []byte(version))
	}))
	require.NoError(p.T, database.Close())
}
