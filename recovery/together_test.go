package recovery

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/recovery/peers"
)

// Volumes that are mounted two seconds late are used. If they stay empty, the cluster is restored.
func TestRestoreWaitsForLateVolumes(t *testing.T) {
	for name, late := range map[string]bool{"they are": true, "they are not": false} {
		t.Run(name, func(t *testing.T) {
			w, o := ofThree(t)
			kept := w.member.DataDir + ".late"
			require.NoError(t, os.Rename(w.member.DataDir, kept))
			o.listing = peers.Founding
			start := w.setClock(time.Second)
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
			assert.Equal(t, settling, w.now().Sub(start))
			assert.Len(t, w.generations(), 2)
		})
	}
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
