package recovery

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/recovery/peers"
)

// restoredTogether is a member of a cluster that was restored with --restore-to, has lost its volume since, and still has the flags.
func restoredTogether(t *testing.T) (*world, *others) {
	t.Helper()
	w, o := ofThree(t)
	require.NoError(t, archivetest.BeginGeneration(t.Context(), w.archive, archive.Generation{
		Number: 2, Cluster: ours, Owner: "etcd-cluster", Etcd: "beef", Parent: 1, ParentRevision: 2, Restore: "drop", Created: at,
	}))
	w.putFull(ours, 2)
	w.lose()
	o.listing, o.cluster, o.id, o.of = peers.Started, 0xbeef, ours, 2
	w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	return w, o
}

// The cluster writes backups all the time, and never stops for a member that has lost its volume.
func TestLeftoverRestoreFlagsDoNotKeepALostMemberFromJoining(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(*world, *others)
		changes []string
	}{
		"lost":                          {func(*world, *others) {}, []string{"removed", "added"}},
		"added to a cluster that grows": {func(_ *world, o *others) { o.listing = peers.Unlisted }, []string{"added"}},
		"no quorum at first":            {func(_ *world, o *others) { o.silent = 3 }, []string{"removed", "added"}},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := restoredTogether(t)
			c.happens(w, o)
			w.still = 24 * time.Hour
			w.inPause(10, func() { require.FailNow(t, "the member waits for its own cluster to stop", w.log.String()) })
			w.requireTakenIn()
			assert.Equal(t, c.changes, o.changes)
		})
	}
}

func TestAMemberWhoseDataContradictTheOthersIsReplaced(t *testing.T) {
	for _, died := range []string{
		"tocommit(9) is out of range [lastIndex(7)]", "entry 7 conflict with committed entry [committed(9)]", "failed to update; member unknown",
	} {
		w, o := ofThree(t)
		w.options.Died = func() string { return "panic: " + died }
		o.silent = 1
		pauses := w.inPause(1, func() { assert.Empty(t, w.asides(), "nothing is moved without a quorum") })
		w.requireTakenIn()
		assert.Equal(t, 1, *pauses, "it does not die of them again meanwhile")
		assert.Len(t, w.asides(), 1)
		assert.Contains(t, w.log.String(), "etcd died of them at its last start")
	}
	w, _ := ofThree(t)
	w.options.Died = func() string { return "no space left on device" }
	w.requireStarts()
}
