package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"

	"etcd-wrapper/cmd/docs"
	"etcd-wrapper/internal/logtest"
)

func TestEventRecorder(t *testing.T) {
	requested, posted := make(chan string, 1), make(chan map[string]any, 1)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event map[string]any
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&event))
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(event)
		requested <- r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type")
		posted <- event
	}))
	defer server.Close()
	log := &logtest.Lines{}
	p := NewEventRecorder(newTestAccount(t, server), EventPod{Name: "etcd-main-0", UID: "7-3"}, zerolog.New(log))
	p.Post(Event{Reason: "Restored", Note: strings.Repeat("ä", 600), At: time.Date(2026, 11, 23, 12, 0, 0, 5000, time.FixedZone("", 3600))})
	assert.Equal(t, "POST /apis/events.k8s.io/v1/namespaces/play/events application/json", <-requested)
	assert.Equal(t, map[string]any{
		"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": map[string]any{"generateName": "etcd-main-0-", "namespace": "play"},
		"eventTime": "2026-11-23T11:00:00.000005Z", "reportingController": "etcd-wrapper", "reportingInstance": "etcd-main-0",
		"action": "Restored", "reason": "Restored", "type": "Normal", "note": strings.Repeat("ä", 510) + "…",
		"regarding": map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "etcd-main-0", "namespace": "play", "uid": "7-3"},
	}, <-posted)
	p.Stop()
	assert.Empty(t, log.String())
}

func TestEventRecorder_repeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := make(chan string, maxQueue) // events that the API server has accepted
		p := startRecorder(func(_ context.Context, e Event) error {
			log <- e.Reason + " " + e.Note
			return nil
		}, zerolog.Nop())
		posted := func() (all []string) {
			for len(log) > 0 {
				all = append(all, <-log)
			}
			return all
		}
		post := func(reason, subject, note string) {
			p.Post(Event{Reason: reason, Subject: subject, Note: note})
			synctest.Wait()
		}
		for _, note := range []string{"1", "2", "3"} {
			post("Problem", "backups", note)
		}
		post("Problem", "sidecar", "a")
		post("AlarmRaised", "", "b")
		assert.Equal(t, []string{"Problem 1", "Problem a", "AlarmRaised b"}, posted())

		time.Sleep(repeatPause + repeatPause/10)
		synctest.Wait()
		assert.Equal(t, []string{"Problem 3 (2 times within 5m0s)"}, posted())

		post("Problem", "sidecar", "after the pause")
		post("Problem", "backups", "within the pause")
		p.Stop()
		assert.Equal(t, []string{"Problem after the pause", "Problem within the pause"}, posted(), "Stop posts the events that are held back")
	})
}

func TestEventRecorder_logsAnErrorOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure, log := error(&StatusError{Status: http.StatusForbidden, Kind: eventKind}), &logtest.Lines{}
		p := startRecorder(func(context.Context, Event) error { return failure }, zerolog.New(log))
		post := func(reason string) {
			p.Post(Event{Reason: reason})
			synctest.Wait()
		}
		post("A")
		post("B")
		assert.Equal(t, 1, strings.Count(log.String(), "the service account's Role does not allow it to create this Event"))
		failure = nil
		post("C")
		failure = errors.New("the API server is unreachable")
		post("D")
		assert.Equal(t, 2, strings.Count(log.String(), "\n"))
		p.Stop()
	})
}

func TestEventRecorder_silentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts, log := 0, &logtest.Lines{}
		p := startRecorder(func(ctx context.Context, _ Event) error {
			attempts++
			<-ctx.Done()
			return ctx.Err()
		}, zerolog.New(log))
		start := time.Now()
		for range 3 * maxQueue {
			p.Post(Event{Reason: "Problem"})
		}
		assert.Zero(t, time.Since(start))
		time.Sleep(Timeout)
		synctest.Wait()
		assert.Equal(t, 1, attempts, "repetitions of the event are held back")
		assert.Equal(t, 1, strings.Count(log.String(), "cannot post an event"))
		stopping := time.Now()
		p.Stop()
		assert.Equal(t, stopTimeout, time.Since(stopping))
	})
}

// fakeBackups provides the content of the snapshot leases. The zero value belongs to a member that writes no backups.
type fakeBackups struct{ atomic.Pointer[BackupLeases] }

