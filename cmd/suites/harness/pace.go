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
	// StopBudget limits how long a stop may take after etcd has been opened, as measured by a Watch.
	StopBudget = lifecycle.StopBudget
)

const (
	// sampleTime is the CPU time that a sample of the machine's slowdown uses, and samplePause is the pause between
	// two samples. The samples use 1% of a core.
	sampleTime  = 4 * time.Millisecond
	samplePause = 396 * time.Millisecond
)

// samples contains the total duration and the total CPU time of all samples since the process started. Their ratio is
// the machine's slowdown.
var samples struct {
	sync.Mutex
	elapsed, cpu time.Duration
}

// startSampling starts the sampling when the first Watch is created.
var startSampling = sync.OnceFunc(func() { go sampleCPU() })

// sampleCPU takes samples forever, on a thread that has to wait for a CPU like any other busy thread.
func sampleCPU() {
	runtime.LockOSThread()
	for {
		start, before := time.Now(), threadTime()
		for threadTime()-before < sampleTime {
		}
		elapsed, cpu := time.Since(start), threadTime()-before
		samples.Lock()
		samples.elapsed, samples.cpu = samples.elapsed+elapsed, samples.cpu+cpu
		samples.Unlock()
		<-time.After(samplePause)
	}
}

func threadTime() time.Duration {
	var cpu unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &cpu); err != nil {
		panic(err) // every supported version of Linux has this clock
	}
	return time.Duration(cpu.Nano())
}

// Watch is a stopwatch that slows down on a busy machine. Tests use it to check time limits, because it measures how
// long something would have taken on a dedicated core.
type Watch struct {
	start        time.Time
	elapsed, cpu time.Duration // totals of all samples when the Watch was started
}

// StartWatch starts a Watch.
func StartWatch() Watch {
	startSampling()
	samples.Lock()
	defer samples.Unlock()
	return Watch{time.Now(), samples.elapsed, samples.cpu}
}

// Duration returns the time since the start, divided by the machine's slowdown during that time.
func (w Watch) Duration() time.Duration {
	samples.Lock()
	defer samples.Unlock()
	elapsed, cpu := samples.elapsed-w.elapsed, samples.cpu-w.cpu
	if cpu == 0 { // no sample was taken since the start; use all samples
		elapsed, cpu = max(samples.elapsed, 1), max(samples.cpu, 1)
	}
	return time.Duration(float64(time.Since(w.start)) / max(1, float64(elapsed)/float64(cpu)))
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
		<-time.After(pollInterval(time.Since(watch.start)))
	}
}

// pollInterval returns the pause until the next poll. The pause grows with the time waited so far, because a poll
// costs milliseconds of CPU time if client and server are built with the race detector.
func pollInterval(waited time.Duration) time.Duration {
	return min(max(waited/16, 5*time.Millisecond), 50*time.Millisecond)
}
