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
	// AbortBudget limits a stop before that, with nothing to close.
	AbortBudget = 2 * time.Second
	// TakingDown is the share of the command after Run has returned.
	TakingDown = 250 * time.Millisecond
	// ClosePatience limits an orderly close of etcd. After that its server is stopped.
	ClosePatience = StopBudget - closeReserve

	// closeReserve is left after ClosePatience: closing can still take etcd's request timeout, 7 s, and the exit
	// record has to be written.
	closeReserve = 9 * time.Second

	// lingering limits the wait for cancelled goroutines at the end of a run.
	lingering = 300 * time.Millisecond
	// latency allows for scheduling on a busy machine.
	latency = 250 * time.Millisecond

	// stopLimit and abortLimit are the timers of Terminating: the budgets without the shares above.
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
	// firstPoll and maxPause are the limits of the pause while an initialization is running. A sanity validation may
	// take milliseconds.
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

// newTimers returns what the actions set that set a timer: a pause, which grows until it is reset, or the limit of a
// visit.
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

// pauses grow up to maxPause, the jitter included.
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
