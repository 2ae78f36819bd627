package history

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "go.etcd.io/etcd/server/v3/storage/wal" // registers the metrics of the write-ahead log

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
)

// start is the time of the first document.
var start = time.Date(2026, time.November, 21, 1, 0, 0, 0, time.UTC)

// fixture is a History with its inputs and a fake clock.
type fixture struct {
	*History
	now      time.Time
	document status.Document // next document to record
	fsync    prometheus.Histogram
	writes   state.Requests
	reads    state.Requests
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	e := &fixture{
		now: start, document: status.Document{State: "Serving", Started: start.Add(-time.Minute - time.Second/3), Member: state.Member{DBSize: 1 << 20, DBInUse: 1 << 19}},
	}
	options := fsyncs
	options.Buckets = []float64{.001, .002, .004}
	e.fsync = prometheus.NewHistogram(options)
	registry := prometheus.NewRegistry()
	registry.MustRegister(e.fsync)
	e.History = New(registry)
	return e
}

// after advances the clock and records the document.
func (e *fixture) after(d time.Duration) {
	e.now = e.now.Add(d)
	e.Record(e.document, e.now, func() (writes, reads state.Requests) { return e.writes, e.reads })
}

// messages returns the messages of the events on the timeline.
func (e *fixture) messages() (messages []string) {
	for _, event := range e.Timeline() {
		messages = append(messages, event.Message)
	}
	return messages
}

func TestEtcdHasTheHistogramThatIsRead(t *testing.T) {
	require.ErrorAs(t, prometheus.Register(prometheus.NewHistogram(fsyncs)), new(prometheus.AlreadyRegisteredError))
}

