package member

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
)

func TestDrain_runningRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrain()
		ctx, end := context.WithCancel(t.Context())
		defer end()
		d.finish(ctx, d.track(ctx, "/etcdserverpb.Maintenance/Snapshot"))
		finish := make(chan struct{})
		go func() {
			_, _ = d.unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/etcdserverpb.KV/Put"}, func(context.Context, any) (any, error) {
				<-finish
				return nil, nil
			})
		}()
		synctest.Wait()
		d.start()
		time.Sleep(drainGrace)
		assert.Equal(t, []string{"client unknown is not reading the response to Maintenance/Snapshot"}, d.unreadResponses())
		assert.False(t, d.isExpired(), "a put runs")
		close(finish)
		synctest.Wait()
		assert.False(t, d.isExpired(), "its response is on the way")
		time.Sleep(drainQuiet)
		assert.True(t, d.isExpired())
		end()
		synctest.Wait()
		assert.Empty(t, d.unreadResponses())
	})
}
