package report

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness/status"
)

// runWatch calls do while Watch is running, then returns the logged lines and how often lost was called.
func runWatch(t *testing.T, now *lifecycle.Snapshot, runtime *fakeRuntime, do func(*fakeLifecycle)) (lines []map[string]any, calls int) {
	t.Helper()
	var mu sync.Mutex
	var log bytes.Buffer
	run := newFakeLifecycle(now)
	report := New(run, runtime, "v1", "etcd-main-0")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		report.Watch(ctx, zerolog.New(&log), func() {
			mu.Lock()
			defer mu.Unlock()
			calls++
		}, func(status.TimelineEvent) {})
	}()
	synctest.Wait()
	do(run)
	synctest.Wait()
	cancel()
	<-done
	for line := range strings.Lines(log.String()) {
		parsed := map[string]any{}
		require.NoError(t, json.Unmarshal([]byte(line), &parsed))
		lines = append(lines, parsed)
	}
	return lines, calls
}

// snapshotIn returns a snapshot of a run that has just entered the given state.
func snapshotIn(state lifecycle.State) *lifecycle.Snapshot {
	return &lifecycle.Snapshot{State: state, PhaseSince: time.Now(), Reason: "the sidecar is silent", Attempt: 7}
}

func TestWatch_remindersBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := snapshotIn(lifecycle.Wait)
		now.Reason = "the initialization is in progress" // the reminders contain the condition instead of this reason
		now.Condition = lifecycle.Condition{Class: lifecycle.ClassSidecar, At: time.Now(), Since: time.Now(), Message: "the sidecar is silent; look at its log"}
		lines, _ := runWatch(t, now, &fakeRuntime{}, func(*fakeLifecycle) { time.Sleep(time.Hour) })
		// The reminders are expected after 0.5, 1.5, 3.5, 7.5 and 12.5 min, and then every 5 min.
		require.Len(t, lines, 14)
		for _, line := range lines {
			assert.Equal(t, "still Wait: the sidecar is silent; look at its log", line["message"])
			assert.Equal(t, "warn", line["level"])
			assert.InDelta(t, 7, line["times"], 0)
		}
		assert.Equal(t, "30s", lines[0]["lasts"])
		assert.Equal(t, "1m30s", lines[1]["lasts"])
	})
}

func TestWatch_reminderLevelWithoutAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := snapshotIn(lifecycle.Wait)
		now.Condition = lifecycle.Condition{Class: lifecycle.ClassSidecar, Ended: time.Now()}
		lines, _ := runWatch(t, now, &fakeRuntime{}, func(*fakeLifecycle) { time.Sleep(31 * time.Second) })
		require.Len(t, lines, 1)
		assert.Equal(t, "info", lines[0]["level"])
	})
}

func TestWatch_reminderOfARecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := snapshotIn(lifecycle.Wait)
		now.Reason = "the initialization is in progress"
		runtime := &fakeRuntime{awaits: "recovery has been reading the store since noon: s3://bucket: store unavailable; the next try is within 5s"}
		runtime.recovery = &status.Recovery{State: "AskStore"}
		lines, calls := runWatch(t, now, runtime, func(*fakeLifecycle) { time.Sleep(31 * time.Second) })
		require.Len(t, lines, 1)
		assert.Equal(t, "still Wait: "+runtime.awaits, lines[0]["message"])
		assert.Equal(t, "warn", lines[0]["level"], "a recovery that waits for the store is a problem")
		assert.Equal(t, 1, calls)
		assert.Equal(t, runtime.awaits, New(newFakeLifecycle(now), runtime, "v1", "etcd-main-0").Phase().Reason, "the progress of the recovery replaces the state's reason")
	})
}

func TestWatch_eachPhaseHasItsOwnReminders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines, _ := runWatch(t, snapshotIn(lifecycle.Wait), &fakeRuntime{}, func(run *fakeLifecycle) {
			time.Sleep(29 * time.Second)
			run.now.Store(snapshotIn(lifecycle.FetchConfig))
			time.Sleep(29 * time.Second)
		})
		assert.Empty(t, lines)
	})
}

func TestWatch_logsWhatEtcdWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := &fakeRuntime{progress: "opening the data directory"}
		lines, _ := runWatch(t, snapshotIn(lifecycle.StartEtcd), runtime, func(*fakeLifecycle) {
			time.Sleep(500 * time.Millisecond)
			runtime.later.Store(new("waiting for a leader"))
			time.Sleep(20 * time.Second)
			runtime.later.Store(new(""))
			time.Sleep(5 * time.Second)
		})
		require.Len(t, lines, 1)
		assert.Equal(t, "etcd is waiting for a leader", lines[0]["message"])
	})
}

func TestWatch_warnsOfServingButNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := snapshotIn(lifecycle.Serving)
		now.Since = time.Now()
		lines, _ := runWatch(t, now, &fakeRuntime{started: time.Now()}, func(*fakeLifecycle) { time.Sleep(20 * time.Second) })
		require.Len(t, lines, 1, "the reason is logged only once")
		assert.Equal(t, "warn", lines[0]["level"])
		assert.Equal(t, "not ready: quorum: etcd is not running", lines[0]["message"], "a reason shared by several checks is not repeated")
	})
}

