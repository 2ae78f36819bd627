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
	day    = flag.Bool("maintenance", false, "also run the tests that simulate a day of maintenance, which take minutes")
	rounds = flag.Int("maintenance-rounds", 3, "number of rounds of load, defragmentations, snapshots and kills in the simulated day")
	inUse  = flag.Int("maintenance-in-use", 200, "size of the data in each member's database, in MiB, when the longest write gap is measured")
)

// longestGap limits the time between two acknowledged writes of a client while members are defragmented one at a time.
const longestGap = 1500 * time.Millisecond

func TestMaintenance_delaysWritesOnlyBriefly(t *testing.T) {
	if !*day {
		t.Skip("skipped: part of make test-maintenance")
	}
	pods, runs := harness.Cluster(t, 3)
	c := clientOfAll(t, pods)
	grow(t, c, "/kept/", *inUse)
	grow(t, c, "/garbage/", *inUse)
	for _, run := range runs {
		require.Zero(t, run.Status().Maintenance.Completed)
	}
	end := harness.StartLatencyClients(t, 16, func() *clientv3.Client { return clientOfAll(t, pods) })
	deleteValues(t, c, "/garbage/")
	for _, run := range runs {
		harness.Eventually(t, "the member is defragmented", func() bool { return run.Status().Maintenance.Completed == 1 })
	}
	writers := end()
	for i, run := range runs {
		last := run.Status().Maintenance.LastDefragmentation
		t.Logf("member %d was blocked for %.2f s: database reduced from %d MiB to %d MiB", i, last.Seconds, last.BytesBefore>>20, last.BytesAfter>>20)
		assert.Equal(t, "threshold", last.Origin)
	}
	requireShortGaps(t, writers)
	requireNothingLost(t, c, writers)
}

func requireShortGaps(t *testing.T, writers []*harness.LatencyClient) {
	t.Helper()
	longest := harness.Longest(writers)
	t.Logf("longest write gap of %d clients: %s, until %s", len(writers), longest.Longest, longest.LongestEnd.UTC().Format(time.StampMilli))
	assert.Less(t, longest.Longest, longestGap)
	for _, w := range writers {
		assert.Empty(t, w.Failed, "no write may fail")
	}
}

// No acknowledged write may be lost during a simulated day of maintenance, which includes fragmentation, compactions,
// slow snapshot readers, defragmentations by threshold and by command, members killed during a defragmentation, and
// an exceeded quota.
func TestMaintenance_oneDayLosesNothing(t *testing.T) {
	if !*day {
		t.Skip("skipped: part of make test-maintenance")
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
		fragmentDuringSnapshot(t, pods, runs, round)
		writers := end()
		requireShortGaps(t, writers)
		all = append(all, writers...)
		killDuringDefragmentation(t, pods, runs, round)
	}
	endHistory()
	for _, key := range []string{"0", "1", "2"} {
		history.do(pods[0].Etcd(), access{key: key}, trafficClients)
	}
	require.Greater(t, history.writes, 100)
	history.assertLinearizable(t)
	exceedQuota(t, pods, runs)
	reply, err := c.Get(t.Context(), "/kept/000001")
	require.NoError(t, err)
	require.Len(t, reply.Kvs, 1)
	requireNothingLost(t, c, all)
	for _, run := range runs {
		run.Shutdown()
	}
}

// completed returns the total number of defragmentations that the members have completed.
func completed(runs []*harness.Run) (count int) {
	for _, run := range runs {
		if current := run.Status().Maintenance; current != nil {
			count += current.Completed
		}
	}
	return count
}

// fragmentDuringSnapshot fragments the databases while a snapshot is being read, and waits until every member
// has been defragmented.
func fragmentDuringSnapshot(t *testing.T, pods []*harness.Pod, runs []*harness.Run, round int) {
	t.Helper()
	c, reader := clientOfAll(t, pods), rand.IntN(len(pods))
	reading, stopReading := context.WithCancel(t.Context())
	defer stopReading()
	stream, err := etcdserverpb.NewMaintenanceClient(pods[reader].Etcd().ActiveConnection()).Snapshot(reading, &etcdserverpb.SnapshotRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	before := completed(runs)
	prefix := fmt.Sprintf("/garbage-%d/", round)
	grow(t, c, prefix, 40)
	deleteValues(t, c, prefix)
	_, err = pods[reader].Etcd().Defragment(t.Context(), pods[reader].Endpoint())
	assert.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
	harness.Eventually(t, "the two members without a snapshot are defragmented", func() bool { return completed(runs) >= before+2 })
	assert.Len(t, runs[reader].Status().Maintenance.Readers, 1)
	stopReading()
	harness.Eventually(t, "the member whose snapshot is closed is defragmented", func() bool { return completed(runs) >= before+3 })
}

// killDuringDefragmentation kills a member while it is being defragmented and waits until all members are ready again.
func killDuringDefragmentation(t *testing.T, pods []*harness.Pod, runs []*harness.Run, round int) {
	t.Helper()
	c := clientOfAll(t, pods)
	prefix := fmt.Sprintf("/garbage-before-kill-%d/", round)
	grow(t, c, prefix, 40)
	deleteValues(t, c, prefix)
	victim := -1
	harness.Eventually(t, "a member is being defragmented", func() bool {
		victim = slices.IndexFunc(runs, func(run *harness.Run) bool { return run.Status().Maintenance.Busy() })
		return victim >= 0
	})
	runs[victim].Kill()
	t.Logf("member %d was killed while it was being defragmented", victim)
	runs[victim] = pods[victim].Start()
	runs[victim].AwaitReady()
	for i, run := range runs { // all members, because the victim's defragmentation may have ended before the kill
		harness.Eventually(t, fmt.Sprintf("member %d has less than 32 MiB of free pages", i), func() bool {
			current := run.Status()
			return current.Maintenance.Phase == "idle" && current.DBSize-current.DBInUse < 32<<20
		})
	}
}

// exceedQuota fills the database until writes are rejected, and then deletes keys and compacts. The members must
// then recover automatically.
func exceedQuota(t *testing.T, pods []*harness.Pod, runs []*harness.Run) {
	t.Helper()
	c := clientOfAll(t, pods)
	full := false
	for i := 0; !full; i++ {
		_, err := c.Put(t.Context(), fmt.Sprintf("/too-much/%06d", i), large())
		full = err != nil
	}
	deleteValues(t, c, "/too-much/")
	watch := harness.StartWatch()
	require.Eventually(t, func() bool {
		_, err := c.Put(t.Context(), "/key", "value")
		return err == nil
	}, 10*time.Minute, time.Second, "writes must succeed once the NOSPACE alarm is disarmed")
	t.Logf("writes succeeded again %s after the compaction", watch.Duration())
	for _, run := range runs {
		run.AwaitReady()
	}
}

// Defragmentations, restarts and leadership transfers must not increase the revision, although the members coordinate
// them with leases in etcd.
func TestMaintenance_keepsRevision(t *testing.T) {
	t.Parallel() // most of the minute that the test takes is spent waiting
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
		deleteValues(t, c, prefix)
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
		harness.Eventually(t, "the leases with which the members coordinate have expired", func() bool {
			leases, err := c.Leases(t.Context())
			return err == nil && len(leases.Leases) == 0
		})
	}
}

// maintainAll defragments each member by command and through a client, and transfers leadership through a client.
func maintainAll(t *testing.T, pods []*harness.Pod) {
	t.Helper()
	for i, p := range pods {
		harness.Eventually(t, "the member is defragmented; this is rejected while another member holds the lease", func() bool {
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
