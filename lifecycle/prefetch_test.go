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

// slowly is the real sidecar: it needs 7 s for the configuration while etcd is down.
func slowly(ctx context.Context) error {
	select {
	case <-time.After(7 * time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// served is how long a stage takes from its begin to Serving.
func served(t *testing.T, s *stage) time.Duration {
	t.Helper()
	began := time.Now()
	wait := s.run(t)
	pass(time.Minute)
	synctest.Wait()
	assert.Equal(t, Serving, s.driver.Snapshot().State)
	took := s.driver.Snapshot().Since.Sub(began)
	s.sigterm()
	wait()
	assert.Equal(t, s.yaml, s.configured)
	return took
}

func fetches(s *stage) (count int) {
	for _, what := range s.did() {
		if what == "fetch config" {
			count++
		}
	}
	return count
}

func TestTheConfigurationOfANewClusterOfOneIsFetchedWhileTheValidationRuns(t *testing.T) {
	for name, is := range map[string]struct {
		validation time.Duration
		want       time.Duration
		fetches    int
	}{
		"a validation that takes longer is not followed by another wait": {10 * time.Second, 10 * time.Second, 1},
		"after a quick one the fetch that is under way comes first":      {time.Second, 7 * time.Second, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(bootstrap.New, bootstrap.Progress)
				s.yaml, s.config = clusterOfOne, slowly
				time.AfterFunc(is.validation, func() { s.say(bootstrap.Successful) })
				took := served(t, s)
				assert.GreaterOrEqual(t, took, is.want)
				assert.Less(t, took, is.want+time.Second)
				assert.Equal(t, is.fetches, fetches(s))
			})
		})
	}
}

func TestTheConfigurationOfALargerClusterIsFetchedAgainAfterTheVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New, bootstrap.Progress)
		s.config = slowly
		time.AfterFunc(10*time.Second, func() { s.say(bootstrap.Successful) })
		assert.GreaterOrEqual(t, served(t, s), 17*time.Second)
		assert.Equal(t, 2, fetches(s))
	})
}

// The early fetch costs a larger cluster nothing: it is neither waited for nor repeated.
func TestTheConfigurationOfALargerClusterIsNotHeldUpByTheEarlyFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New, bootstrap.Progress)
		s.config = slowly
		time.AfterFunc(time.Second, func() { s.say(bootstrap.Successful) })
		assert.Less(t, served(t, s), 8500*time.Millisecond)
		assert.Equal(t, 2, fetches(s))
	})
}

func TestAnEarlyConfigurationOpensNothingWithoutTheVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New, bootstrap.Progress)
		s.yaml = clusterOfOne
		wait := s.run(t)
		pass(time.Hour)
		synctest.Wait()
		assert.Contains(t, []State{Wait, Query}, s.driver.Snapshot().State)
		assert.NotContains(t, s.did(), "open etcd")
		s.sigterm()
		wait()
	})
}
