package recovery

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v4"
)

const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// backOff waits before the store is asked again, longer each time, or until ctx ends.
func backOff(ctx context.Context, times int) {
	waits := backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstPause), backoff.WithMaxInterval(longestPause/2), backoff.WithMaxElapsedTime(0))
	pause := waits.NextBackOff()
	for range min(times, 20) {
		pause = waits.NextBackOff()
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}
