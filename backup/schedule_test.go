package backup

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer"
)

func TestSuperseded_isNotReportedOnceTheRunHasEnded(t *testing.T) {
	b := New(Options{Store: memory.New(), Keys: &format.Keys{}})
	run, end := context.WithCancel(t.Context())
	end()
	b.supersede(run, errors.New("the previous run is superseded"))
	assert.Empty(t, b.Superseded())
	b.supersede(t.Context(), errors.New("this run is superseded"))
	assert.EqualError(t, <-b.Superseded(), "this run is superseded")
}

func TestAVerificationNamesTheComparedHash(t *testing.T) {
	var listed StoreContents
	listed.addResult(&archive.Result{Revision: 9, Segments: true, Outcome: archive.Verified, Seconds: 0.5, Hash: &format.Hash{Revision: 1, Hash: 1084519789}})
	assert.Equal(t, "restored in 500ms; its hash at revision 1 matches the one that etcd computed, 1084519789", listed.LastVerification.Reason)
}

func TestListing_keepsTheNewestResultOrTheFailure(t *testing.T) {
	var listed StoreContents
	result := func(revision, second int64, outcome archive.Outcome) *archive.Result {
		return &archive.Result{Revision: revision, At: time.Unix(second, 0), Outcome: outcome}
	}
	for _, example := range []struct {
		result *archive.Result
		want   int64 // revision of the result that is expected to be kept
	}{
		{result(1, 5, archive.Verified), 1},
		{result(2, 5, archive.Failed), 2},
		{result(3, 5, archive.Verified), 2},
		{result(4, 4, archive.Failed), 2},
		{result(5, 6, archive.Verified), 5},
	} {
		listed.addResult(example.result)
		assert.Equal(t, example.want, listed.LastVerification.Revision)
	}
}

func TestTheWindowEndsAtTheLastStoredRevision(t *testing.T) {
	window := facts.Window{FromRevision: 3, ToRevision: 7, To: time.Unix(1, 0)}
	known := Facts{Listed: StoreContents{Backups: facts.Backups{Window: &window}}, Writer: writer.Facts{Backups: facts.Backups{Revision: 9}}}
	extended := known.window()
	assert.EqualValues(t, 9, extended.ToRevision)
	assert.WithinDuration(t, time.Now(), extended.To, time.Minute)

	known.Listed.Cut = archive.ErrHole
	assert.Equal(t, window, known.window(), "revisions after a missing segment cannot be restored")

	known.Listed.Cut, known.Writer.Revision = nil, 5
	assert.Equal(t, window, known.window(), "another member is the writer")
}

func TestWindowsOfAllGenerationsArePublished(t *testing.T) {
	passed := &archive.Result{Outcome: archive.Verified}
	first := archive.GenerationContents{Chains: []archive.Chain{{From: 3, To: 7}, {From: 9, To: 12}}, Fulls: []archive.StoredFull{
		{Full: archive.Full{Revision: 3}, Result: passed},
		{Full: archive.Full{Revision: 5}, Err: archive.ErrHole},
		{Full: archive.Full{Revision: 9}, Result: &archive.Result{Outcome: archive.Failed}},
	}}
	second := archive.GenerationContents{Chains: []archive.Chain{{From: 1000, To: 1002}}, Fulls: []archive.StoredFull{{Full: archive.Full{Revision: 1000}}}}
	first.Number, second.Number = 1, 2
	known := Facts{
		Listed: *newContents(&archive.History{Generations: []archive.GenerationContents{first, second}}),
		Writer: writer.Facts{Backups: facts.Backups{Revision: 1009}, LastFull: &archive.Full{Revision: 1005}},
	}
	windows := known.document().Windows
	assert.Len(t, windows, 3)
	assert.Equal(t, []facts.SnapshotMark{{Revision: 3, RestoreTest: "passed"}}, windows[0].FullSnapshots, "an unreadable full snapshot is omitted")
	assert.Equal(t, []facts.SnapshotMark{{Revision: 9, RestoreTest: "failed"}}, windows[1].FullSnapshots)
	assert.EqualValues(t, 2, windows[2].Generation)
	assert.EqualValues(t, 1009, windows[2].ToRevision, "the last window ends at the last stored revision")
	assert.Equal(t, []facts.SnapshotMark{{Revision: 1000}, {Revision: 1005}}, windows[2].FullSnapshots, "the last one was made since the listing")
	assert.EqualValues(t, 1002, known.Listed.Windows[2].ToRevision, "the listing is shared and must not be modified")
}

