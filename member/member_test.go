package member_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/member/state"
)

func TestMember(t *testing.T) {
	b := openBench(t)
	dir := b.config.Dir
	_, err := b.client(t).Put(soon(t), "key", "value")
	require.NoError(t, err)
	require.NoError(t, b.LinearizableRead(soon(t)))
	assert.True(t, b.HasLeader())
	assert.False(t, b.IsLearner())
	assert.NoError(t, b.ListenerError())

	opened, err := b.Close()
	assert.True(t, opened)
	require.NoError(t, err)

	again := newBench(t, dir)
	require.NoError(t, again.Open(soon(t)))
	reply, err := again.client(t).Get(soon(t), "key")
	require.NoError(t, err)
	assert.Equal(t, "value", string(reply.Kvs[0].Value))
	again.mustClose(t)
	assert.Contains(t, again.log.String(), `"component":"etcd"`, "etcd's log is part of the wrapper's log")
	assert.NotRegexp(t, `"level":"(warn|error)".*"(Running http and|simple token|Failed to detect schema|failed to update storage|stopp(ing|ed) insecure)`, b.log.String()+again.log.String(),
		"etcd's routine messages are not logged as warnings or errors")
}

func TestClose_neverOpened(t *testing.T) {
	b := newBench(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, b.Open(ctx), context.Canceled)
	opened, err := b.Close()
	assert.False(t, opened)
	assert.NoError(t, err)
}

// Close must not wait for watches and locks. Watches must be canceled with Unavailable, the only code after which a
// client resumes its watch on another member.
func TestClose_endlessRequests(t *testing.T) {
	b := openBench(t)
	client := b.client(t)
	var watches []clientv3.WatchChan
	for i := range 1000 {
		ctx := context.WithValue(t.Context(), watchKey{}, i) // watches with different contexts use different streams
		watches = append(watches, client.Watch(ctx, fmt.Sprintf("key-%d", i), clientv3.WithCreatedNotify()))
	}
	for _, watch := range watches {
		<-watch
	}
	stream, err := etcdserverpb.NewWatchClient(client.ActiveConnection()).Watch(soon(t))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{Key: []byte("key")},
	}}))
	_, err = stream.Recv()
	require.NoError(t, err)
	locks := v3lockpb.NewLockClient(client.ActiveConnection())
	_, err = locks.Lock(soon(t), &v3lockpb.LockRequest{Name: []byte("lock")})
	require.NoError(t, err)
	waited := make(chan error, 1)
	go func() {
		_, err := locks.Lock(soon(t), &v3lockpb.LockRequest{Name: []byte("lock")})
		waited <- err
	}()
	require.Eventually(t, func() bool {
		queue, err := client.Get(soon(t), "lock", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && queue.Count == 2
	}, patience, tick)

	watch := harness.StartWatch()
	b.mustClose(t)
	assert.Less(t, watch.Duration(), 5*time.Second)
	_, err = stream.Recv()
	for _, err := range []error{err, <-waited} {
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.ErrorContains(t, err, "etcd is stopping")
	}
}

type watchKey struct{}

func TestOpen_withoutQuorum(t *testing.T) {
	config := config(t, newDir(t))
	for i, peer := range []url.URL{freeURL(t), freeURL(t)} {
		config.InitialCluster += fmt.Sprintf(",etcd-%d=%s", i+1, peer.String())
	}
	b := benchWith(t, config)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	require.ErrorIs(t, b.Open(ctx), context.DeadlineExceeded)
	assert.Contains(t, b.Doing(), "waiting for a leader")
	assert.Regexp(t, `no connection to etcd-1 \(http://127\.0\.0\.1:\d+\), etcd-2 \(http://127\.0\.0\.1:\d+\): check that each is running`, b.Doing())
	start := time.Now()
	opened, err := b.Close()
	assert.True(t, opened)
	require.NoError(t, err)
	assert.Less(t, time.Since(start), 5*time.Second)
}

