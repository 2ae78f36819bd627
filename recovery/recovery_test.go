package recovery

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/exitcode"
)

var at = time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC)

func TestAValidVolumeIsLeftAlone(t *testing.T) {
	w := usedWorld(t)
	w.put("another key")
	before := stand(t, w.member.DataDir)
	require.NoError(t, w.run())
	assert.Equal(t, before, stand(t, w.member.DataDir))
	assert.Len(t, w.generations(), 1)
	assert.NoFileExists(t, filepath.Join(w.volume, positionFile))
}

func TestALostVolumeComesBackAsANewClusterAboveEveryRevision(t *testing.T) {
	w := usedWorld(t)
	before := stand(t, w.member.DataDir)
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	require.NoError(t, w.run())

	after := stand(t, w.member.DataDir)
	assert.NotEqual(t, before.ClusterID, after.ClusterID)
	keys, revision := w.keys()
	assert.Equal(t, []string{"key"}, keys)
	assert.Greater(t, revision, before.Revision+margin)
	assert.Empty(t, w.asides())
	assert.Empty(t, w.leftovers())
	all := w.generations()
	require.Len(t, all, 2)
	assert.Equal(t, ours, all[1].Cluster)
	assert.Equal(t, hex(after.ClusterID), all[1].Etcd)
	assert.Equal(t, before.Revision, all[1].ParentRevision)
	reserved, err := w.archive.Reserved(t.Context())
	require.NoError(t, err)
	assert.Greater(t, reserved.Revision, revision)

	require.NoError(t, w.run(), "it is valid, and not behind")
	assert.Len(t, w.generations(), 2)
}

func TestABrokenVolumeIsSetAsideAndComesBack(t *testing.T) {
	w := usedWorld(t)
	w.spoil()
	require.NoError(t, w.run())
	w.requireKeys("key")
	require.Len(t, w.asides(), 1)
	assert.FileExists(t, filepath.Join(w.asides()[0], "member", "snap", "db"), "nothing is deleted")
}

func TestWhereTheNewestFullIsDamagedTheOneBeforeComesBackAndTheLossIsToldInNumbers(t *testing.T) {
	w := usedWorld(t)
	before := stand(t, w.member.DataDir).Revision
	w.put("a", "b", "c")
	w.backUp(1)
	kept, err := w.archive.History(t.Context())
	require.NoError(t, err)
	fulls := kept.Newest().Fulls
	require.NoError(t, w.store.Delete(t.Context(), archive.DataName(1, fulls[len(fulls)-1].Name())))
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	var ended []Outcome
	w.options.Ended = func(o Outcome) { ended = append(ended, o) }
	require.NoError(t, w.run())
	assert.Equal(t, []Outcome{{Cause: "empty", Ended: Restored, Lost: 3}}, ended)
	keys, revision := w.keys()
	assert.Equal(t, []string{"key"}, keys)
	assert.Greater(t, revision, before+3+margin, "above what the damaged full had")
	assert.Equal(t, before, w.generations()[1].ParentRevision)
	assert.Contains(t, w.log.String(), `"lost_revisions":3`)
	assert.Contains(t, w.log.String(), "; 3 revisions are lost")
}

func TestAVolumeThatWasRolledBackIsSetAsideAndComesBack(t *testing.T) {
	w := usedWorld(t)
	w.copyVolume()
	w.put("a", "b", "c")
	w.backUp(1)
	w.rollBack()
	require.NoError(t, w.run())
	w.requireKeys("a", "b", "c", "key")
	assert.Len(t, w.asides(), 1)
}

func TestAVolumeOfAnEarlierGenerationIsRolledBack(t *testing.T) {
	w := usedWorld(t)
	w.copyVolume()
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	require.NoError(t, w.run())
	w.put("of the restored cluster")
	w.backUp(2)
	w.rollBack()
	require.NoError(t, w.run())
	keys, revision := w.keys()
	assert.Equal(t, []string{"key", "of the restored cluster"}, keys)
	assert.Greater(t, revision, int64(2*margin), "above what the second generation has reserved")
	assert.Len(t, w.generations(), 3)
}

func TestNewIsSaidOnce(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.run(), "nothing was ever kept")
	first, err := w.archive.Cluster(t.Context())
	require.NoError(t, err)
	_, err = w.archive.Found(t.Context(), first)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	err = w.run()
	require.ErrorContains(t, err, "nothing is kept that could be brought back")
	assert.NoDirExists(t, w.member.DataDir)
}

func TestTheStoreOfAnotherClusterIsRefusedAndBothAreNamed(t *testing.T) {
	w := newWorld(t)
	_, err := w.archive.Found(t.Context(), archive.Cluster{Cluster: "abc123", Owner: "elsewhere/etcd", Created: at})
	require.NoError(t, err)
	err = w.run()
	require.ErrorContains(t, err, "elsewhere/etcd")
	require.ErrorContains(t, err, "this member is etcd-cluster's")

	require.NoError(t, os.Rename(datadirtest.Initialized(t), w.member.DataDir))
	w.is(1)
	err = w.run()
	require.ErrorContains(t, err, "abc123")
	require.ErrorContains(t, err, ours)
}

