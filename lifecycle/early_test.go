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

// answersAfter is a sidecar that returns the configuration after a delay. etcd-backup-restore needs 7 s while etcd is
// down, and 37 s while it searches for a cluster that cannot respond yet.
func answersAfter(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// served returns the time from the start to Serving.
func served(t *testing.T, s *stage) time.Duration {
	t.Helper()
	start := time.Now()
	wait := s.run(t)
	pass(2 * time.Minute)
	assert.Equal(t, Serving, s.driver.Snapshot().State)
	took := s.driver.Snapshot().Since.Sub(start)
	s.sigterm()
	wait()
	assert.Equal(t, s.yaml, s.configured)
	return took
}

func TestEarlyConfiguration(t *testing.T) {
	wal := []string{"/data/member/wal"}
	for name, test := range map[string]struct {
		yaml          string
		answers       time.Duration // time until the sidecar returns the configuration
		before, after []string      // WAL directories before and after the validation
		validation    time.Duration
		want, late    time.Duration // expected time from the start to Serving, and the tolerance
		fetches       int
	}{
		"of one, a validation that takes longer is not followed by another wait":    {clusterOfOne, 7 * time.Second, nil, nil, 8 * time.Second, 8 * time.Second, time.Second / 2, 1},
		"of one, after a quick one the fetch that is under way comes first":         {clusterOfOne, 7 * time.Second, nil, nil, time.Second, 7 * time.Second, time.Second / 2, 2},
		"of one, an answer that is too old is requested again before the result":    {clusterOfOne, 7 * time.Second, nil, nil, 18 * time.Second, 18 * time.Second, time.Second / 2, 2},
		"of one, a newer request that is under way is waited for":                   {clusterOfOne, 7 * time.Second, nil, nil, 12 * time.Second, 16 * time.Second, time.Second / 2, 3},
		"of three, the configuration is fetched again":                              {clusterOfThree, 7 * time.Second, nil, nil, 10 * time.Second, 17 * time.Second, time.Second / 2, 3},
		"of three, the early fetch is neither waited for nor repeated":              {clusterOfThree, 7 * time.Second, nil, nil, time.Second, 8 * time.Second, time.Second / 2, 2},
		"hibernated, the early answer serves a cluster of any size":                 {clusterOfThree, 37 * time.Second, wal, wal, 35 * time.Second, 37 * time.Second, 3 * time.Second, 2},
		"hibernated, it is young enough for a minute":                               {clusterOfThree, 37 * time.Second, wal, wal, 58 * time.Second, 58 * time.Second, 3 * time.Second, 2},
		"hibernated, after that a newer one is waited for":                          {clusterOfThree, 37 * time.Second, wal, wal, 65 * time.Second, 76 * time.Second, 3 * time.Second, 3},
		"hibernated, a log that the initialization took away makes it worthless":    {clusterOfThree, 37 * time.Second, wal, nil, 35 * time.Second, 72 * time.Second, 3 * time.Second, 2},
		"hibernated, a log that the initialization made makes it worthless as well": {clusterOfThree, 37 * time.Second, nil, wal, 35 * time.Second, 72 * time.Second, 3 * time.Second, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(bootstrap.New, bootstrap.Progress)
				s.yaml, s.config, s.logs = test.yaml, answersAfter(test.answers), test.before
				time.AfterFunc(test.validation, func() {
					s.succeed()
					s.mu.Lock()
					defer s.mu.Unlock()
					s.logs = test.after
				})
				took := served(t, s)
				assert.GreaterOrEqual(t, took, test.want)
				assert.LessOrEqual(t, took, test.want+test.late)
				assert.Equal(t, test.fetches, s.count("fetch config"))
			})
		})
	}
}

// Until a late result arrives, the configuration may change, for example to TLS or from one member to three.
func TestEarlyConfiguration_outdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New, bootstrap.Progress)
		s.yaml = clusterOfOne
		var asked atomic.Int32
		s.config = func(ctx context.Context) error {
			if asked.Add(1) == 1 {
				return nil
			}
			return answersAfter(7 * time.Second)(ctx)
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

func TestEarlyConfiguration_etcdIsConfiguredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.yaml = clusterOfOne
		healed := make(chan struct{})
		s.config = func(context.Context) error { <-healed; return nil }
		s.configure = func() error { time.Sleep(time.Second); return nil }
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
