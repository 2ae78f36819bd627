package lifecycle_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/bootstrap"
	. "etcd-wrapper/lifecycle"
)

// slowSidecar is the real sidecar: it needs 7 s for the configuration while etcd is down.
func slowSidecar(ctx context.Context) error {
	select {
	case <-time.After(7 * time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// served returns the time that a stage takes from its start to Serving.
func served(t *testing.T, s *stage) time.Duration {
	t.Helper()
	start := time.Now()
	wait := s.run(t)
	pass(2 * time.Minute)
	synctest.Wait()
	assert.Equal(t, Serving, s.driver.Snapshot().State)
	took := s.driver.Snapshot().Since.Sub(start)
	s.sigterm()
	wait()
	assert.Equal(t, s.yaml, s.configured)
	return took
}

func TestEarlyConfiguration_newSingleMember(t *testing.T) {
	for name, test := range map[string]struct {
		validation time.Duration
		want       time.Duration
		fetches    int
	}{
		"a validation that takes longer is not followed by another wait":        {8 * time.Second, 8 * time.Second, 1},
		"after a quick one the fetch that is under way comes first":             {time.Second, 7 * time.Second, 2},
		"an answer that is too old is asked for again before the result":        {18 * time.Second, 18 * time.Second, 2},
		"where a newer question is under way, its answer is what is waited for": {12 * time.Second, 16 * time.Second, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(bootstrap.New, bootstrap.Progress)
				s.yaml, s.config = clusterOfOne, slowSidecar
				time.AfterFunc(test.validation, func() { s.succeed() })
				took := served(t, s)
				assert.GreaterOrEqual(t, took, test.want)
				assert.Less(t, took, test.want+time.Second)
				assert.Equal(t, test.fetches, s.count("fetch config"))
			})
		})
	}
}

func TestEarlyConfiguration_largerClusterFetchesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New, bootstrap.Progress)
		s.config = slowSidecar
		time.AfterFunc(10*time.Second, func() { s.succeed() })
		assert.GreaterOrEqual(t, served(t, s), 17*time.Second)
		assert.Equal(t, 3, s.count("fetch config"))
	})
}

// The early fetch costs a larger cluster nothing: it is neither waited for nor repeated.
func TestEarlyConfiguration_delaysNoLargerCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New, bootstrap.Progress)
		s.config = slowSidecar
		time.AfterFunc(time.Second, func() { s.succeed() })
		assert.Less(t, served(t, s), 8500*time.Millisecond)
		assert.Equal(t, 2, s.count("fetch config"))
	})
}

func TestEarlyConfiguration_opensNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New, bootstrap.Progress)
		s.yaml = clusterOfOne
		s.start(t, time.Hour)
		synctest.Wait()
		assert.Contains(t, []State{Wait, Query}, s.driver.Snapshot().State)
		assert.NotContains(t, s.did(), "open etcd")
	})
}

// hibernated is a member of three that slept: the sidecar's initialization takes 35 s, and its answer to the question for
// the configuration 37 s, because it looks for a cluster that cannot answer yet.
func hibernated() *stage {
	s := newStage(bootstrap.New, bootstrap.Progress)
	s.logs = []string{"/data/member/wal"}
	s.config = func(ctx context.Context) error {
		select {
		case <-time.After(37 * time.Second):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s
}

func TestHibernatedMember_waitsForTheSidecar(t *testing.T) {
	for name, test := range map[string]struct {
		lose       bool // the log, to the initialization
		find       bool // a log, by the initialization
		validation time.Duration
		least      time.Duration
	}{
		"the early answer serves a cluster of any size":              {false, false, 35 * time.Second, 37 * time.Second},
		"it is young enough for a minute":                            {false, false, 58 * time.Second, 58 * time.Second},
		"after that a newer one is waited for":                       {false, false, 65 * time.Second, 76 * time.Second},
		"a log that the initialization took away makes it worthless": {true, false, 35 * time.Second, 72 * time.Second},
		"a log that the initialization made does, too":               {false, true, 35 * time.Second, 72 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := hibernated()
				if test.find {
					s.logs = nil
				}
				time.AfterFunc(test.validation, func() {
					s.succeed()
					s.mu.Lock()
					defer s.mu.Unlock()
					if test.lose {
						s.logs = nil
					}
					if test.find {
						s.logs = []string{"/data/member/wal"}
					}
				})
				took := served(t, s)
				assert.GreaterOrEqual(t, took, test.least)
				assert.Less(t, took, test.least+3*time.Second)
			})
		})
	}
}

// The configuration may change between the trigger and a late result: to TLS, or from one member to three.
func TestEarlyConfiguration_outdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New, bootstrap.Progress)
		s.yaml = clusterOfOne
		var asked atomic.Int32
		s.config = func(ctx context.Context) error {
			if asked.Add(1) == 1 {
				return nil
			}
			return slowSidecar(ctx)
		}
		time.AfterFunc(time.Second, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.yaml = clusterOfThree
		})
		time.AfterFunc(15*time.Second, func() { s.succeed() })
		served(t, s)
		assert.Equal(t, clusterOfThree, s.configured)
	})
}

// Two simultaneous responses must not configure etcd twice.
func TestEarlyConfiguration_etcdIsConfiguredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.yaml = clusterOfOne
		healed := make(chan struct{})
		s.config = func(context.Context) error { <-healed; return nil }
		s.configure = func() error { pass(time.Second); return nil }
		time.AfterFunc(5*time.Second, func() { close(healed) })
		runFor(t, s, time.Minute)
		assert.Equal(t, 1, s.count("configure"))
		assert.Equal(t, 2, s.count("fetch config"))
	})
}

func TestAnEarlyConfiguration_isUsableWhileItIsYoung(t *testing.T) {
	for _, c := range []struct {
		alone, before, after bool
		age                  time.Duration
		usable               bool
	}{
		{alone: true, age: 10 * time.Second, usable: true},
		{alone: true, age: 10*time.Second + 1},
		{before: true, after: true, age: time.Minute, usable: true},
		{before: true, after: true, age: time.Minute + 1},
		{before: true},
		{after: true},
		{},
	} {
		assert.Equal(t, c.usable, IsUsable(c.alone, c.before, c.after, c.age), "%+v", c)
	}
}
