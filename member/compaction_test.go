package member_test

import (
	"context"
	"errors"
	"expvar"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"go.etcd.io/raft/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"etcd-wrapper/member"
	"etcd-wrapper/member/maintenance"
)

func TestBeforeCompaction(t *testing.T) {
	t.Parallel()
	var client *clientv3.Client
	var seen []error
	b := benchOptions(config(t, newDir(t)), func(o *member.Options) {
		o.BeforeCompaction = func(ctx context.Context) {
			_, err := client.Get(ctx, "k", clientv3.WithRev(2))
			seen = append(seen, err)
			<-ctx.Done() // simulate a read that takes too long
		}
	})
	require.NoError(t, b.Open(soon(t)))
	defer b.Close()
	client = b.client(t)
	for range 3 {
		_, err := client.Put(soon(t), "k", "v")
		require.NoError(t, err)
	}
	start := time.Now()
	_, err := client.Compact(soon(t), 4)
	require.NoError(t, err)
	assert.Less(t, time.Since(start), patience/2, "the compaction waits only for compactionWait")
	require.Equal(t, []error{nil}, seen, "the revision could be read before the compaction")
	_, err = client.Get(soon(t), "k", clientv3.WithRev(2))
	require.ErrorContains(t, err, "compacted")
}

// compacting is a bench with auto-compaction enabled.
type compacting struct {
	*bench
	read atomic.Int32 // number of calls of BeforeCompaction
}

func newCompacting(config *embed.Config, mode, retention string) *compacting {
	c := &compacting{}
	config.AutoCompactionMode, config.AutoCompactionRetention = mode, retention
	c.bench = benchOptions(config, func(o *member.Options) { o.BeforeCompaction = func(context.Context) { c.read.Add(1) } })
	return c
}

// writeUntil keeps writing until condition returns true.
func writeUntil(t *testing.T, client *clientv3.Client, condition func() bool, what string) {
	t.Helper()
	for ctx := soon(t); !condition(); {
		_, err := client.Put(ctx, "k", "v")
		require.NoError(t, err, what)
	}
}

func TestAutoCompaction_readsFirst(t *testing.T) {
	c := newCompacting(config(t, newDir(t)), "periodic", "300ms")
	require.NoError(t, c.Open(soon(t)))
	client := c.client(t)
	compacted := func() bool {
		_, err := client.Get(soon(t), "k", clientv3.WithRev(2))
		return err != nil && strings.Contains(err.Error(), "compacted")
	}
	writeUntil(t, client, compacted, "revision 2 is compacted")
	assert.Positive(t, c.read.Load())
	c.mustClose(t)
	after := c.read.Load()
	assert.Never(t, func() bool { return c.read.Load() > after }, time.Second, tick, "auto-compaction must stop with etcd")
}

func TestAutoCompaction_retention(t *testing.T) {
	for retention, changed := range map[string]bool{"": false, "0": false, "0s": false, "never": false, "7": true, "30m": true} {
		for _, mode := range []string{"periodic", "revision"} {
			c := newCompacting(config(t, newDir(t)), mode, retention)
			assert.Equal(t, changed, c.config.AutoCompactionRetention != retention, "%s %q", mode, retention)
		}
	}
	c := config(t, t.TempDir())
	c.AutoCompactionRetention = "30m"
	member.New(c, member.Options{})
	assert.Equal(t, "30m", c.AutoCompactionRetention, "without BeforeCompaction, etcd runs auto-compaction itself")
}

func TestAutoCompaction_leaderOnly(t *testing.T) {
	t.Parallel()
	var all []*compacting
	var members []*bench
	for _, config := range clusterConfigs(t, 3) {
		c := newCompacting(config, "periodic", "300ms")
		all, members = append(all, c), append(members, c.bench)
	}
	openAll(t, members)
	t.Cleanup(func() {
		for _, c := range all {
			c.mustClose(t)
		}
	})
	leads := leader(t, members)
	next := (leads + 1) % len(all)
	client := all[leads].client(t)
	writeUntil(t, client, func() bool { return all[leads].read.Load() > 1 }, "the leader compacts")
	assert.Zero(t, all[next].read.Load(), "followers do not compact")

	_, err := client.MoveLeader(soon(t), uint64(all[next].Server().MemberID()))
	require.NoError(t, err)
	client = all[next].client(t)
	writeUntil(t, client, func() bool { return all[next].read.Load() > 0 }, "the new leader compacts")
	before := all[leads].read.Load()
	more := all[next].read.Load() + 2
	writeUntil(t, client, func() bool { return all[next].read.Load() >= more }, "the new leader compacts repeatedly")
	assert.Equal(t, before, all[leads].read.Load(), "the previous leader no longer compacts")
}