func TestGoingBackHappensOnce(t *testing.T) {
	w := usedWorld(t)
	to := stand(t, w.member.DataDir).Revision
	w.put("a mistake")
	w.backUp(1)
	var flushed []string
	w.options.Flush = func(_ context.Context, dataDir string, _ datadir.Position) error {
		flushed = append(flushed, dataDir)
		return nil
	}
	w.options.Request = &Request{Target: archive.Target{Revision: to}, ID: "drop"}
	require.NoError(t, w.run())
	w.requireKeys("key")
	assert.Len(t, w.asides(), 1)
	assert.Equal(t, []string{w.member.DataDir}, flushed)

	w.put("later")
	require.NoError(t, w.run())
	w.requireKeys("key", "later") // the id was used

	w.backUp(2)
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	require.NoError(t, os.Remove(filepath.Join(w.volume, positionFile)))
	require.NoError(t, w.run())
	w.requireKeys("key", "later") // the store remembers it, too
}

func TestATargetThatIsNotKeptMovesNothing(t *testing.T) {
	w := usedWorld(t)
	w.options.Request = &Request{Target: archive.Target{Revision: 4711}, ID: "drop"}
	err := w.run()
	assert.Equal(t, exitcode.BadConfig, w.statusOf(err))
	require.ErrorContains(t, err, "revision 4711 is not kept")
	require.ErrorContains(t, err, "revisions 2 to 2")
	assert.Empty(t, w.asides())
}

func TestNeverSaysWhatCouldComeBackAndTouchesNothing(t *testing.T) {
	w := usedWorld(t)
	w.options.Never = true
	require.NoError(t, w.run())
	w.spoil()
	err := w.run()
	require.ErrorContains(t, err, "--recover=never")
	require.ErrorContains(t, err, "has revision 2")
	assert.Empty(t, w.asides())
	w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
	require.ErrorContains(t, w.run(), "store unavailable")
}

// Nothing but a volume without data of use waits for the store, and says what to do about that.
func TestAVolumeWithoutDataWaitsForTheStore(t *testing.T) {
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			w := usedWorld(t)
			lose(w)
			w.store.Inject(memory.Fault{Op: memory.Get, Times: 20, Err: store.ErrDenied})
			w.ticks(time.Second)
			require.NoError(t, w.run())
			assert.Regexp(t, `"level":"warn".*it is waited for.*see that the store can be reached, and that --backup-store names it; if it is gone for good`, w.log.String())
			assert.Contains(t, w.log.String(), "the cluster comes back with revision 2")
		})
	}
}

// Valid data are served whatever keeps the store from answering.
func TestValidDataAreServedThoughTheStoreIsAway(t *testing.T) {
	for _, cause := range []error{store.ErrUnavailable, store.ErrDenied, store.ErrNoBucket} {
		t.Run(cause.Error(), func(t *testing.T) {
			w := usedWorld(t)
			began := w.ticks(time.Second)
			w.store.Inject(memory.Fault{Err: cause})
			r := w.recovery()
			r.now = w.now
			_, err := r.prepare(t.Context(), w.member, w.examine)
			require.NoError(t, err)
			assert.Equal(t, comparing, w.now().Sub(began))
			is := r.Progress()
			assert.True(t, is.Uncompared)
			for _, said := range []string{"they are not compared with the store yet", cause.Error(), "see that the store can be reached, and that --backup-store names it"} {
				assert.Contains(t, is.Reason, said)
				assert.Regexp(t, `"level":"warn".*`+said, w.log.String())
			}
			assert.Empty(t, w.asides())
		})
	}
}

// A store that takes each question and never answers holds valid data up no longer than one that says no.
func TestValidDataAreServedThoughTheStoreHangs(t *testing.T) {
	w := usedWorld(t)
	w.options.FlushSpool = func(ctx context.Context, _ archive.Identity, _ int64) error {
		<-ctx.Done()
		return ctx.Err()
	}
	r := w.recovery()
	r.serveAfter = time.Millisecond
	_, err := r.prepare(t.Context(), w.member, w.examine)
	require.NoError(t, err)
	assert.True(t, r.Progress().Uncompared)
}

func TestAVolumeThatTheStoreMayKnowBetterAboutWaits(t *testing.T) {
	w := usedWorld(t)
	w.store.Inject(memory.Fault{Op: memory.Get, Times: 5, Err: store.ErrUnavailable})
	require.NoError(t, w.run())
	assert.Contains(t, w.log.String(), "it is waited for")
}

func TestAMemberAloneWithoutAStore(t *testing.T) {
	w := usedWorld(t)
	w.options.Archive = nil
	before := stand(t, w.member.DataDir)
	require.NoError(t, w.run())
	assert.Equal(t, before, stand(t, w.member.DataDir))
	w.spoil()
	err := w.run()
	require.ErrorContains(t, err, "nothing is kept that could be brought back")
	require.ErrorContains(t, err, w.database())
	assert.Equal(t, exitcode.EtcdFailed, w.statusOf(err), "nobody can change that but people")
	assert.Empty(t, w.asides())
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	require.NoError(t, w.run())
}
