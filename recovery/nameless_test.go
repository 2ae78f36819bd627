package recovery

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/seal/sealtest"
	"etcd-wrapper/exitcode"
)

const secondGeneration = "gen/000002/generation.json"

// restoredOnce is a world whose data are of the second generation, which has a backup, and whose generation.json is gone. It is the
// oldest object there, and so the first that a rule of the bucket lets go of.
func restoredOnce(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.used()
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	require.NoError(t, w.run())
	w.put("acknowledged")
	w.backUp(2)
	require.NoError(t, w.store.Delete(t.Context(), secondGeneration))
	return w
}

func TestNothingOlderComesBackWhereTheNewestGenerationHasLostItsName(t *testing.T) {
	for name, happens := range map[string]func(*world){
		"empty":  func(w *world) { require.NoError(w.t, os.RemoveAll(w.member.DataDir)) },
		"broken": (*world).spoil,
	} {
		t.Run(name, func(t *testing.T) {
			w := restoredOnce(t)
			happens(w)
			err := w.run()
			for _, said := range []string{secondGeneration, "missing", "put that object back"} {
				require.ErrorContains(t, err, said)
			}
			assert.Equal(t, exitcode.EtcdFailed, w.statusOf(err))
			assert.Empty(t, w.asides())
			assert.Empty(t, w.leftovers())
			_, there := w.store.Content(secondGeneration)
			assert.False(t, there, "no other cluster takes its place")
			w.forget("gen/000002/")
			require.NoError(t, os.RemoveAll(w.member.DataDir))
			require.NoError(t, w.run(), "the way out")
			keys, revision := w.keys()
			assert.Equal(t, []string{"key"}, keys)
			assert.Greater(t, revision, int64(margin), "no revision is handed out twice")
		})
	}
}

func TestAValidVolumeIsStartedWhereItsGenerationHasLostItsName(t *testing.T) {
	w := restoredOnce(t)
	w.opens()
}

// Somebody has begun to delete what nobody of theirs has signed, and not gone to the end.
func TestARestoreThatCannotBeClaimedSaysWhy(t *testing.T) {
	w := newWorld(t)
	mine := sealtest.New(t)
	w.sealedBy(mine.Load(t))
	w.used()
	w.spoil()
	strangers := archive.New(w.store, &seal.Keys{})
	err := w.runWith(func(action Action) error {
		if action == ClaimGeneration {
			require.NoError(t, strangers.BeginGeneration(t.Context(), archive.Generation{Number: 2, Cluster: ours, Owner: "etcd-cluster", Etcd: "abc"}))
		}
		return nil
	})
	require.ErrorContains(t, err, "gen/000002/generation.json")
	require.ErrorContains(t, err, "it has no signature")
	require.ErrorContains(t, err, "if nobody of yours has signed it, delete it, and of a generation.json all that is in its folder")
	assert.Empty(t, w.leftovers())
}
