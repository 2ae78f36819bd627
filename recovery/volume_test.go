package recovery

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/seed"
)

// It is locked, or the disk has an error: nobody may take it for a member that had barely begun.
func TestAVolumeThatCannotBeReadIsNoEmptyOne(t *testing.T) {
	w, o := ofThree(t)
	held, err := bolt.Open(w.database(), 0o600, nil)
	require.NoError(t, err)
	defer held.Close()
	_, err = w.recovery().prepare(t.Context(), w.member, func(context.Context) error { return nil })
	require.ErrorContains(t, err, "cannot tell how far the data")
	assert.Empty(t, w.asides())
	assert.Empty(t, o.changes)
}

// A quick look may pass over that.
func TestAVolumeOfWhichNotAllCanBeReadIsBroken(t *testing.T) {
	w, o := ofThree(t)
	w.spoil()
	o.listing = peers.Unknown
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.options.Pause = func(context.Context, int) { cancel() }
	_, err := w.recovery().prepare(ctx, w.member, func(context.Context) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, peers.Ruins, o.holds)
	assert.Empty(t, w.asides())
}

// setAside has earlier recoveries leave data directories, and somebody one of his own.
func (w *world) setAside(times ...string) {
	w.t.Helper()
	for _, at := range append(times, "mine") {
		require.NoError(w.t, os.MkdirAll(filepath.Join(w.member.DataDir+".aside-"+at, "member"), 0o700))
	}
}

// left are the names of what is aside.
func (w *world) left() (names []string) {
	w.t.Helper()
	for _, path := range w.asides() {
		names = append(names, path[len(w.member.DataDir+".aside-"):])
	}
	return names
}

// runOn runs with a volume that has room when no more than so many old data directories are on it.
func (w *world) runOn(most int) error {
	r := w.recovery()
	r.measure = func(seed.Seed, restore.Source) error {
		if len(w.left())-1 > most {
			return fmt.Errorf("%w on the volume", restore.ErrNoRoom)
		}
		return nil
	}
	_, err := r.prepare(w.t.Context(), w.member, w.examine)
	return err
}

// verify enters that the newest full was restored to test it.
func (w *world) verify() {
	w.t.Helper()
	history, err := w.archive.History(w.t.Context())
	require.NoError(w.t, err)
	fulls := history.Newest().Fulls
	full := fulls[len(fulls)-1]
	require.NoError(w.t, w.archive.PutResult(w.t.Context(), archive.Result{
		Cluster: full.Cluster, Generation: full.Generation, Full: full.Name(), Revision: full.Revision, Outcome: archive.Verified, At: time.Now(),
	}))
}

const (
	oldest = "20260101T000000.000Z"
	older  = "20260102T000000.000Z"
	newest = "20260103T000000.000Z"
	future = "29990101T000000.000Z"
)

func TestWhatWasSetAsideStaysAsLongAsThereIsRoom(t *testing.T) {
	w := usedWorld(t)
	w.verify()
	w.setAside(oldest, older, newest)
	require.NoError(t, w.runOn(3))
	assert.Equal(t, []string{oldest, older, newest, "mine"}, w.left())
}

func TestWhatWasSetAsideGivesWayTheOldestFirst(t *testing.T) {
	for _, happens := range []func(*world){(*world).spoil, func(*world) {}} {
		w := usedWorld(t)
		w.setAside(oldest, older, newest)
		happens(w)
		require.NoError(t, w.runOn(2))
		assert.NotContains(t, w.left(), oldest)
		assert.Subset(t, w.left(), []string{newest, "mine"})
		assert.Contains(t, w.log.String(), "a preserved copy is deleted, as the volume has no room for it")
		assert.Contains(t, w.log.String(), w.member.DataDir+".aside-"+oldest)
	}
}

func TestTheNewestThatWasSetAsideStaysUntilAYoungerBackupWasVerified(t *testing.T) {
	for name, of := range map[string]struct {
		aside    string
		verified bool
		goes     bool
	}{
		"no backup is verified": {newest, false, false},
		"the backup is older":   {future, true, false},
		"a younger backup is":   {newest, true, true},
	} {
		w := usedWorld(t)
		if of.verified {
			w.verify()
		}
		w.setAside(oldest, of.aside)
		require.NoError(t, os.RemoveAll(w.member.DataDir))
		err := w.runOn(0)
		assert.NotContains(t, w.left(), oldest, name)
		if of.goes {
			require.NoError(t, err, name)
			assert.NotContains(t, w.left(), of.aside, name)
			continue
		}
		require.ErrorContains(t, err, "not enough room", name)
		assert.Contains(t, w.left(), of.aside, name)
	}
}

// What is on the volume is in order, and etcd is not to wait for a store that nothing is needed from.
func TestAStartOnANearlyFullVolumeDoesNotWaitForAStoreThatHangs(t *testing.T) {
	w := usedWorld(t)
	w.verify()
	w.setAside(oldest, newest)
	require.NoError(t, os.MkdirAll(filepath.Join(w.options.VolumeDir, "spool.aside-"+newest), 0o700))
	w.options.Never, w.options.SpoolDir = true, filepath.Join(w.options.VolumeDir, "spool")
	w.store.Inject(memory.Fault{Hang: true})
	synctest.Test(t, func(t *testing.T) {
		w.t = t
		begun := time.Now()
		require.NoError(t, w.runOn(0))
		assert.LessOrEqual(t, time.Since(begun), 5*time.Second)
	})
	w.t = t
	assert.Equal(t, []string{newest, "mine"}, w.left())
}

// locked is a directory, or a file, that another process has locked until the test ends.
func locked(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_EX))
}

