package backup

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

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
	b.supersede(run, errors.New("of the run that has ended"))
	assert.Empty(t, b.Superseded())
	b.supersede(t.Context(), errors.New("of this run"))
	assert.EqualError(t, <-b.Superseded(), "of this run")
}

func TestAVerificationNamesTheComparedHash(t *testing.T) {
	var listed StoreContents
	listed.addResult(&archive.Result{Revision: 9, Segments: true, Outcome: archive.Verified, Seconds: 0.5, Hash: &format.Hash{Revision: 1, Hash: 1084519789}})
	assert.Equal(t, "restored in 500ms; its hash at revision 1 matches etcd's, 1084519789", listed.LastVerification.Reason)
}

func TestListing_keepsTheNewestResultAndOfTwoTheFailure(t *testing.T) {
	var listed StoreContents
	result := func(revision, second int64, outcome archive.Outcome) *archive.Result {
		return &archive.Result{Revision: revision, At: time.Unix(second, 0), Outcome: outcome}
	}
	for _, example := range []struct {
		result *archive.Result
		want   int64
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
	known := Facts{Listed: StoreContents{Backups: facts.Backups{Window: &window}}, Shipped: writer.Facts{Backups: facts.Backups{Revision: 9}}}
	extended := known.window()
	assert.EqualValues(t, 9, extended.ToRevision)
	assert.WithinDuration(t, time.Now(), extended.To, time.Minute)

	known.Listed.Cut = archive.ErrHole
	assert.Equal(t, window, known.window(), "revisions after a hole cannot be restored")

	known.Listed.Cut, known.Shipped.Revision = nil, 5
	assert.Equal(t, window, known.window(), "another member writes")
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
		Listed:  *newContents(&archive.History{Generations: []archive.GenerationContents{first, second}}),
		Shipped: writer.Facts{Backups: facts.Backups{Revision: 1009}, LastFull: &archive.Full{Revision: 1005}},
	}
	windows := known.document().Windows
	assert.Len(t, windows, 3)
	assert.Equal(t, []facts.SnapshotMark{{Revision: 3, RestoreTest: "passed"}}, windows[0].FullSnapshots, "an unreadable full snapshot is no restore point")
	assert.Equal(t, []facts.SnapshotMark{{Revision: 9, RestoreTest: "failed"}}, windows[1].FullSnapshots)
	assert.EqualValues(t, 2, windows[2].Generation)
	assert.EqualValues(t, 1009, windows[2].ToRevision, "as far as the window")
	assert.Equal(t, []facts.SnapshotMark{{Revision: 1000}, {Revision: 1005}}, windows[2].FullSnapshots, "including the one made since the listing")
	assert.EqualValues(t, 1002, known.Listed.Windows[2].ToRevision, "the listing is shared and not changed")
}

func TestDocument_combinesWhatIsStoredAndWhatIsListed(t *testing.T) {
	at := time.Unix(1000, 0)
	unable, failing, undone := &facts.Problem{Message: "unable"}, &facts.Problem{Message: "failing"}, &facts.Problem{Message: "undone"}
	listed := facts.Backups{
		Store: "file:///store", StoredBytes: 3, Window: &facts.Window{ToRevision: 7}, Windows: []facts.GenerationWindow{{Generation: 1}},
		LastFullSnapshot: &facts.FullSnapshot{Revision: 5, At: at}, LastVerification: &facts.Verification{Revision: 5, Passed: true},
	}
	stored := facts.Backups{
		Role: facts.Writer, Cluster: "c", Owner: "o", Generation: 1, Revision: 5, LagRevisions: 2, LagSeconds: 4, NextFullSnapshot: at,
		RunningFullSnapshot: &facts.SnapshotProgress{Step: "copies"}, UploadedBytes: 6, SpoolBytes: 8, SpoolLimit: 9, Problem: failing,
	}
	want := stored
	want.Store, want.StoredBytes, want.LastFullSnapshot, want.LastVerification = listed.Store, 3, listed.LastFullSnapshot, listed.LastVerification
	want.Window, want.Windows = listed.Window, []facts.GenerationWindow{{Window: *listed.Window, Generation: 1}}
	known := Facts{Shipped: writer.Facts{Backups: stored, Lag: 4 * time.Second}, Listed: StoreContents{Backups: listed}, Undone: undone}
	assert.Equal(t, &want, known.document())
	known.Unable = unable
	assert.Equal(t, unable, known.document().Problem, "nothing can be stored at all")
	known.Unable, known.Shipped.Problem = nil, nil
	assert.Equal(t, undone, known.document().Problem)
	known.Shipped.LastFull = &archive.Full{Revision: 6, Time: at.Add(time.Second), Reason: "requested"}
	assert.Equal(t, &facts.FullSnapshot{Revision: 6, At: at.Add(time.Second), Reason: "requested"}, known.document().LastFullSnapshot, "made since the listing")
}
