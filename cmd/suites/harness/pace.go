package harness

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"etcd-wrapper/internal/clock"
	"etcd-wrapper/lifecycle"
)

const (
	// Patience limits how long a test waits for an expected state, as measured by a Watch.
	Patience = 40 * time.Second
	// AbortBudget limits how long a stop may take before etcd has been opened, as measured by a Watch.
	AbortBudget = lifecycle.AbortBudget
	// StopBudget limits how long a stop may take after etcd has been opened.
	StopBudget = lifecycle.StopBudget
)

const (
	// stint is the CPU time that one measurement of the machine's pace takes, and rest is the pause between
	// measurements. Together, the measurements use 1% of a core.
	stint = 4 * time.Millisecond
	rest  = 396 * time.Millisecond
)

// pace contains the total duration and the total CPU time of all measurements since the process started.
var pace struct {
	sync.Mutex
	took, worked time.Duration
}

// measuring starts the measurements when the first Watch is created.
var measuring = sync.OnceFunc(func() { go sampleCPU() })

// sampleCPU measures the pace forever on a locked thread, which has to wait for a CPU like any other busy thread.
func sampleCPU() {
	runtime.LockOSThread()
	for {
		began, before := time.Now(), threadTime()
		for threadTime()-before < stint {
		}
		took, worked := time.Since(began), threadTime()-before
		pace.Lock()
		pace.took, pace.worked = pace.took+took, pace.worked+worked
		pace.Unlock()
		<-time.After(rest)
	}
}

func threadTime() time.Duration {
	var spent unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &spent); err != nil {
		panic(err) // every supported version of Linux has this clock
	}
	return time.Duration(spent.Nano())
}

// Watch is a stopwatch that slows down on a busy machine. Tests use it to check time limits, because it measures how
// long something would have taken on a dedicated core.
type Watch struct {
	began        time.Time
	took, worked time.Duration // values of pace at the start of the Watch
}

// StartWatch starts a Watch.
func StartWatch() Watch {
	measuring()
	pace.Lock()
	defer pace.Unlock()
	return Watch{time.Now(), pace.took, pace.worked}
}

// Duration returns the time since the start, divided by the machine's slowdown during that time.
func (w Watch) Duration() time.Duration {
	pace.Lock()
	defer pace.Unlock()
	took, worked := pace.took-w.took, pace.worked-w.worked
	if worked == 0 { // use all measurements if there have been none since the start
		took, worked = max(pace.took, 1), max(pace.worked, 1)
	}
	return time.Duration(float64(time.Since(w.began)) / max(1, float64(took)/float64(worked)))
}

// WithPatience returns a context that is canceled after Patience, as measured by a Watch.
func WithPatience(parent context.Context) (context.Context, context.CancelFunc) {
	return withTimeout(parent, Patience)
}

func withTimeout(parent context.Context, within time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	watch := StartWatch()
	go func() {
		for left := within; left > 0; left = within - watch.Duration() {
			if clock.Sleep(ctx, left) != nil {
				return
			}
		}
		cancel(fmt.Errorf("no response within %s", within))
	}()
	return ctx, func() { cancel(nil) }
}

// Receive returns the next value received from a channel. If the channel is closed, open is false. Receive fails the
// test if it receives no value within Patience.
func Receive[T any](t *testing.T, what string, from <-chan T) (value T, open bool) {
	t.Helper()
	Eventually(t, what, func() bool {
		select {
		case value, open = <-from:
			return true
		default:
			return false
		}
	})
	return value, open
}

// Eventually polls until the condition holds, and fails the test after Patience.
func Eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	await(t, what, Patience, condition)
}

func await(t *testing.T, what string, within time.Duration, condition func() bool) {
	t.Helper()
	watch := StartWatch()
	for !condition() {
		if watch.Duration() > within {
			t.Fatalf("timed out after %s waiting for: %s", within, what)
		}
		<-time.After(pollInterval(time.Since(watch.began)))
	}
}

// pollInterval returns the pause until the next poll. The pause grows with the time waited so far, because a poll
// costs milliseconds of CPU time if client and server are built with the race detector.
func pollInterval(waited time.Duration) time.Duration {
	return min(max(waited/16, 5*time.Millisecond), 50*time.Millisecond)
}
