package endtoend_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/cmd/suites/ports"
)

// Each test in this file combines two failures, which other tests cover individually.

// A member with corrupt data on an almost full volume must ask for the deletion of the preserved copy, and recover
// once the copy is deleted.
func TestLostMember_littleSpace(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := &three{T: t, pods: harness.StandaloneMembers(t, 3)}
	last := c.pods[2]
	last.ExpectTerminationMessage()
	harness.Mount(t, "-t", "tmpfs", "-o", "size=200m", "none", last.Volume)
	c.runs = harness.StartAll(c.pods)
	c.pods[0].Put("key", "value")
	for i := range 10 {
		c.pods[0].Put(fmt.Sprintf("large-%d", i), strings.Repeat("v", 1<<20))
	}
	c.runs[2].Kill()
	harness.CorruptFile(t, last.DBPath(), 0, 16<<10)
	run := last.Start()
	requireExplanation(t, run, "the volume has no room for the other members' data")
	assert.Contains(t, run.Status().Recovery.Reason, "or delete "+preserved(last)[0])
	require.NoError(t, os.RemoveAll(preserved(last)[0]))
	run.AwaitReady()
	c.requireAllVoters()
}

// A lost member that cannot connect to the other members because its CA bundle is wrong must recover once the bundle
// has been replaced, without a restart.
func TestLostMember_renewedCA(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := startThree(t, harness.StandaloneMembers(t, 3, peerTLS, clientTLS))
	last := c.pods[2]
	c.runs[2].LoseVolume()
	security := last.Config["peer-transport-security"].(map[string]any)
	right, err := os.ReadFile(security["trusted-ca-file"].(string))
	require.NoError(t, err)
	wrong, err := os.ReadFile(certificates.NewAuthority(t, "another").Bundle())
	require.NoError(t, err)
	bundle := filepath.Join(last.Dir, "bundle.pem")
	require.NoError(t, os.WriteFile(bundle, wrong, 0o600))
	security["trusted-ca-file"] = bundle
	last.WriteConfigFile()
	run := last.Start()
	run.AwaitLine(harness.Line{"message": "certificate signed by unknown authority"})
	require.NoError(t, os.WriteFile(bundle, right, 0o600))
	run.AwaitReady()
}

// A member that has lost its volume must be able to rejoin with a different address. Until its configuration contains
// the old address as well, it must advise adding it.
func TestLostMember_newAddress(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := newThree(t)
	last := c.pods[2]
	c.runs[2].LoseVolume()
	old := last.PeerURL()
	last.PeerPort = ports.Lease(t)
	last.Config["listen-peer-urls"], last.Config["initial-advertise-peer-urls"] = last.PeerURL(), last.PeerURL()
	last.Config["initial-cluster"] = strings.ReplaceAll(fmt.Sprint(last.Config["initial-cluster"]), old, last.PeerURL())
	last.WriteConfigFile()
	run := last.Start()
	run.AwaitLine(harness.Line{"message": "add the URL to initial-cluster"})
	run.Kill()
	last.Config["initial-cluster"] = fmt.Sprintf("%s,%s=%s", last.Config["initial-cluster"], last.Config["name"], old)
	last.WriteConfigFile()
	run = last.Start()
	require.Eventually(t, func() bool { return run.Readyz() == http.StatusOK }, 5*time.Minute, 10*time.Millisecond, "ready; the member first waits for a minute for a response from its old address")
	run.Kill()
	last.StartReady()
	c.requireAllVoters()
}

// A new member must not be added while another member is down, because etcd would count both as unavailable until the
// new member has started.
func TestNewMember_waitsForTheOneThatIsDown(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	pods := harness.StandaloneMembers(t, 4)
	fourth := pods[3]
	for _, p := range pods[:3] {
		p.Config["initial-cluster"] = strings.ReplaceAll(fmt.Sprint(p.Config["initial-cluster"]), fmt.Sprintf(",%s=%s", fourth.Config["name"], fourth.PeerURL()), "")
		p.WriteConfigFile()
	}
	c := startThree(t, pods[:3])
	c.runs[1].Kill()
	run := fourth.Start()
	requireExplanation(t, run, "start the members that are down")
	pods[1].StartReady()
	run.AwaitReady()
	assert.Equal(t, "value", fourth.Get("key"))
}

// If a cluster's only voter and its learner are restarted at the same time, the learner must not create a cluster of
// its own.
func TestSingleMemberAndLearner_startTogether(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	pods := harness.StandaloneMembers(t, 2)
	first, second, both := pods[0], pods[1], pods[0].Config["initial-cluster"]
	first.Config["initial-cluster"] = fmt.Sprintf("%s=%s", first.Config["name"], first.PeerURL())
	first.WriteConfigFile()
	alone := first.StartReady()
	first.Put("key", "value")
	addLearner(first, second)
	learner := second.Start()
	learner.AwaitLine(harness.Line{"message": notPromoted})
	first.Config["initial-cluster"] = both
	first.WriteConfigFile()
	learner.Shutdown()
	alone.Shutdown()
	alone, learner = first.Start(), second.Start()
	alone.AwaitReady()
	promoteManually(first, learner)
	learner.AwaitReady()
	assert.Equal(t, "value", second.Get("key"))
}