func TestDocument_combinesWhatIsStoredAndWhatIsListed(t *testing.T) {
	at := time.Unix(1000, 0)
	startProblem, writerProblem, taskProblem := &facts.Problem{Message: "start"}, &facts.Problem{Message: "writer"}, &facts.Problem{Message: "task"}
	listed := facts.Backups{
		Store: "file:///store", StoredBytes: 3, Window: &facts.Window{ToRevision: 7}, Windows: []facts.GenerationWindow{{Generation: 1}},
		LastFullSnapshot: &facts.FullSnapshot{Revision: 5, At: at}, LastVerification: &facts.Verification{Revision: 5, Passed: true},
	}
	stored := facts.Backups{
		Role: facts.Writer, Cluster: "c", Owner: "o", Generation: 1, Revision: 5, LagRevisions: 2, LagSeconds: 4, NextFullSnapshot: at,
		RunningFullSnapshot: &facts.SnapshotProgress{Step: "copies"}, UploadedBytes: 6, SpoolBytes: 8, SpoolLimit: 9, Problem: writerProblem,
	}
	want := stored
	want.Store, want.StoredBytes, want.LastFullSnapshot, want.LastVerification = listed.Store, 3, listed.LastFullSnapshot, listed.LastVerification
	want.Window, want.Windows = listed.Window, []facts.GenerationWindow{{Window: *listed.Window, Generation: 1}}
	known := Facts{Writer: writer.Facts{Backups: stored, Lag: 4 * time.Second}, Listed: StoreContents{Backups: listed}, TaskProblem: taskProblem}
	assert.Equal(t, &want, known.document())
	known.StartProblem = startProblem
	assert.Equal(t, startProblem, known.document().Problem, "a problem that prevents all backups has precedence")
	known.StartProblem, known.Writer.Problem = nil, nil
	assert.Equal(t, taskProblem, known.document().Problem)
	known.Writer.LastFull = &archive.Full{Revision: 6, Time: at.Add(time.Second), Reason: "requested"}
	assert.Equal(t, &facts.FullSnapshot{Revision: 6, At: at.Add(time.Second), Reason: "requested"}, known.document().LastFullSnapshot, "made since the listing")
}

func at(t testing.TB, text string) time.Time {
	t.Helper()
	parsed, err := time.Parse("2006-01-02 15:04:05", text)
	require.NoError(t, err)
	return parsed
}

func TestSchedule_next(t *testing.T) {
	for _, example := range []struct{ schedule, after, next string }{
		{"0 * * * *", "2026-11-22 00:00:00", "2026-11-22 01:00:00"},
		{"@hourly", "2026-11-22 00:59:59", "2026-11-22 01:00:00"},
		{"@daily", "2026-12-31 00:00:00", "2027-01-01 00:00:00"},
		{"@weekly", "2026-11-22 00:00:00", "2026-11-29 00:00:00"}, // November 22 is a Sunday
		{"30 3 * * 7", "2026-11-23 00:00:00", "2026-11-29 03:30:00"},
		{"0 0 31 * *", "2021-01-31 00:00:00", "2021-03-31 00:00:00"},
		{"0 0 31 * *", "2026-08-31 00:00:00", "2026-10-31 00:00:00"},
		{"0 0 29 2 *", "2026-03-01 00:00:00", "2028-02-29 00:00:00"},
		{"0 0 29 2 *", "2096-02-29 00:00:00", "2104-02-29 00:00:00"}, // no February 29 in 2100
		{"*/7 * * * *", "2026-11-22 00:56:00", "2026-11-22 01:00:00"},
		{"0 12 1 * MON", "2026-11-22 00:00:00", "2026-11-23 12:00:00"}, // matches the first day of the month and every Monday
		{"15,45 8-10/2 * jan-mar *", "2026-11-22 00:00:00", "2027-01-01 08:15:00"},
		{"@every 6h", "2026-11-22 00:00:00", "2026-11-22 06:00:00"},
		{"@every 90m", "2026-11-22 01:29:59", "2026-11-22 01:30:00"},
		{"  @every   36h ", "2026-11-22 12:00:00", "2026-11-24 00:00:00"},
	} {
		schedule, err := ParseSchedule(example.schedule)
		require.NoError(t, err, example.schedule)
		assert.Equal(t, at(t, example.next), schedule.Next(at(t, example.after)), "%s after %s", example.schedule, example.after)
	}
}