func (m *fakeBackups) content() (BackupLeases, bool) {
	backups := m.Load()
	if backups == nil {
		return BackupLeases{}, false
	}
	return *backups, true
}

var noon = time.Date(2026, 11, 22, 12, 0, 0, 123_456_789, time.UTC)

func TestLeases_snapshots(t *testing.T) {
	apiServer := newAPI("etcd-main-full-snap", "etcd-main-delta-snap")
	var backups fakeBackups
	l, _ := newTestLeases(t, apiServer, backups.content)
	full := func() leaseSpec { l.renewOnce(t, OfFull); return apiServer.lease("etcd-main-full-snap").Spec }
	delta := func() leaseSpec { l.renewOnce(t, OfDelta); return apiServer.lease("etcd-main-delta-snap").Spec }

	assert.Zero(t, full(), "this member writes no backups")
	assert.Zero(t, delta())
	assert.Empty(t, apiServer.requests)
	assert.Empty(t, l.States())

	backups.Store(&BackupLeases{Full: 41, FullTime: noon, Stored: 57, UpTo: noon.Add(time.Minute)})
	assert.Equal(t, leaseSpec{"41", microTime{noon.Truncate(time.Microsecond)}}, full())
	assert.Equal(t, leaseSpec{"57", microTime{noon.Add(time.Minute).Truncate(time.Microsecond)}}, delta())
	before := len(apiServer.requests)
	full()
	assert.Equal(t, []string{"GET etcd-main-full-snap"}, apiServer.requests[before:], "a lease that is up to date is not written again")
	assert.Equal(t, "41", l.stateOf(t, OfFull).Holder)

	backups.Store(&BackupLeases{Full: 41, FullTime: noon.Add(time.Hour), Stored: 57, UpTo: noon.Add(time.Hour)})
	assert.Equal(t, leaseSpec{"41", microTime{noon.Add(time.Hour).Truncate(time.Microsecond)}}, full(), "a newer full snapshot at the same revision renews the lease")

	apiServer.set("etcd-main-full-snap", "100", noon)
	apiServer.set("etcd-main-delta-snap", "100", noon)
	assert.Equal(t, "100", full().HolderIdentity, "the revision never decreases")
	assert.Equal(t, microTime{noon}, full().RenewTime, "a lease with a newer revision is not changed")
	assert.Equal(t, leaseSpec{"100", microTime{noon.Add(time.Hour).Truncate(time.Microsecond)}}, delta())

	backups.Store(nil)
	full()
	assert.Empty(t, l.States()[1:], "the full snapshot's lease is no longer reported once another member renews it")
	l.renewOnce(t, OfDelta)
	assert.Empty(t, l.States())
}

func TestLeases_conflicts(t *testing.T) {
	apiServer := newAPI("etcd-main-full-snap")
	times := 0
	apiServer.beforePatch = func(name string) {
		if times++; times <= 2 {
			apiServer.set(name, map[int]string{1: "10", 2: "20"}[times], noon)
		}
	}
	var backups fakeBackups
	backups.Store(&BackupLeases{Full: 15, FullTime: noon})
	l, _ := newTestLeases(t, apiServer, backups.content)
	l.renewOnce(t, OfFull)
	assert.Equal(t, "20", apiServer.lease("etcd-main-full-snap").Spec.HolderIdentity)
	assert.Nil(t, l.stateOf(t, OfFull).Problem)

	apiServer.beforePatch = func(name string) { apiServer.set(name, "1", noon) }
	apiServer.set("etcd-main-full-snap", "", time.Time{})
	l.renewOnce(t, OfFull)
	assert.Contains(t, l.stateOf(t, OfFull).Problem.Message, "other members keep updating the lease")
}

func TestReasons_documented(t *testing.T) {
	var reasons []string
	for _, row := range docs.Table(t, "`cannot renew the lease, …`, and the reason is", "what to do") {
		reasons = append(reasons, row[0])
	}
	all := strings.Join(reasons, "\n")
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusInternalServerError} {
		reason, _, _ := strings.Cut((&StatusError{Status: status, Kind: leases}).Error(), ":")
		reason, _, _ = strings.Cut(strings.TrimPrefix(reason, "the API server "), " Internal")
		assert.Contains(t, all, reason)
	}
	for _, reason := range []error{errTimeout, errNoLeader, errForeign} {
		assert.Contains(t, all, reason.Error())
	}
}