func TestPointCoversTheTimeSinceThePreviousOne(t *testing.T) {
	e := newFixture(t)
	e.writes, e.document.Backup = state.Requests{Count: 1000, Took: time.Hour}, &facts.Backups{LagSeconds: 1.5}
	e.document.Revision = 100
	e.after(0)
	e.after(shortest - 1)
	require.Nil(t, e.Trends(), "a point needs two readings")
	e.writes = state.Requests{Count: 1004, Took: time.Hour + 8*time.Millisecond}
	e.document.Revision = 150
	for range 98 {
		e.fsync.Observe(.0005)
	}
	e.fsync.Observe(.003)
	e.fsync.Observe(.003)
	e.after(1)
	trends := e.Trends()
	require.NotNil(t, trends)
	assert.Equal(t, e.now, trends.Until)
	assert.InDelta(t, 5, trends.Interval, 0)
	assert.InDelta(t, .002, trends.Write[0], 1e-6)
	assert.InDelta(t, .003, trends.Fsync[0], 1e-6, "the middle of the bucket from 2 ms to 4 ms")
	assert.InDelta(t, 10, trends.Revisions[0], 1e-6)
	assert.InDelta(t, 1.5, trends.BackupLag[0], 1e-6)
	assert.Equal(t, status.Points{1 << 20}, trends.DBSize)
	assert.Equal(t, status.Points{1 << 19}, trends.DBInUse)
	text, err := json.Marshal(trends)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"write_seconds":[0.002],"read_seconds":[null]`, "without reads, the point is missing")

	e.document.Revision = 40 // a snapshot from another leader replaced the data
	e.after(shortest)
	assert.Len(t, e.Trends().Write, 2)
	assert.Zero(t, e.Trends().Revisions[1])
	assert.True(t, math.IsNaN(float64(e.Trends().Write[1])), "without writes, the point is missing")
	assert.True(t, math.IsNaN(float64(e.Trends().Fsync[1])))
	assert.Len(t, trends.Write, 1, "a returned slice does not change")
}

func TestFullSeriesDoublesItsInterval(t *testing.T) {
	e := newFixture(t)
	e.after(0)
	spans := map[float64]bool{}
	for e.now.Before(start.Add(6 * time.Hour)) {
		e.writes.Count++
		e.writes.Took += 3 * time.Millisecond
		e.after(shortest)
		trends := e.Trends()
		spans[trends.Interval] = true
		require.Less(t, len(trends.Write), capacity)
		require.Len(t, trends.Revisions, len(trends.Write))
		covered := time.Duration(float64(len(trends.Write)) * trends.Interval * float64(time.Second))
		require.GreaterOrEqual(t, covered, min(e.now.Sub(start), 2*time.Hour)-longest)
	}
	assert.Equal(t, map[float64]bool{5: true, 10: true, 20: true, 40: true, 80: true}, spans)
	for _, point := range e.Trends().Write {
		assert.InDelta(t, .003, point, 1e-6)
	}
	text, err := json.Marshal(e.Trends())
	require.NoError(t, err)
	assert.Less(t, len(text), 8<<10)
}

func TestDownsampleSkipsMissingPoints(t *testing.T) {
	var points status.Points
	require.NoError(t, json.Unmarshal([]byte("[1,3,null,5,6,null,null,null]"), &points))
	text, err := json.Marshal(downsample(points))
	require.NoError(t, err)
	assert.Equal(t, "[2,5,6,null]", string(text))
}

func TestNothingIsMeasuredBeforeEtcdRuns(t *testing.T) {
	e := newFixture(t)
	e.document.DBSize = 0
	e.after(0)
	e.after(time.Hour)
	assert.Nil(t, e.Trends())
}

// added returns the kind, health and message of each event that a change to the document adds to the timeline.
func added(t *testing.T, change func(*status.Document)) []string {
	t.Helper()
	e := newFixture(t)
	e.document.Backup = &facts.Backups{}
	e.document.Checks = []status.Check{{Name: "space", Status: "ok"}, {Name: "quorum", Status: "ok"}}
	e.after(0)
	known := len(e.Timeline())
	change(&e.document)
	e.after(time.Second)
	assert.Equal(t, "start", e.Timeline()[0].Kind, "the events that follow do not displace the first event")
	var messages []string
	for _, event := range e.Timeline()[known:] {
		messages = append(messages, event.Kind+" "+event.Health+" "+event.Message)
	}
	e.after(time.Second)
	assert.Len(t, e.Timeline(), known+len(messages), "an event is added only once")
	return messages
}

func TestTimelineHasEveryKindOfEvent(t *testing.T) {
	at := start.Add(time.Second)
	for message, change := range map[string]func(*status.Document){
		"readiness ok ready": func(d *status.Document) { d.Ready, d.ReadySince = true, at },
		"leader ok main-1 is the leader in term 7": func(d *status.Document) {
			d.ClusterID, d.Leader, d.Term, d.Peers = "c", "b", 7, []state.Peer{{ID: "b", Name: "main-1"}}
		},
		"start ok created a new cluster because the data directory was empty": func(d *status.Document) { d.NewCluster = true },
		"full_snapshot ok full snapshot at revision 80: schedule": func(d *status.Document) {
			d.Backup = &facts.Backups{LastFullSnapshot: &facts.FullSnapshot{Revision: 80, At: at, Reason: "schedule"}}
		},
		"restore_test ok restore test at revision 80 passed": func(d *status.Document) {
			d.Backup = &facts.Backups{LastVerification: &facts.Verification{Revision: 80, At: at, Passed: true}}
		},
		"restore_test degraded restore test at revision 80 FAILED: its hash differs": func(d *status.Document) {
			d.Backup = &facts.Backups{LastVerification: &facts.Verification{Revision: 80, At: at, Reason: "its hash differs"}}
		},
		"problem degraded backups: the store is unreachable": func(d *status.Document) {
			d.Backup = &facts.Backups{Problem: &facts.Problem{Since: at, Message: "the store is unreachable"}}
		},
		"problem degraded lease x: 500": func(d *status.Document) {
			d.Leases = []state.Lease{{Name: "x", Problem: &state.LeaseProblem{Since: at, Message: "500"}}}
		},
		"problem failed sidecar: no answer": func(d *status.Document) {
			d.LastError = &status.Error{Since: at, Class: "sidecar", Message: "no answer"}
		},
		"defragmentation ok defragmentation triggered by threshold took 2.4 s": func(d *status.Document) {
			d.Maintenance = &state.Maintenance{LastDefragmentation: &state.Defragmentation{At: at, Seconds: 2.4, Origin: "threshold"}}
		},
		"defragmentation degraded defragmentation triggered by client failed: no room": func(d *status.Document) {
			d.Maintenance = &state.Maintenance{LastDefragmentation: &state.Defragmentation{At: at, Origin: "client", Error: "no room"}}
		},
		"alarm degraded alarm NOSPACE: writes are rejected": func(d *status.Document) {
			d.Checks = []status.Check{{Name: "space", Status: "degraded", Reason: "writes are rejected"}}
		},
		"problem failed quorum: no leader": func(d *status.Document) {
			d.Checks = []status.Check{{Name: "quorum", Status: "failed", Reason: "no leader"}}
		},
		"recovery ok the data is in place": func(d *status.Document) {
			d.Recovery = &status.Recovery{State: "Ready", Since: at, Reason: "the data is in place"}
		},
		"restore ok the cluster is restored to revision 7": func(d *status.Document) {
			d.Recovery = &status.Recovery{State: "Ready", Since: at, Reason: "the data is in place", Loss: "the cluster is restored to revision 7"}
		},
		"recovery failed refused: not ours": func(d *status.Document) {
			d.Recovery = &status.Recovery{State: "Refused", Since: at, Reason: "not ours"}
		},
	} {
		assert.Equal(t, []string{message}, added(t, change))
	}
	assert.Equal(t, []string{"start ok created a new cluster because the data directory was empty", "readiness ok ready"}, added(t, func(d *status.Document) {
		d.NewCluster, d.Ready, d.ReadySince = true, true, start.Add(time.Second/2)
	}), "the creation of the cluster is listed before its readiness")
	assert.Len(t, added(t, func(d *status.Document) {
		second := d.Started.Truncate(time.Second)
		d.Backup = &facts.Backups{LastFullSnapshot: &facts.FullSnapshot{At: second}, LastVerification: &facts.Verification{At: second}}
	}), 2, "times from the store are truncated to seconds")
	assert.Empty(t, added(t, func(d *status.Document) {
		d.Backup = &facts.Backups{LastFullSnapshot: &facts.FullSnapshot{At: start.Add(-time.Hour)}, LastVerification: &facts.Verification{At: start.Add(-time.Hour)}}
	}), "events before the start of the process are not added")
	assert.Empty(t, added(t, func(d *status.Document) {
		d.State, d.Checks = "Terminating", []status.Check{{Name: "quorum", Status: "failed", Reason: "etcd is not running"}}
	}), "checks are not reported while etcd is not running")
}

func TestCheckThatBecomesWorseIsANewEvent(t *testing.T) {
	e := newFixture(t)
	quorum := func(health, reason string) {
		e.document.Checks = []status.Check{{Name: "quorum", Status: health, Reason: reason}}
		e.after(time.Second)
	}
	quorum("ok", "")
	quorum("degraded", "no connection to b")
	quorum("failed", "no leader")
	quorum("failed", "no leader; no connection to b")
	quorum("degraded", "no connection to b")
	quorum("ok", "")
	assert.Equal(t, []string{"quorum: no connection to b", "quorum: no leader", "quorum: resolved"}, e.messages()[1:])
}

func TestLostLeaderIsAnEventOnlyAfterALeader(t *testing.T) {
	e := newFixture(t)
	e.document.ClusterID, e.document.Term = "c", 7
	e.after(time.Second)
	assert.Len(t, e.Timeline(), 1, "only the start of the process")
	e.document.Leader, e.document.Peers = "b", []state.Peer{{ID: "b", Name: "main-1"}}
	e.after(time.Second)
	e.document.Leader = ""
	e.after(time.Second)
	require.Len(t, e.Timeline(), 3)
	assert.Equal(t, "the cluster has no leader", e.Timeline()[2].Message)
}

func TestChecksBeforeEtcdRunsAreNoEvents(t *testing.T) {
	e := newFixture(t)
	e.document.Checks = []status.Check{{Name: "quorum", Status: "failed", Reason: "etcd is not running"}, {Name: "space", Status: "failed", Reason: "etcd is not running"}}
	e.after(0)
	e.after(time.Second)
	e.document.Checks = []status.Check{{Name: "quorum", Status: "failed", Reason: "no leader"}, {Name: "space", Status: "ok"}}
	e.after(time.Second)
	require.Len(t, e.Timeline(), 2, "the start of the process and the failed check")
	assert.Equal(t, "quorum: no leader", e.Timeline()[1].Message)
}

func TestFullSnapshotIsOneEventDespiteTruncatedTimes(t *testing.T) {
	e := newFixture(t)
	// The last snapshot has the same revision as the previous one, but a different time.
	for _, at := range []time.Duration{0, 300 * time.Millisecond, time.Minute} {
		e.document.Backup = &facts.Backups{LastFullSnapshot: &facts.FullSnapshot{Revision: 80, At: start.Truncate(time.Second).Add(at), Reason: "schedule"}}
		e.after(time.Second)
	}
	assert.Len(t, e.Timeline(), 1+2, "two snapshots and the start of the process")
}

func TestProblemStartsAndIsResolved(t *testing.T) {
	e := newFixture(t)
	e.document.LastExit, e.document.LastExitReason = status.ExitCrash, "a panic"
	e.after(0)
	e.document.Backup = &facts.Backups{Problem: &facts.Problem{Since: e.now, Message: "1 s"}}
	e.document.Checks = []status.Check{{Name: "no_corrupt_alarm", Status: "failed", Reason: "members differ"}}
	e.after(time.Second)
	e.document.Backup = &facts.Backups{Problem: &facts.Problem{Since: start, Message: "2 s"}}
	e.after(time.Second)
	e.document.Backup, e.document.Checks = &facts.Backups{}, []status.Check{{Name: "no_corrupt_alarm", Status: "ok"}}
	e.after(time.Second)
	assert.Equal(t, []string{
		"the process started; previous exit: crash: a panic", "backups: 1 s", "alarm CORRUPT: members differ", "alarm CORRUPT: resolved", "backups: resolved",
	}, e.messages())
}

func TestFlappingEventsDoNotDisplaceOthers(t *testing.T) {
	e := newFixture(t)
	e.after(0)
	for i := range 100 {
		e.document.ClusterID, e.document.Leader, e.document.Term = "c", fmt.Sprint(i), uint64(i)
		e.after(time.Second)
	}
	all := e.Timeline()
	assert.Len(t, all, 1+maxPerKind)
	assert.Equal(t, "start", all[0].Kind)
	assert.Equal(t, "99 is the leader in term 99", all[len(all)-1].Message)

	returned := slices.Clone(all)
	e.document.Backup = &facts.Backups{LastFullSnapshot: &facts.FullSnapshot{At: start.Add(time.Millisecond)}}
	e.after(time.Second)
	assert.Equal(t, "full_snapshot", e.Timeline()[1].Kind, "events are sorted by time")
	assert.Equal(t, returned, all, "a returned slice does not change")
}
