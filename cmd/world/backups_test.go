package world

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/bootstrap/backup"
	"etcd-wrapper/bootstrap/backup/archive"
)

// Of a drill etcd's hash is mostly known of an earlier revision: that of its full, or of a compaction.
func TestHowFarAHashHasProvedABackupIsTold(t *testing.T) {
	verdict := &archive.Verdict{Revision: 9, Drill: true, Outcome: archive.Verified, Seconds: 0.5, Hash: &archive.Hash{Revision: 1, Hash: 1084519789}}
	proof := lastVerified(backup.Facts{Kept: backup.Kept{Verdict: verdict}})
	assert.Equal(t, "restored in 500ms; the hash of its rows up to revision 1 is etcd's own, 1084519789", proof.Reason)
}
