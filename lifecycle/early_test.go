package lifecycle_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	. "etcd-wrapper/lifecycle"
)

// answersAfter simulates a sidecar that returns the configuration after a delay. While etcd is down,
// etcd-backup-restore needs 7 s for the response, and 37 s if it also searches for other members.
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

// served runs and stops the driver, and returns the time from the start until Serving.
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

func TestPrefetchedConfiguration(t *testing.T) {
	wal := []string{"/data/member/wal"}
	for name, test := range map[string]struct {
		yaml          string
		answers       time.Duration // delay of each configuration response
		before, after []string      // WAL directories before and after the validation
		validation    time.Duration // time from the start to the status Successful
		want, late    time.Duration // expected minimum time from the start to Serving, and how much longer it may take
		fetches       int           // expected number of configuration requests
	}{
		"single member: after a longer validation, the prefetched configuration is used at once":     {clusterOfOne, 7 * time.Second, nil, nil, 8 * time.Second, 8 * time.Second, time.Second / 2, 1},
		"single member: after a quick validation, the configuration of the running prefetch is used": {clusterOfOne, 7 * time.Second, nil, nil, time.Second, 7 * time.Second, time.Second / 2, 2},
		"single member: an outdated configuration is prefetched again before the result":             {clusterOfOne, 7 * time.Second, nil, nil, 18 * time.Second, 18 * time.Second, time.Second / 2, 2},
		"single member: after the result, a running prefetch may still provide the configuration":    {clusterOfOne, 7 * time.Second, nil, nil, 12 * time.Second, 16 * time.Second, time.Second / 2, 3},
		"three members: the configuration is fetched after the result":                               {clusterOfThree, 7 * time.Second, nil, nil, 10 * time.Second, 17 * time.Second, time.Second / 2, 3},
		"three members: the fetch after the result does not wait for the prefetch":                   {clusterOfThree, 7 * time.Second, nil, nil, time.Second, 8 * time.Second, time.Second / 2, 2},
		"with a log: the prefetched configuration of a cluster of any size is used":                  {clusterOfThree, 37 * time.Second, wal, wal, 35 * time.Second, 37 * time.Second, 3 * time.Second, 2},
		"with a log: a configuration is recent enough for a minute":                                  {clusterOfThree, 37 * time.Second, wal, wal, 58 * time.Second, 58 * time.Second, 3 * time.Second, 2},
		"with a log: after a minute, the configuration of a newer prefetch is used":                  {clusterOfThree, 37 * time.Second, wal, wal, 65 * time.Second, 76 * time.Second, 3 * time.Second, 3},
		"with a log that the initialization removes: the configuration is fetched after the result":  {clusterOfThree, 37 * time.Second, wal, nil, 35 * time.Second, 72 * time.Second, 3 * time.Second, 2},
		"with a log that the initialization creates: the configuration is fetched after the result":  {clusterOfThree, 37 * time.Second, nil, wal, 35 * time.Second, 72 * time.Second, 3 * time.Second, 2},
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

// If the result arrives late, the prefetched configuration must not be used, because the configuration may have
// changed in the meantime, for example from one member to three.
func TestPrefetchedConfiguration_outdated(t *testing.T) {
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

func TestPrefetchedConfiguration_configuresEtcdOnce(t *testing.T) {
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

func TestPrefetchedConfiguration_maximumAge(t *testing.T) {
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

// askedAt records the times of the status queries. Each query returns the error of answer.
func askedAt(s *stage, answer func(context.Context) error) *[]time.Time {
	var asked []time.Time
	s.status = func(ctx context.Context) error {
		asked = append(asked, time.Now())
		return answer(ctx)
	}
	return &asked
}

func fineAlways(context.Context) error { return nil }

// runFor runs the driver for the given fake time and then stops it.
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
		require.Less(t, len(*asked), 2000, "a sidecar that validates for six hours must not be polled too often")
	})
}

func TestBackoff_unusableResponses(t *testing.T) {
	for name, sidecar := range map[string]struct {
		status bootstrap.InitializationStatus
		answer func(context.Context) error
	}{
		"no response":    {bootstrap.New, func(context.Context) error { return errStage }},
		"unknown status": {unknownStatus, fineAlways},
	} {
		t.Run(name, func(t *testing.T) {
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
				assert.Greater(t, len(*asked), 40, "polling never stops")
			})
		})
	}
}

