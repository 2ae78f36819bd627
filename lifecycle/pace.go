package lifecycle

import (
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Time limits of a stop. The limits are not configurable: Kubernetes allows a pod 30 s between SIGTERM and SIGKILL,
// and StopBudget leaves some of that time to the kubelet.
const (
	// StopBudget is the time limit of a stop after etcd was started, from the signal to the exit.
	StopBudget = 25 * time.Second
	// AbortBudget is the time limit of a stop before etcd was started, when there is nothing to close.
	AbortBudget = 2 * time.Second
	// TakingDown is the time reserved for the command's cleanup after Run returns.
	TakingDown = 250 * time.Millisecond
	// ClosePatience is the time limit of a graceful close of etcd. After it, etcd is stopped forcibly.
	ClosePatience = StopBudget - closeReserve

	// closeReserve is the time left after ClosePatience for a forced close, which can take up to etcd's request
	// timeout of 7 s, and for writing the exit record.
	closeReserve = 9 * time.Second

	// lingering is the time limit of the wait for cancelled goroutines at the end of a run.
	lingering = 300 * time.Millisecond
	// latency is the time reserved for scheduling delays on a busy machine.
	latency = 250 * time.Millisecond

	// stopLimit and abortLimit are the durations of the timer of Terminating. They leave time for all steps that
	// follow Terminating.
	stopLimit  = StopBudget - TakingDown - lingering - latency
	abortLimit = AbortBudget - TakingDown - lingering - latency
)

// Compile-time checks: a negative constant cannot be converted to uint64, so ClosePatience and abortLimit must be at
// least one second.
const (
	_ = uint64(ClosePatience - time.Second)
	_ = uint64(abortLimit - time.Second)
)

// seconds formats a duration in seconds for users.
func seconds(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) }

// Pauses between requests. The pauses are not configurable, because the best values depend only on the sidecar.
const (
	// firstPoll is the first pause between status queries during an initialization. It is short, because a sanity
	// validation can finish within milliseconds. Later pauses grow up to maxPause.
	firstPoll = 5 * time.Millisecond
	// firstRetry is the pause after the first failure. Later pauses grow up to maxPause.
	firstRetry = 100 * time.Millisecond
	maxPause   = 15 * time.Second

	// lockRetry is the pause between attempts to lock the volume.
	lockRetry = 250 * time.Millisecond

	// pollGrowth is the factor between successive pauses during an initialization. With 1.04, a pause is about 4% of
	// the time waited so far, so the wrapper notices the result of a 2 s validation within 0.1 s, and of a one-hour
	// validation within 15 s.
	pollGrowth = 1.04
	// retryGrowth is the factor between successive pauses after failures. retryJitter randomizes them, so that the
	// members of a cluster do not retry at the same time.
	retryGrowth = 2
	retryJitter = 0.3
)

// newTimers returns a backoff for each action that sets a timer. Each backoff returns either growing pauses or a
// constant time limit.
func newTimers(readyTimeout time.Duration) map[Action]backoff.BackOff {
	return map[Action]backoff.BackOff{
		PaceProgress: interval(firstPoll, pollGrowth, 0),
		PaceFailure:  interval(firstRetry, retryGrowth, retryJitter),
		PaceSilence:  interval(firstRetry, retryGrowth, retryJitter),
		PaceLock:     backoff.NewConstantBackOff(lockRetry),
		LimitStart:   backoff.NewConstantBackOff(readyTimeout),
		LimitAbort:   backoff.NewConstantBackOff(abortLimit),
		LimitStop:    backoff.NewConstantBackOff(stopLimit),
	}
}

// pauses limits a backoff to maxPause, including jitter.
type pauses struct{ backoff.BackOff }

// NextBackOff implements backoff.BackOff.
func (p pauses) NextBackOff() time.Duration { return min(p.BackOff.NextBackOff(), maxPause) }

func interval(first time.Duration, growth, jitter float64) pauses {
	return pauses{backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(first),
		backoff.WithMultiplier(growth),
		backoff.WithRandomizationFactor(jitter),
		backoff.WithMaxInterval(maxPause),
		backoff.WithMaxElapsedTime(0), // never give up; by default, the library gives up after 15 minutes
	)}
}
