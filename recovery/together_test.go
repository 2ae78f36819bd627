package recovery

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/recovery/peers"
)

// If all have lost their data, or request a restore, one restores as the only member of a new cluster.
func TestOneOfSeveralLostMembersRestores(t *testing.T) {
	for name, of := range map[string]struct {
		happens func(*world, *fakePeers)
		asides  int
	}{
		"lost": {func(w *world, o *fakePeers) {
			w.lose()
			o.listing = peers.Founding
		}, 0},
		"broken": {func(w *world, o *fakePeers) { w.damage(); o.listing = peers.Gone }, 1},
		"asked": {func(w *world, o *fakePeers) {
			o.listing, w.options.Request = peers.Asking, &Request{Target: archive.Target{Revision: 2}, ID: "back"}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := ofThree(t)
			of.happens(w, o)
			start, err := w.start(nil)
			require.NoError(t, err)
			assert.Empty(t, start, "it is the cluster")
			assert.True(t, o.told)
			w.requireKeys("key")
			assert.Len(t, w.preserved(), of.asides)
			assert.Len(t, w.generations(), 2)
			assert.Empty(t, o.changes)
		})
	}
}

// Volumes that are mounted two seconds late are used. If they stay empty, the cluster is restored.
func TestRestoreWaitsForLateVolumes(t *testing.T) {
	for name, late := range map[string]bool{"they are": true, "they are not": false} {
		t.Run(name, func(t *testing.T) {
			w, o := ofThree(t)
			kept := w.member.DataDir + ".late"
			require.NoError(t, os.Rename(w.member.DataDir, kept))
			o.listing = peers.Founding
			began := w.setClock(time.Second)
			if late {
				w.inPause(2, func() { o.listing = peers.Unknown }) // the volumes of the others are there
				w.inPause(4, func() { o.listing, o.cluster = peers.Started, positionOf(t, kept).ClusterID })
			}
			r := w.recovery()
			r.lateMounts = settling
			require.NoError(t, w.prepare(r))
			if late {
				assert.Contains(t, w.log.String(), "waiting 10 s for volumes that are mounted late")
				assert.Len(t, w.generations(), 1, "nothing is restored")
				return
			}
			assert.Equal(t, settling, w.now().Sub(began))
			assert.Len(t, w.generations(), 2)
		})
	}
}

func TestSecondMemberJoinsTheRestoredCluster(t *testing.T) {
	for _, id := range []string{"", "back"} {
		t.Run("restore "+id, func(t *testing.T) {
			w, o := ofThree(t)
			o.listing = peers.Gone
			if id == "" {
				w.damage()
			} else {
				o.listing, w.options.Request = peers.Asking, &Request{Target: archive.Target{Revision: 2}, ID: id}
			}
			err := w.runWith(before(ClaimGeneration, func() error { // another one was faster, and runs
				o.listing, o.cluster = peers.Unlisted, 0xbeef
				return archivetest.BeginGeneration(t.Context(), w.archive, archive.Generation{Number: 2, Cluster: ours, Owner: "etcd-cluster", Etcd: "beef", Parent: 1, ParentRevision: 2, Restore: id, Created: at})
			}))
			if err != nil { // the interruption is made once
				require.ErrorIs(t, err, store.ErrExists)
			}
			start, err := w.start(nil)
			require.NoError(t, err)
			assert.Equal(t, []string{"added"}, o.changes)
			if start == "" {
				start = takenIn // the first run has come so far already
			}
			assert.Equal(t, takenIn, start)
			assert.Len(t, w.preserved(), 1)
			assert.Empty(t, w.leftovers())
		})
	}
}

// Until all members request the restore, nothing changes.
func TestRequestedRestoreNeedsAllMembers(t *testing.T) {
	w, o := ofThree(t)
	w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "back"}
	assert.Contains(t, w.requireWaiting(o), "requests the same one")
	assert.Len(t, w.generations(), 1)
}

// A claim after a crash, while the cluster runs, would create a second one.
func TestClaimIsLostIfTheClusterHasContinued(t *testing.T) {
	w, o := ofThree(t)
	w.lose()
	o.listing = peers.Founding
	require.ErrorIs(t, w.cutAt(ClaimGeneration), errCut)
	other := newWorld(t)
	other.fill()
	other.put("a", "b")
	other.archive = w.archive
	require.Equal(t, w.generations()[0].Etcd, hex(positionOf(t, other.member.DataDir).ClusterID))
	other.backUp(1)
	o.listing = peers.Started
	w.requireRejoined() // the others have it
	assert.Len(t, w.generations(), 1)
}
