package faults_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"etcd-wrapper/cmd/suites/harness"
)

var (
	day    = flag.Bool("maintenance", false, "run a day of maintenance in fast motion, which takes minutes")
	rounds = flag.Int("maintenance-rounds", 3, "how often the day's load, defragmentations, snapshots and kills come round")
	inUse  = flag.Int("maintenance-in-use", 200, "mebibytes that are in use of each member's database when the longest gap is measured")
)

// longestGap limits the time that a writer may have to wait while members are defragmented one at a time.
const longestGap = 1500 * time.Millisecond

func TestMaintenance_delaysWritesOnlyBriefly(t *testing.T) {
	if !*day {
		t.Skip("takes a minute: make test-maintenance")
	}
	pods, runs := harness.Cluster(t, 3)
	c := clientOfAll(t, pods)
	grow(t, c, "/kept/", *inUse)
	grow(t, c, "/garbage/", *inUse)
	for _, run := range runs {
		require.Zero(t, run.Status().Maintenance.Completed)
	}
	end := harness.StartLatencyClients(t, 16, func() *clientv3.Client { return clientOfAll(t, pods) })
	thin(t, c, "/garbage/")
	for _, run := range runs {
		harness.Eventually(t, "the member is defragmented", func() bool { return run.Status().Maintenance.Completed == 1 })
	}
	writers := end()
	for i, run := range runs {
		last := run.Status().Maintenance.LastDefragmentation
		t.Logf("member %d stood still for %.2f s: %d MiB are %d MiB now", i, last.Seconds, last.BytesBefore>>20, last.BytesAfter>>20)
		assert.Equal(t, "threshold", last.Origin)
	}
	requireShortGaps(t, writers)
	requireNothingLost(t, c, writers)
}

func requireShortGaps(t *testing.T, writers []*harness.LatencyClient) {
	t.Helper()
	longest := harness.Longest(writers)
	t.Logf("the longest gap of %d writers between two acknowledged writes: %s, at %s", len(writers), longest.Longest, longest.LongestEnd.UTC().Format(time.StampMilli))
	assert.Less(t, longest.Longest, longestGap)
	for _, w := range writers {
		assert.Empty(t, w.Failed, "no write is refused")
	}
}

// No acknowledged write may be lost during a simulated day of maintenance, which includes fragmentation, compactions,
// slow snapshot readers, defragmentations by threshold and by command, members killed during a defragmentation, and
// an exceeded quota.
func TestMaintenance_oneDayLosesNothing(t *testing.T) {
	if !*day {
		t.Skip("takes minutes: make test-maintenance")
	}
	pods := harness.Members(t, 3)
	for _, p := range pods {
		p.Flags = append(p.Flags, "--defrag-threshold=free=30%,min=8Mi")
		p.Config["quota-backend-bytes"] = int64(256 << 20)
	}
	runs := harness.StartAll(pods)
	c := clientOfAll(t, pods)
	grow(t, c, "/kept/", 40)
	history, endHistory := loadHistory(t, pods)
	var all []*harness.LatencyClient
	for round := range *rounds {
		end := harness.StartLatencyClients(t, 4, func() *clientv3.Client { return clientOfAll(t, pods) })
		fragmentsWhileASnapshotIsRead(t, pods, runs, round)
		writers := end()
		requireShortGaps(t, writers)
		all = append(all, writers...)
		killsOneThatStandsStill(t, pods, runs, round)
	}
	endHistory()
	for _, key := range []string{"0", "1", "2"} {
		history.ask(pods[0].Etcd(), access{key: key}, trafficClients)
	}
	require.Greater(t, history.writes, 100)
	history.assertLinearizable(t)
	exceedsTheQuota(t, pods, runs)
	reply, err := c.Get(t.Context(), "/kept/000001")
	require.NoError(t, err)
	require.Len(t, reply.Kvs, 1)
	requireNothingLost(t, c, all)
	for _, run := range runs {
		run.Shutdown()
	}
}

// done returns the number of defragmentations that all members have completed.
func done(runs []*harness.Run) (count int) {
	for _, run := range runs {
		if current := run.Status().Maintenance; current != nil {
			count += current.Completed
		}
	}
	return count
}

