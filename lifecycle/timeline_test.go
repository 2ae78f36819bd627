package lifecycle_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	. "etcd-wrapper/lifecycle"
)

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

func TestTallies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.Failed, bootstrap.Progress, bootstrap.Progress, bootstrap.Successful)
		start := time.Now()
		runFor(t, s, time.Minute)
		spent, polls, waits := 0.0, 0, map[Guard]int{}
		for _, tally := range s.driver.Snapshot().EdgeCounts {
			spent += tally.Seconds
			if tally.From == Wait && tally.To == Query {
				polls = tally.Count
			}
			if tally.From == Query && tally.To == Wait {
				waits[tally.Guard] += tally.Count
			}
		}
		assert.InDelta(t, time.Since(start).Seconds(), spent, 1e-6)
		assert.Equal(t, 3, polls)
		assert.Equal(t, map[Guard]int{StatusFailed: 1, StatusProgress: 2}, waits)
	})
}

// errExpired is the error of a call to a server with an expired certificate.
var errExpired = fmt.Errorf("cannot ask: %w", &tls.CertificateVerificationError{
	Err: x509.CertificateInvalidError{Reason: x509.Expired},
})

// failures are runs with a failure. SIGTERM ends each run after a minute.
var failures = map[string]struct {
	spoil  func(*stage)
	class  Class
	status exitcode.Code
	text   string // expected in the log and, if the run fails, in its final reason
	opens  bool   // etcd is opened
}{
	"nothing at all": {spoil: func(*stage) {}, opens: true},
	"no answer":      {spoil: func(s *stage) { s.status = func(context.Context) error { return errStage } }, class: ClassSidecar},
	"no answer yet":  {spoil: func(s *stage) { s.status = func(context.Context) error { return context.DeadlineExceeded } }, class: ClassTimeout},
	"expired":        {spoil: func(s *stage) { s.status = func(context.Context) error { return errExpired } }, class: ClassCertificate, text: "; renew the certificate of the sidecar"},
	"unknown word":   {spoil: func(s *stage) { s.words = []bootstrap.InitializationStatus{unknownWord} }, class: ClassSidecar},
	"says Failed":    {spoil: func(s *stage) { s.words = []bootstrap.InitializationStatus{bootstrap.Failed} }, class: ClassValidation},
	"two wrappers":   {spoil: func(s *stage) { s.lock = func() error { return bootstrap.ErrVolumeBusy } }, class: ClassVolume},
	"an etcd": {spoil: func(s *stage) {
		s.words, s.probe = []bootstrap.InitializationStatus{bootstrap.New}, func() error { return bootstrap.ErrDataInUse }
	}, class: ClassVolume},
	"shared data": {spoil: func(s *stage) { s.lockData = func() error { return bootstrap.ErrDataInUse } }, class: ClassVolume},
	"half a pair": {spoil: func(s *stage) {
		s.configure = func() error { return bootstrap.Mark(errStage, bootstrap.ErrCertificates) }
	}, class: ClassCertificate},
	"Failed for good": {func(s *stage) { s.words, s.cause = []bootstrap.InitializationStatus{bootstrap.Failed}, errFinal }, ClassValidation, exitcode.BadConfig, errStage.Error(), false},
	"malformed":       {func(s *stage) { s.configure = func() error { return errStage } }, ClassConfiguration, exitcode.BadConfig, errStage.Error(), false},
	"taken port":      {func(s *stage) { s.expose = func() error { return errStage } }, ClassServer, exitcode.ServerTaken, errStage.Error(), false},
	"stuck record":    {func(s *stage) { s.remove = func() error { return errStage } }, ClassRecord, exitcode.BadRecord, errStage.Error(), false},
	"no etcd": {func(s *stage) { // closing etcd also fails, which makes no difference
		s.open, s.shut = func(context.Context) error { return errStage }, func() error { return errors.New("never opened") }
	}, ClassEtcd, exitcode.EtcdFailed, errStage.Error(), true},
	"no etcd ever":    {func(s *stage) { s.open = func(context.Context) error { return errFinal } }, ClassEtcd, exitcode.BadConfig, errStage.Error(), true},
	"lost listener":   {func(s *stage) { time.AfterFunc(time.Second, func() { s.driver.ListenerLost(errStage) }) }, ClassServer, exitcode.ServerTaken, errStage.Error(), true},
	"panic":           {func(s *stage) { s.configure = func() error { panic("by the test") } }, ClassCrash, exitcode.Crashed, "by the test", false},
	"crash":           {func(s *stage) { time.AfterFunc(time.Second, func() { s.driver.Crash(errStage) }) }, ClassCrash, exitcode.Crashed, errStage.Error(), true},
	"no close at all": {func(s *stage) { s.shut = func() error { time.Sleep(time.Hour); return errors.New("late") } }, ClassTimeout, exitcode.OutOfTime, "the shutdown timed out", true},
}

// errFinal is a deeply wrapped error that cannot be fixed by retrying. The run ends with the error's status.
var errFinal = fmt.Errorf("wrapped: %w", &exitcode.FinalError{Status: exitcode.BadConfig, Err: errStage})

func TestFailure(t *testing.T) {
	for story, want := range failures {
		t.Run(story, func(t *testing.T) {
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
				require.Len(t, lines, 1, "and not each time")
				assert.Equal(t, level, lines[0]["level"])
				assert.Contains(t, lines[0]["message"], want.text)
			})
		})
	}
}
