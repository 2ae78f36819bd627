package terminal

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
)

// printed returns the verbose output for a document with the given backups, with wrapped lines joined.
func printed(t *testing.T, b *facts.Backups) string {
	d := document()
	d.Backup = b
	var out bytes.Buffer
	require.NoError(t, printerTo(&out).Print(d))
	return unwrapped(t, &out)
}

func TestBackupsWithoutProblems(t *testing.T) {
	out := printed(t, &facts.Backups{
		Store: "s3://b/main", Role: "writer", Revision: 90, SpoolLimit: 1 << 30, StoredBytes: 5 << 30, NextFullSnapshot: now.Add(time.Hour),
		Window:           &facts.Window{FromRevision: 7, ToRevision: 90, From: now.Add(-time.Hour), To: now},
		LastFullSnapshot: &facts.FullSnapshot{Revision: 80, At: now.Add(-time.Minute), Bytes: 3 << 20, Reason: "schedule"},
		LastVerification: &facts.Verification{Revision: 80, At: now.Add(-time.Minute), Passed: true, Reason: "its hash matches etcd's"},
	})
	for _, line := range []string{
		`^backups +s3://b/main, this member is the writer$`, `^in the store +all revisions up to 90; 5.0 GiB in total$`, `^next full snapshot +` + at + `$`,
		`^restore points +revisions 7 to 90, ` + at + ` to ` + at + `$`, `^last full snapshot +revision 80, 3.0 MiB, ` + at + `, 1m0s ago: schedule$`,
		`^last restore test +revision 80, ` + at + `, 1m0s ago: its hash matches etcd's$`,
	} {
		assert.Regexp(t, "(?m)"+line, out)
	}
	assert.NotContains(t, out, "backups fail")
	assert.NotContains(t, out, "spool", "the spool is empty")
}

func TestNoBackupsWithoutAStore(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, printerTo(&out).Print(status.Document{Standalone: true}))
	assert.Regexp(t, `(?m)^backups +none \(no --backup-store\)$`, out.String())
	assert.NotContains(t, printed(t, nil), "backups")
}

func TestRestorePointsOfAllGenerations(t *testing.T) {
	out := printed(t, &facts.Backups{Window: &facts.Window{FromRevision: 1000, ToRevision: 1009}, Windows: []facts.GenerationWindow{
		{Generation: 1, Window: facts.Window{FromRevision: 3, ToRevision: 9}}, {Generation: 2, Window: facts.Window{FromRevision: 1000, ToRevision: 1009}},
	}})
	assert.Regexp(t, `(?m)^restore points +revisions 3 to 9, .*\nrestore points +revisions 1000 to 1009, `, out)
}

func TestFailingBackups(t *testing.T) {
	assert.Contains(t, printed(t, &facts.Backups{Problem: &facts.Problem{Since: now, Count: 1, Message: "unreachable"}}), "0s ago, once\n")
	out := printed(t, &facts.Backups{Store: "file:///b", LastFullSnapshot: &facts.FullSnapshot{Revision: 80, At: now.Add(time.Hour), Bytes: 622}})
	assert.Regexp(t, `(?m)^last restore test +never$`, out)
	assert.Regexp(t, `(?m)^last full snapshot +revision 80, 622 bytes, .*, 1h0m0s ahead of this machine's clock`, out)
	out = printed(t, &facts.Backups{
		Store: "s3://b/main", Role: "waiting", Revision: 90, LagRevisions: 5, LagSeconds: 61, SpoolBytes: 2 << 20, SpoolLimit: 1 << 30,
		LastVerification: &facts.Verification{Revision: 80, At: now.Add(-time.Hour), Reason: "the hash differs"},
		Problem:          &facts.Problem{Since: now.Add(-time.Minute), Count: 4, Message: "the store is unreachable", NextRetry: now.Add(30 * time.Second)},
	})
	for _, line := range []string{
		`^backups fail +since ` + at + `, 1m0s ago, 4 times, next retry within 30s$`,
		`^in the store +revisions up to 90; 5 behind for 1m1s$`, `^spool +2.0 MiB of 1.0 GiB queued on the volume$`,
		`^last restore test +FAILED at revision 80, ` + at + `, 1h0m0s ago: the hash differs$`,
	} {
		assert.Regexp(t, "(?m)"+line, out)
	}
}

