package faults_test

import (
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// During a rolling restart, every write must be acknowledged. With plain etcd, some writes time out, because raft
// drops writes that are forwarded to a stopping leader. On a busy machine, a write may fail if the leader cannot
// transfer its leadership or a member does not hold writes in time.
func TestRollingRestart_answersEveryWrite(t *testing.T) {
	t.Parallel()
	pods := harness.Members(t, 3)
	for _, p := range pods {
		p.Config["election-timeout"] = 10000 // a busy machine must not cause a leader change
	}
	runs := harness.StartAll(pods)
	end := harness.StartLatencyClients(t, 12, func() *clientv3.Client { return clientOfAll(t, pods) })
	moves, mayFail := 0, false
	for tries := 0; moves < len(pods); tries++ {
		require.Less(t, tries, 4*len(pods), "number of attempts to transfer leadership")
		leader := awaitLeader(t, pods)
		runs[leader].Shutdown()
		moved := runs[leader].Log.Matching(harness.Line{"message": "transferred leadership before stopping"})
		if len(moved) == 1 && !tooBusy(runs[leader]) {
			moves++
			t.Logf("member %d transferred leadership to %v in %v ms", leader, moved[0]["to"], moved[0]["took_ms"])
		}
		mayFail = mayFail || len(moved) == 0 || slices.ContainsFunc(runs, tooBusy)
		runs[leader] = pods[leader].Start()
		runs[leader].AwaitReady()
	}
	for i, run := range runs {
		for _, held := range run.Log.Matching(harness.Line{"message": "paused writes during the leadership transfer"}) {
			t.Logf("member %d held writes for %v ms", i, held["took_ms"])
		}
	}
	writers := end()
	longest := harness.Longest(writers)
	t.Logf("longest write gap of %d clients: %s", len(writers), longest.Longest)
	for _, w := range writers {
		assert.True(t, mayFail || len(w.Failed) == 0, "no write may fail: %v", w.Failed)
	}
	requireNothingLost(t, clientOfAll(t, pods), writers)
}

// tooBusy reports whether a member has logged that it could not hold writes in time for a leadership transfer.
func tooBusy(run *harness.Run) bool {
	return run.Log.Matching(harness.Line{"message": "may be delayed"}) != nil
}

// A leader must stop cleanly even if the quota is exceeded. etcd then does not grant the lease with which a leader
// announces its stop.
func TestLeaderStop_exceededQuota(t *testing.T) {
	onlyWithFaults(t)
	t.Parallel()
	pods := harness.Members(t, 3)
	for _, p := range pods {
		p.Config["quota-backend-bytes"] = int64(1 << 20)
	}
	runs := harness.StartAll(pods)
	c := clientOfAll(t, pods)
	harness.Eventually(t, "the quota is exceeded", func() bool {
		_, err := c.Put(t.Context(), "/too-much", large())
		return err != nil
	})
	for _, run := range runs {
		run.Shutdown()
	}
}

// A leader must stop in time even if its followers do not respond, so that it cannot transfer its leadership.
func TestLeaderStop_frozenFollowers(t *testing.T) {
	onlyWithFaults(t)
	t.Parallel()
	pods, runs := harness.Cluster(t, 3)
	leader := awaitLeader(t, pods)
	for i, run := range runs {
		if i != leader {
			run.Signal(syscall.SIGSTOP)
		}
	}
	t.Logf("duration of the stop: %s", runs[leader].Shutdown())
	assert.NotEmpty(t, runs[leader].Log.FindText("cannot transfer leadership yet"))
}
