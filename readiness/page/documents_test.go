package page_test

import (
	"math"
	"slices"
	"time"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
	"etcd-wrapper/statemachine"
)

// before returns the time that was d ago.
func before(d time.Duration) time.Time { return time.Now().Add(-d) }

var versions = status.Versions{Wrapper: "v0.4.0", Etcd: "3.6.16", Go: "go1.26.0"}

// checksOf returns checks that all have the same status and reason.
func checksOf(word, reason string) []status.Check {
	var all []status.Check
	for _, name := range []string{"quorum", "not_learner", "no_corrupt_alarm", "client_listener", "space", "data_version"} {
		all = append(all, status.Check{Name: name, Status: word, Reason: reason})
	}
	return all
}

// waiting returns the document of a wrapper whose sidecar reported a failed validation and then stopped responding.
func waiting() status.Document {
	refused := "cannot ask the sidecar for the status of the initialization: dial tcp 127.0.0.1:8080: connect: connection refused"
	return status.Document{
		State: "Wait", Since: before(4 * time.Second), PhaseSince: before(26 * time.Hour), Attempt: 17, NextRetry: before(-9 * time.Second),
		Reason:    "no usable response from the sidecar: " + refused,
		LastError: &status.Error{At: before(4 * time.Second), Class: "sidecar", Message: refused},
		Started:   before(26 * time.Hour), LastExit: "crash", Versions: versions, SidecarStatus: "Failed",
		Validation: &status.Validation{Mode: "full", Reason: "the last run left no exit record"},
		Checks:     checksOf("failed", "etcd is not running"),
		Transitions: []status.Transition{
			{At: before(26 * time.Hour), From: "Query", Event: "started", To: "Query", Count: 1, Reason: "querying the initialization status"},
			{At: before(26 * time.Hour), From: "Query", Event: "replied", Guard: "Failed", To: "Wait", Count: 1, AfterSeconds: .012, Reason: "the initialization failed and is being retried; check the log of the backup-restore container"},
			{At: before(19 * time.Second), From: "Wait", Event: "elapsed", To: "Query", Count: 17, AfterSeconds: 14.8, Reason: "querying the initialization status again"},
			{At: before(4 * time.Second), From: "Query", Event: "no answer", To: "Wait", Count: 16, AfterSeconds: .004, Reason: "no usable response from the sidecar: " + refused},
		},
		TransitionCounts: []status.TransitionCount{
			{From: "Query", Event: "started", To: "Query", Count: 1, Last: before(26 * time.Hour)},
			{From: "Query", Event: "replied", Guard: "Failed", To: "Wait", Count: 1, Last: before(26 * time.Hour), Seconds: .012},
			{From: "Query", Event: "no answer", To: "Wait", Count: 16, Last: before(4 * time.Second), Seconds: .2},
			{From: "Wait", Event: "elapsed", To: "Query", Count: 17, Last: before(4 * time.Second), Seconds: 240},
		},
	}
}

