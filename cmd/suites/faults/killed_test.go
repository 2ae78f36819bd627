package faults_test

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// TestKill_leavesNoCleanRecord kills each run after a random number of log lines, while it is starting, serving or
// stopping. A clean record may exist only if etcd was closed, and no acknowledged key may be lost.
func TestKill_leavesNoCleanRecord(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, seed))
	p := harness.NewPod(t)
	p.StartAndStop()
	acknowledged := map[string]string{}
	rounds := 6
	if *faults {
		rounds = 40
	}
	for round := range rounds {
		key := fmt.Sprintf("key-%d", round)
		seen := watchOrder(p)
		run := p.Start()
		killAfter(run, 1+dice.IntN(110))
		if awaitReadyOrExit(run) && p.TryPut(key, key, 2*time.Second) == nil {
			acknowledged[key] = key
		}
		_ = run.Cmd.Process.Signal(syscall.SIGTERM) // the process may have exited already
		run.Exit(harness.Patience)
		clean := p.Record() == "terminated"
		require.False(t, clean && leftOpen(run, seen), "round %d: clean exit record although etcd was not closed", round)
	}
	last := p.StartReady()
	for key, value := range acknowledged {
		require.Equal(t, value, p.Get(key))
	}
	last.Shutdown()
}

// killAfter kills the process once it has logged the given number of lines.
func killAfter(run *harness.Run, lines int) {
	go func() {
		for run.Log.Lines() < lines {
			select {
			case <-run.Ended:
				return
			case <-time.After(100 * time.Microsecond):
			}
		}
		_ = run.Cmd.Process.Kill() // the process may have exited already
	}()
}

func awaitReadyOrExit(run *harness.Run) (ready bool) {
	run.T.Helper()
	harness.Eventually(run.T, "the process is ready or has exited", func() bool {
		ready = !run.HasEnded() && run.Readyz() == 200
		return ready || run.HasEnded()
	})
	return ready
}
