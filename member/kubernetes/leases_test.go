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

// inMemory is an http.RoundTripper that calls a handler directly, because a fake clock does not advance during network
// requests. As over a network, a request returns when its context is canceled.
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

// newInMemoryLeases returns Leases that call the given API server without a network.
func newInMemoryLeases(t *testing.T, handler http.Handler, backups func() (BackupLeases, bool)) (*Leases, *logtest.Lines) {
	t.Helper()
	l, log := newTestLeases(t, handler, backups)
	l.server.Client = &http.Client{Transport: inMemory{handler}}
	return l, log
}

// tick is the polling interval of the tests, on the fake clock.
const tick = 100 * time.Millisecond

// gaps returns the times between consecutive requests, in seconds.
func (a *fakeAPI) gaps() (all []float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := 1; i < len(a.times); i++ {
		all = append(all, a.times[i].Sub(a.times[i-1]).Seconds())
	}
	return all
}

func TestLeases_interval(t *testing.T) {
	apiServer := newAPI("etcd-main-0")
	l, log := newInMemoryLeases(t, apiServer, nil)
	synctest.Test(t, func(t *testing.T) {
		l.Start()
		<-time.After(45 * time.Second)
		l.Stop()
		assert.Equal(t, []float64{10, 10, 10, 10}, apiServer.gaps())
		<-time.After(time.Minute)
		assert.Len(t, apiServer.requests, 5, "Stop stops the renewals")
	})
	assert.Equal(t, 1, strings.Count(log.String(), "\n"), "only the first renewal is logged")
}

func TestLeases_backoff(t *testing.T) {
	apiServer := newAPI("etcd-main-0")
	apiServer.fail = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusInternalServerError)
		return true
	}
	l, log := newInMemoryLeases(t, apiServer, nil)
	synctest.Test(t, func(t *testing.T) {
		l.Start()
		<-time.After(5 * time.Minute)
		gaps := apiServer.gaps()
		assert.Less(t, gaps[0], 1.4)
		for _, gap := range gaps {
			assert.LessOrEqual(t, gap, maxPause.Seconds(), "the operator considers a member lost after a minute")
		}
		assert.Greater(t, gaps[len(gaps)-1], 13.0)
		assert.Equal(t, 1, strings.Count(log.String(), "cannot renew the lease"))
		problem := l.stateOf(t, OfMember).Problem
		assert.Equal(t, len(apiServer.requests), problem.Count)
		assert.WithinRange(t, problem.NextRetry, time.Now(), time.Now().Add(maxPause))

		apiServer.setFail(nil)
		<-time.After(maxPause)
		assert.Nil(t, l.stateOf(t, OfMember).Problem)
		assert.Contains(t, log.String(), "renewed the lease after previous failures")

		apiServer.setFail(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusForbidden); return true })
		for problem = nil; problem == nil; problem = l.stateOf(t, OfMember).Problem {
			<-time.After(tick)
		}
		assert.Equal(t, 1, problem.Count)
		assert.Less(t, problem.NextRetry.Sub(problem.Since), 1400*time.Millisecond, "a success resets the backoff")
		l.Stop()
	})
}

func TestLeases_retryAfter(t *testing.T) {
	apiServer := newAPI("etcd-main-0")
	after := "7"
	apiServer.fail = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", after)
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}
	l, _ := newTestLeases(t, apiServer, nil)
	assert.Equal(t, 7*time.Second, l.renewOnce(t, OfMember))
	after = "86400"
	assert.Equal(t, maxPause, l.renewOnce(t, OfMember), "Retry-After is limited to maxPause")
}

// slowFailures is an http.RoundTripper whose failed requests return a second later.
type slowFailures struct{ http.RoundTripper }

func (l slowFailures) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.RoundTripper.RoundTrip(r)
	if err != nil {
		<-time.After(time.Second)
	}
	return response, err
}

func TestLeases_hangingServer(t *testing.T) {
	apiServer := newAPI("etcd-main-0")
	apiServer.fail = func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }
	l, log := newInMemoryLeases(t, apiServer, nil)
	synctest.Test(t, func(t *testing.T) {
		l.server.Client.Transport = slowFailures{l.server.Client.Transport}
		l.Start()
		<-time.After(Timeout + 2*time.Second)
		assert.Contains(t, l.stateOf(t, OfMember).Problem.Message, "did not respond within 5s")
		<-time.After(2 * time.Second)
		start := time.Now()
		l.Stop()
		assert.Equal(t, time.Second, time.Since(start), "Stop cancels the request and waits until it returns")
	})
	assert.Equal(t, 1, strings.Count(log.String(), "cannot renew the lease"))
}

func TestLeases_foreignLease(t *testing.T) {
	apiServer := newAPI("etcd-main-delta-snap")
	apiServer.set("etcd-main-delta-snap", "other-program", noon)
	var backups fakeBackups
	backups.Store(&BackupLeases{Stored: 5, UpTo: noon})
	l, _ := newTestLeases(t, apiServer, backups.content)
	l.renewOnce(t, OfDelta)
	assert.Equal(t, "other-program", apiServer.lease("etcd-main-delta-snap").Spec.HolderIdentity)
	assert.Contains(t, l.stateOf(t, OfDelta).Problem.Message, "is not a revision")
}

func TestLeases_independentFailures(t *testing.T) {
	apiServer := newAPI("etcd-main-0", "etcd-main-delta-snap")
	var backups fakeBackups
	backups.Store(&BackupLeases{Full: 3, FullTime: noon, Stored: 5, UpTo: noon})
	l, _ := newInMemoryLeases(t, apiServer, backups.content)
	l.options.Log = zerolog.Nop()
	synctest.Test(t, func(*testing.T) {
		l.Start()
		<-time.After(time.Minute)
		l.Stop()
	})
	states := l.States()
	require.Len(t, states, 3)
	for _, lease := range states {
		assert.Equal(t, lease.Kind == OfFull, lease.Problem != nil, lease.Kind)
	}
	assert.Equal(t, "5", apiServer.lease("etcd-main-delta-snap").Spec.HolderIdentity)
}
