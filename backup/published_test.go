package backup

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/writer"
)

// Of a drill etcd's hash is mostly known of an earlier revision: that of its full, or of a compaction.
func TestHowFarAHashHasProvedABackupIsTold(t *testing.T) {
	verdict := &archive.Result{Revision: 9, Segments: true, Outcome: archive.Verified, Seconds: 0.5, Hash: &archive.Hash{Revision: 1, Hash: 1084519789}}
	proof := lastVerified(Facts{Kept: Kept{Verdict: verdict}})
	assert.Equal(t, "restored in 500ms; the hash of its rows up to revision 1 is etcd's own, 1084519789", proof.Reason)
}

func TestTheWindowThatIsToldGoesAsFarAsWhatWasStoredLeadsOn(t *testing.T) {
	facts := Facts{Kept: Kept{From: 3, To: 7, End: time.Unix(1, 0)}, Shipped: writer.Facts{Stored: 9}}
	is := window(facts)
	assert.EqualValues(t, 9, is.ToRevision)
	assert.WithinDuration(t, time.Now(), is.To, time.Minute)

	facts.Kept.Cut = archive.ErrHole
	is = window(facts)
	assert.EqualValues(t, 7, is.ToRevision, "what comes behind a hole cannot be gone back to")
	assert.Equal(t, facts.Kept.End, is.To)

	facts.Kept.Cut, facts.Shipped.Stored = nil, 5
	is = window(facts)
	assert.EqualValues(t, 7, is.ToRevision, "another member writes")
	assert.Equal(t, facts.Kept.End, is.To)
}