// The schedule is in UTC, regardless of the time zone of the given time, even on the night when daylight saving time
// ends.
func TestSchedule_usesUTC(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip("no time zone database on this machine")
	}
	schedule, err := ParseSchedule("30 2 * * *")
	require.NoError(t, err)
	next := schedule.Next(at(t, "2026-10-25 00:45:00").In(berlin))
	assert.Equal(t, at(t, "2026-10-25 02:30:00"), next)
}

func TestParseSchedule_rejectsInvalidSchedules(t *testing.T) {
	for text, reason := range map[string]string{
		"":                        "must be five cron fields",
		"0 * * *":                 "must be five cron fields",
		"0 0 * * * *":             "must be five cron fields",
		"@fortnightly":            "must be five cron fields",
		"@every":                  "must be five cron fields",
		"TZ=Asia/Tokyo 0 3 * * *": "must be five cron fields",
		"TZ=Asia/Tokyo 0 3 * *":   "is invalid",
		"60 * * * *":              "is invalid",
		"0 24 * * *":              "is invalid",
		"0 0 0 * *":               "is invalid",
		"0 0 * 13 *":              "is invalid",
		"0 0 * * 8":               "is invalid",
		"*/0 * * * *":             "is invalid",
		"a * * * *":               "is invalid",
		"0 0 L * *":               "is invalid",
		"0 0 31 2 *":              "never matches",
		"0 0 30 feb *":            "never matches",
		"0 0 31 4,6,9,11 *":       "never matches",
		"@every 6":                "needs a duration",
		"@every -6h":              "must have an interval of 1m0s to 8784h0m0s",
		"@every 1s":               "must have an interval of 1m0s to 8784h0m0s",
		"@every 20000h":           "must have an interval of 1m0s to 8784h0m0s",
	} {
		_, err := ParseSchedule(text)
		require.ErrorContains(t, err, "--backup-full-schedule: ", text)
		assert.ErrorContains(t, err, reason, text)
		assert.NotContains(t, err.Error(), "\n")
	}
}

func TestSchedule_shiftsEachClusterWithinTheHour(t *testing.T) {
	hourly, err := ParseSchedule("@hourly")
	require.NoError(t, err)
	shifts := map[time.Duration]bool{}
	ids := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		cluster := ids.Uint64()
		shift := hourly.For(cluster).shift
		shifts[shift] = true
		assert.Less(t, shift, time.Hour)
		assert.Equal(t, shift, hourly.For(cluster).shift, "the offset of a cluster is always the same")
	}
	assert.Greater(t, len(shifts), 500)
	shifted := hourly.For(90)
	assert.Equal(t, at(t, "2026-11-22 00:01:30"), shifted.Next(at(t, "2026-11-22 00:00:00")))
	assert.Equal(t, at(t, "2026-11-22 01:01:30"), shifted.Next(at(t, "2026-11-22 00:01:30")))
	assert.Equal(t, "@hourly", shifted.String())
}

func TestClock_reportsJumpsForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var jump time.Duration // offset of the wall clock
		c := newClock(func() time.Time { return time.Now().Add(jump) })
		time.Sleep(30 * 24 * time.Hour)
		assert.Empty(t, c.check(), "both clocks have advanced equally")
		for _, offset := range []time.Duration{8 * time.Hour, 0, -2 * time.Minute} {
			jump = offset
			assert.Contains(t, c.check(), "the system clock jumped by ")
			time.Sleep(afterJump - time.Second)
			assert.NotEmpty(t, c.check())
			time.Sleep(time.Second)
			assert.Empty(t, c.check())
		}
		jump += 50 * time.Second
		assert.Empty(t, c.check(), "a drift of less than a minute is not a jump")
	})
}
