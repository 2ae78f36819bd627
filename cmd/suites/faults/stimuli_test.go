package faults_test

import (
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// A stimulus is an event to which a process must react by exiting, such as a signal.
type stimulus struct {
	name    string
	apply   func(run *harness.Run)
	allowed []int // permitted exit statuses; -1 if the process was killed
}

var stimuli = []stimulus{
	{"SIGTERM", send(syscall.SIGTERM), []int{0}},
	{"SIGINT", send(syscall.SIGINT), []int{0}},
	{"POST /stop", postStop, []int{0}},
	{"SIGTERM twice", twice(syscall.SIGTERM), []int{0, 143}},
	{"SIGTERM, SIGKILL", twice(syscall.SIGKILL), []int{0, -1}},
	{"SIGKILL", send(syscall.SIGKILL), []int{-1}},
	{"SIGHUP, SIGTERM", func(run *harness.Run) {
		run.Signal(syscall.SIGHUP)
		send(syscall.SIGTERM)(run)
	}, []int{0}},
}

func send(s syscall.Signal) func(run *harness.Run) {
	return func(run *harness.Run) { _ = run.Cmd.Process.Signal(s) } // the process may have exited already
}

func postStop(run *harness.Run) {
	code, body := run.Request(http.MethodPost, "/stop")
	assert.Equal(run.T, http.StatusOK, code)
	assert.NotEmpty(run.T, body)
}

// twice sends SIGTERM and then a second signal, after the interval in which two signals count as one.
func twice(second syscall.Signal) func(run *harness.Run) {
	return func(run *harness.Run) {
		send(syscall.SIGTERM)(run)
		start := time.Now()
		harness.Eventually(run.T, "the next signal is not treated as a duplicate", func() bool { return time.Since(start) > 50*time.Millisecond })
		send(second)(run)
	}
}

// TestFaultEveryStimulusInEveryState blocks a process in each state and applies each stimulus. The process must exit
// in time, the record must be correct, and the next start must request the validation that the record requires.
func TestFaultEveryStimulusInEveryState(t *testing.T) {
	t.Parallel()
	for name, state := range blockedStates {
		for _, stimulus := range stimuli {
			if !*faults && stimulus.name != "SIGTERM, SIGKILL" {
				continue
			}
			t.Run(name+", "+stimulus.name, func(t *testing.T) {
				t.Parallel()
				trial(t, name, stimulus.name)
				state.test(t, name, stimulus)
			})
		}
	}
}

func (s blockedState) test(t *testing.T, name string, stimulus stimulus) {
	p := harness.NewPod(t)
	p.WriteRecord("terminated")
	run, unblock := s.block(p)
	seen := watchOrder(p)
	watch := harness.StartWatch()
	stimulus.apply(run)
	status := run.Exit(harness.Patience)
	took := watch.Duration()
	assert.Less(t, took, s.budget)
	assert.Contains(t, append(slices.Clone(stimulus.allowed), s.allowed...), status)
	assertRecord(run, status, seen)
	unblock()
	assertNextStart(p, t, name)
}

// assertRecord checks that there is a clean exit record only if etcd was closed, and that there is one if the exit
// status is 0. If the log of a killed process does not show that etcd was closed, the events in seen may show it.
func assertRecord(run *harness.Run, status int, seen *order) {
	run.T.Helper()
	assert.False(run.T, clean(run.Pod) && leftOpen(run, seen), "clean exit record although etcd was not closed")
	inUse := len(run.Log.Matching(harness.Line{"message": "the database is locked by another process"})) > 0
	assert.False(run.T, clean(run.Pod) && inUse, "clean exit record although another process had the data open for writing")
	assert.False(run.T, status == 0 && !clean(run.Pod) && !inUse, "exit status 0 without a clean exit record: %s", run.Pod.Record())
}

// leftOpen reports whether etcd was started but neither the log nor the recorded events show that it was closed.
func leftOpen(run *harness.Run, seen *order) bool {
	opened := len(run.Log.Matching(harness.Line{"message": "starting an etcd server"})) > 0
	closed := len(run.Log.Matching(harness.Line{"message": "closed etcd server"})) > 0
	return opened && !closed && !seen.wasClosedFirst()
}

// assertNextStart checks that the next start succeeds and requests the validation mode that follows from the exit
// record.
func assertNextStart(p *harness.Pod, t *testing.T, why string) {
	t.Helper()
	want := map[bool]string{true: "sanity", false: "full"}[clean(p)]
	run := p.StartReady()
	modes := p.Sidecar.Modes()
	require.NotEmpty(t, modes)
	assert.Equal(t, want, modes[len(modes)-1], "validation mode of the next start after %s", why)
	run.Shutdown()
}

func clean(p *harness.Pod) bool {
	return slices.Contains([]string{"terminated", "interrupt"}, p.Record())
}
