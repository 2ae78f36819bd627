package endtoend_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// If signals arrive until the process exits, the last signal must not kill the process after a clean shutdown.
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
			want = 143 // on a busy machine, the time between two signals may be too long for them to count as one
		}
		require.Equal(t, want, run.Cmd.ProcessState.ExitCode())
	}
}

// signalUntilExit keeps sending SIGTERM until the process has exited. The time between the signals is short enough
// for them to count as one.
func signalUntilExit(run *harness.Run) {
	for {
		_ = run.Cmd.Process.Signal(syscall.SIGTERM) // the process may have exited
		select {
		case <-run.Ended:
			return
		default: // no pause, because the last steps of the process are short
		}
	}
}