func TestWatch_logsAndRepeatsDegraded(t *testing.T) {
	var log bytes.Buffer
	run := &lifecycle.Snapshot{State: lifecycle.Serving}
	w := &watcher{Report: New(newFakeLifecycle(run), &fakeRuntime{}, "v1", "etcd-main-0"), log: zerolog.New(&log), pause: firstReminder}
	logged := func(line string, after time.Duration) string {
		log.Reset()
		document, now := status.Document{Ready: true, Headline: status.Headline{Health: status.HealthOK, Summary: line}}, time.Unix(1.7e9, 0).Add(after)
		if strings.Contains(line, "degraded") {
			document.Headline.Health = status.HealthDegraded
		}
		w.noteHealth(document.Headline, now)
		w.logCondition(run, document, now)
		return log.String()
	}
	assert.Empty(t, logged("Serving, ready", 0))
	assert.JSONEq(t, `{"level":"warn","message":"Serving, degraded: no space"}`, logged("Serving, degraded: no space", time.Second))
	assert.Empty(t, logged("Serving, degraded: no space", 2*time.Second))
	assert.Contains(t, logged("Serving, degraded: no space; backups: 1 min behind", time.Minute), `"message":"still Serving, degraded: no space; backups: 1 min behind"`)
	assert.JSONEq(t, `{"level":"info","message":"Serving, ready"}`, logged("Serving, ready", 2*time.Minute))
}

func TestWatch_remindersAreInUTC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := snapshotIn(lifecycle.Wait)
		now.PhaseSince = now.PhaseSince.In(time.FixedZone("far east", 9*3600))
		lines, _ := runWatch(t, now, &fakeRuntime{}, func(*fakeLifecycle) { time.Sleep(31 * time.Second) })
		require.Len(t, lines, 1)
		assert.Regexp(t, "Z$", lines[0]["since"])
	})
}

func TestWatch_warnsOfALongStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines, _ := runWatch(t, snapshotIn(lifecycle.StartEtcd), &fakeRuntime{progress: "waiting for a leader"}, func(*fakeLifecycle) { time.Sleep(31 * time.Second) })
		require.Len(t, lines, 2)
		assert.Equal(t, "still StartEtcd: the sidecar is silent; etcd is waiting for a leader", lines[1]["message"])
		assert.Equal(t, "warn", lines[1]["level"])
	})
}

func TestKilledMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, calls := runWatch(t, snapshotIn(lifecycle.Query), &fakeRuntime{}, func(run *fakeLifecycle) {
			time.Sleep(10 * time.Second)
			run.now.Store(snapshotIn(lifecycle.Trigger))
			time.Sleep(10 * time.Second)
		})
		assert.Equal(t, 2, calls, "once for each state, and not for each check")
		run := snapshotIn(lifecycle.Wait)
		message := New(newFakeLifecycle(run), &fakeRuntime{}, "v1", "etcd-main-0").KilledMessage("/v/exit_code.crash")
		assert.Contains(t, message, "did not record how it ended")
		assert.Contains(t, message, "and the stack trace of a crash in /v/exit_code.crash on the volume, if there is one\n", "a killed process leaves no stack trace")
		assert.Contains(t, message, "; since 2000-01-01T00:00:20Z: the sidecar is silent\n")
		assert.Contains(t, message, "\nlast status: Recovery: restoring, ", "the headline")
	})
}

func TestDocument_readinessChangesInTransitions(t *testing.T) {
	at := func(seconds int64) time.Time { return time.Unix(seconds, 0) }
	h := readinessHistory{since: at(0)}
	assert.False(t, h.note(false, "", lifecycle.Query, at(1)))
	require.True(t, h.note(true, "", lifecycle.Serving, at(10)))
	require.True(t, h.note(false, "quorum: no leader", lifecycle.Serving, at(30)))
	steps := h.mergeInto([]status.Transition{{At: at(5), Event: "a"}, {At: at(20), Event: "b"}})
	var events []string
	for _, step := range steps {
		events = append(events, string(step.Event))
	}
	assert.Equal(t, []string{"a", "ready", "b", "not ready"}, events)
	assert.Equal(t, "quorum: no leader", steps[3].Reason)
	assert.InDelta(t, 20, steps[3].AfterSeconds, 0)

	for i := range int64(1000) {
		h.note(i%2 == 0, "", lifecycle.Serving, at(100+i))
	}
	assert.Len(t, h.mergeInto(make([]status.Transition, 64)), 64, "the document does not grow with each readiness change")
	assert.Len(t, h.mergeInto(nil), maxChanges)
}

func TestWatch_keepsHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		report := New(newFakeLifecycle(completeSnapshot()), &fakeRuntime{started: time.Now()}, "v1", "etcd-main-0")
		ctx, cancel := context.WithCancel(t.Context())
		var calls []status.TimelineEvent
		go report.Watch(ctx, zerolog.Nop(), func() {}, func(h status.TimelineEvent) { calls = append(calls, h) })
		time.Sleep(11 * time.Second)
		synctest.Wait()
		doc := report.Document()
		cancel()
		synctest.Wait()
		require.NotNil(t, doc.Trends)
		assert.Len(t, doc.Trends.Write, 2)
		require.NotEmpty(t, doc.Timeline)
		assert.Equal(t, "start", doc.Timeline[0].Kind)
		assert.Equal(t, doc.Timeline, calls, "each event is reported once")
	})
}
