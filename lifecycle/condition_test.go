package lifecycle_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/bootstrap"
	. "etcd-wrapper/lifecycle"
)

// A condition ends with the first response, even if the result takes hours.
func TestProblem_lastsUntilProgress(t *testing.T) {
	for story, test := range map[string]struct {
		spoil func(*stage)
		last  bootstrap.InitializationStatus // after New
	}{
		"no answer":                     {func(s *stage) { s.status = failing(3) }, bootstrap.Successful},
		"no answer, and a late result":  {func(s *stage) { s.status = failing(3) }, bootstrap.Progress},
		"no trigger":                    {func(s *stage) { s.trigger = failing(3) }, bootstrap.Successful},
		"no trigger, and a late result": {func(s *stage) { s.trigger = failing(3) }, bootstrap.Progress},
		"no config": {func(s *stage) {
			s.config, s.words = failing(3+1), s.words[3:] // the first call is the prefetch
		}, bootstrap.Successful},
	} {
		t.Run(story, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, log := loggedStage(append(slices.Repeat([]bootstrap.InitializationStatus{bootstrap.New}, 4), test.last)...)
				test.spoil(s)
				s.start(t, time.Minute)
				synctest.Wait() // wait for the log lines
				condition := s.driver.Snapshot().Condition
				assert.Equal(t, 3, condition.Times)
				assert.True(t, condition.Since.Before(condition.At))
				assert.False(t, condition.Ended.Before(condition.At), "it is over: %+v", condition)
				assert.Len(t, log.linesWith(t, "recovered: "), 1)
			})
		})
	}
}

func TestProblem_isShownDuringRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.status = func(context.Context) error { time.Sleep(time.Minute); return errStage }
		wait := s.run(t)
		pass(90 * time.Second)
		now := s.driver.Snapshot()
		assert.Equal(t, Query, now.State)
		assert.Contains(t, now.Reason, "no usable response from the sidecar")
		s.sigterm()
		wait()
		pass(time.Minute) // wait for abandoned calls
	})
}
