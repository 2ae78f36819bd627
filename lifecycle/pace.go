package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"

	"etcd-wrapper/bootstrap"
)

// What the whole process promises about its end. None of these is a flag: of the 30 s that Kubernetes leaves a pod between
// SIGTERM and SIGKILL, StopBudget leaves some to the kubelet.
const (
	// StopBudget is how long a stop takes at most, from the signal to the exit, once etcd was started.
	StopBudget = 25 * time.Second
	// AbortBudget is the same before that, where there is nothing to close.
	AbortBudget = 2 * time.Second
	// TakingDown is the part of either that the command may use after Run has returned.
	TakingDown = 250 * time.Millisecond
	// ClosePatience is how long an orderly close of etcd may take before etcd's server is stopped under it.
	ClosePatience = StopBudget - closeReserve

	// closeReserve is for a close whose patience is over: it can take etcd's request timeout even then, 7 s, and the exit
	// record has to be written.
	closeReserve = 9 * time.Second

	// lingering bounds the wait for goroutines whose work was cancelled at the end of a run.
	lingering = 300 * time.Millisecond
	// latency is for the goroutines of a busy machine to be scheduled.
	latency = 250 * time.Millisecond

	// stopLimit and abortLimit are what is left of the budgets for a visit of Terminating.
	stopLimit  = StopBudget - TakingDown - lingering - latency
	abortLimit = AbortBudget - TakingDown - lingering - latency
)

// Budgets that leave nothing for the close, or for the work of an abort, do not compile.
const (
	_ = uint64(ClosePatience - time.Second)
	_ = uint64(abortLimit - time.Second)
)

// seconds writes a duration as people read it.
func seconds(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) }

// Durations that pace the machine. None of them is a flag: they follow from what the sidecar does.
const (
	// firstPoll and maxPause bound the pause before asking again about a running initialization. A validation of sanity
	// may be over in milliseconds.
	firstPoll = 5 * time.Millisecond
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

// paces are the intervals between questions, by the action that asks for a pause. Each starts small and grows until its
// kind of trouble is over.
type pauses map[Action]backoff.BackOff

func newPauses() pauses {
	return pauses{
		PaceProgress: interval(firstPoll, pollGrowth, 0),
		PaceFailure:  interval(firstRetry, retryGrowth, retryJitter),
		PaceSilence:  interval(firstRetry, retryGrowth, retryJitter),
		PaceLock:     backoff.NewConstantBackOff(lockRetry),
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

// settle resets what an event shows to be over.
func (p pauses) reset(event Event, facts Facts) {
	switch event {
	case Replied:
		if slices.Contains(bootstrap.InitializationStatuses, facts.Word) {
			p[PaceSilence].Reset() // what is not understood is no answer
		}
		if facts.Holds(StatusSuccessful) {
			p[PaceFailure].Reset()
		}
	case Accepted, ConfigValid:
		p[PaceSilence].Reset()
		p[PaceProgress].Reset()
	case Started, VolumeBusy, NoAnswer, NotAccepted, DataInUse, ConfigFetched, ConfigInvalid, ConfigUnavailable, ConfigPrefetched,
		EtcdReady, EtcdFailed, EtcdClosed, RecordSettled, Elapsed, Crashed, Signal, StopPosted, ListenerLost: // they end no trouble
	}
}

// after returns the pause that an action asks for, or false if the action is not about pausing.
func (p pauses) after(action Action) (time.Duration, bool) {
	source, known := p[action]
	if !known {
		return 0, false
	}
	return min(source.NextBackOff(), maxPause), true
}
