package maintenance

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// put sends a client request. If knowing is set, put adds the metadata that etcd's own client sends.
func put(k *Maintainer, method string, knowing bool) error {
	ctx := context.Background()
	if knowing {
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("client-api-version", "3.6"))
	}
	_, err := k.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) { return "done", nil })
	return err
}

func TestRedirect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := New(Options{Gate: &Gate{}, Log: zerolog.Nop()})
		require.NoError(t, put(k, "/etcdserverpb.KV/Put", true))
		end := k.redirecting.begin("the database is being defragmented")

		start := time.Now()
		err := put(k, "/etcdserverpb.KV/Put", true)
		assert.Equal(t, redirectAfter, time.Since(start), "a hundred tries outlast the longest pause")
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Equal(t, "there is no connection available", status.Convert(err).Message(), "the words by which etcd's client knows that nothing was done")
		assert.Error(t, put(k, "/etcdserverpb.Lease/LeaseGrant", true))

		start = time.Now()
		require.NoError(t, put(k, "/etcdserverpb.KV/Put", false), "who might not try again waits for etcd itself")
		require.NoError(t, put(k, "/etcdserverpb.Maintenance/Status", true))
		assert.Zero(t, time.Since(start))

		time.AfterFunc(redirectAfter/2, end)
		require.NoError(t, put(k, "/etcdserverpb.KV/Range", true), "the end comes in time")
		require.NoError(t, put(k, "/etcdserverpb.KV/Range", true))
	})
}

// asked sends a defragmentation request like a client.
func asked(s *stand, handle func() error) error {
	_, err := s.Unary(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: defragmentMethod}, func(context.Context, any) (any, error) {
		return "done", handle()
	})
	return err
}

func refusal(t *testing.T, err error, why string) {
	t.Helper()
	assert.Equal(t, codes.FailedPrecondition, status.Code(err))
	assert.ErrorContains(t, err, "etcd-wrapper: cannot defragment: "+why)
}

// full returns facts without free pages.
func full(s *stand) { s.cluster.now.inUse = s.cluster.now.size }

func TestDefragmentForClient(t *testing.T) {
	runStand(t, full, func(s *stand) {
		require.NoError(t, asked(s, func() error {
			assert.Equal(t, Running, s.State().Phase)
			assert.True(t, s.table.isMine())
			assert.NotEmpty(t, s.RedirectReason())
			refusal(t, asked(s, nil), "a defragmentation of this member is in progress; wait for it to finish")
			return s.cluster.Defragment()
		}))
		assert.Equal(t, ByClient, s.State().LastDefragmentation.Origin)

		s.cluster.change(func(f *facts) { f.leader, f.members[1].active = 1, false })
		require.NoError(t, asked(s, s.cluster.Defragment), "whom it hurts is for the client to know")
		assert.Empty(t, s.cluster.gaveTo(), "and leadership stays")

		s.table.seats("etcd-2")
		refusal(t, asked(s, nil), "member etcd-2 is being defragmented; wait for it to finish")
		s.cluster.change(func(f *facts) { f.leader = 0 })
		require.NoError(t, asked(s, s.cluster.Defragment), "without a leader there are no turns, and etcd allows it")
	})
}

func TestDefragmentForClient_reader(t *testing.T) {
	runStand(t, full, func(s *stand) {
		end, err := s.gate.Acquire(context.Background(), "the backup")
		require.NoError(t, err)
		refusal(t, asked(s, nil), "the database is being read: wait for the backup")
		end()
		s.cluster.change(func(f *facts) { f.sending = true })
		refusal(t, asked(s, nil), "a snapshot is being sent to another member")
		s.cluster.change(func(f *facts) { f.sending = false })
		require.NoError(t, asked(s, s.cluster.Defragment))
	})
}

func TestDefragmentForClient_error(t *testing.T) {
	runStand(t, full, func(s *stand) {
		why := status.Error(codes.PermissionDenied, "etcdserver: permission denied")
		require.Equal(t, why, asked(s, func() error { return why }))
		assert.Equal(t, 1, s.State().Failed)
	})
}

// opened is a server stream that has only a context.
type opened struct {
	grpc.ServerStream
	ctx context.Context
}

func (o opened) Context() context.Context { return o.ctx }

func TestStream_snapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &Gate{}
		k := New(Options{Gate: g, Log: zerolog.Nop()})
		read := func(ctx context.Context, method string, handle func()) error {
			return k.Stream(nil, opened{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: method}, func(any, grpc.ServerStream) error {
				handle()
				return nil
			})
		}
		require.NoError(t, read(t.Context(), snapshotMethod, func() { assert.Len(t, g.Inside(), 1) }))
		require.NoError(t, read(t.Context(), "/etcdserverpb.Watch/Watch", func() { assert.Empty(t, g.Inside(), "it reads what it needs") }))
		assert.Empty(t, g.Inside())

		open, err := g.Close("a defragmentation of member etcd-0")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = read(ctx, snapshotMethod, func() { t.Error("it may not be read now") })
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.ErrorContains(t, err, "a defragmentation of member etcd-0")
		time.AfterFunc(time.Minute, open)
		require.NoError(t, read(t.Context(), snapshotMethod, func() {}))
	})
}