func TestRequests(t *testing.T) {
	t.Parallel()
	b := openBench(t)
	client, start := b.client(t), time.Now()
	_, err := client.Put(soon(t), "key", "value")
	require.NoError(t, err)
	_, err = client.Txn(soon(t)).Then(clientv3.OpPut("key", "other")).Commit()
	require.NoError(t, err)
	_, err = client.Delete(soon(t), "key")
	require.NoError(t, err)
	_, err = client.Get(soon(t), "key")
	require.NoError(t, err)
	_, err = client.Get(soon(t), "key", clientv3.WithRev(99))
	require.Error(t, err, "a failed request is not counted")
	_, err = client.Status(soon(t), endpoint(b.config))
	require.NoError(t, err)

	writes, reads := b.Requests()
	assert.EqualValues(t, 3, writes.Count)
	assert.EqualValues(t, 1, reads.Count)
	assert.Positive(t, writes.Took)
	assert.Positive(t, reads.Took)
	assert.Less(t, writes.Took+reads.Took, time.Since(start))
}

// etcd must still export the metrics on which the readiness history depends.
func TestEtcdMetrics(t *testing.T) {
	t.Parallel()
	openBench(t)
	families, err := prometheus.DefaultGatherer.Gather()
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, family := range families {
		seen[family.GetName()] = true
	}
	assert.True(t, seen["etcd_disk_wal_fsync_duration_seconds"])
	assert.True(t, seen["etcd_debugging_mvcc_current_revision"])
}

func TestView(t *testing.T) {
	t.Parallel()
	members := three(t)
	lead, follower := members[0], members[1]
	var view state.Member
	require.Eventually(t, func() bool {
		view, _ = follower.View()
		return len(follower.Missing()) == 0 && len(view.Peers) == 3 && view.Leader == lead.ID().String()
	}, patience, tick, "%v", view)
	assert.Equal(t, follower.config.Name, view.Name)
	assert.Regexp(t, "^[0-9a-f]+$", view.ClusterID)
	assert.Positive(t, view.Term)
	assert.Positive(t, view.Revision)
	assert.Positive(t, view.DBSize)
	assert.Positive(t, view.DBInUse)
	assert.EqualValues(t, 2<<30, view.Quota, "etcd's default")
	for i, name := range []string{"etcd-0", "etcd-1", "etcd-2"} {
		peer := view.Peers[i]
		assert.Equal(t, name, peer.Name)
		assert.True(t, peer.Active)
		assert.False(t, peer.Learner)
		assert.Equal(t, peer.ID == view.Leader, peer.Leader)
		assert.Len(t, peer.URLs, 1)
	}

	lead.mustClose(t)
	_, ok := lead.View()
	assert.False(t, ok, "a closed member has no view")
	require.Eventually(t, func() bool { return len(follower.Missing()) == 1 }, patience, tick)
	assert.Equal(t, []string{fmt.Sprintf("%s (%s)", lead.config.Name, lead.config.AdvertisePeerUrls[0].String())}, follower.Missing())
	view, _ = follower.View()
	assert.Len(t, view.Peers, 3, "a stopped member remains in the cluster unless the cluster was scaled down")
	for _, peer := range view.Peers {
		assert.Equal(t, peer.Name != lead.config.Name, peer.Active, peer.Name)
	}
}

// NotJoined must list the configured members that are missing from the data of a former single-member cluster.
func TestNotJoined(t *testing.T) {
	t.Parallel()
	dir, _, before := stoppedMember(t)
	config := config(t, dir)
	config.ListenPeerUrls, config.AdvertisePeerUrls, config.InitialCluster = before.ListenPeerUrls, before.AdvertisePeerUrls, before.InitialCluster
	config.InitialCluster += ",etcd-1=http://127.0.0.1:1,etcd-2=http://127.0.0.1:2"
	b := benchWith(t, config)
	assert.Empty(t, b.NotJoined(), "the members are unknown until etcd has started")
	require.NoError(t, b.Open(soon(t)))
	assert.Equal(t, []string{"etcd-1", "etcd-2"}, b.NotJoined())
	_, err := b.client(t).MemberAddAsLearner(soon(t), []string{"http://127.0.0.1:2"})
	require.NoError(t, err)
	assert.Equal(t, []string{"etcd-1"}, b.NotJoined(), "a member without a name is recognized by its peer URL")
	b.mustClose(t)
}

func TestView_notOpen(t *testing.T) {
	b := newBench(t, newDir(t))
	_, ok := b.View()
	assert.False(t, ok)
	assert.Empty(t, b.Missing())
}

