package member_test

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"etcd-wrapper/cmd/suites/harness"
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
	assert.Contains(t, again.log.String(), `"component":"etcd"`, "etcd's log lines are in the one stream")
	assert.NotRegexp(t, `"level":"(warn|error)".*"(Running http and|simple token|Failed to detect schema|failed to update storage|stopp(ing|ed) insecure)`, b.log.String()+again.log.String(),
		"what etcd says at each clean start and stop alarms nobody")
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

// etcd's own Close waits 7 s for watches, and a client may wait forever for a lock. A client resumes its watch on
// another member after Unavailable, but gives up after any other code.
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
	asked := time.Now()
	opened, err := b.Close()
	assert.True(t, opened)
	require.NoError(t, err)
	assert.Less(t, time.Since(asked), 5*time.Second)
}