// Two wrappers with volumes of their own were given one data directory.
func TestWhatAnotherProcessBuildsInTheSamePlaceIsLeftAlone(t *testing.T) {
	for _, ending := range []string{restored, restored + unfinished} {
		t.Run(ending, func(t *testing.T) {
			w := usedWorld(t)
			w.spoil()
			theirs := w.member.DataDir + ending
			require.NoError(t, os.MkdirAll(filepath.Join(theirs, "member"), 0o700))
			locked(t, theirs)
			require.ErrorIs(t, w.run(), seed.ErrInUse)
			assert.DirExists(t, filepath.Join(theirs, "member"))
			assert.Empty(t, w.asides())
		})
	}
}

func TestWhatWasBuiltIsHeldUntilItIsInstalled(t *testing.T) {
	w := usedWorld(t)
	w.spoil()
	seen := 0
	require.NoError(t, w.runWith(func(action Action) error {
		if action == ProveData || action == ClaimGeneration || action == InstallData {
			seen++
			_, err := seed.Hold(w.member.DataDir + restored)
			require.ErrorIs(t, err, seed.ErrInUse, action)
		}
		return nil
	}))
	assert.Equal(t, 3, seen)
	held, err := seed.Hold(w.member.DataDir)
	require.NoError(t, err, "etcd-wrapper locks it now")
	require.NoError(t, held.Close())
	w.requireEnd([]string{"key"}, 1)
}

func TestDataThatHaveAppearedSinceAreNotSetAside(t *testing.T) {
	w := usedWorld(t)
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	theirs := filepath.Join(w.member.DataDir, "member")
	err := w.runWith(func(action Action) error {
		if action == SetVolumeAside {
			require.NoError(t, os.MkdirAll(theirs, 0o700))
		}
		return nil
	})
	require.ErrorContains(t, err, "have appeared")
	assert.DirExists(t, theirs)
	assert.Empty(t, w.asides())
}

func TestDataThatSomebodyServesAreNotSetAside(t *testing.T) {
	w := usedWorld(t)
	w.spoil()
	err := w.runWith(func(action Action) error {
		if action == SetVolumeAside {
			locked(t, w.database())
		}
		return nil
	})
	require.ErrorIs(t, err, seed.ErrInUse)
	assert.FileExists(t, w.database())
	assert.Empty(t, w.asides())
}

func TestAMemberOfSeveralThatAreNotNamedIsLeftAsItIs(t *testing.T) {
	w := usedWorld(t)
	w.member.Alone = false
	require.NoError(t, w.run())
	w.spoil()
	err := w.run()
	require.ErrorContains(t, err, "the others would not")
	assert.Equal(t, exitcode.EtcdFailed, w.statusOf(err))
}

// A discovery service knows who they are, and would have the cluster begun anew.
func TestAnEmptyMemberOfSeveralThatAreNotNamedBeginsNoClusterASecondTime(t *testing.T) {
	w := newWorld(t)
	w.member.Alone = false
	require.NoError(t, w.run(), "nothing was ever kept")
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	w.emptyStore()
	w.used()
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	for _, never := range []bool{false, true} {
		w.options.Never = never
		err := w.run()
		require.ErrorContains(t, err, "is cluster "+ours+"'s")
		require.ErrorContains(t, err, "was founded before")
		require.ErrorContains(t, err, "name all members in initial-cluster")
		assert.Equal(t, exitcode.EtcdFailed, w.statusOf(err))
		assert.NoDirExists(t, w.member.DataDir)
	}

	w.member.Joins = true
	require.NoError(t, w.run(), "etcd joins the one that exists")
	w.member.Joins, w.options.Archive = false, nil
	require.NoError(t, w.run(), "nobody knows of another one")
}

const secondGeneration = "gen/000002/generation.json"

// restoredOnce is a world whose data are of the second generation, which has a backup, and whose generation.json is gone. It is the
// oldest object there, and so the first that a rule of the bucket lets go of.
func restoredOnce(t *testing.T) *world {
	t.Helper()
	w := usedWorld(t)
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
	mine := formattest.NewKeys(t)
	w.sealedBy(mine.Load(t))
	w.used()
	w.spoil()
	strangers := archive.New(w.store, &format.Keys{})
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

// Without it etcd would end while it gets them, and at each start again.
func TestTheDataOfTheOthersWaitForTheRoomForThem(t *testing.T) {
	w, o := ofThree(t)
	w.spoil()
	w.setAside(oldest)
	o.size = 77
	r := w.recovery()
	r.measure = func(_ seed.Seed, source restore.Source) error {
		assert.Equal(t, int64(77), source.DatabaseBytes)
		if len(w.left()) > 1 { // nothing but somebody's own
			return fmt.Errorf("%w on the volume", restore.ErrNoRoom)
		}
		return nil
	}
	pauses := 0
	r.options.Pause = func(context.Context, int) {
		if pauses++; pauses == 3 {
			assert.Len(t, w.left(), 2, "what was set aside last is for a person to delete, or for a backup that was verified since")
			assert.NotContains(t, w.left(), oldest)
			assert.Empty(t, o.changes, "nor has the member left the cluster")
			assert.Contains(t, r.Progress().Reason, "the data of the others do not fit: not enough room on the volume: enlarge it, or delete "+w.asides()[0])
			require.NoError(t, os.RemoveAll(w.asides()[0]))
		}
	}
	start, err := r.prepare(t.Context(), w.member, w.examine)
	require.NoError(t, err)
	assert.Equal(t, takenIn, start)
	assert.Equal(t, 3, pauses)
	assert.Equal(t, []string{"removed", "added"}, o.changes)
}
