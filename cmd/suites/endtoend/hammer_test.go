package endtoend_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// Signals arrive until the very end: the last one must not kill a process that has ended in order.
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
			want = 143 // the machine was so busy that two signals came too far apart to count as one
		}
		require.Equal(t, want, run.Cmd.ProcessState.ExitCode())
	}
}

// signalUntilExit sends SIGTERM again and again, so quickly that all count as one, until the process has ended.
func signalUntilExit(run *harness.Run) {
	for {
		_ = run.Cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-run.Ended:
			return
		default: // without a pause: the last moments are short
		}
	}
}
