package report

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/status"
)

func document(t *testing.T, run *lifecycle.Snapshot) string {
	text, err := json.Marshal(New(newFakeLifecycle(run), &fakeRuntime{started: time.Unix(1.7e9, 0)}, "v1", "etcd-main-0").Document())
	require.NoError(t, err)
	return string(text)
}

// Clearing any field of the lifecycle's snapshot must change the document. Otherwise, the document lacks that field.
func TestDocument_hasEveryFieldOfTheLifecycle(t *testing.T) {
	complete := document(t, completeSnapshot())
	for _, part := range []func(*lifecycle.Snapshot) any{
		func(s *lifecycle.Snapshot) any { return s },
		func(s *lifecycle.Snapshot) any { return &s.Condition },
		func(s *lifecycle.Snapshot) any { return &s.Validation },
	} {
		kind := reflect.TypeOf(part(completeSnapshot())).Elem()
		for i := range kind.NumField() {
			field := kind.Field(i)
			if !field.IsExported() {
				continue
			}
			run := completeSnapshot()
			value := reflect.ValueOf(part(run)).Elem().Field(i)
			assert.False(t, value.IsZero(), "give %s.%s a value in this test", kind, field.Name)
			value.SetZero()
			assert.NotEqual(t, complete, document(t, run), "%s.%s is not in status.Document: add it there, and set it in Report.Document", kind, field.Name)
		}
	}
}

func TestBeforeResult_equalsTheLifecycles(t *testing.T) {
	var names []string
	for _, state := range lifecycle.BeforeResult {
		names = append(names, string(state))
	}
	assert.Equal(t, names, status.BeforeResult, "BeforeResult in readiness/status/headline.go must list the states in lifecycle.BeforeResult")
}

func TestDocument_fillsEveryField(t *testing.T) {
	var visit func(path string, value reflect.Value)
	visit = func(path string, value reflect.Value) {
		switch {
		case value.Kind() == reflect.Pointer:
			visit(path, value.Elem())
		case value.Type() == reflect.TypeFor[status.Points]():
			assert.NotZero(t, value.Len(), "%s is always empty: set it in package history", path)
		case value.Kind() == reflect.Slice && value.Len() > 0:
			visit(path, value.Index(0))
		case value.Kind() == reflect.Struct && value.Type() != reflect.TypeFor[time.Time]():
			for i := range value.NumField() {
				visit(path+"."+value.Type().Field(i).Name, value.Field(i))
			}
		// Ready and Standalone are false, because the state is not Serving and there is a sidecar.
		case path != "Document.Ready" && path != "Document.Standalone":
			assert.False(t, value.IsZero(), "%s is always empty: set it in Report.Document", path)
		}
	}
	report := New(newFakeLifecycle(completeSnapshot()), &fakeRuntime{started: time.Unix(1.7e9, 0)}, "v1", "etcd-main-0")
	for _, at := range []time.Time{time.Unix(1.8e9, 0), time.Unix(1.9e9, 0)} {
		report.history.Record(report.Document(), at, report.runtime.Requests)
	}
	doc := report.Document()
	visit("Document", reflect.ValueOf(&doc))
}

func TestDocument_standalone(t *testing.T) {
	document := New(newFakeLifecycle(completeSnapshot()), &fakeRuntime{standalone: true}, "v1", "etcd-main-0").Document()
	assert.True(t, document.Standalone)
	assert.Empty(t, document.SidecarStatus)
}

func TestReadySince(t *testing.T) {
	start, at := time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	since := func(run *lifecycle.Snapshot) time.Time {
		return New(newFakeLifecycle(run), &fakeRuntime{started: start}, "v1", "etcd-main-0").Document().ReadySince
	}
	assert.Equal(t, start, since(&lifecycle.Snapshot{State: lifecycle.Wait, Since: at}), "the member has not been ready since the start")
	left := lifecycle.Transition{At: at, From: lifecycle.Serving, To: lifecycle.Terminating}
	assert.Equal(t, at, since(&lifecycle.Snapshot{State: lifecycle.Terminating, Since: at, History: []lifecycle.Transition{left}}))
	assert.WithinDuration(t, time.Now(), since(&lifecycle.Snapshot{State: lifecycle.Serving, Since: at}), 10*time.Second, "the member has not been ready since the monitor was created")
}

func TestPhase_progressOfTheStart(t *testing.T) {
	run := &lifecycle.Snapshot{State: lifecycle.StartEtcd, Reason: "starting etcd"}
	runtime := &fakeRuntime{}
	report := New(newFakeLifecycle(run), runtime, "v1", "etcd-main-0")
	assert.Equal(t, "starting etcd", report.Phase().Reason, "etcd reports no progress yet")
	runtime.progress = "opening the data directory"
	assert.Equal(t, "starting etcd; etcd is opening the data directory", report.Phase().Reason)
	assert.Equal(t, "starting etcd; etcd is opening the data directory", report.Document().Reason)
	run.State = lifecycle.Serving
	assert.Equal(t, "starting etcd", report.Phase().Reason)
	assert.True(t, report.Phase().Serving)
}

