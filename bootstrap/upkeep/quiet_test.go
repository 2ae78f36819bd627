package upkeep

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"etcd-wrapper/bootstrap/upkeep/gate"
)

func TestWritesWaitUntilTheLeaderHasChangedAndReadsDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := New(Options{Gate: &gate.Gate{}, Log: zerolog.Nop()})
		changed, began := make(chan struct{}), time.Now()
		go k.hush(t.Context(), changed)
		synctest.Wait()
		time.AfterFunc(300*time.Millisecond, func() { close(changed) })
		require.NoError(t, put(k, "/etcdserverpb.KV/Range", true))
		assert.Zero(t, time.Since(began))
		require.NoError(t, put(k, "/etcdserverpb.KV/Put", false), "whoever the client is")
		assert.Equal(t, 300*time.Millisecond, time.Since(began))
		require.NoError(t, put(k, "/etcdserverpb.KV/Txn", true))
		assert.Equal(t, 300*time.Millisecond, time.Since(began), "the leader has changed")
	})
}

func TestALeaderThatDoesNotChangeHoldsNobodyUpForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := New(Options{Gate: &gate.Gate{}, Log: zerolog.Nop()})
		began := time.Now()
		go k.hush(t.Context(), nil)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		assert.Equal(t, codes.DeadlineExceeded, status.Code(k.whenQuietIsOver(ctx, writes[0])))
		require.NoError(t, put(k, "/etcdserverpb.Lease/LeaseGrant", true))
		assert.Equal(t, longestQuiet, time.Since(began))
	})
}