func TestBackoff_resetByResponse(t *testing.T) {
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
		var statuses []bootstrap.InitializationStatus
		for range 100 {
			statuses = append(statuses, cycle...)
		}
		s := newStage(statuses...)
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

func TestSnapshot_notifiesOfTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		now := s.driver.Snapshot()
		seen := []State{now.State}
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			for now.State != Terminated {
				<-now.Changed()
				now = s.driver.Snapshot()
				seen = append(seen, now.State)
			}
		}()
		runFor(t, s, time.Minute)
		<-watched
		assert.Equal(t, Query, seen[0])
		assert.Contains(t, seen, Serving)
	})
}

func TestSnapshot_stalledReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.Progress)
		first := s.driver.Snapshot().Changed()
		runFor(t, s, time.Hour)
		<-first
	})
}

func TestEdgeCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.Failed, bootstrap.Progress, bootstrap.Progress, bootstrap.Successful)
		start := time.Now()
		runFor(t, s, time.Minute)
		spent, polls, waits := 0.0, 0, map[Guard]int{}
		for _, edge := range s.driver.Snapshot().EdgeCounts {
			spent += edge.Seconds
			if edge.From == Wait && edge.To == Query {
				polls = edge.Count
			}
			if edge.From == Query && edge.To == Wait {
				waits[edge.Guard] += edge.Count
			}
		}
		assert.InDelta(t, time.Since(start).Seconds(), spent, 1e-6)
		assert.Equal(t, 3, polls)
		assert.Equal(t, map[Guard]int{StatusFailed: 1, StatusProgress: 2}, waits)
	})
}

// errExpired is the error of a request to a sidecar with an expired certificate.
var errExpired = fmt.Errorf("request failed: %w", &tls.CertificateVerificationError{
	Err: x509.CertificateInvalidError{Reason: x509.Expired},
})