// fragmentsWhileASnapshotIsRead fragments the databases while a snapshot is being read, and waits until every member
// has been defragmented.
func fragmentsWhileASnapshotIsRead(t *testing.T, pods []*harness.Pod, runs []*harness.Run, round int) {
	t.Helper()
	c, reader := clientOfAll(t, pods), rand.IntN(len(pods))
	reading, leave := context.WithCancel(t.Context())
	defer leave()
	stream, err := etcdserverpb.NewMaintenanceClient(pods[reader].Etcd().ActiveConnection()).Snapshot(reading, &etcdserverpb.SnapshotRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	before := done(runs)
	prefix := fmt.Sprintf("/garbage-%d/", round)
	grow(t, c, prefix, 40)
	thin(t, c, prefix)
	_, err = pods[reader].Etcd().Defragment(t.Context(), pods[reader].Endpoint())
	assert.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
	harness.Eventually(t, "the two others are defragmented", func() bool { return done(runs) >= before+2 })
	assert.Len(t, runs[reader].Status().Maintenance.Readers, 1)
	leave()
	harness.Eventually(t, "the third is defragmented", func() bool { return done(runs) >= before+3 })
}

// killsOneThatStandsStill kills a member while it is being defragmented and waits until all members are ready again.
func killsOneThatStandsStill(t *testing.T, pods []*harness.Pod, runs []*harness.Run, round int) {
	t.Helper()
	c := clientOfAll(t, pods)
	prefix := fmt.Sprintf("/garbage-of-the-killed-%d/", round)
	grow(t, c, prefix, 40)
	thin(t, c, prefix)
	victim := -1
	harness.Eventually(t, "one of them is being defragmented", func() bool {
		victim = slices.IndexFunc(runs, func(run *harness.Run) bool { return run.Status().Maintenance.Busy() })
		return victim >= 0
	})
	runs[victim].Kill()
	t.Logf("member %d was killed while it was being defragmented", victim)
	runs[victim] = pods[victim].Start()
	runs[victim].AwaitReady()
	for i, run := range runs { // the killed member may have been defragmented before it started serving again
		harness.Eventually(t, fmt.Sprintf("member %d has no room left in its file", i), func() bool {
			current := run.Status()
			return current.Maintenance.Phase == "idle" && current.DBSize-current.DBInUse < 32<<20
		})
	}
}

// exceedsTheQuota fills the database until writes are rejected, and then deletes keys and compacts. The members must
// then recover automatically.
func exceedsTheQuota(t *testing.T, pods []*harness.Pod, runs []*harness.Run) {
	t.Helper()
	c := clientOfAll(t, pods)
	full := false
	for i := 0; !full; i++ {
		_, err := c.Put(t.Context(), fmt.Sprintf("/too-much/%06d", i), large())
		full = err != nil
	}
	thin(t, c, "/too-much/")
	watch := harness.StartWatch()
	require.Eventually(t, func() bool {
		_, err := c.Put(t.Context(), "/room", "again")
		return err == nil
	}, 10*time.Minute, time.Second, "disarmed the NOSPACE alarm")
	t.Logf("writes were possible again %s after the compaction", watch.Duration())
	for _, run := range runs {
		run.AwaitReady()
	}
}

// Clients must see only the revisions of their own changes, even though the members also write to etcd.
func TestMaintenance_keepsRevision(t *testing.T) {
	t.Parallel() // the test takes a minute and spends most of it waiting
	times := 1
	if *day {
		times = *rounds
	}
	pods := harness.StandaloneMembers(t, 3)
	runs := harness.StartAll(pods, "--defrag-threshold=free=30%,min=8Mi")
	c := clientOfAll(t, pods)
	for round := range times {
		prefix := fmt.Sprintf("/garbage-%d/", round)
		grow(t, c, prefix, 24)
		thin(t, c, prefix)
		before := pods[0].Revision()
		for _, run := range runs {
			harness.Eventually(t, "the member is defragmented", func() bool { return run.Status().Maintenance.Completed == 1 })
		}
		maintainAll(t, pods)
		for i, p := range pods {
			runs[i].Shutdown()
			runs[i] = p.StartReady()
			assert.Equal(t, before, p.Revision(), "after the restart of member %d", i)
		}
		harness.Eventually(t, "the leases of all turns have expired", func() bool {
			leases, err := c.Leases(t.Context())
			return err == nil && len(leases.Leases) == 0
		})
	}
}

// maintainAll defragments each member by command and through a client, and transfers leadership through a client.
func maintainAll(t *testing.T, pods []*harness.Pod) {
	t.Helper()
	for i, p := range pods {
		harness.Eventually(t, "no other member has its turn", func() bool {
			_, _, status := p.Begin("defrag").Wait()
			return status == 0
		})
		_, err := p.Etcd().Defragment(t.Context(), p.Endpoint())
		require.NoError(t, err)
		status, err := p.Etcd().Status(t.Context(), p.Endpoint())
		require.NoError(t, err)
		if status.Leader != status.Header.MemberId {
			continue
		}
		to, err := pods[(i+1)%len(pods)].Etcd().Status(t.Context(), pods[(i+1)%len(pods)].Endpoint())
		require.NoError(t, err)
		_, err = p.Etcd().MoveLeader(t.Context(), to.Header.MemberId)
		require.NoError(t, err)
	}
}
