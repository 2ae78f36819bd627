package lifecycle_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/bootstrap"
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

func TestTallies_addUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.New, bootstrap.Progress, bootstrap.Progress, bootstrap.Successful)
		start := time.Now()
		runFor(t, s, time.Minute)
		spent, polls := 0.0, 0
		for _, tally := range s.driver.Snapshot().EdgeCounts {
			spent += tally.Seconds
			if tally.From == Wait && tally.To == Query {
				polls = tally.Count
			}
		}
		assert.InDelta(t, time.Since(start).Seconds(), spent, 1e-6)
		assert.Equal(t, 3, polls)
	})
}

func TestTallies_distinguishGuards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(bootstrap.Failed, bootstrap.Progress, bootstrap.Progress, bootstrap.Successful)
		runFor(t, s, time.Minute)
		times := map[Guard]int{}
		for _, tally := range s.driver.Snapshot().EdgeCounts {
			if tally.From == Query && tally.To == Wait {
				times[tally.Guard] += tally.Count
			}
		}
		assert.Equal(t, map[Guard]int{StatusFailed: 1, StatusProgress: 2}, times)
	})
}

func TestSnapshot_validationModeAndReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.start(t, time.Second)
		assert.Equal(t, Validation{bootstrap.Full, "a test says so"}, s.driver.Snapshot().Validation)
	})
}

// errExpired is the error of a call to a server with an expired certificate.
var errExpired = fmt.Errorf("cannot ask: %w", &tls.CertificateVerificationError{
	Err: x509.CertificateInvalidError{Reason: x509.Expired},
})

// troubles are failures of a run, with their class.
var troubles = map[string]struct {
	spoil func(*stage)
	class Class
}{
	"no answer":     {func(s *stage) { s.status = func(context.Context) error { return errStage } }, ClassSidecar},
	"no answer yet": {func(s *stage) { s.status = func(context.Context) error { return context.DeadlineExceeded } }, ClassTimeout},
	"expired":       {func(s *stage) { s.status = func(context.Context) error { return errExpired } }, ClassCertificate},
	"says Failed":   {func(s *stage) { s.words = []bootstrap.InitializationStatus{bootstrap.Failed} }, ClassValidation},
	"an etcd":       {func(s *stage) { s.probe = func() error { return bootstrap.ErrDataInUse } }, ClassVolume},
	"shared data":   {func(s *stage) { s.lockData = func() error { return bootstrap.ErrDataInUse } }, ClassVolume},
	"lost listener": {func(s *stage) { time.AfterFunc(time.Second, func() { s.driver.ListenerLost(errStage) }) }, ClassServer},
	"half a pair": {func(s *stage) {
		s.configure = func() error { return bootstrap.Mark(errStage, bootstrap.ErrCertificates) }
	}, ClassCertificate},
	"two wrappers":    {func(s *stage) { s.lock = func() error { return bootstrap.ErrVolumeBusy } }, ClassVolume},
	"malformed":       {func(s *stage) { s.configure = func() error { return errStage } }, ClassConfiguration},
	"stuck record":    {func(s *stage) { s.remove = func() error { return errStage } }, ClassRecord},
	"no etcd":         {func(s *stage) { s.open = func(context.Context) error { return errStage } }, ClassEtcd},
	"panic":           {func(s *stage) { s.configure = func() error { panic("by the test") } }, ClassCrash},
	"taken port":      {func(s *stage) { s.expose = func() error { return errStage } }, ClassServer},
	"unknown word":    {func(s *stage) { s.words = []bootstrap.InitializationStatus{unknownWord} }, ClassSidecar},
	"nothing at all":  {func(*stage) {}, ""},
	"no close at all": {func(s *stage) { s.shut = func() error { pass(time.Hour); return errors.New("late") } }, ClassTimeout},
}

func TestTroubleHasAClass(t *testing.T) {
	for story, want := range troubles {
		t.Run(story, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage()
				want.spoil(s)
				defer pass(time.Hour) // until what was left behind ends
				runFor(t, s, time.Minute)
				assert.Equal(t, want.class, s.driver.Snapshot().Condition.Class, s.driver.Snapshot().Condition.Text)
			})
		})
	}
}
