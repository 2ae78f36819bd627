package lifecycle_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	. "etcd-wrapper/lifecycle"
)

func TestDocumentedLifecycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		wait := s.run(t)
		synctest.Wait()
		pass(time.Minute)
		s.sigterm()
		assert.Equal(t, exitcode.Clean, wait().Status)
		assert.Equal(t, Validation{bootstrap.Full, "reason"}, s.driver.Snapshot().Validation)
		assert.Equal(t, []string{
			"ask status", "trigger full", "fetch config", "ask status", "fetch config", "configure", "serve readyz", "remove record", "open etcd",
			"close etcd", "write terminated",
		}, s.did())
		assert.Equal(t, []State{Query, Trigger, Wait, Query, FetchConfig, StartEtcd, Serving, Terminating, Terminated}, s.visits())
	})
}

// keepIn maps each state before a stop to a function that keeps a run in that state.
var keepIn = map[State]func(*stage){
	Query:       func(s *stage) { s.status = hang },
	Trigger:     func(s *stage) { s.trigger = hang },
	Wait:        func(s *stage) { s.statuses = []bootstrap.InitializationStatus{bootstrap.Progress} },
	FetchConfig: func(s *stage) { s.config = hang },
	StartEtcd:   func(s *stage) { s.open = hang },
	Serving:     func(*stage) {},
}

func TestStop_inEveryState(t *testing.T) {
	for state, keep := range keepIn {
		t.Run(string(state), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage()
				keep(s)
				wait := s.run(t)
				pass(10 * time.Second)
				assert.Equal(t, state, s.driver.Snapshot().State)
				asked := time.Now()
				s.sigterm()
				assert.Equal(t, exitcode.Clean, wait().Status)
				assert.Less(t, time.Since(asked), 100*time.Millisecond)
				if slices.Contains(BeforeEtcd, state) {
					assert.NotContains(t, s.did(), "remove record")
					assert.NotContains(t, s.did(), "write terminated")
				}
			})
		})
	}
}

// If a stop arrives after the record is removed but before etcd is opened, the record must be restored.
func TestStop_afterRemovingTheRecordRestoresIt(t *testing.T) {
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

func TestStop_uncancelableWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.status = func(context.Context) error { time.Sleep(time.Hour); return nil }
		defer pass(time.Hour) // wait for the abandoned call
		wait := s.run(t)
		pass(time.Second)
		asked := time.Now()
		s.sigterm()
		assert.Equal(t, exitcode.OutOfTime, wait().Status)
		assert.LessOrEqual(t, time.Since(asked), AbortBudget-TakingDown)
	})
}

func TestStop_hasPriority(t *testing.T) {
	driver := newStage().driver
	for range 200 { // without priority, the order would be random, and a single try could succeed
		require.True(t, UrgentFirst(driver))
	}
}

func TestReadyTimeout_closesEtcd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.open = hang
		options := Options{Runtime: s.runtime(), ReadyTimeout: 30 * time.Second}
		s.driver = NewDriver(options)
		start := time.Now()
		assert.Equal(t, exitcode.NotReady, s.run(t)().Status)
		assert.InDelta(t, 30, time.Since(start).Seconds(), 1)
		assert.Contains(t, s.did(), "close etcd")
		assert.NotContains(t, s.did(), "write terminated")
	})
}

// obstacles lists failures that keep etcd from starting only temporarily. For example, a certificate may not match its
// key for a moment during a rotation. Such a failure must be retried without another validation.
var obstacles = map[string]struct {
	put     func(s *stage, check func() error) // installs the obstacle, which lasts until check returns nil
	err     error                              // error of check
	state   State                              // expected state while check fails
	done    string                             // call that must occur while check fails
	waiting string                             // call that must not occur while check fails
}{
	"open database": {func(s *stage, check func() error) {
		s.probe, s.statuses = check, []bootstrap.InitializationStatus{bootstrap.New}
		s.trigger = func(context.Context) error { s.succeed(); return nil }
	}, bootstrap.ErrDataInUse, Wait, "invalidate record", "trigger full"},
	"locked data directory": {func(s *stage, check func() error) { s.lockData = check }, bootstrap.ErrDataInUse, FetchConfig, "invalidate record", "remove record"},
	"etcd certificate":      {func(s *stage, check func() error) { s.configure = check }, bootstrap.ErrCertificates, FetchConfig, "configure", "remove record"},
	"wrapper certificate":   {func(s *stage, check func() error) { s.expose = check }, bootstrap.ErrCertificates, FetchConfig, "serve readyz", "remove record"},
}