// fill writes the given number of mebibytes of data.
func fill(t *testing.T, client *clientv3.Client, mebibytes int) {
	t.Helper()
	value := strings.Repeat("x", 1<<20)
	for i := range mebibytes {
		require.Eventually(t, func() bool { // on a busy machine, a write may exceed etcd's request timeout
			_, err := client.Put(soon(t), fmt.Sprintf("large-%03d", i), value)
			return err == nil
		}, patience, tick)
	}
}

// empty deletes the keys written by fill and compacts, which frees their pages.
func empty(t *testing.T, client *clientv3.Client) {
	t.Helper()
	reply, err := client.Delete(soon(t), "large-", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Eventually(t, func() bool { // retried for the same reason as in fill
		_, err = client.Compact(soon(t), reply.Header.Revision, clientv3.WithCompactPhysical())
		return err == nil || errors.Is(err, rpctypes.ErrCompacted)
	}, patience, tick)
}

// holdSnapshot requests a snapshot but leaves it unread until ctx is canceled.
func holdSnapshot(ctx context.Context, t *testing.T, client *clientv3.Client) {
	t.Helper()
	stream, err := etcdserverpb.NewMaintenanceClient(client.ActiveConnection()).Snapshot(ctx, &etcdserverpb.SnapshotRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
}

// canWrite reports whether a write succeeds within the given time.
func canWrite(t *testing.T, client *clientv3.Client, within time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	_, err := client.Put(ctx, "key", "value")
	return err == nil
}

func TestDefragmentation_duringASnapshot(t *testing.T) {
	t.Parallel()
	b := openBench(t)
	client := b.client(t)
	fill(t, client, 12)

	snapshotCtx, cancelSnapshot := context.WithCancel(t.Context())
	defer cancelSnapshot()
	holdSnapshot(snapshotCtx, t, client)
	_, err := client.Defragment(soon(t), endpoint(b.config))
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "cannot defragment: the database is being read: wait for the snapshot for 127.0.0.1:")
	reply, err := http.Post(endpoint(b.config)+"/v3/maintenance/defragment", "application/json", strings.NewReader("{}"))
	require.NoError(t, err)
	defer reply.Body.Close()
	output, err := io.ReadAll(reply.Body)
	require.NoError(t, err)
	require.Contains(t, string(output), "the database is being read", "requests through etcd's HTTP gateway are rejected, too")
	require.Len(t, b.Maintainer.State().Readers, 1)
	for range 20 {
		require.True(t, canWrite(t, client, patience))
	}
	cancelSnapshot()
	require.Eventually(t, func() bool { return len(b.Maintainer.State().Readers) == 0 }, patience, tick)
	_, err = client.Defragment(soon(t), endpoint(b.config))
	require.NoError(t, err)
	assert.Equal(t, 1, b.Maintainer.State().Completed)
}

// eager returns maintenance options with a short check interval and a low threshold.
func eager() maintenance.Options {
	return maintenance.Options{
		Threshold: maintenance.Threshold{Free: 0.3, Min: 4 << 20}, MaxPause: time.Minute, Interval: 200 * time.Millisecond,
	}
}

// leadLastStarted makes the most recently started member the leader, because etcd publishes the raft status of that
// member only, and transferring leadership requires it.
func leadLastStarted(t *testing.T, members []*bench) {
	t.Helper()
	published := expvar.Get("raft.status").(expvar.Func).Value().(raft.Status)
	_, err := members[0].client(t).MoveLeader(soon(t), published.ID)
	require.NoError(t, err)
}

// enableAuth creates the root user and enables authentication.
func enableAuth(t *testing.T, client *clientv3.Client) {
	t.Helper()
	_, err := client.UserAdd(soon(t), "root", "secret")
	require.NoError(t, err)
	_, err = client.UserGrantRole(soon(t), "root", "root")
	require.NoError(t, err)
	_, err = client.AuthEnable(soon(t))
	require.NoError(t, err)
}

// root returns a client that is authenticated as root and uses all members as endpoints.
func root(t *testing.T, members []*bench) *clientv3.Client {
	t.Helper()
	enableAuth(t, members[0].client(t))
	return connect(t, "root", "secret", members...)
}

// Followers must be defragmented one after another, and the leader last.
func TestDefragmentation_order(t *testing.T) {
	members := threeWith(t, func(_ *embed.Config, o *member.Options) {
		o.Maintenance = eager()
		o.Maintenance.Interval = 3 * time.Second // the leader waits twice as long for the others to claim their turns
	})
	defer members[0].Close()
	leadLastStarted(t, members)
	leads := leader(t, members)
	client := root(t, members)
	fill(t, client, 12)
	empty(t, client)
	reply, err := client.Get(soon(t), "key")
	require.NoError(t, err)
	before, puts := reply.Header.Revision, int64(0) // some members may not have applied this revision yet
	require.Eventually(t, func() bool {
		_, err := client.Put(soon(t), "key", "value")
		require.NoError(t, err)
		puts++
		return !slices.ContainsFunc(members, func(b *bench) bool { return b.Maintainer.State().Completed == 0 })
	}, patience, tick)

	ends := func(i int) time.Time { return members[i].Maintainer.State().LastDefragmentation.At }
	last := []int{0, 1, 2}
	slices.SortFunc(last, func(a, b int) int { return ends(a).Compare(ends(b)) })
	assert.Equal(t, leads, last[2], "the leader goes last")
	for i, next := range last[1:] {
		state := members[next].Maintainer.State().LastDefragmentation
		assert.True(t, state.At.Add(-time.Duration(state.Seconds*float64(time.Second))).After(ends(last[i])), "no two members are defragmented at the same time")
	}
	published, _ := members[leads].View()
	assert.NotEqual(t, published.Leader, members[leads].ID().String(), "the leader must transfer its leadership before it is defragmented")
	reply, err = client.Get(soon(t), "key")
	require.NoError(t, err)
	assert.Equal(t, before+puts, reply.Header.Revision, "the claims must not change the revision")
	require.Eventually(t, func() bool {
		reply, err := client.Leases(soon(t))
		require.NoError(t, err)
		return len(reply.Leases) == 0
	}, patience, tick, "all claims are revoked")
}

func TestDefragmentation_turnOfAnotherMember(t *testing.T) {
	t.Parallel()
	members := threeWith(t, func(_ *embed.Config, o *member.Options) { o.Maintenance.MaxPause = time.Minute })
	defer members[0].Close()
	trigger := func() string {
		before := members[1].Maintainer.State().LastDefragmentation
		require.NoError(t, members[1].Maintainer.Trigger())
		require.Eventually(t, func() bool { // requests are rejected until the member has caught up
			state := members[1].Maintainer.State()
			return state.LastDefragmentation != before && state.Phase == maintenance.Idle
		}, patience, tick)
		return members[1].Maintainer.State().LastDefragmentation.Error
	}
	expect := func(want, why string) { // retries, because requests are also rejected while a member lags on a busy machine
		got := trigger()
		for deadline := time.Now().Add(patience); got != want && time.Now().Before(deadline); {
			got = trigger()
		}
		assert.Equal(t, want, got, why)
	}
	grant(t, members[1], reservedID(turnKind, 1, 77))
	expect("", "a turn claimed for an unknown member is ignored")
	grant(t, members[1], reservedID(turnKind, 2, members[2].ID()))
	view, _ := members[2].View()
	expect("member "+view.Name+" is being defragmented; wait for it to finish", "it is another member's turn")
	_, err := members[1].Server().LeaseRevoke(soon(t), &etcdserverpb.LeaseRevokeRequest{ID: reservedID(turnKind, 2, members[2].ID())})
	require.NoError(t, err)
	expect("", "the other member's turn is over")
}

func TestReservedLeases(t *testing.T) {
	t.Parallel()
	b := openBench(t)
	client := b.client(t)
	leases, kv := etcdserverpb.NewLeaseClient(client.ActiveConnection()), etcdserverpb.NewKVClient(client.ActiveConnection())
	id := reservedID(turnKind, 1, b.ID())
	grant(t, b, id)
	put := &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestPut{RequestPut: &etcdserverpb.PutRequest{Key: []byte("key"), Lease: id}}}
	nested := &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestTxn{RequestTxn: &etcdserverpb.TxnRequest{Success: []*etcdserverpb.RequestOp{put}}}}
	for what, send := range map[string]func() error{
		"grant": func() error {
			_, err := leases.LeaseGrant(soon(t), &etcdserverpb.LeaseGrantRequest{ID: id + 1, TTL: 60})
			return err
		},
		"revoke": func() error {
			_, err := leases.LeaseRevoke(soon(t), &etcdserverpb.LeaseRevokeRequest{ID: id})
			return err
		},
		"renew": func() error {
			stream, err := leases.LeaseKeepAlive(soon(t))
			require.NoError(t, err)
			require.NoError(t, stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: id}))
			_, err = stream.Recv()
			return err
		},
		"attach": func() error { _, err := kv.Put(soon(t), put.GetRequestPut()); return err },
		"attach in a nested transaction": func() error {
			_, err := kv.Txn(soon(t), &etcdserverpb.TxnRequest{Failure: []*etcdserverpb.RequestOp{nested}})
			return err
		},
		"lock": func() error {
			_, err := v3lockpb.NewLockClient(client.ActiveConnection()).Lock(soon(t), &v3lockpb.LockRequest{Name: []byte("lock"), Lease: id})
			return err
		},
	} {
		err := send()
		assert.Equal(t, codes.InvalidArgument, status.Code(err), what)
		assert.ErrorContains(t, err, "reserved for internal use: choose another ID or let etcd choose one", what)
	}
	granted, err := client.Grant(soon(t), 60)
	require.NoError(t, err)
	_, err = client.Txn(soon(t)).Then(clientv3.OpGet("key"), clientv3.OpPut("key", "value", clientv3.WithLease(granted.ID))).Commit()
	require.NoError(t, err)
	_, err = client.Txn(soon(t)).Then(clientv3.OpGet("key"), clientv3.OpPut("key", "value"), clientv3.OpTxn(nil, nil, nil)).Commit()
	require.NoError(t, err)
	_, err = client.KeepAliveOnce(soon(t), granted.ID)
	require.NoError(t, err)
	_, err = client.Revoke(soon(t), granted.ID)
	require.NoError(t, err)
}