func TestHeadline_servingButNotReady(t *testing.T) {
	run := &lifecycle.Snapshot{State: lifecycle.Serving, Since: time.Now(), Reason: "etcd has joined its cluster"}
	headline := New(newFakeLifecycle(run), &fakeRuntime{}, "v1", "etcd-main-0").Document().Headline
	assert.Regexp(t, "^Serving, not ready: quorum: ", headline.Summary)
}

func TestTerminationMessage_noRepetition(t *testing.T) {
	run := completeSnapshot()
	run.Condition.Text = "etcd did not start: port taken"
	message := New(newFakeLifecycle(run), &fakeRuntime{}, "v1", "etcd-main-0").TerminationMessage(lifecycle.Outcome{Reason: run.Condition.Text + "; look there"})
	assert.Equal(t, 1, strings.Count(message, "port taken"), message)
}

func TestTerminationMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := completeSnapshot()
		run.Condition.At = time.Now().Add(-3 * time.Second)
		runtime := &fakeRuntime{started: time.Now().Add(-time.Hour), record: exitcode.Terminated}
		report := New(newFakeLifecycle(run), runtime, "v1", "etcd-main-0")
		assert.Equal(t, `clean stop: stop requested (terminated)
state before the stop: Serving, for 1m0s
exit record: terminated, so the next start runs a sanity validation
durations: run 1h0m0s, etcd start 2s, etcd stop 2s (draining 70ms)
last problem: etcd, 3s ago, since resolved: etcd stopped
`, report.TerminationMessage(lifecycle.Outcome{Reason: "stop requested (terminated)\nand a trace"}))
		runtime.flushError = errors.New("revisions 8 to 9 are not in the store: store unavailable")
		assert.Contains(t, report.TerminationMessage(lifecycle.Outcome{}), "\nbackups: revisions 8 to 9 are not in the store: store unavailable; the next start resumes the upload\n")
		runtime.record = ""
		assert.Contains(t, report.TerminationMessage(lifecycle.Outcome{}), "exit record: none, so the next start runs a full validation\n")
	})
}

// hungRuntime is a Runtime whose Record method blocks until forever is closed, as on a hung volume.
type hungRuntime struct {
	fakeRuntime
	forever chan struct{}
}

func (h *hungRuntime) Record() (exitcode.Word, error) {
	<-h.forever
	return "", nil
}

func TestTerminationMessage_hungVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := &hungRuntime{forever: make(chan struct{})}
		start := time.Now()
		message := New(newFakeLifecycle(completeSnapshot()), runtime, "v1", "etcd-main-0").TerminationMessage(lifecycle.Outcome{Status: exitcode.OutOfTime, Reason: "the disk hangs"})
		assert.LessOrEqual(t, time.Since(start), 200*time.Millisecond)
		assert.Contains(t, message, "the disk hangs")
		assert.Contains(t, message, "exit record: unknown: the volume is not responding")
		close(runtime.forever)
	})
}

// fakeLifecycle is a Lifecycle whose snapshot is set by the test.
type fakeLifecycle struct {
	now atomic.Pointer[lifecycle.Snapshot]
}

func newFakeLifecycle(now *lifecycle.Snapshot) *fakeLifecycle {
	m := &fakeLifecycle{}
	m.now.Store(now)
	return m
}

func (m *fakeLifecycle) Snapshot() *lifecycle.Snapshot { return m.now.Load() }

// fakeRuntime is a Runtime whose Document method sets every field of the document that a Runtime must set.
type fakeRuntime struct {
	standalone bool
	started    time.Time
	progress   string
	awaits     string
	recovery   *status.Recovery       // replaces the default recovery if not nil
	later      atomic.Pointer[string] // replaces progress if set; may be changed while the report is in use
	record     exitcode.Word
	flushError error
}

