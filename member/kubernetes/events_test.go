package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"

	"etcd-wrapper/internal/logtest"
)

func TestEventRecorder(t *testing.T) {
	asked, posted := make(chan string, 1), make(chan map[string]any, 1)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var is map[string]any
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&is))
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(is)
		asked <- r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type")
		posted <- is
	}))
	defer server.Close()
	log := &logtest.Lines{}
	p := NewEventRecorder(mounted(t, server), EventPod{Name: "etcd-main-0", UID: "7-3"}, zerolog.New(log))
	p.Post(Event{Reason: "Restored", Note: strings.Repeat("ä", 600), At: time.Date(2026, 11, 23, 12, 0, 0, 5000, time.FixedZone("", 3600))})
	assert.Equal(t, "POST /apis/events.k8s.io/v1/namespaces/play/events application/json", <-asked)
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
		log := make(chan string, maxQueue) // events accepted by the API server
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
		tell := func(reason, subject, note string) {
			p.Post(Event{Reason: reason, Subject: subject, Note: note})
			synctest.Wait()
		}
		for _, note := range []string{"1", "2", "3"} {
			tell("Problem", "backups", note)
		}
		tell("Problem", "sidecar", "a")
		tell("AlarmRaised", "", "b")
		assert.Equal(t, []string{"Problem 1", "Problem a", "AlarmRaised b"}, posted())

		time.Sleep(repeatPause + repeatPause/10)
		synctest.Wait()
		assert.Equal(t, []string{"Problem 3 (2 times within 5m0s)"}, posted())

		tell("Problem", "sidecar", "again, long after")
		tell("Problem", "backups", "soon after")
		p.Stop()
		assert.Equal(t, []string{"Problem again, long after", "Problem soon after"}, posted(), "what was held back is posted at the end")
	})
}

func TestEventRecorder_logsAnErrorOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusal, log := error(&StatusError{Status: http.StatusForbidden, Kind: eventKind}), &logtest.Lines{}
		p := startRecorder(func(context.Context, Event) error { return refusal }, zerolog.New(log))
		tell := func(reason string) {
			p.Post(Event{Reason: reason})
			synctest.Wait()
		}
		tell("A")
		tell("B")
		assert.Equal(t, 1, strings.Count(log.String(), "the service account's Role does not allow it to create this Event"))
		refusal = nil
		tell("C")
		refusal = errors.New("the API server is away")
		tell("D")
		assert.Equal(t, 2, strings.Count(log.String(), "\n"))
		p.Stop()
	})
}

func TestEventRecorder_silentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tried, log := 0, &logtest.Lines{}
		p := startRecorder(func(ctx context.Context, _ Event) error {
			tried++
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
		assert.Equal(t, 1, tried, "what repeats meanwhile is held back")
		assert.Equal(t, 1, strings.Count(log.String(), "cannot post an event"))
		ended := time.Now()
		p.Stop()
		assert.Equal(t, stopTimeout, time.Since(ended))
	})
}
