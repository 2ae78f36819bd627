package recovery

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v4"
)

const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
	moment       = 300 * time.Millisecond // before somebody is asked again who has answered
)

// backOff waits before somebody is asked again who has not answered so many times, longer each time, or until ctx ends.
func backOff(ctx context.Context, times int) {
	waits := backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstPause), backoff.WithMaxInterval(longestPause/2), backoff.WithMaxElapsedTime(0))
	pause := waits.NextBackOff()
	for range min(times, 20) {
		pause = waits.NextBackOff()
	}
	if times == 0 {
		pause = moment
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}
