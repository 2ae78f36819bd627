package maintenance

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"etcd-wrapper/cmd/suites/ports"
)

// send sends a client request, with the metadata by which etcd's own client is recognized if canRetry is set.
func send(k *Maintainer, method string, canRetry bool) error {
	ctx := context.Background()
	if canRetry {
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("client-api-version", "3.6"))
	}
	_, err := k.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) { return "done", nil })
	return err
}

func TestRedirect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := New(Options{Gate: &Gate{}, Log: zerolog.Nop()})
		require.NoError(t, send(k, "/etcdserverpb.KV/Put", true))
		end := k.redirecting.begin("the database is being defragmented")

		start := time.Now()
		err := send(k, "/etcdserverpb.KV/Put", true)
		assert.Equal(t, redirectAfter, time.Since(start), "the redirection is delayed, so that a client with a single endpoint does not run out of retries")
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Equal(t, "there is no connection available", status.Convert(err).Message(), "etcd's client retries writes only after this message")
		assert.Error(t, send(k, "/etcdserverpb.Lease/LeaseGrant", true))

		start = time.Now()
		require.NoError(t, send(k, "/etcdserverpb.KV/Put", false), "a client that might not retry is not redirected")
		require.NoError(t, send(k, "/etcdserverpb.Maintenance/Status", true))
		assert.Zero(t, time.Since(start))

		time.AfterFunc(redirectAfter/2, end)
		require.NoError(t, send(k, "/etcdserverpb.KV/Range", true), "a request is not redirected if the pause ends before redirectAfter")
		require.NoError(t, send(k, "/etcdserverpb.KV/Range", true))
	})
}

// defragmentAsClient sends a client's defragmentation request. handle takes the place of etcd's handler.
func defragmentAsClient(s *fixture, handle func() error) error {
	_, err := s.Unary(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: defragmentMethod}, func(context.Context, any) (any, error) {
		return "done", handle()
	})
	return err
}

// assertRejected asserts that a defragmentation request was rejected for the given reason.
func assertRejected(t *testing.T, err error, why string) {
	t.Helper()
	assert.Equal(t, codes.FailedPrecondition, status.Code(err))
	assert.ErrorContains(t, err, "etcd-wrapper: cannot defragment: "+why)
}

// noFreePages removes all free pages from the fixture's database, so that no defragmentation is due.
func noFreePages(s *fixture) { s.cluster.now.inUse = s.cluster.now.size }

func TestDefragmentForClient(t *testing.T) {
	runFixture(t, noFreePages, func(s *fixture) {
		require.NoError(t, defragmentAsClient(s, func() error {
			assert.Equal(t, Running, s.State().Phase)
			assert.True(t, s.schedule.hasTurn())
			assert.NotEmpty(t, s.RedirectReason())
			assertRejected(t, defragmentAsClient(s, nil), "a defragmentation of this member is in progress; wait for it to finish")
			return s.cluster.Defragment()
		}))
		assert.Equal(t, ByClient, s.State().LastDefragmentation.Origin)

		s.cluster.change(func(f *facts) { f.leader, f.members[1].active = 1, false })
		require.NoError(t, defragmentAsClient(s, s.cluster.Defragment), "the quorum of the other members is not checked")
		assert.Empty(t, s.cluster.transferredTo(), "leadership is not transferred")

		s.schedule.setTurn("etcd-2")
		assertRejected(t, defragmentAsClient(s, nil), "member etcd-2 is being defragmented; wait for it to finish")
		s.cluster.change(func(f *facts) { f.leader = 0 })
		require.NoError(t, defragmentAsClient(s, s.cluster.Defragment), "without a leader, turns cannot be claimed, and the request is passed to etcd")
	})
}

func TestDefragmentForClient_reader(t *testing.T) {
	runFixture(t, noFreePages, func(s *fixture) {
		end, err := s.gate.Acquire(context.Background(), "the backup")
		require.NoError(t, err)
		assertRejected(t, defragmentAsClient(s, nil), "the database is being read: wait for the backup")
		end()
		s.cluster.change(func(f *facts) { f.sending = true })
		assertRejected(t, defragmentAsClient(s, nil), "a snapshot is being sent to another member")
		s.cluster.change(func(f *facts) { f.sending = false })
		require.NoError(t, defragmentAsClient(s, s.cluster.Defragment))
	})
}

