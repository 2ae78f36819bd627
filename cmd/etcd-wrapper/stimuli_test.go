package main_test

import (
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stimulus is what happens to a process; allowed are the exit statuses that it may then have, -1 for a kill.
type stimulus struct {
	name    string
	push    func(w *wrapper)
	allowed []int
}

var stimuli = []stimulus{
	{"SIGTERM", send(syscall.SIGTERM), []int{0}},
	{"SIGINT", send(syscall.SIGINT), []int{0}},
	{"POST /stop", postStop, []int{0}},
	{"SIGTERM twice", twice(syscall.SIGTERM), []int{0, 143}},
	{"SIGTERM, SIGKILL", twice(syscall.SIGKILL), []int{0, -1}},
	{"SIGKILL", send(syscall.SIGKILL), []int{-1}},
	{"SIGHUP, SIGTERM", func(w *wrapper) {
		w.signal(syscall.SIGHUP)
		send(syscall.SIGTERM)(w)
	}, []int{0}},
}

func send(s syscall.Signal) func(w *wrapper) {
	return func(w *wrapper) { _ = w.cmd.Process.Signal(s) } // it may have ended
}

func postStop(w *wrapper) {
	code, body := w.request(http.MethodPost, "/stop")
	assert.Equal(w.t, http.StatusOK, code)
	assert.NotEmpty(w.t, body)
}

// twice sends the second signal when it can no longer be taken for an echo of the first.
func twice(second syscall.Signal) func(w *wrapper) {
	return func(w *wrapper) {
		send(syscall.SIGTERM)(w)
		began := time.Now()
		eventually(w.t, "no echo", func() bool { return time.Since(began) > 50*time.Millisecond })
		send(second)(w)
	}
}

// TestFaultEveryStimulusInEveryState parks a process in a state and pushes it. Whatever the two are, it ends within its
// budget, the record is true afterwards, and the next start asks for the validation that follows from it.
func TestFaultEveryStimulusInEveryState(t *testing.T) {
	t.Parallel()
	for name, state := range parkings {
		for _, push := range stimuli {
			if !*faults && push.name != "SIGTERM, SIGKILL" {
				continue
			}
			t.Run(name+", "+push.name, func(t *testing.T) {
				t.Parallel()
				trial(t, name, push.name)
				state.suffers(t, name, push)
			})
		}
	}
}

func (s parking) suffers(t *testing.T, name string, push stimulus) {
	p := newPlace(t)
	p.writeRecord("terminated")
	w, leave := s.park(p)
	began := time.Now()
	push.push(w)
	status := w.exit(soon)
	took := time.Since(began)
	assert.Less(t, took, s.budget)
	assert.Contains(t, append(slices.Clone(push.allowed), s.forced...), status)
	w.assertTruth(status)
	leave()
	p.assertNextStart(t, name)
}

// assertTruth says that a clean record is there only with a right to it, and always after status 0.
func (w *wrapper) assertTruth(status int) {
	w.t.Helper()
	opened := len(w.log.matching(line{"message": "starting an etcd server"})) > 0
	closed := len(w.log.matching(line{"message": "closed etcd server"})) > 0
	assert.False(w.t, w.place.clean() && opened && !closed, "a clean record after an etcd that was not closed")
	assert.False(w.t, status == 0 && !w.place.clean(), "status 0 without a clean record: %s", w.place.record())
}

// assertNextStart says that the record decides how the next start validates, and that it works.
func (p *place) assertNextStart(t *testing.T, why string) {
	t.Helper()
	want := map[bool]string{true: "sanity", false: "full"}[p.clean()]
	w := p.start()
	w.awaitReady()
	modes := p.sidecar.modes()
	require.NotEmpty(t, modes)
	assert.Equal(t, want, modes[len(modes)-1], "the mode of the next start after %s", why)
	w.stopCleanly()
}

func (p *place) clean() bool { return slices.Contains([]string{"terminated", "interrupt"}, p.record()) }
