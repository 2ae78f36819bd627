package kubernetes

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/internal/logtest"
)

// inMemory passes requests to a handler without a network, so that tests can use a fake clock. As over a network, a
// request returns when its context is canceled.
type inMemory struct{ http.Handler }

func (m inMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	answered := make(chan *http.Response, 1)
	go func() {
		recorder := httptest.NewRecorder()
		m.ServeHTTP(recorder, r)
		answered <- recorder.Result()
	}()
	select {
	case response := <-answered:
		return response, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// within returns Leases that use an in-process API server.
func within(t *testing.T, handler http.Handler, backups func() (BackupLeases, bool)) (*Leases, *logtest.Lines) {
	t.Helper()
	l, log := over(t, handler, backups)
	l.server.Client = &http.Client{Transport: inMemory{handler}}
	return l, log
}

// tick is the polling interval of the tests, on the fake clock.
const tick = 100 * time.Millisecond

// gaps returns the times between consecutive requests, in seconds.
func (a *api) gaps() (all []float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := 1; i < len(a.at); i++ {
		all = append(all, a.at[i].Sub(a.at[i-1]).Seconds())
	}
	return all
}

func TestLeases_interval(t *testing.T) {
	apiServer := newAPI("etcd-main-0")
	l, log := within(t, apiServer, nil)
	synctest.Test(t, func(t *testing.T) {
		l.Start()
		<-time.After(45 * time.Second)
		l.Stop()
		assert.Equal(t, []float64{10, 10, 10, 10}, apiServer.gaps())
		<-time.After(time.Minute)
		assert.Len(t, apiServer.asked, 5, "and no more after the end")
	})
	assert.Equal(t, 1, strings.Count(log.String(), "\n"), "it is said once")
}

func TestLeases_backoff(t *testing.T) {
	apiServer := newAPI("etcd-main-0")
	apiServer.trouble = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusInternalServerError)
		return true
	}
	l, log := within(t, apiServer, nil)
	synctest.Test(t, func(t *testing.T) {
		l.Start()
		<-time.After(5 * time.Minute)
		gaps := apiServer.gaps()
		assert.Less(t, gaps[0], 1.4)
		for _, gap := range gaps {
			assert.LessOrEqual(t, gap, maxPause.Seconds(), "the operator takes a member for lost after a minute")
		}
		assert.Greater(t, gaps[len(gaps)-1], 13.0)
		assert.Equal(t, 1, strings.Count(log.String(), "cannot renew the lease"))
		trouble := l.fact(t, OfMember).Problem
		assert.Equal(t, len(apiServer.asked), trouble.Count)
		assert.WithinRange(t, trouble.NextRetry, time.Now(), time.Now().Add(maxPause))

		apiServer.becomes(nil)
		<-time.After(maxPause)
		assert.Nil(t, l.fact(t, OfMember).Problem)
		assert.Contains(t, log.String(), "renewed the lease after previous failures")

		apiServer.becomes(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusForbidden); return true })
		for trouble = nil; trouble == nil; trouble = l.fact(t, OfMember).Problem {
			<-time.After(tick)
		}
		assert.Equal(t, 1, trouble.Count)
		assert.Less(t, trouble.NextRetry.Sub(trouble.Since), 1400*time.Millisecond, "it begins anew")
		l.Stop()
	})
}

func TestLeases_retryAfter(t *testing.T) {
	apiServer := newAPI("etcd-main-0")
	after := "7"
	apiServer.trouble = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", after)
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}
	l, _ := over(t, apiServer, nil)
	assert.Equal(t, 7*time.Second, l.once(t, OfMember))
	after = "86400"
	assert.Equal(t, maxPause, l.once(t, OfMember), "but not for as long as it likes")
}

// lateEnd delays the return of each failed request by a second.
type lateEnd struct{ http.RoundTripper }

func (l lateEnd) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.RoundTripper.RoundTrip(r)
	if err != nil {
		<-time.After(time.Second)
	}
	return response, err
}

func TestLeases_hangingServer(t *testing.T) {
	apiServer := newAPI("etcd-main-0")
	apiServer.trouble = func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }
	l, log := within(t, apiServer, nil)
	synctest.Test(t, func(t *testing.T) {
		l.server.Client.Transport = lateEnd{l.server.Client.Transport}
		l.Start()
		<-time.After(Timeout + 2*time.Second)
		assert.Contains(t, l.fact(t, OfMember).Problem.Message, "did not respond within 5s")
		<-time.After(2 * time.Second)
		start := time.Now()
		l.Stop()
		assert.Equal(t, time.Second, time.Since(start), "Stop cancels the request and waits for its end")
	})
	assert.Equal(t, 1, strings.Count(log.String(), "cannot renew the lease"))
}

func TestLeases_foreignLease(t *testing.T) {
	apiServer := newAPI("etcd-main-delta-snap")
	apiServer.set("etcd-main-delta-snap", "somebody", noon)
	var backups made
	backups.Store(&BackupLeases{Stored: 5, UpTo: noon})
	l, _ := over(t, apiServer, backups.facts)
	l.once(t, OfDelta)
	assert.Equal(t, "somebody", apiServer.lease("etcd-main-delta-snap").Spec.HolderIdentity)
	assert.Contains(t, l.fact(t, OfDelta).Problem.Message, "is not a revision")
}

func TestLeases_independentFailures(t *testing.T) {
	apiServer := newAPI("etcd-main-0", "etcd-main-delta-snap")
	var backups made
	backups.Store(&BackupLeases{Full: 3, FullTime: noon, Stored: 5, UpTo: noon})
	l, _ := within(t, apiServer, backups.facts)
	l.options.Log = zerolog.Nop()
	synctest.Test(t, func(*testing.T) {
		l.Start()
		<-time.After(time.Minute)
		l.Stop()
	})
	facts := l.States()
	require.Len(t, facts, 3)
	for _, fact := range facts {
		assert.Equal(t, fact.Kind == OfFull, fact.Problem != nil, fact.Kind)
	}
	assert.Equal(t, "5", apiServer.lease("etcd-main-delta-snap").Spec.HolderIdentity)
}