func TestDefragmentForClient_error(t *testing.T) {
	runFixture(t, noFreePages, func(s *fixture) {
		why := status.Error(codes.PermissionDenied, "etcdserver: permission denied")
		require.Equal(t, why, defragmentAsClient(s, func() error { return why }))
		assert.Equal(t, 1, s.State().Failed)
	})
}

// fakeStream is a server stream that implements only Context.
type fakeStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (o fakeStream) Context() context.Context { return o.ctx }

func TestStream_snapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &Gate{}
		k := New(Options{Gate: g, Log: zerolog.Nop()})
		read := func(ctx context.Context, method string, handle func()) error {
			return k.Stream(nil, fakeStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: method}, func(any, grpc.ServerStream) error {
				handle()
				return nil
			})
		}
		require.NoError(t, read(t.Context(), snapshotMethod, func() { assert.Len(t, g.Inside(), 1) }))
		require.NoError(t, read(t.Context(), "/etcdserverpb.Watch/Watch", func() { assert.Empty(t, g.Inside(), "a watch does not acquire the gate") }))
		assert.Empty(t, g.Inside())

		open, err := g.Close("a defragmentation of member etcd-0")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = read(ctx, snapshotMethod, func() { t.Error("the gate is closed") })
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.ErrorContains(t, err, "a defragmentation of member etcd-0")
		time.AfterFunc(time.Minute, open)
		require.NoError(t, read(t.Context(), snapshotMethod, func() {}))
	})
}

func TestGate_readers(t *testing.T) {
	var g Gate
	endFirst, err := g.Acquire(t.Context(), "the snapshot for 10.0.0.7:4031")
	require.NoError(t, err)
	endSecond, err := g.Acquire(t.Context(), "the backup")
	require.NoError(t, err, "readers do not exclude each other")

	_, err = g.Close("a defragmentation")
	require.Error(t, err)
	require.Regexp(t, `^the database is being read: wait for the snapshot for 10\.0\.0\.7:4031 \(since .+Z\) and the backup \(since .+Z\) to finish$`, err.Error())

	endFirst()
	endFirst()
	require.Len(t, g.Inside(), 1, "the second call of end has no effect")
	endSecond()
	open, err := g.Close("a defragmentation")
	require.NoError(t, err)
	_, err = g.Close("another defragmentation")
	require.EqualError(t, err, "a defragmentation is in progress; wait for it to finish")
	open()
	open()
	_, err = g.Close("another defragmentation")
	require.NoError(t, err)
}

func TestGate_waitingReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		open, err := g.Close("the defragmentation")
		require.NoError(t, err)
		start := time.Now()
		time.AfterFunc(time.Minute, open)
		end, err := g.Acquire(t.Context(), "the backup")
		require.NoError(t, err)
		assert.Equal(t, time.Minute, time.Since(start))
		end()
	})
}

func TestGate_canceledReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		open, err := g.Close("the defragmentation of etcd-main-0")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = g.Acquire(ctx, "the backup")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "the backup gave up waiting for the defragmentation of etcd-main-0")
		open()
		require.Empty(t, g.Inside())
	})
}

// startEtcd starts a single-member cluster and returns its server once it is ready.
func startEtcd(t *testing.T) *etcdserver.EtcdServer {
	t.Helper()
	config := embed.NewConfig()
	config.Dir, config.LogLevel = t.TempDir(), "panic"
	address := func() []url.URL {
		return []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", ports.Lease(t))}}
	}
	config.ListenClientUrls, config.ListenPeerUrls = address(), address()
	config.AdvertiseClientUrls, config.AdvertisePeerUrls = config.ListenClientUrls, config.ListenPeerUrls
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	require.NoError(t, err)
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()
	return etcd.Server
}

