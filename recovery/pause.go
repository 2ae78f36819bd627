package recovery

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v4"

	"etcd-wrapper/recovery/peers"
)

const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
	moment       = 300 * time.Millisecond // before somebody is asked again who has answered
)

// comparing is how long valid data wait at the most for a store that they are compared with.
const comparing = 10 * time.Second

// settling is how long a cluster whose volumes are all without data waits for those that are mounted late.
const settling = 10 * time.Second

// settled tells whether no member has had data of use for so long.
func (r *run) settled() bool {
	if listing := r.census.Listing; listing != peers.Gone && listing != peers.Founding {
		r.lostSince = time.Time{}
		return false
	}
	if r.lostSince.IsZero() {
		r.lostSince = r.now()
	}
	return r.now().Sub(r.lostSince) >= r.lateMounts
}

// beforeServing bounds a question to the store: where valid data wait for the answer, by what is left of that time.
func (r *run) beforeServing(most time.Duration) (context.Context, context.CancelFunc) {
	if r.silentSince.IsZero() {
		r.silentSince = r.now()
	}
	if facts := r.core.Facts; (facts.Alone || facts.Unidentified) && facts.Condition == Valid && !facts.Asked {
		most = min(most, max(time.Second, r.serveAfter-r.now().Sub(r.silentSince)))
	}
	return context.WithTimeout(r.ctx, most)
}

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