func (p *fakeRuntime) Document() status.Document {
	at := time.Unix(1.7e9, 0)
	document := status.Document{
		Standalone: p.standalone, Started: p.started, LastExit: "crash", LastExitReason: "panic: by the test", MemberID: "8e9e05c52164694d",
		Versions: status.Versions{Etcd: "3.6.16", Go: "go1.26.8"},
		Member: state.Member{
			Name: "etcd-main-0", ClusterID: "1", Leader: "2", Term: 3, Revision: 9, DBSize: 4, DBInUse: 5, Quota: 6, VolumeFree: 7, VolumeSize: 8, NewCluster: true,
			Peers: []state.Peer{{ID: "2", Name: "etcd-main-1", URLs: []string{"http://etcd-main-1:2380"}, Active: true, Leader: true, Learner: true}},
		},
		Recovery: p.recovery,
		Maintenance: &state.Maintenance{
			Phase: "running", Since: at, Reason: "etcd copies", ExpectedSeconds: 1, Progress: 0.5, Completed: 1, Failed: 1, FreedBytes: 1, NoSpaceDisarmed: 1,
			Readers:             []state.DatabaseReader{{Name: "the snapshot", Since: at}},
			LastDefragmentation: &state.Defragmentation{At: at, Seconds: 1, Origin: "client", BytesBefore: 2, BytesAfter: 1, Error: "the disk is full"},
		},
		Leases: []state.Lease{{
			Kind: "member", Name: "etcd-main-0", Holder: "a:b:Leader", Renewed: at,
			Problem: &state.LeaseProblem{Since: at, Count: 1, Message: "cannot reach the API server", NextRetry: at},
		}},
		Backup: &facts.Backups{
			Cluster: "c1", Owner: "shop/etcd", Generation: 1,
			Store: "file:///backups", Role: "writer", Revision: 9, LagRevisions: 1, LagSeconds: 0.5, NextFullSnapshot: at,
			StoredBytes: 1, UploadedBytes: 1, SpoolBytes: 1, SpoolLimit: 1,
			Window:              &facts.Window{FromRevision: 1, ToRevision: 9, From: at, To: at},
			Windows:             []facts.GenerationWindow{{Generation: 1, Window: facts.Window{FromRevision: 1, ToRevision: 9, From: at, To: at}, FullSnapshots: []facts.SnapshotMark{{Revision: 1, At: at, RestoreTest: "passed"}}}},
			LastFullSnapshot:    &facts.FullSnapshot{Revision: 1, At: at, Bytes: 1, Reason: "schedule"},
			RunningFullSnapshot: &facts.SnapshotProgress{Reason: "schedule", Since: at, Step: "uploading", SentBytes: 1, TotalBytes: 2, RemainingSeconds: 1},
			LastVerification:    &facts.Verification{Revision: 1, At: at, Passed: true, Reason: "the hash matches"},
			Problem:             &facts.Problem{Since: at, Count: 1, Message: "the store is unreachable", NextRetry: at},
		},
		DataVersion:    &state.DataVersion{Wanted: "3.5", Cluster: "3.5", Storage: "3.5", Phase: "kept", Reason: "the cluster is at version 3.5", Readable: true},
		ConfigWarnings: []string{"quota: unknown key, ignored"},
		Certificates:   []status.Certificate{{Name: "etcd_server", Path: "/tls.crt", NotBefore: time.Unix(1, 0), NotAfter: time.Unix(4e9, 0)}},
	}
	if p.recovery == nil {
		document.Recovery = &status.Recovery{
			State: "Build", Since: time.Now(), Reason: "the volume has enough space", Loss: "1 revision is lost", RestoredBytes: 1, TotalBytes: 2, BytesPerSecond: 1, RemainingSeconds: 1,
		}
	}
	return document
}

func (p *fakeRuntime) FlushError() error { return p.flushError }

func (p *fakeRuntime) Progress() string {
	if later := p.later.Load(); later != nil {
		return *later
	}
	return p.progress
}

func (*fakeRuntime) Readiness() *readiness.Report {
	return readiness.NewMonitor(zerolog.Nop()).Report()
}

func (p *fakeRuntime) Requests() (writes, reads state.Requests) { return writes, reads }

func (p *fakeRuntime) RecoveryProgress() string { return p.awaits }

func (*fakeRuntime) Durations() (start, stop, drain time.Duration) {
	return 1500 * time.Millisecond, 2 * time.Second, 70 * time.Millisecond
}

func (p *fakeRuntime) Record() (exitcode.Word, error) {
	if p.record == "" {
		return "", errors.New("no clean exit record")
	}
	return p.record, nil
}

func completeSnapshot() *lifecycle.Snapshot {
	at := time.Unix(1.8e9, 0)
	return &lifecycle.Snapshot{
		State: lifecycle.Terminating, Since: at, PhaseSince: at.Add(-time.Hour), Reason: "stop requested", Attempt: 3, NextRetry: at,
		Condition: lifecycle.Condition{
			At: at, Since: at.Add(-time.Hour), Times: 3, Ended: at.Add(time.Second), Class: lifecycle.ClassEtcd, Text: "etcd stopped\nand left a trace", Message: "etcd stopped\nand left a trace; look there",
		},
		Word:       bootstrap.Successful,
		Validation: lifecycle.Validation{Mode: bootstrap.Full, Why: "no record"},
		History: []lifecycle.Transition{{
			At: at, From: lifecycle.Serving, Event: lifecycle.Signal, Guard: lifecycle.SecondSignal, To: lifecycle.Terminating,
			Reason: "stop", Count: 2, AfterSeconds: 60,
		}},
		EdgeCounts: []lifecycle.EdgeCount{{
			From: lifecycle.Query, Event: lifecycle.Replied, Guard: lifecycle.StatusFailed, To: lifecycle.Wait, Count: 2, Last: at, Seconds: 1,
		}},
	}
}
