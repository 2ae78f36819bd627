package lifecycle_test

import (
	"context"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	. "etcd-wrapper/lifecycle"
)

func TestTheDocumentedLifecycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		wait := s.run(t)
		synctest.Wait()
		pass(time.Minute)
		s.sigterm()
		assert.Equal(t, exitcode.Clean, wait().Status)
		assert.Equal(t, []string{
			"ask status", "trigger full", "fetch config", "ask status", "fetch config", "serve readyz", "remove record", "open etcd",
			"close etcd", "write terminated",
		}, s.did())
		assert.Equal(t, []State{Query, Trigger, Wait, Query, FetchConfig, StartEtcd, Serving, Terminating, Terminated}, s.visits())
	})
}

func TestAValidationThatIsOverAlreadyIsNotAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.Successful)
		wait := s.run(t)
		synctest.Wait()
		s.driver.Stop()
		wait()
		assert.NotContains(t, s.did(), "trigger full")
	})
}

// parkings hold a run in each state before the end.
var parkings = map[State]func(*stage){
	Query:       func(s *stage) { s.status = hang },
	Trigger:     func(s *stage) { s.trigger = hang },
	Wait:        func(s *stage) { s.words = []bootstrap.InitializationStatus{bootstrap.Progress} },
	FetchConfig: func(s *stage) { s.config = hang },
	StartEtcd:   func(s *stage) { s.open = hang },
	Serving:     func(*stage) {},
}

func TestAStopEndsTheRunWhereverItIsParked(t *testing.T) {
	for state, park := range parkings {
		t.Run(string(state), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage()
				park(s)
				wait := s.run(t)
				pass(10 * time.Second)
				synctest.Wait()
				assert.Equal(t, state, s.driver.Snapshot().State)
				asked := time.Now()
				s.sigterm()
				assert.Equal(t, exitcode.Clean, wait().Status)
				assert.Less(t, time.Since(asked), 100*time.Millisecond)
			})
		})
	}
}

func TestAStopBeforeEtcdWasOpenedLeavesTheRecordAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.Progress)
		wait := s.run(t)
		pass(time.Second)
		s.sigterm()
		wait()
		assert.NotContains(t, s.did(), "remove record")
		assert.NotContains(t, s.did(), "write terminated")
	})
}

// The stop arrives in the one moment in which the record is removed and etcd not yet opened.
func TestAStopBetweenRemovingTheRecordAndOpeningEtcdRestoresTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.remove = func() error {
			s.sigterm()
			pass(10 * time.Millisecond)
			return nil
		}
		assert.Equal(t, exitcode.Clean, s.run(t)().Status)
		did := s.did()
		assert.Equal(t, []string{"remove record", "close etcd", "restore record"}, did[len(did)-3:])
	})
}

func TestTheRecordIsNotWrittenBeforeTheCloseHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.shut = func() error { pass(20 * time.Second); return nil }
		wait := s.run(t)
		pass(time.Second)
		s.sigterm()
		pass(19 * time.Second)
		assert.NotContains(t, s.did(), "write terminated")
		assert.Equal(t, exitcode.Clean, wait().Status)
		assert.Contains(t, s.did(), "write terminated")
	})
}

// stopInVain begins a run and asks it to stop, but its close of etcd hangs.
func (s *stage) stopInVain(t *testing.T) (wait func() Outcome) {
	t.Helper()
	s.shut = func() error { pass(time.Hour); return nil }
	t.Cleanup(func() { pass(time.Hour) }) // until the close that was left behind ends
	wait = s.run(t)
	pass(time.Second)
	s.sigterm()
	return wait
}

func TestACloseThatHangsEndsWithTheBudgetAndWithoutARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		wait, asked := s.stopInVain(t), time.Now()
		assert.Equal(t, exitcode.OutOfTime, wait().Status)
		assert.LessOrEqual(t, time.Since(asked), StopBudget-TakingDown)
		assert.NotContains(t, s.did(), "write terminated")
	})
}

func TestWorkThatCannotBeCancelledDoesNotHoldAStopUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.status = func(context.Context) error { pass(time.Hour); return nil }
		defer pass(time.Hour) // until the call that was left behind ends
		wait := s.run(t)
		pass(time.Second)
		asked := time.Now()
		s.sigterm()
		assert.Equal(t, exitcode.OutOfTime, wait().Status)
		assert.LessOrEqual(t, time.Since(asked), AbortBudget-TakingDown)
	})
}

func TestASecondSignalForcesTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		wait := s.stopInVain(t)
		pass(time.Second)
		asked := time.Now()
		s.driver.Signal(syscall.SIGINT)
		assert.Equal(t, exitcode.Forced(syscall.SIGINT), wait().Status)
		assert.Less(t, time.Since(asked), time.Second)
		assert.NotContains(t, s.did(), "write terminated")
	})
}

func TestAStopTakesPrecedenceOverOtherWork(t *testing.T) {
	driver := newStage().driver
	for range 200 { // chance would have it right every second time
		require.True(t, UrgentFirst(driver))
	}
}

func TestARecordThatCannotBeRemovedKeepsEtcdFromStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.remove = func() error { return errStage }
		assert.Equal(t, exitcode.BadRecord, s.run(t)().Status)
		assert.NotContains(t, s.did(), "open etcd")
	})
}

func TestAPanicInAnyWorkIsACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.configure = func() error { panic("by the test") }
		outcome := s.run(t)()
		assert.Equal(t, exitcode.Crashed, outcome.Status)
		assert.Contains(t, outcome.Reason, "by the test")
		assert.Contains(t, s.did(), "leave reason")
		assert.NotContains(t, s.did(), "open etcd")
	})
}

func TestACrashWhileServingEndsAtOnceWithoutARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		wait := s.run(t)
		pass(time.Second)
		s.driver.Crash(errStage)
		assert.Equal(t, exitcode.Crashed, wait().Status)
		assert.Contains(t, s.did(), "leave reason")
		assert.NotContains(t, s.did(), "write terminated")
	})
}

func TestEtcdThatIsNotReadyInTimeIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.open = hang
		options := Options{World: s.world(), ReadyTimeout: 30 * time.Second}
		s.driver = NewDriver(options)
		began := time.Now()
		assert.Equal(t, exitcode.NotReady, s.run(t)().Status)
		assert.InDelta(t, 30, time.Since(began).Seconds(), 1)
		assert.Contains(t, s.did(), "close etcd")
		assert.NotContains(t, s.did(), "write terminated")
	})
}