func TestWatch_removedMember(t *testing.T) {
	t.Parallel()
	configs := clusterConfigs(t, 2)
	configs[0].StrictReconfigCheck = false
	remaining, removed := benchWith(t, configs[0]), benchWith(t, configs[1])
	openAll(t, []*bench{remaining, removed})

	watched := make(chan error, 1)
	go func() { watched <- removed.Watch(soon(t)) }()
	_, err := remaining.client(t).MemberRemove(soon(t), uint64(removed.ID()))
	require.NoError(t, err)
	require.ErrorContains(t, <-watched, "etcd stopped; the member may have been removed")
	assert.ErrorContains(t, removed.ListenerError(), "etcd stopped; the member may have been removed")
	for _, b := range []*bench{removed, remaining} {
		b.mustClose(t)
	}
}

func TestOpen_portInUse(t *testing.T) {
	b := newBench(t, newDir(t))
	taken, err := net.Listen("tcp", b.config.ListenPeerUrls[0].Host)
	require.NoError(t, err)
	defer taken.Close()
	err = b.Open(soon(t))
	require.ErrorContains(t, err, "cannot start etcd")
	require.ErrorContains(t, err, "address already in use")
	opened, err := b.Close()
	assert.False(t, opened, "etcd listens before it opens its data")
	assert.NoError(t, err)
}

func TestOpen_metricsPortInUse(t *testing.T) {
	dir, _, config := stoppedMember(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	config.Dir, config.ListenMetricsUrls = dir, []url.URL{{Scheme: "http", Host: taken.Addr().String()}}
	b := benchWith(t, config)
	require.ErrorContains(t, b.Open(soon(t)), "address already in use")
	opened, err := b.Close()
	assert.True(t, opened)
	assert.Error(t, err, "etcd did not shut down cleanly")
}

func TestOpen_databaseInUse(t *testing.T) {
	dir := newDir(t)
	first := newBench(t, dir)
	require.NoError(t, first.Open(soon(t)))
	first.mustClose(t)
	holder, err := os.Open(filepath.Join(dir, "member", "snap", "db"))
	require.NoError(t, err)
	defer holder.Close()
	require.NoError(t, unix.Flock(int(holder.Fd()), unix.LOCK_EX))

	canceled := newBench(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorIs(t, canceled.Open(ctx), context.DeadlineExceeded)
	opened, err := canceled.Close()
	assert.False(t, opened, "etcd has not opened the data")
	require.NoError(t, err)
	assert.Contains(t, canceled.log.String(), "the database is locked by another process")

	waiting := newBench(t, dir)
	ready := make(chan error, 1)
	go func() { ready <- waiting.Open(soon(t)) }()
	require.NoError(t, unix.Flock(int(holder.Fd()), unix.LOCK_UN))
	require.NoError(t, <-ready)
	waiting.mustClose(t)
}

// After a fatal log entry, the member must report the reason rather than exit, and the goroutine that logged it must
// not continue.
func TestLogger_fatalIsACrash(t *testing.T) {
	for name, log := range map[string]func(*zap.Logger, string, ...zap.Field){
		"fatal": (*zap.Logger).Fatal, "panic": (*zap.Logger).Panic,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, t.TempDir())
			require.NoError(t, b.config.ZapLoggerBuilder(b.config))
			returned := make(chan struct{})
			go func() {
				log(b.config.GetLogger(), "failed to save Raft hard state and entries", zap.Error(syscall.ENOSPC))
				close(returned)
			}()
			reason := <-b.crashed
			require.EqualError(t, reason, "etcd: failed to save Raft hard state and entries: no space left on device")
			require.ErrorIs(t, reason, syscall.ENOSPC)
			assert.Contains(t, b.log.String(), `"level":"`+name+`"`)
			select {
			case <-returned:
				assert.Fail(t, "the goroutine that logged the entry has continued")
			default:
			}
		})
	}
}

func TestOpen_permissions(t *testing.T) {
	dir := newDir(t)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "member", "snap"), 0o755))
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "member", "note"), nil, 0o644))
	b := newBench(t, dir)
	require.NoError(t, b.Open(soon(t)))
	_, err := b.Close()
	require.NoError(t, err)
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		info, statErr := entry.Info()
		want := fs.FileMode(0o600)
		if entry.IsDir() {
			want = 0o700
		}
		assert.Equal(t, want, info.Mode().Perm(), path)
		return errors.Join(err, statErr)
	}))
}
