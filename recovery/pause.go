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

// atMost is how long backOff waits at the most, to the second.
func atMost(times int) time.Duration {
	pause := firstPause
	for range min(times, 20) {
		pause = min(pause*3/2, longestPause/2)
	}
	return (pause*3/2 + time.Second - 1).Truncate(time.Second)
}

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

// eager is how often peers are asked without a longer pause: members that start together soon find each other.
const eager = 10
