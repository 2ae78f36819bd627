package lifecycle_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	. "etcd-wrapper/lifecycle"
)

// askedAt records the times of the status requests.
func askedAt(s *stage, answer func(context.Context) error) *[]time.Time {
	var asked []time.Time
	s.status = func(ctx context.Context) error {
		asked = append(asked, time.Now())
		return answer(ctx)
	}
	return &asked
}

func fineAlways(context.Context) error { return nil }

// runFor runs a stage for the given fake time and stops it.
func runFor(t *testing.T, s *stage, d time.Duration) {
	t.Helper()
	wait := s.run(t)
	pass(d)
	s.sigterm()
	wait()
}

func TestBackoff_runningInitialization(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New, bootstrap.Progress)
		asked := askedAt(s, fineAlways)
		runFor(t, s, 6*time.Hour)
		began := (*asked)[0]
		for i := 2; i < len(*asked); i++ {
			pause, waited := (*asked)[i].Sub((*asked)[i-1]), (*asked)[i].Sub(began)
			assert.LessOrEqual(t, pause, 15*time.Second)
			if waited <= 2*time.Second {
				assert.LessOrEqual(t, pause, 100*time.Millisecond, "after %s", waited)
			} else {
				assert.LessOrEqual(t, pause, waited/20, "after %s", waited)
			}
		}
		require.Less(t, len(*asked), 2000, "six hours are asked about gently")
	})
}

func TestBackoff_unusableAnswers(t *testing.T) {
	for story, sidecar := range map[string]struct {
		status bootstrap.InitializationStatus
		answer func(context.Context) error
	}{
		"silent":               {bootstrap.New, func(context.Context) error { return errStage }},
		"with an unknown word": {unknownWord, fineAlways},
	} {
		t.Run(story, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(sidecar.status)
				asked := askedAt(s, sidecar.answer)
				runFor(t, s, 10*time.Minute)
				first := (*asked)[1].Sub((*asked)[0])
				assert.InDelta(t, 0.1, first.Seconds(), 0.05)
				for i := 1; i < len(*asked); i++ {
					assert.LessOrEqual(t, (*asked)[i].Sub((*asked)[i-1]), 15*time.Second)
				}
				assert.Less(t, len(*asked), 70)
				assert.Greater(t, len(*asked), 40, "it never gives up")
			})
		})
	}
}

func TestBackoff_endsWithAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.Progress)
		times := 0
		asked := askedAt(s, func(context.Context) error {
			if times++; times <= 10 || times == 12 {
				return errStage
			}
			return nil
		})
		runFor(t, s, 5*time.Minute)
		assert.InDelta(t, 0.1, (*asked)[12].Sub((*asked)[11]).Seconds(), 0.05)
	})
}

func TestBackoff_failedInitializations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cycle := []bootstrap.InitializationStatus{bootstrap.New, bootstrap.Failed}
		var words []bootstrap.InitializationStatus
		for range 100 {
			words = append(words, cycle...)
		}
		s := newStage(words...)
		runFor(t, s, 10*time.Minute)
		assert.Less(t, s.count("trigger full"), 60)
		assert.Greater(t, s.count("trigger full"), 30)
	})
}

func TestFailedConfiguration_noSecondInitialization(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.config = failing(5)
		runFor(t, s, time.Minute)
		assert.Equal(t, []string{
			"ask status", "trigger full", "fetch config", "ask status",
			"fetch config", "fetch config", "fetch config", "fetch config", "fetch config",
			"configure", "serve readyz", "remove record", "open etcd", "close etcd", "write terminated",
		}, s.did())
	})
}

func TestBusyVolume_sendsNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		var free atomic.Bool
		s.lock = func() error {
			if !free.Load() {
				return bootstrap.ErrVolumeBusy
			}
			return nil
		}
		s.start(t, time.Minute)
		assert.Empty(t, s.did())
		assert.Equal(t, "cannot lock the volume: "+bootstrap.ErrVolumeBusy.Error(), s.driver.Snapshot().Condition.Text)
		free.Store(true)
		pass(time.Second)
		assert.Contains(t, s.did(), "open etcd")
	})
}

func TestHistory_longWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New, bootstrap.Progress)
		runFor(t, s, time.Hour)
		snapshot := s.driver.Snapshot()
		assert.LessOrEqual(t, len(snapshot.History), 64)
		assert.Equal(t, Started, snapshot.History[0].Event)
		assert.Equal(t, Trigger, snapshot.History[1].To)
	})
}
