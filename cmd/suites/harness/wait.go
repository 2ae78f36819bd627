package harness

import (
	"fmt"
	"net/http"
	"time"

	"github.com/stretchr/testify/require"
)

// AwaitReady waits until the member may be used.
func (r *Run) AwaitReady() {
	r.T.Helper()
	Eventually(r.T, "/readyz says 200", func() bool {
		select {
		case <-r.Ended:
			require.FailNow(r.T, "the process ended before it was ready", "status %d", r.Cmd.ProcessState.ExitCode())
		default:
		}
		return r.Readyz() == http.StatusOK
	})
}

// AwaitReadyz waits until /readyz has a status and returns how long that took by a Watch.
func (r *Run) AwaitReadyz(status int) time.Duration {
	r.T.Helper()
	watch := StartWatch()
	Eventually(r.T, fmt.Sprintf("/readyz says %d", status), func() bool { return r.Readyz() == status })
	return watch.Took()
}

// AwaitAnswer waits until the wrapper's own server listens.
func (r *Run) AwaitAnswer() {
	r.T.Helper()
	Eventually(r.T, "/livez says 200", func() bool {
		code, _ := r.Request(http.MethodGet, "/livez")
		return code == http.StatusOK
	})
}

// AwaitState waits until the lifecycle stands in a state.
func (r *Run) AwaitState(state string) {
	r.T.Helper()
	Eventually(r.T, "the state is "+state, func() bool { return r.Status().State == state })
}

// AwaitLine waits for a line of the log.
func (r *Run) AwaitLine(what Line) {
	r.T.Helper()
	Eventually(r.T, fmt.Sprintf("the log has a line with %v", what), func() bool { return len(r.Log.Matching(what)) > 0 })
}

// StartReady starts the program and waits until the member may be used.
func (p *Pod) StartReady(flags ...string) *Run {
	p.T.Helper()
	run := p.Start(flags...)
	run.AwaitReady()
	return run
}

// StartAndStop runs the program for a moment: it leaves data and a clean record behind.
func (p *Pod) StartAndStop() *Run {
	p.T.Helper()
	run := p.StartReady()
	run.StopCleanly()
	return run
}
