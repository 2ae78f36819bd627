package lifecycle_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/bootstrap"
	. "etcd-wrapper/lifecycle"
)

func TestProblem_lastsUntilProgress(t *testing.T) {
	for story, want := range map[string]func(*stage){
		"no answer": func(s *stage) { s.status = failing(3) },
		"no trigger": func(s *stage) {
			s.trigger = failing(3)
			s.words = append(s.words[:1:1], bootstrap.New, bootstrap.New, bootstrap.New, bootstrap.Successful)
		},
		"no config": func(s *stage) { s.config = failing(3 + 1) }, // the early fetch is the first
	} {
		t.Run(story, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, log := loggedStage()
				want(s)
				s.start(t, time.Minute)
				synctest.Wait() // until this moment's lines are in the log, too
				trouble := s.driver.Snapshot().Condition
				assert.Equal(t, 3, trouble.Times)
				assert.True(t, trouble.Since.Before(trouble.At))
				assert.False(t, trouble.Ended.Before(trouble.At), "it is over: %+v", trouble)
				assert.Len(t, log.linesWith(t, "recovered: "), 1)
			})
		})
	}
}

// The result may take hours; the condition ends with the first answer.
func TestProblem_endsWithTheFirstAnswer(t *testing.T) {
	for story, spoil := range map[string]func(*stage){
		"no answer":  func(s *stage) { s.status = failing(3) },
		"no trigger": func(s *stage) { s.trigger = failing(1) },
	} {
		t.Run(story, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(bootstrap.New, bootstrap.New, bootstrap.Progress)
				spoil(s)
				s.start(t, time.Hour)
				assert.NotEmpty(t, s.driver.Snapshot().Condition.Class)
				assert.NotZero(t, s.driver.Snapshot().Condition.Ended)
			})
		})
	}
}

func TestProblem_isShownDuringRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.status = func(context.Context) error { pass(time.Minute); return errStage }
		wait := s.run(t)
		pass(90 * time.Second)
		now := s.driver.Snapshot()
		assert.Equal(t, Query, now.State)
		assert.Contains(t, now.Reason, "no usable answer from the sidecar")
		s.sigterm()
		wait()
		pass(time.Minute) // until what was left behind ends
	})
}
