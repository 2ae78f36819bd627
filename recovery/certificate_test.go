package recovery

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// A first start may be cut off between the cluster manifest and the first generation.
func TestAValidVolumeIsStartedWhereItsStoreHasACertificateAndNothingElse(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, os.Rename(datadirtest.Initialized(t), w.member.DataDir))
	w.store.Inject(memory.Fault{Op: memory.Put, After: 1, Times: 1, Err: store.ErrUnavailable})
	_, err := w.archive.Found(t.Context(), archive.Cluster{Cluster: ours, Owner: w.member.Token, Etcd: hex(stand(t, w.member.DataDir).ClusterID), Created: at})
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.Empty(t, w.generations())
	require.NoError(t, w.run())
	assert.Empty(t, w.asides())
}

// A rule of a bucket that lets go of what is old lets go of that first, as it is the oldest.
func TestABirthCertificateThatIsGoneMakesNoVolumeThatWasLostANewOne(t *testing.T) {
	w := newWorld(t)
	w.used()
	require.NoError(t, w.store.Delete(t.Context(), "cluster.json"))
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	require.NoError(t, w.run())
	keys, _ := w.keys()
	assert.Equal(t, []string{"key"}, keys)
}

func TestBackupsThatNothingNamesAreNoReasonToBeginAnew(t *testing.T) {
	w := newWorld(t)
	w.used()
	for _, name := range []string{"cluster.json", "gen/000001/generation.json"} {
		require.NoError(t, w.store.Delete(t.Context(), name))
	}
	require.NoError(t, w.run(), "valid data are started")
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	for _, w.member.Alone = range []bool{true, false} { // also if the others are found by discovery
		require.ErrorContains(t, w.run(), "gen/000001/")
		assert.NoDirExists(t, w.member.DataDir)
	}
}