func TestRunningFullSnapshot(t *testing.T) {
	run := &facts.SnapshotProgress{Reason: "schedule", Since: now, Step: "copying the database"}
	assert.Regexp(t, `(?m)^running full snapshot +copying the database: schedule$`, printed(t, &facts.Backups{RunningFullSnapshot: run}))
	run.Step, run.SentBytes, run.TotalBytes, run.RemainingSeconds = "uploading", 1<<30, 3<<30, 61
	assert.Regexp(t, `(?m)^running full snapshot +uploading, 1.0 GiB of 3.0 GiB, 1m1s left: schedule$`, printed(t, &facts.Backups{RunningFullSnapshot: run}))
}

func TestRecoveryStepAndRemainingTime(t *testing.T) {
	restoring := status.Document{Recovery: &status.Recovery{
		State: "Build", Reason: "there is room", Loss: "revisions lost: 3", RestoredBytes: 1 << 20, TotalBytes: 3 << 20, BytesPerSecond: 1 << 20, RemainingSeconds: 2,
	}}
	assert.Equal(t, []line{
		{"recovery", "restoring: there is room"}, {"", "revisions lost: 3"}, {"", "1.0 MiB of 3.0 MiB, 1.0 MiB/s, 2s left"},
	}, recoveryLines(restoring))
	assert.Empty(t, recoveryLines(status.Document{}))

	waiting := status.Document{
		Reason:   "recovery has been reading the store since noon: the store is unreachable; next retry within 3s",
		Recovery: &status.Recovery{State: "AskStore", Reason: "the store is unreachable"},
	}
	assert.Equal(t, []line{{"recovery", "reading the store"}}, recoveryLines(waiting))
}

func recoveryLines(d status.Document) []line {
	l := &lines{now: now}
	l.addRecovery(d)
	return l.all
}

func withMaintenance(t *testing.T, u *state.Maintenance) string {
	t.Helper()
	d := document()
	d.Maintenance = u
	var out bytes.Buffer
	require.NoError(t, printerTo(&out).Print(d))
	return unwrapped(t, &out)
}

func TestRunningAndLastDefragmentation(t *testing.T) {
	out := withMaintenance(t, &state.Maintenance{Phase: "running", Reason: "copying the data", Progress: 0.42})
	assert.Regexp(t, `(?m)^defragmentation +running \(42%\): copying the data$`, out)
	assert.NotContains(t, out, "last defragmentation")

	out = withMaintenance(t, &state.Maintenance{
		Phase:               "waiting",
		Reason:              "512 MiB of 1.0 GiB free, but the database is being read",
		LastDefragmentation: &state.Defragmentation{At: now.Add(-time.Minute), Seconds: 2.4, Origin: "threshold", BytesBefore: 1 << 30, BytesAfter: 5 << 20},
		Readers:             []state.DatabaseReader{{Name: "the snapshot for 10.0.0.7:4031", Since: now.Add(-time.Hour)}},
	})
	for _, line := range []string{
		`^defragmentation +waiting: 512 MiB of 1.0 GiB free, but the database is being read$`,
		`^last defragmentation +by threshold in 2s: 1.0 GiB → 5.0 MiB, ` + at + `, 1m0s ago$`,
		`^readers +the snapshot for 10.0.0.7:4031 since ` + at + `, 1h0m0s ago$`,
	} {
		assert.Regexp(t, "(?m)"+line, out)
	}

	out = withMaintenance(t, &state.Maintenance{Phase: "idle", LastDefragmentation: &state.Defragmentation{At: now, Origin: "client", Error: "no space left on device"}})
	assert.Regexp(t, `(?m)^last defragmentation +failed, by client: no space left on device, `, out)
	assert.NotContains(t, out, "\ndefragmentation", "no defragmentation is running")
	assert.NotContains(t, withMaintenance(t, nil), "defragment")
}

func TestLeasesAndTheirProblems(t *testing.T) {
	d := document()
	d.Leases = []state.Lease{
		{Kind: "member", Name: "etcd-main-0", Holder: "a:b:Leader", Renewed: now.Add(-3 * time.Second)},
		{Kind: "full_snapshot", Name: "etcd-main-full-snap", Problem: &state.LeaseProblem{
			Since: now.Add(-time.Minute), Count: 4, Message: "the API server returned 500 Internal Server Error", NextRetry: now.Add(10 * time.Second),
		}},
	}
	var out bytes.Buffer
	require.NoError(t, printerTo(&out).Print(d))
	for _, line := range []string{
		`^leases +etcd-main-0: a:b:Leader, renewed ` + at + `, 3s ago etcd-main-full-snap, not renewed yet$`,
		`^lease fails +since ` + at + `, 1m0s ago, 4 times, next retry within (9|10)s$`,
	} {
		assert.Regexp(t, "(?m)"+line, unwrapped(t, &out))
	}
}