// failures lists all kinds of failures and their expected results. Each run that has not failed receives SIGTERM
// after a minute.
var failures = map[string]struct {
	spoil  func(*stage)  // causes the failure
	class  Class         // expected class of the last condition; "" if there is no failure
	status exitcode.Code // expected exit status
	text   string        // expected in the log and, if the run fails, in the final reason
	opens  bool          // whether etcd is expected to be opened
}{
	"no failure":          {spoil: func(*stage) {}, opens: true},
	"no response":         {spoil: func(s *stage) { s.status = func(context.Context) error { return errStage } }, class: ClassSidecar},
	"timeout":             {spoil: func(s *stage) { s.status = func(context.Context) error { return context.DeadlineExceeded } }, class: ClassTimeout},
	"expired certificate": {spoil: func(s *stage) { s.status = func(context.Context) error { return errExpired } }, class: ClassCertificate, text: "; renew the certificate of the sidecar"},
	"unknown status":      {spoil: func(s *stage) { s.statuses = []bootstrap.InitializationStatus{unknownStatus} }, class: ClassSidecar},
	"failed validation":   {spoil: func(s *stage) { s.statuses = []bootstrap.InitializationStatus{bootstrap.Failed} }, class: ClassValidation},
	"locked volume":       {spoil: func(s *stage) { s.lock = func() error { return bootstrap.ErrVolumeBusy } }, class: ClassVolume},
	"open data": {spoil: func(s *stage) {
		s.statuses, s.probe = []bootstrap.InitializationStatus{bootstrap.New}, func() error { return bootstrap.ErrDataInUse }
	}, class: ClassVolume},
	"locked data directory": {spoil: func(s *stage) { s.lockData = func() error { return bootstrap.ErrDataInUse } }, class: ClassVolume},
	"mismatched key pair": {spoil: func(s *stage) {
		s.configure = func() error { return bootstrap.Mark(errStage, bootstrap.ErrCertificates) }
	}, class: ClassCertificate},
	"permanent failure":       {func(s *stage) { s.statuses, s.cause = []bootstrap.InitializationStatus{bootstrap.Failed}, errFinal }, ClassValidation, exitcode.BadConfig, errStage.Error(), false},
	"malformed configuration": {func(s *stage) { s.configure = func() error { return errStage } }, ClassConfiguration, exitcode.BadConfig, errStage.Error(), false},
	"port in use":             {func(s *stage) { s.expose = func() error { return errStage } }, ClassServer, exitcode.ServerTaken, errStage.Error(), false},
	"exit record not removed": {func(s *stage) { s.remove = func() error { return errStage } }, ClassRecord, exitcode.BadRecord, errStage.Error(), false},
	"etcd does not start": {func(s *stage) { // closing etcd also fails, but the result must be the same
		s.open, s.shut = func(context.Context) error { return errStage }, func() error { return errors.New("never opened") }
	}, ClassEtcd, exitcode.EtcdFailed, errStage.Error(), true},
	"etcd can never start": {func(s *stage) { s.open = func(context.Context) error { return errFinal } }, ClassEtcd, exitcode.BadConfig, errStage.Error(), true},
	"server failure":       {func(s *stage) { time.AfterFunc(time.Second, func() { s.driver.ListenerLost(errStage) }) }, ClassServer, exitcode.ServerTaken, errStage.Error(), true},
	"panic":                {func(s *stage) { s.configure = func() error { panic("panic from the test") } }, ClassCrash, exitcode.Crashed, "panic from the test", false},
	"crash":                {func(s *stage) { time.AfterFunc(time.Second, func() { s.driver.Crash(errStage) }) }, ClassCrash, exitcode.Crashed, errStage.Error(), true},
	"close hangs":          {func(s *stage) { s.shut = func() error { time.Sleep(time.Hour); return errors.New("late") } }, ClassTimeout, exitcode.OutOfTime, "the shutdown timed out", true},
}

// errFinal is a deeply wrapped error that cannot be fixed by retrying. The run must end with the status of the
// error.
var errFinal = fmt.Errorf("wrapped: %w", &exitcode.FinalError{Status: exitcode.BadConfig, Err: errStage})

func TestFailure(t *testing.T) {
	for name, want := range failures {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, log := loggedStage()
				want.spoil(s)
				defer pass(time.Hour) // wait for abandoned calls
				wait := s.run(t)
				pass(time.Minute)
				asked := time.Now()
				s.sigterm()
				outcome := wait()
				assert.LessOrEqual(t, time.Since(asked), StopBudget-TakingDown)
				assert.Equal(t, want.status, outcome.Status)
				condition := s.driver.Snapshot().Condition
				assert.Equal(t, want.class, condition.Class, condition.Text)
				assert.Equal(t, want.class == ClassCrash, slices.Contains(s.did(), "leave reason"))
				assert.Equal(t, want.opens, slices.Contains(s.did(), "open etcd"))
				assert.Equal(t, want.opens && want.class != ClassCrash, want.opens && slices.Contains(s.did(), "close etcd"))
				if want.class == "" {
					return
				}
				level := "warn"
				if want.status != exitcode.Clean {
					level = "error"
					assert.Contains(t, outcome.Reason, want.text)
					assert.Contains(t, condition.Text, want.text)
					assert.NotContains(t, s.did(), "write terminated")
				}
				lines := log.linesWith(t, condition.Text)
				require.Len(t, lines, 1, "repetitions of a condition are not logged again")
				assert.Equal(t, level, lines[0]["level"])
				assert.Contains(t, lines[0]["message"], want.text)
			})
		})
	}
}
