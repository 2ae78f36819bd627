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
	"google.golang.org/grpc/status"
)

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
				require.NoError(t, put(k, "/etcdserverpb.KV/Range", true))
				assert.Zero(t, time.Since(start))
				require.NoError(t, put(k, "/etcdserverpb.KV/Put", false), "whoever the client is")
				assert.Equal(t, 300*time.Millisecond, time.Since(start))
				require.NoError(t, put(k, "/etcdserverpb.KV/Txn", true))
				assert.Equal(t, 300*time.Millisecond, time.Since(start), "the leader has changed")
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
		require.NoError(t, put(k, "/etcdserverpb.Lease/LeaseGrant", true))
		assert.Equal(t, maxWritePause, time.Since(start))
		assert.Zero(t, k.writes.Load(), "what has ended is under way no more, nor what gave up")
	})
}

// slow performs a write that takes the given duration.
func slow(t *testing.T, k *Maintainer, takes time.Duration) {
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
		go slow(t, k, 100*time.Millisecond)
		synctest.Wait()
		go k.pauseWrites(t.Context(), changed, func(context.Context) { confirmed = time.Since(start) })
		synctest.Wait()
		go slow(t, k, 0) // has not been started, so the pause does not wait for it
		time.AfterFunc(300*time.Millisecond, func() { close(changed) })
		time.Sleep(200 * time.Millisecond)
		synctest.Wait() // synchronizes access to confirmed
		assert.GreaterOrEqual(t, confirmed, 100*time.Millisecond)
		assert.LessOrEqual(t, confirmed, 100*time.Millisecond+pollInterval)
		assert.Zero(t, k.writes.Load())
		time.Sleep(200 * time.Millisecond)
		assert.Zero(t, k.writes.Load(), "what has waited is done")
	})
}

func TestPauseWrites_endlessWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := New(Options{Gate: &Gate{}, Log: zerolog.Nop()})
		go slow(t, k, 10*time.Second)
		synctest.Wait()
		start := time.Now()
		k.pauseWrites(t.Context(), nil, func(context.Context) { assert.Fail(t, "confirmed") })
		assert.Equal(t, maxWritePause, time.Since(start))
		changed := make(chan struct{})
		close(changed)
		k.pauseWrites(t.Context(), changed, func(context.Context) { assert.Fail(t, "confirmed") })
		assert.Less(t, time.Since(start), maxWritePause+2*pollInterval, "the leader has changed already")
		time.Sleep(10 * time.Second)
	})
}
