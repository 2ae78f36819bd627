package backup

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/writer"
)

// Of a restore test etcd's hash is mostly known of an earlier revision: that of its full, or of a compaction.
func TestHowFarAHashHasProvedABackupIsTold(t *testing.T) {
	result := &archive.Result{Revision: 9, Segments: true, Outcome: archive.Verified, Seconds: 0.5, Hash: &archive.Hash{Revision: 1, Hash: 1084519789}}
	proof := lastVerified(Facts{Kept: Kept{Result: result}})
	assert.Equal(t, "restored in 500ms; the hash of its rows up to revision 1 is etcd's own, 1084519789", proof.Reason)
}

func TestTheWindowThatIsToldGoesAsFarAsWhatWasStoredLeadsOn(t *testing.T) {
	known := Facts{Kept: Kept{From: 3, To: 7, End: time.Unix(1, 0)}, Shipped: writer.Facts{Stored: 9}}
	is := window(known)
	assert.EqualValues(t, 9, is.ToRevision)
	assert.WithinDuration(t, time.Now(), is.To, time.Minute)

	known.Kept.Cut = archive.ErrHole
	is = window(known)
	assert.EqualValues(t, 7, is.ToRevision, "what comes behind a hole cannot be gone back to")
	assert.Equal(t, known.Kept.End, is.To)

	known.Kept.Cut, known.Shipped.Stored = nil, 5
	is = window(known)
	assert.EqualValues(t, 7, is.ToRevision, "another member writes")
	assert.Equal(t, known.Kept.End, is.To)
}

func TestWhatCanBeGoneBackToIsToldOfAllGenerations(t *testing.T) {
	passed := &archive.Result{Outcome: archive.Verified}
	first := archive.Generational{Chains: []archive.Chain{{From: 3, To: 7}, {From: 9, To: 12}}, Fulls: []archive.KeptFull{
		{Full: archive.Full{Revision: 3}, Result: passed},
		{Full: archive.Full{Revision: 5}, Err: archive.ErrHole},
		{Full: archive.Full{Revision: 9}, Result: &archive.Result{Outcome: archive.Failed}},
	}}
	second := archive.Generational{Chains: []archive.Chain{{From: 1000, To: 1002}}, Fulls: []archive.KeptFull{{Full: archive.Full{Revision: 1000}}}}
	first.Number, second.Number = 1, 2
	known := Facts{Kept: summarize(&archive.History{Generations: []archive.Generational{first, second}})}
	known.Shipped = writer.Facts{Stored: 1009, LastFull: &archive.Full{Revision: 1005}}
	is := published(known).Windows
	assert.Len(t, is, 3)
	assert.Equal(t, []facts.SnapshotMark{{Revision: 3, RestoreTest: "passed"}}, is[0].FullSnapshots, "one that cannot be read is no place to go back to")
	assert.Equal(t, []facts.SnapshotMark{{Revision: 9, RestoreTest: "failed"}}, is[1].FullSnapshots)
	assert.EqualValues(t, 2, is[2].Generation)
	assert.EqualValues(t, 1009, is[2].ToRevision, "as far as the window goes")
	assert.Equal(t, []facts.SnapshotMark{{Revision: 1000}, {Revision: 1005}}, is[2].FullSnapshots, "with the one that was made since the listing")
	assert.EqualValues(t, 1002, known.Kept.Spans[2].ToRevision, "the listing is shared, and stays")
}