func TestClaimSchedule(t *testing.T) {
	t.Parallel()
	server := startEtcd(t)
	before := server.KV().Rev()
	p := newClaimSchedule(server, &Options{Active: func(types.ID) map[types.ID]bool { return nil }, Log: zerolog.Nop()})
	p.ttl = 4 * time.Second
	require.NoError(t, p.request(t.Context()))
	require.NoError(t, p.acquire(t.Context(), nil))
	first, stop := p.list(turn)[0], p.renew(t.Context())
	require.Eventually(t, func() bool {
		now := p.list(turn)
		assert.NotEmpty(t, now, "the turn is renewed before it expires")
		return !slices.Contains(now, first)
	}, time.Minute, 10*time.Millisecond)
	stop()
	p.release(t.Context())
	assert.Empty(t, p.list(turn))
	assert.Equal(t, before, server.KV().Rev())
}

func TestPauseWrites(t *testing.T) {
	for name, confirm := range map[string]func(context.Context){
		"confirmed":              func(context.Context) {},
		"a dropped confirmation": func(ctx context.Context) { <-ctx.Done() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := New(Options{Gate: &Gate{}, Log: zerolog.Nop()})
				changed, start := make(chan struct{}), time.Now()
				go k.pauseWrites(t.Context(), changed, confirm)
				synctest.Wait()
				time.AfterFunc(300*time.Millisecond, func() { close(changed) })
				require.NoError(t, send(k, "/etcdserverpb.KV/Range", true))
				assert.Zero(t, time.Since(start))
				require.NoError(t, send(k, "/etcdserverpb.KV/Put", false), "writes of all clients wait")
				assert.Equal(t, 300*time.Millisecond, time.Since(start))
				require.NoError(t, send(k, "/etcdserverpb.KV/Txn", true))
				assert.Equal(t, 300*time.Millisecond, time.Since(start), "writes are not paused after the leader has changed")
			})
		})
	}
}

func TestPauseWrites_timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := New(Options{Gate: &Gate{}, Log: zerolog.Nop()})
		start := time.Now()
		go k.pauseWrites(t.Context(), nil, func(context.Context) {})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		assert.Equal(t, codes.DeadlineExceeded, status.Code(k.startWrite(ctx)))
		require.NoError(t, send(k, "/etcdserverpb.Lease/LeaseGrant", true))
		assert.Equal(t, maxWritePause, time.Since(start))
		assert.Zero(t, k.writes.Load(), "neither a finished nor a timed-out write counts as in progress")
	})
}

// slowWrite sends a write request that takes the given time.
func slowWrite(t *testing.T, k *Maintainer, takes time.Duration) {
	t.Helper()
	_, err := k.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: writes[0]}, func(context.Context, any) (any, error) {
		time.Sleep(takes)
		return "done", nil
	})
	assert.NoError(t, err)
}

func TestPauseWrites_confirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := New(Options{Gate: &Gate{}, Log: zerolog.Nop()})
		changed, start := make(chan struct{}), time.Now()
		var confirmed time.Duration
		go slowWrite(t, k, 100*time.Millisecond)
		synctest.Wait()
		go k.pauseWrites(t.Context(), changed, func(context.Context) { confirmed = time.Since(start) })
		synctest.Wait()
		go slowWrite(t, k, 0) // waits for the end of the pause, and is not confirmed as in progress
		time.AfterFunc(300*time.Millisecond, func() { close(changed) })
		time.Sleep(200 * time.Millisecond)
		synctest.Wait() // synchronizes access to confirmed
		assert.GreaterOrEqual(t, confirmed, 100*time.Millisecond)
		assert.LessOrEqual(t, confirmed, 100*time.Millisecond+pollInterval)
		assert.Zero(t, k.writes.Load())
		time.Sleep(200 * time.Millisecond)
		assert.Zero(t, k.writes.Load(), "the waiting write has finished")
	})
}

func TestPauseWrites_endlessWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := New(Options{Gate: &Gate{}, Log: zerolog.Nop()})
		go slowWrite(t, k, 10*time.Second)
		synctest.Wait()
		start := time.Now()
		k.pauseWrites(t.Context(), nil, func(context.Context) { assert.Fail(t, "confirmed") })
		assert.Equal(t, maxWritePause, time.Since(start))
		changed := make(chan struct{})
		close(changed)
		k.pauseWrites(t.Context(), changed, func(context.Context) { assert.Fail(t, "confirmed") })
		assert.Less(t, time.Since(start), maxWritePause+2*pollInterval, "the pause ends at once if the leader has already changed")
		time.Sleep(10 * time.Second)
	})
}
