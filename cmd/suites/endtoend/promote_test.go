package endtoend_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// joining returns a pod without a sidecar whose configuration makes it join the cluster of the first pod.
func joining(t *testing.T, first *harness.Pod) *harness.Pod {
	t.Helper()
	p := harness.NewStandalonePod(t, map[string]any{"name": "etcd-main-1", "initial-cluster-state": "existing"})
	p.Config["initial-cluster"] = fmt.Sprintf("%s,etcd-main-1=%s", first.Config["initial-cluster"], p.PeerURL())
	p.WriteConfigFile()
	return p
}

// learners returns the number of learners in the pod's cluster.
func learners(p *harness.Pod) int {
	p.T.Helper()
	out, log, code := p.Begin("etcdctl", "member", "list").Wait()
	require.Zero(p.T, code, log)
	return strings.Count(out, ", true")
}

// addLearner adds the pod's member to the first pod's cluster as a learner, with etcdctl.
func addLearner(first, added *harness.Pod) {
	first.T.Helper()
	_, log, code := first.Begin("etcdctl", "member", "add", fmt.Sprint(added.Config["name"]), "--learner", "--peer-urls="+added.PeerURL()).Wait()
	require.Zero(first.T, code, log)
}

// promoteManually promotes a learner with the command that the learner has logged.
func promoteManually(first *harness.Pod, learner *harness.Run) {
	first.T.Helper()
	learner.AwaitLine(harness.Line{"message": notPromoted})
	message := fmt.Sprint(learner.Log.Matching(harness.Line{"message": notPromoted})[0]["message"])
	command := strings.Fields(strings.TrimSuffix(message[strings.Index(message, "member promote"):], `"`))
	harness.Eventually(first.T, "the learner is promoted", func() bool {
		_, _, code := first.Begin(append([]string{"etcdctl"}, command...)...).Wait()
		return code == 0
	})
}

// notPromoted is logged by a learner that a user has added.
const notPromoted = "is not promoted automatically"

func TestMemberAddedByUser_staysLearner(t *testing.T) {
	t.Parallel()
	first := harness.NewStandalonePod(t, nil)
	first.StartReady()
	first.Put("key", "value")
	second := joining(t, first)
	addLearner(first, second)

	run := second.Start()
	run.AwaitLine(harness.Line{"message": notPromoted})
	run.Kill()
	run = second.Start()
	run.AwaitLine(harness.Line{"message": notPromoted})
	assert.Equal(t, 1, learners(first))
	_, why := run.Request(http.MethodGet, "/readyz")
	assert.Contains(t, why, "not_learner")

	promoteManually(first, run)
	run.AwaitReady()
	assert.Equal(t, "value", second.Get("key"))
	assert.Zero(t, learners(first))
	run.Shutdown()
}

func TestMemberAddedByUser_rejoinsAsLearner(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	first := harness.NewStandalonePod(t, nil)
	first.StartReady()
	first.Put("key", "value")
	second := joining(t, first)
	addLearner(first, second)
	run := second.Start()
	run.AwaitLine(harness.Line{"message": notPromoted})
	run.LoseVolume()

	run = second.Start()
	run.AwaitLine(harness.Line{"message": "removed this member's old ID"})
	run.Kill() // the cluster still has the lease that marks the member as a manually added learner
	run = second.Start()
	promoteManually(first, run)
	run.AwaitReady()
	assert.Equal(t, "value", second.Get("key"))
	awaitMarksRemoved(first) // the mark must not outlive the promotion
}

// awaitMarksRemoved waits until no learner is marked for automatic or manual promotion. Each mark is a lease.
func awaitMarksRemoved(p *harness.Pod) {
	p.T.Helper()
	harness.Eventually(p.T, "all marks have been removed", func() bool {
		out, log, code := p.Begin("etcdctl", "lease", "list").Wait()
		require.Zero(p.T, code, log)
		return strings.Contains(out, "found 0 leases")
	})
}

// A learner that recovery has added must be promoted automatically, even if it loses its volume again before the
// promotion.
func TestMemberAddedByRecovery_isPromoted(t *testing.T) {
	t.Parallel()
	c := newThree(t)
	last := c.pods[2]
	c.runs[2].LoseVolume()
	run := last.Start()
	run.AwaitLine(harness.Line{"message": "added this member to the cluster again"})
	run.LoseVolume()
	run = last.Start()
	run.AwaitLine(harness.Line{"message": "this learner was promoted"})
	run.AwaitReady()
	c.requireAllVoters()
	awaitMarksRemoved(c.pods[0])
	assert.Empty(t, run.Log.FindText(notPromoted))
}