func TestDefragmentation_onlyRoot(t *testing.T) {
	t.Parallel()
	b := openBench(t)
	client := root(t, []*bench{b})
	_, err := b.client(t).Defragment(soon(t), endpoint(b.config))
	require.ErrorContains(t, err, "user name is empty")
	assert.Zero(t, b.Maintainer.State().Completed+b.Maintainer.State().Failed, "the rejected request must not start a defragmentation")
	_, err = client.Defragment(soon(t), endpoint(b.config))
	require.NoError(t, err)
	assert.Equal(t, 1, b.Maintainer.State().Completed)
}

// isDisarmed waits for a few check intervals and reports whether the NOSPACE alarm has been disarmed.
func isDisarmed(b *bench, interval time.Duration) bool {
	for range 10 {
		<-time.After(interval)
		if _, noSpace := b.Alarms(); !noSpace {
			return true
		}
	}
	return false
}

func TestNoSpace_disarmedWithRoom(t *testing.T) {
	t.Parallel()
	config := config(t, newDir(t))
	config.QuotaBackendBytes = 24 << 20
	options := maintenance.Options{MaxPause: time.Minute, Interval: 50 * time.Millisecond}
	b := benchMaintained(t, config, options)
	require.NoError(t, b.Open(soon(t)))
	defer b.Close()
	client := b.client(t)
	raised := func() bool { _, noSpace := b.Alarms(); return noSpace }
	for full := false; !full; { // put data until defragmentation can no longer free enough space to disarm the alarm
		_, err := client.Put(soon(t), fmt.Sprintf("large-%d", time.Now().UnixNano()), string(make([]byte, 1<<19)))
		full = err != nil && !isDisarmed(b, options.Interval)
	}
	require.True(t, raised(), "the alarm must not be disarmed while the data in use is too large")
	before := b.Maintainer.State().NoSpaceDisarmed
	// Pages that a reader holds during the compaction are not freed until the next commit, which requires a write.
	reader := b.Server().Backend().ConcurrentReadTx()
	reader.RLock()
	empty(t, client)
	reader.RUnlock()
	require.Eventually(t, func() bool { return !raised() }, patience, tick, "%s", b.log)
	_, err := client.Put(soon(t), "key", "value")
	require.NoError(t, err)
	assert.Equal(t, before+1, b.Maintainer.State().NoSpaceDisarmed)
	assert.Contains(t, b.log.String(), "disarmed the NOSPACE alarm: the database size is")
	alarms, err := client.AlarmList(soon(t))
	require.NoError(t, err)
	assert.Empty(t, (*etcdserverpb.AlarmResponse)(alarms).Alarms)
}

func TestDefragmentation_atStart(t *testing.T) {
	t.Parallel()
	b := openBench(t)
	dir := b.config.Dir
	fill(t, b.client(t), 16)
	empty(t, b.client(t))
	b.mustClose(t)

	disabled := newBench(t, dir)
	require.NoError(t, disabled.Open(soon(t)))
	view, _ := disabled.View()
	require.Greater(t, view.DBSize, int64(16<<20), "without a threshold, the database is not defragmented")
	disabled.mustClose(t)

	enabled := benchMaintained(t, config(t, dir), eager())
	require.NoError(t, enabled.Open(soon(t)))
	defer enabled.Close()
	view, _ = enabled.View()
	assert.Less(t, view.DBSize, int64(1<<20))
	assert.Zero(t, enabled.Maintainer.State().Completed, "etcd, not the Maintainer, has defragmented the database")
}
