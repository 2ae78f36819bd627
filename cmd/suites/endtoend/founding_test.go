package endtoend_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// Two pods without data must not create a cluster before the third has started, because the third may have data.
func TestNewCluster_lateLastMember(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := &three{T: t, pods: harness.StandaloneMembers(t, 3)}
	first := c.pods[0].Start()
	first.AwaitLine(harness.Line{"message": "a new cluster is created once all members of initial-cluster have started without data", "level": "warn"})
	second := c.pods[1].Start()
	first.AwaitLine(harness.Line{"message": "waiting for other members, which may have data: etcd-main-2 does not respond"})
	require.NotEqual(t, 200, first.Readyz())
	require.Contains(t, first.Status().Recovery.Reason, "etcd-main-2 does not respond")
	for _, run := range []*harness.Run{c.pods[2].Start(), first, second} {
		run.AwaitReady()
	}
	c.pods[0].Put("key", "value")
	c.requireAllVoters()
}

// grownConfig returns three pods whose configurations list all three members. The first pod has already run as a
// single member, so it has data, and is now stopped.
func grownConfig(t *testing.T) *three {
	t.Helper()
	c := &three{T: t, pods: harness.StandaloneMembers(t, 3)}
	first, all := c.pods[0], c.pods[0].Config["initial-cluster"]
	first.Config["initial-cluster"] = fmt.Sprintf("%s=%s", first.Config["name"], first.PeerURL())
	first.WriteConfigFile()
	first.StartAndStop("key", "value")
	first.Config["initial-cluster"] = all
	first.WriteConfigFile()
	return c
}

// New members that are started while the first pod is down must not create a new cluster, because the first pod has
// data.
func TestNewMembers_waitForTheFirstWithoutStore(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := grownConfig(t)
	runs := []*harness.Run{c.pods[1].Start(), c.pods[2].Start()}
	for _, run := range runs {
		run.AwaitLine(harness.Line{"message": "waiting for other members, which may have data: etcd-main-0 does not respond"})
	}
	for _, run := range append(runs, c.pods[0].Start()) {
		run.AwaitReady()
	}
	c.requireAllVoters()
}

// To grow a cluster from one to three pods, it must be sufficient to change initial-cluster once, in the configuration
// that all pods share.
func TestSingleMember_growsToThree(t *testing.T) {
	t.Parallel()
	c := grownConfig(t)
	harness.StartAll(c.pods)
	c.requireAllVoters()
}
