package main_test

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCleanRecordSurvivesNoKillAtAnyMoment kills runs after any number of log lines: while they start, while they serve,
// while they close. Whatever the moment, a clean record means that etcd was closed, and no acknowledged key is lost.
func TestCleanRecordSurvivesNoKillAtAnyMoment(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, seed))
	p := newPlace(t)
	acknowledged := map[string]string{}
	for round := range 12 {
		key := fmt.Sprintf("key-%d", round)
		w := p.start()
		w.dieAfter(1 + dice.IntN(110))
		if w.readyOrDead() && p.tryPut(key, key, 2*time.Second) == nil {
			acknowledged[key] = key
		}
		_ = w.cmd.Process.Signal(syscall.SIGTERM) // it may be dead
		w.exit(soon)
		clean := p.record() == "terminated"
		opened := len(w.log.matching(line{"message": "starting an etcd server"})) > 0
		closed := len(w.log.matching(line{"message": "closed etcd server"})) > 0
		require.False(t, clean && opened && !closed, "round %d: a clean record after an etcd that was not closed", round)
	}
	last := p.start()
	last.awaitReady()
	for key, value := range acknowledged {
		require.Equal(t, value, p.get(key))
	}
	last.stopCleanly()
}

// dieAfter kills the process when it has written so many lines, if it ever does.
func (w *wrapper) dieAfter(lines int) {
	go func() {
		for {
			select {
			case <-w.ended:
				return
			case <-w.log.written():
			}
			if w.log.length() >= lines {
				_ = w.cmd.Process.Kill() // it may have ended
				return
			}
		}
	}()
}

func (w *wrapper) readyOrDead() (ready bool) {
	w.t.Helper()
	eventually(w.t, "ready or dead", func() bool {
		select {
		case <-w.ended:
			return true
		default:
			ready = w.readyz() == 200
			return ready
		}
	})
	return ready
}
