package member

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// dropUntil returns a handler that drops proposals until a leader is elected after the given time.
func dropUntil(leader time.Duration) (grpc.UnaryHandler, *int) {
	tries, start := 0, time.Now()
	return func(context.Context, any) (any, error) {
		tries++
		if time.Since(start) < leader {
			return nil, status.Error(codes.Unknown, raft.ErrProposalDropped.Error())
		}
		return "done", nil
	}, &tries
}

func callDropped(ctx context.Context, method string, handler grpc.UnaryHandler) (any, error) {
	return retryDropped(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, handler)
}

func TestRetryDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler, _ := dropUntil(2 * time.Second)
		start := time.Now()
		reply, err := callDropped(t.Context(), "/etcdserverpb.KV/Txn", handler)
		require.NoError(t, err)
		assert.Equal(t, "done", reply)
		assert.Equal(t, 2*time.Second, time.Since(start))

		const blocked = 4 * time.Second // time for which a proposal waits for a leader
		handler, _ = dropUntil(blocked + time.Second)
		reply, err = callDropped(t.Context(), "/etcdserverpb.KV/Put", func(ctx context.Context, request any) (any, error) {
			time.Sleep(max(0, blocked-time.Since(start.Add(2*time.Second))))
			return handler(ctx, request)
		})
		require.NoError(t, err)
		assert.Equal(t, "done", reply)

		handler, _ = dropUntil(time.Hour)
		start = time.Now()
		_, err = callDropped(t.Context(), "/etcdserverpb.Lease/LeaseGrant", handler)
		require.ErrorContains(t, err, "raft proposal dropped", "it is said in the end")
		assert.Equal(t, electionWait, time.Since(start))

		handler, tries := dropUntil(time.Hour)
		_, err = callDropped(t.Context(), "/etcdserverpb.Auth/UserAdd", handler)
		require.Error(t, err)
		assert.Equal(t, 1, *tries, "who knows how often that proposes")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		handler, _ = dropUntil(time.Hour)
		_, err = callDropped(ctx, "/etcdserverpb.KV/Put", handler)
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err), "nobody waits any more")
	})
}

func TestRetryDropped_otherErrors(t *testing.T) {
	for _, said := range []error{nil, errors.New("raft proposal dropped, perhaps"), status.Error(codes.Unavailable, "etcdserver: request timed out")} {
		tries := 0
		_, err := callDropped(t.Context(), "/etcdserverpb.KV/Put", func(context.Context, any) (any, error) { tries++; return nil, said })
		require.Equal(t, said, err)
		assert.Equal(t, 1, tries)
	}
}
