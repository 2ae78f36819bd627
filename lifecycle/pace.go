package lifecycle

import (
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Budgets of a stop. They are not flags: Kubernetes leaves a pod 30 s between SIGTERM and SIGKILL, and StopBudget
// leaves some of that to the kubelet.
const (
	// StopBudget limits a stop, from the signal to the exit, once etcd was started.
	StopBudget = 25 * time.Second
	// AbortBudget limits a stop before etcd was started, when there is nothing to close.
	AbortBudget = 2 * time.Second
	// TakingDown is reserved for the command's cleanup after Run has returned.
	TakingDown = 250 * time.Millisecond
	// ClosePatience limits an orderly close of etcd. When it has passed, etcd's server is stopped hard.
	ClosePatience = StopBudget - closeReserve

	// closeReserve is left after ClosePatience: closing can still take etcd's request timeout, 7 s, and the exit
	// record has to be written.
	closeReserve = 9 * time.Second

	// lingering limits the wait for cancelled goroutines at the end of a run.
	lingering = 300 * time.Millisecond
	// latency allows for scheduling on a busy machine.
	latency = 250 * time.Millisecond

	// stopLimit and abortLimit are the timers of Terminating: the budgets minus the reserves above.
	stopLimit  = StopBudget - TakingDown - lingering - latency
	abortLimit = AbortBudget - TakingDown - lingering - latency
)

// These fail to compile if the budgets leave nothing for the close, or for the work of an abort.
const (
	_ = uint64(ClosePatience - time.Second)
	_ = uint64(abortLimit - time.Second)
)

// seconds formats a duration for users.
func seconds(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) }

// Pauses between requests. They are not flags: they follow from what the sidecar does.
const (
	// firstPoll and maxPause bound the pause while an initialization is running. A sanity validation may finish
	// within milliseconds.
	firstPoll = 5 * time.Millisecond
	// firstRetry is the pause after the first failure.
	firstRetry = 100 * time.Millisecond
	maxPause   = 15 * time.Second

	// lockRetry is the pause before the next attempt to lock the volume.
	lockRetry = 250 * time.Millisecond

	// pollGrowth makes the pause about 4% of the wait so far: pauses that grow by 4% each sum up to 25 times the last.
	// A validation of 2 s is noticed within 0.1 s, one of an hour within 15 s.
	pollGrowth = 1.04
	// retryGrowth and retryJitter spread the requests of several members.
	retryGrowth = 2
	retryJitter = 0.3
)

// newTimers returns a backoff for each action that sets a timer: a pause that grows until it is reset, or the limit
// of a visit.
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

// pauses caps a backoff at maxPause, jitter included.
type pauses struct{ backoff.BackOff }

// NextBackOff implements backoff.BackOff.
func (p pauses) NextBackOff() time.Duration { return min(p.BackOff.NextBackOff(), maxPause) }

func interval(first time.Duration, growth, jitter float64) pauses {
	return pauses{backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(first),
		backoff.WithMultiplier(growth),
		backoff.WithRandomizationFactor(jitter),
		backoff.WithMaxInterval(maxPause),
		backoff.WithMaxElapsedTime(0), // never give up; the default is 15 minutes
	)}
}