// serving returns the document of a wrapper that serves clients after a sidecar outage and a full validation.
func serving() status.Document {
	step := func(
		ago time.Duration, from statemachine.State, event statemachine.Event, guard statemachine.Guard, to statemachine.State, reason string, times int, after float64,
	) status.Transition {
		return status.Transition{At: before(ago), From: from, Event: event, Guard: guard, To: to, Reason: reason, Count: times, AfterSeconds: after}
	}
	d := status.Document{
		State: "Serving", Since: before(194 * time.Second), PhaseSince: before(194 * time.Second), ReadySince: before(194 * time.Second), Ready: true, Attempt: 1, Reason: "etcd has joined its cluster",
		LastError:     &status.Error{At: before(252 * time.Second), Class: "sidecar", Message: "cannot ask the sidecar for the status of the initialization: connection refused"},
		Validation:    &status.Validation{Mode: "full", Reason: "the last run left no exit record"},
		SidecarStatus: "Successful", MemberID: "8e9e05c52164694d", Started: before(255 * time.Second), LastExit: "crash",
		Versions: versions, Checks: checksOf("ok", ""),
		Certificates: []status.Certificate{{Name: "etcd_server", Path: "/tls/server.crt", NotAfter: before(-61 * time.Hour)}},
		Transitions: []status.Transition{
			step(255*time.Second, "Query", "started", "", "Query", "querying the initialization status", 1, 0),
			step(252*time.Second, "Query", "no answer", "", "Wait", "no usable response from the sidecar: connection refused", 3, .004),
			step(250*time.Second, "Wait", "elapsed", "", "Query", "querying the initialization status again", 3, .8),
			step(250*time.Second, "Query", "replied", "New", "Trigger", "the data directory has not been validated yet", 1, .006),
			step(250*time.Second, "Trigger", "accepted", "", "Wait", "the initialization was requested", 1, .011),
			step(200*time.Second, "Query", "replied", "", "Wait", "the initialization is in progress", 22, .002),
			step(197*time.Second, "Wait", "elapsed", "", "Query", "querying the initialization status again", 23, 2.1),
			step(197*time.Second, "Query", "replied", "Successful", "FetchConfig", "the data directory is valid", 1, .003),
			step(195*time.Second, "FetchConfig", "config valid", "", "StartEtcd", "starting etcd", 1, 1.9),
			step(194*time.Second, "StartEtcd", "etcd ready", "", "Serving", "etcd has joined its cluster", 1, .874),
		},
	}
	for _, t := range d.Transitions {
		at := slices.IndexFunc(d.TransitionCounts, func(e status.TransitionCount) bool {
			return e.From == t.From && e.To == t.To && e.Event == t.Event && e.Guard == t.Guard
		})
		if at < 0 {
			at = len(d.TransitionCounts)
			d.TransitionCounts = append(d.TransitionCounts, status.TransitionCount{From: t.From, Event: t.Event, Guard: t.Guard, To: t.To})
		}
		d.TransitionCounts[at].Count += t.Count
		d.TransitionCounts[at].Last = t.At
		d.TransitionCounts[at].Seconds += t.AfterSeconds * float64(t.Count)
	}
	d.Timeline = []status.TimelineEvent{
		{At: before(255 * time.Second), Kind: "start", Health: "degraded", Message: "the process started; previous exit: crash"},
		{At: before(252 * time.Second), Kind: "problem", Health: "failed", Message: "sidecar: cannot ask the sidecar for the status of the initialization: connection refused"},
		{At: before(250 * time.Second), Kind: "problem", Health: "ok", Message: "sidecar: resolved"},
		{At: before(194 * time.Second), Kind: "leader", Health: "ok", Message: "etcd-main-1 is the leader in term 7"},
		{At: before(194 * time.Second), Kind: "readiness", Health: "ok", Message: "ready"},
	}
	d.Trends = lastHours()
	return d
}

// lastHours returns time series that contain a gap, a peak and a drop.
func lastHours() *status.Trends {
	t := &status.Trends{Interval: 80, Until: before(time.Second)}
	for i := range 100 {
		wave := float32(1 + math.Sin(float64(i)/5))
		t.Write, t.Read = append(t.Write, .002+.001*wave), append(t.Read, .0004*wave)
		t.Fsync, t.BackupLag = append(t.Fsync, .004+.001*wave), append(t.BackupLag, .2*wave)
		t.DBSize, t.DBInUse = append(t.DBSize, float32(1<<30+i<<22)), append(t.DBInUse, float32(1<<29+i<<22))
		t.Revisions = append(t.Revisions, 200*wave)
	}
	t.Write[60] = .034
	for i := range 10 {
		t.Read[40+i], t.Write[20+i] = float32(math.NaN()), float32(math.NaN())
	}
	t.DBSize[99], t.DBInUse[99] = 2.25*(1<<30), 1.5*(1<<30)
	return t
}