func TestObstacle_isRetried(t *testing.T) {
	for name, obstacle := range obstacles {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage()
				var fails atomic.Bool
				fails.Store(true)
				obstacle.put(s, func() error {
					if fails.Load() {
						return bootstrap.Mark(errStage, obstacle.err)
					}
					return nil
				})
				wait := s.run(t)
				pass(time.Minute)
				assert.Equal(t, obstacle.state, s.driver.Snapshot().State)
				assert.Contains(t, s.did(), obstacle.done)
				assert.NotContains(t, s.did(), obstacle.waiting)
				fails.Store(false)
				pass(time.Minute)
				assert.Equal(t, Serving, s.driver.Snapshot().State)
				s.sigterm()
				assert.Equal(t, exitcode.Clean, wait().Status)
				assert.Equal(t, 1, s.count("trigger full"), "the validation result is kept")
			})
		})
	}
}

func TestFailedValidation_nextIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New, bootstrap.Failed, bootstrap.New, bootstrap.Progress, bootstrap.New, bootstrap.Successful)
		runtime := s.runtime()
		runtime.Mode = func() (bootstrap.Mode, string) { return bootstrap.Sanity, "the last exit was clean" }
		s.driver = NewDriver(Options{Runtime: runtime})
		runFor(t, s, time.Minute)
		var modes []string
		for _, what := range s.did() {
			if mode, ok := strings.CutPrefix(what, "trigger "); ok {
				modes = append(modes, mode)
			}
		}
		assert.Equal(t, []string{"sanity", "full", "full"}, modes)
	})
}

func TestTrigger_backoffWhileStatusStaysNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New)
		s.config = hang
		var log strings.Builder
		s.driver = NewDriver(Options{Runtime: s.runtime(), Log: zerolog.New(&log).Level(zerolog.InfoLevel)})
		runFor(t, s, time.Hour)
		triggers := s.count("trigger full")
		assert.Less(t, triggers, 400)
		assert.Greater(t, triggers, 200, "requesting never stops")
		assert.Less(t, strings.Count(log.String(), "\n"), 80, "repeated transitions are not logged at the info level")
		assert.Less(t, len(s.driver.Snapshot().History), 10)
	})
}

// While a failure persists, only the count of its condition must increase. If the failure recurs minutes after the
// recovery, a new condition must start.
func TestCondition_recurring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New, bootstrap.Progress)
		var fails atomic.Bool
		fails.Store(true)
		s.status = func(context.Context) error {
			if fails.Load() {
				return errStage
			}
			return nil
		}
		s.start(t, time.Minute)
		assert.Greater(t, s.driver.Snapshot().Condition.Times, 5)
		fails.Store(false)
		pass(5 * time.Minute)
		assert.False(t, s.driver.Snapshot().Condition.Ended.IsZero(), "the condition has ended")
		fails.Store(true)
		pass(16 * time.Second)
		again := s.driver.Snapshot().Condition
		assert.True(t, again.Ended.IsZero())
		assert.Less(t, again.Times, 10, "the count restarts with a new condition")
		assert.WithinDuration(t, time.Now(), again.Since, 16*time.Second)
	})
}

func TestFileSystemWithoutLocks_etcdStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.lockData = func() error { return errStage }
		s.start(t, time.Minute)
		assert.Equal(t, Serving, s.driver.Snapshot().State)
		assert.NotContains(t, s.did(), "invalidate record")
	})
}

// progressing simulates a sidecar whose validation never ends.
type progressing struct{ Sidecar }

func (progressing) Status(context.Context) (bootstrap.InitializationStatus, error) {
	return bootstrap.Progress, nil
}

func (progressing) Config(ctx context.Context) ([]byte, error) { return nil, hang(ctx) }

// Step must allocate little, because a restore that runs for hours takes thousands of steps.
func TestStep_allocations(t *testing.T) {
	rules, core := NewRules(Table, Elsewhere), NewCore()
	for _, event := range []Event{Started, Replied, Elapsed, Signal} {
		assert.Zero(t, testing.AllocsPerRun(100, func() { rules.Step(core, event, Payload{}) }), event)
	}
	runtime := newStage().runtime()
	runtime.Sidecar = progressing{}
	driver := NewDriver(Options{Runtime: runtime, Log: zerolog.Nop()})
	assert.LessOrEqual(t, testing.AllocsPerRun(1000, PollingDriver(driver)), 16.0)
	assert.LessOrEqual(t, len(driver.Snapshot().History), 4, "repeated transitions are counted, not listed")
}

func TestHistory_isBounded(t *testing.T) {
	assert.Equal(t, 64, HistoryLength(1000))
}
