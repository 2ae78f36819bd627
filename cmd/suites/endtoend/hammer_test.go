package endtoend_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// If signals arrive until the process exits, the last one must not kill it: the exit status must be that of a clean
// shutdown.
func TestSignals_duringExit(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.Sidecar.Takes = harness.Forever
	for range 15 {
		run := p.Start()
		run.AwaitLine(harness.Line{"to": "Wait"})
		signalUntilExit(run)
		want := 0
		if len(run.Log.Matching(harness.Line{"from": "Terminating", "event": "signal"})) > 0 {
			want = 143 // two signals were too far apart to count as one, which may happen on a busy machine
		}
		require.Equal(t, want, run.Cmd.ProcessState.ExitCode())
	}
}

// signalUntilExit keeps sending SIGTERM until the process has exited. The signals are close enough together to count
// as one.
func signalUntilExit(run *harness.Run) {
	for {
		_ = run.Cmd.Process.Signal(syscall.SIGTERM) // the process may have exited already
		select {
		case <-run.Ended:
			return
		default: // no pause, so that a signal also arrives during the last steps of the exit
		}
	}
}