// recovering returns the document of a wrapper that is restoring data from the store.
func recovering() status.Document {
	d := waiting()
	d.Reason, d.SidecarStatus, d.LastError, d.Standalone = "recovery has been restoring since 2026-11-22T12:00:00Z: there is room", "", nil, true
	d.Recovery = &status.Recovery{
		State: "Build", Since: before(20 * time.Second), Reason: "there is room", RestoredBytes: 39 << 20, TotalBytes: 669 << 20, BytesPerSecond: 20 << 20, RemainingSeconds: 31.5,
	}
	return d
}

// defragmenting returns the document of a wrapper whose database is blocked by a defragmentation.
func defragmenting() status.Document {
	d := serving()
	d.Maintenance = &state.Maintenance{
		Phase: "running", Since: before(2 * time.Second), Reason: "copying the data in use to a new database file", Progress: 0.42, ExpectedSeconds: 4,
		Readers:             []state.DatabaseReader{{Name: "the snapshot for 10.0.0.7:40312", Since: before(time.Hour)}},
		LastDefragmentation: &state.Defragmentation{At: before(24 * time.Hour), Seconds: 2.4, Origin: "threshold", BytesBefore: 1 << 30, BytesAfter: 5 << 20},
	}
	return d
}

// behind returns the document of a wrapper whose store is unreachable.
func behind() status.Document {
	d := serving()
	d.Timeline = append(d.Timeline,
		status.TimelineEvent{At: before(100 * time.Second), Kind: "full_snapshot", Health: "ok", Message: "full snapshot at revision 40100: schedule"},
		status.TimelineEvent{At: before(90 * time.Second), Kind: "restore_test", Health: "ok", Message: "restore test at revision 40100 passed"},
		status.TimelineEvent{At: before(42 * time.Second), Kind: "problem", Health: "degraded", Message: "backups: s3://backups/main: store unavailable: connection refused"})
	d.Backup = &facts.Backups{
		Store: "s3://backups/main", Role: "writer", Revision: 41200, LagRevisions: 312, LagSeconds: 42, SpoolBytes: 5 << 20, SpoolLimit: 1 << 30,
		StoredBytes: 900 << 20, NextFullSnapshot: before(-40 * time.Minute),
		Windows: []facts.GenerationWindow{
			{Generation: 1, Window: facts.Window{FromRevision: 1, ToRevision: 31000, From: before(26 * time.Hour), To: before(9 * time.Hour)}, FullSnapshots: []facts.SnapshotMark{
				{Revision: 1, At: before(26 * time.Hour), RestoreTest: "passed"}, {Revision: 12000, At: before(20 * time.Hour), RestoreTest: "passed"}, {Revision: 30000, At: before(10 * time.Hour), RestoreTest: "passed"},
			}},
			{Generation: 2, Window: facts.Window{FromRevision: 32000, ToRevision: 41200, From: before(8 * time.Hour), To: before(42 * time.Second)}, FullSnapshots: []facts.SnapshotMark{
				{Revision: 32000, At: before(8 * time.Hour), RestoreTest: "passed"}, {Revision: 40100, At: before(100 * time.Second), RestoreTest: "passed"},
			}},
		},
		Window:           &facts.Window{FromRevision: 1, ToRevision: 41200, From: before(26 * time.Hour), To: before(42 * time.Second)},
		LastFullSnapshot: &facts.FullSnapshot{Revision: 40100, At: before(100 * time.Second), Bytes: 37 << 20, Reason: "schedule"},
		LastVerification: &facts.Verification{Revision: 40100, At: before(90 * time.Second), Passed: true, Reason: "its hash matches etcd's"},
		Problem: &facts.Problem{
			Since: before(42 * time.Second), Count: 4, NextRetry: before(-8 * time.Second),
			Message: "s3://backups/main: store unavailable: connection refused",
		},
	}
	return d
}

// well returns the document of a wrapper whose store contains all revisions.
func well() status.Document {
	d := behind()
	kept := *d.Backup
	kept.Problem, kept.LagRevisions, kept.LagSeconds, kept.SpoolBytes = nil, 0, 0, 0
	d.Backup, d.Timeline = &kept, d.Timeline[:len(d.Timeline)-1]
	return d
}
