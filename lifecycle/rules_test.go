package lifecycle_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	. "etcd-wrapper/lifecycle"
)

func TestAnEtcdOnTheDataEndsTheRecordAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		var in atomic.Bool
		in.Store(true)
		s.probe = func() error {
			if in.Load() {
				return fmt.Errorf("/data: %w", bootstrap.ErrDataInUse)
			}
			return nil
		}
		wait := s.run(t)
		pass(time.Minute)
		assert.Contains(t, s.did(), "forfeit record", "while it waits")
		assert.NotContains(t, s.did(), "trigger full")
		in.Store(false)
		pass(time.Minute)
		assert.Equal(t, Serving, s.driver.Snapshot().State)
		s.sigterm()
		outcome := wait()
		assert.Equal(t, exitcode.Clean, outcome.Status)
	})
}

func TestADataDirectoryThatAnotherWrapperHasLockedIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		var in atomic.Bool
		in.Store(true)
		s.lockData = func() error {
			if in.Load() {
				return bootstrap.ErrDataInUse
			}
			return nil
		}
		wait := s.run(t)
		pass(time.Minute)
		assert.Equal(t, FetchConfig, s.driver.Snapshot().State)
		assert.Contains(t, s.did(), "forfeit record")
		assert.NotContains(t, s.did(), "remove record")
		in.Store(false)
		pass(time.Minute)
		assert.Equal(t, Serving, s.driver.Snapshot().State)
		s.sigterm()
		wait()
	})
}

// Certificates are replaced while pods run: a pair that does not match for a moment costs neither verdict nor record.
func TestACertificateThatCannotBeUsedNowIsWaitedFor(t *testing.T) {
	for name, spoil := range map[string]func(*stage, func() error){
		"of etcd":        func(s *stage, fails func() error) { s.configure = fails },
		"of the wrapper": func(s *stage, fails func() error) { s.expose = fails },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage()
				var times atomic.Int32
				spoil(s, func() error {
					if times.Add(1) <= 5 {
						return bootstrap.CertificateError{Cause: errStage}
					}
					return nil
				})
				wait := s.run(t)
				pass(time.Second)
				assert.Equal(t, FetchConfig, s.driver.Snapshot().State)
				assert.NotContains(t, s.did(), "remove record")
				pass(time.Minute)
				assert.Equal(t, Serving, s.driver.Snapshot().State)
				s.sigterm()
				wait()
				assert.Equal(t, 1, strings.Count(strings.Join(s.did(), ";"), "trigger"), "the verdict is kept")
			})
		})
	}
}

func TestAFailedValidationIsFollowedByAFullOneUntilOneSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New, bootstrap.Failed, bootstrap.New, bootstrap.Progress, bootstrap.New, bootstrap.Successful)
		world := s.world()
		world.Mode = func() (bootstrap.Mode, string) { return bootstrap.Sanity, "the record is clean" }
		s.driver = NewDriver(Options{World: world})
		wait := s.run(t)
		pass(time.Minute)
		s.sigterm()
		wait()
		var modes []string
		for _, what := range s.did() {
			if mode, is := strings.CutPrefix(what, "trigger "); is {
				modes = append(modes, mode)
			}
		}
		assert.Equal(t, []string{"sanity", "full", "full"}, modes)
	})
}

func TestASidecarThatAcceptsAndGoesOnSayingNewIsTriggeredLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New)
		s.config = hang
		var log strings.Builder
		s.driver = NewDriver(Options{World: s.world(), Log: zerolog.New(&log).Level(zerolog.InfoLevel)})
		runFor(t, s, time.Hour)
		triggers := strings.Count(strings.Join(s.did(), ";"), "trigger")
		assert.Less(t, triggers, 400)
		assert.Greater(t, triggers, 200, "it never gives up")
		assert.Less(t, strings.Count(log.String(), "\n"), 80, "rows that rotate are thinned")
		assert.Less(t, len(s.driver.Snapshot().History), 10)
	})
}

// The last of a quick rotation of Failed and New is counted, what comes back after a good while is news.
func TestTroubleThatComesBackIsNews(t *testing.T) {
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
		wait := s.run(t)
		pass(time.Minute)
		assert.Greater(t, s.driver.Snapshot().Trouble.Times, 5)
		fails.Store(false)
		pass(5 * time.Minute)
		assert.False(t, s.driver.Snapshot().Trouble.Ended.IsZero(), "it is over")
		fails.Store(true)
		pass(16 * time.Second)
		again := s.driver.Snapshot().Trouble
		assert.True(t, again.Ended.IsZero())
		assert.Less(t, again.Times, 10, "it is counted anew")
		assert.WithinDuration(t, time.Now(), again.Since, 16*time.Second)
		s.sigterm()
		wait()
	})
}

func TestAListenerThatIsLostClosesEtcdAndRecordsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		wait := s.run(t)
		pass(time.Minute)
		s.driver.ListenerLost(errStage)
		outcome := wait()
		assert.Equal(t, exitcode.ServerTaken, outcome.Status)
		assert.Contains(t, outcome.Reason, errStage.Error())
		assert.Contains(t, s.did(), "close etcd")
		assert.NotContains(t, s.did(), "write terminated")
		assert.NotContains(t, s.did(), "leave reason")
	})
}

func TestAFileSystemWithoutLocksKeepsEtcdFromNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.lockData = func() error { return errStage }
		wait := s.run(t)
		pass(time.Minute)
		assert.Equal(t, Serving, s.driver.Snapshot().State)
		assert.NotContains(t, s.did(), "forfeit record")
		s.sigterm()
		wait()
	})
}
