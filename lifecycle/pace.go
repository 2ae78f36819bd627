package lifecycle

import (
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Durations that bound and pace the machine. None of them is a flag: they follow from what the sidecar and Kubernetes do.
const (
	// stopBudget, with what the command takes to end afterwards, stays within 25 s: of the pod's 30 s between SIGTERM and
	// SIGKILL that leaves some to the kubelet.
	stopBudget = 24 * time.Second
	// abortBudget is for a stop before etcd was started; there is nothing to close. All in all it stays within 2 s.
	abortBudget = 1200 * time.Millisecond

	// firstPoll and maxPause bound the pause before asking again how a running initialization goes.
	firstPoll = 10 * time.Millisecond
	// firstRetry is the pause after a first failure.
	firstRetry = 100 * time.Millisecond
	maxPause   = 15 * time.Second

	// lockRetry is the pause before trying the volume's lock again.
	lockRetry = 250 * time.Millisecond

	// pollGrowth makes the pause about 4% of the wait so far: pauses that grow by 4% each sum up to 25 times the last.
	// A validation of 2 s is thus noticed within 0.1 s, one of an hour within 15 s.
	pollGrowth = 1.04
	// retryGrowth and retryJitter spread the members of a cluster that all wait for the same thing.
	retryGrowth = 2
	retryJitter = 0.3
)

// paces are the intervals between questions. Each starts small and grows until its kind of trouble is over.
type paces struct {
	progress backoff.BackOff // reset when an initialization is asked for
	failure  backoff.BackOff // reset when an initialization succeeded
	silence  backoff.BackOff // reset when there is an answer
	lock     backoff.BackOff // constant
}

func newPaces() *paces {
	return &paces{
		progress: interval(firstPoll, pollGrowth, 0),
		failure:  interval(firstRetry, retryGrowth, retryJitter),
		silence:  interval(firstRetry, retryGrowth, retryJitter),
		lock:     backoff.NewConstantBackOff(lockRetry),
	}
}

func interval(first time.Duration, growth, jitter float64) backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(first),
		backoff.WithMultiplier(growth),
		backoff.WithRandomizationFactor(jitter),
		backoff.WithMaxInterval(maxPause),
		backoff.WithMaxElapsedTime(0), // never give up; the default is 15 minutes
	)
}

// heard resets what an event shows to be over.
func (p *paces) heard(event Event, facts Facts) {
	switch event { //nolint:exhaustive // the other events end no trouble
	case Replied:
		p.silence.Reset()
		if SaysSuccessful.Holds(facts) {
			p.failure.Reset()
		}
	case Accepted, ConfigValid:
		p.silence.Reset()
		p.progress.Reset()
	}
}

// after returns the pause that an action asks for, or false if the action is not about pausing.
func (p *paces) after(action Action) (time.Duration, bool) {
	var source backoff.BackOff
	switch action { // the other actions ask for no pause
	case PaceProgress:
		source = p.progress
	case PaceFailure:
		source = p.failure
	case PaceSilence:
		source = p.silence
	case PaceLock:
		source = p.lock
	default:
		return 0, false
	}
	return min(source.NextBackOff(), maxPause), true
}
