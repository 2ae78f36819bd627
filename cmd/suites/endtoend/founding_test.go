package endtoend_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// Two pods must wait for the third, even if it is scheduled much later, because it may have data.
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
	c.requireWhole()
}

// edited returns three pods whose configurations list all three members. The first pod has already run as a single
// member and is now stopped.
func edited(t *testing.T) *three {
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

// New members must not create a new cluster if they are started while the first pod, which has data, is down.
func TestNewMembers_waitForTheFirstWithoutStore(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := edited(t)
	runs := []*harness.Run{c.pods[1].Start(), c.pods[2].Start()}
	for _, run := range runs {
		run.AwaitLine(harness.Line{"message": "waiting for other members, which may have data: etcd-main-0 does not respond"})
	}
	for _, run := range append(runs, c.pods[0].Start()) {
		run.AwaitReady()
	}
	c.requireWhole()
}

// Growing a cluster by two pods must require only a single change to initial-cluster, which all pods share.
func TestSingleMember_growsToThree(t *testing.T) {
	t.Parallel()
	c := edited(t)
	harness.StartAll(c.pods)
	c.requireWhole()
}
