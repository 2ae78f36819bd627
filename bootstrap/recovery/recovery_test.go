package recovery

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/store"
	"etcd-wrapper/bootstrap/backup/store/memory"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/exitcode"
)

var at = time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC)

func TestAValidVolumeIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.put("another key")
	before := stand(t, w.member.DataDir)
	require.NoError(t, w.run())
	assert.Equal(t, before, stand(t, w.member.DataDir))
	assert.Len(t, w.generations(), 1)
	assert.NoFileExists(t, filepath.Join(w.volume, positionFile))
}

func TestALostVolumeComesBackAsANewClusterAboveEveryRevision(t *testing.T) {
	w := newWorld(t)
	w.used()
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
	assert.Equal(t, hex(after.ClusterID), all[1].Cluster)
	assert.Equal(t, before.Revision, all[1].ParentRevision)
	reserved, err := w.archive.Reserved(t.Context())
	require.NoError(t, err)
	assert.Greater(t, reserved.Revision, revision)

	require.NoError(t, w.run(), "it is valid, and not behind")
	assert.Len(t, w.generations(), 2)
}

func TestABrokenVolumeIsSetAsideAndComesBack(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.spoil()
	require.NoError(t, w.run())
	keys, _ := w.keys()
	assert.Equal(t, []string{"key"}, keys)
	require.Len(t, w.asides(), 1)
	assert.FileExists(t, filepath.Join(w.asides()[0], "member", "snap", "db"), "nothing is deleted")
}

// Of a volume that was lost nobody knows when it ended.
func TestHowLongBeforeTheEndOfABrokenVolumeTheBackupsEndIsTold(t *testing.T) {
	for name, of := range map[string]struct {
		gap    time.Duration
		happen func(*world)
		says   string
	}{
		"a moment":  {730 * time.Millisecond, (*world).spoil, "is lost; it is at most 0.8 s before the end, when etcd last wrote to the volume"},
		"nothing":   {-time.Minute, (*world).spoil, "it is at most 0.0 s before the end"},
		"hours":     {3*time.Hour + time.Millisecond, (*world).spoil, "it is at most 3h0m1s before the end"},
		"not known": {time.Second, func(w *world) { require.NoError(w.t, os.RemoveAll(w.member.DataDir)) }, "was not in the store is lost\""},
		"log is gone": {time.Second, func(w *world) {
			require.NoError(w.t, os.RemoveAll(filepath.Join(w.member.DataDir, "member", "wal")))
			w.spoil()
		}, "was not in the store is lost\""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.used()
			head, err := w.archive.Head(t.Context(), 1)
			require.NoError(t, err)
			w.writtenAt(head.Full.Time.Add(of.gap))
			of.happen(w)
			_, err = New(w.options).Run(t.Context(), w.member, func(context.Context) error {
				if _, err := os.Stat(w.member.DataDir); err != nil {
					return nil
				}
				return errors.New("a page is damaged")
			})
			require.NoError(t, err)
			assert.Contains(t, w.log.String(), of.says)
		})
	}
}

// writtenAt is when etcd last wrote to its log.
func (w *world) writtenAt(at time.Time) {
	w.t.Helper()
	segments, err := filepath.Glob(filepath.Join(w.member.DataDir, "member", "wal", "*.wal"))
	require.NoError(w.t, err)
	require.NotEmpty(w.t, segments)
	for _, segment := range segments {
		require.NoError(w.t, os.Chtimes(segment, at, at))
	}
}

func TestWhereTheNewestFullIsDamagedTheOneBeforeComesBackAndTheLossIsToldInNumbers(t *testing.T) {
	w := newWorld(t)
	w.used()
	before := stand(t, w.member.DataDir).Revision
	w.put("a", "b", "c")
	w.backUp(1)
	kept, err := w.archive.History(t.Context())
	require.NoError(t, err)
	fulls := kept.Newest().Fulls
	require.NoError(t, w.store.Delete(t.Context(), archive.DataName(1, fulls[len(fulls)-1].Label)))
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	require.NoError(t, w.run())
	keys, revision := w.keys()
	assert.Equal(t, []string{"key"}, keys)
	assert.Greater(t, revision, before+3+margin, "above what the damaged full had")
	assert.Equal(t, before, w.generations()[1].ParentRevision)
	assert.Contains(t, w.log.String(), `"lost_revisions":3`)
	assert.Contains(t, w.log.String(), "; 3 revisions are lost")
}

func TestAVolumeThatWasRolledBackIsSetAsideAndComesBack(t *testing.T) {
	w := newWorld(t)
	w.used()
	old := filepath.Join(t.TempDir(), "old")
	require.NoError(t, os.CopyFS(old, os.DirFS(w.member.DataDir)))
	w.put("a", "b", "c")
	w.backUp(1)
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	require.NoError(t, os.CopyFS(w.member.DataDir, os.DirFS(old)))
	require.NoError(t, w.run())
	keys, _ := w.keys()
	assert.Equal(t, []string{"a", "b", "c", "key"}, keys)
	assert.Len(t, w.asides(), 1)
}

func TestAVolumeOfAnEarlierGenerationIsRolledBack(t *testing.T) {
	w := newWorld(t)
	w.used()
	old := filepath.Join(t.TempDir(), "old")
	require.NoError(t, os.CopyFS(old, os.DirFS(w.member.DataDir)))
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	require.NoError(t, w.run())
	w.put("of the restored cluster")
	w.backUp(2)
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	require.NoError(t, os.CopyFS(w.member.DataDir, os.DirFS(old)))
	require.NoError(t, w.run())
	keys, revision := w.keys()
	assert.Equal(t, []string{"key", "of the restored cluster"}, keys)
	assert.Greater(t, revision, int64(2*margin), "above what the second generation has reserved")
	assert.Len(t, w.generations(), 3)
}

func TestNewIsSaidOnce(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.run(), "nothing was ever kept")
	_, err := w.archive.Found(t.Context(), founded(t, w), at)
	require.NoError(t, err)
	err = w.run()
	require.ErrorContains(t, err, "nothing is kept that could be brought back")
	assert.NoDirExists(t, w.member.DataDir)
}

func founded(t *testing.T, w *world) string {
	t.Helper()
	id, err := (&run{Recovery: New(w.options), member: w.member}).seed().ClusterID()
	require.NoError(t, err)
	return hex(id)
}

func TestTheStoreOfAnotherClusterIsRefusedAndBothAreNamed(t *testing.T) {
	w := newWorld(t)
	_, err := w.archive.Found(t.Context(), "abc123", at)
	require.NoError(t, err)
	err = w.run()
	require.ErrorContains(t, err, "abc123")
	require.ErrorContains(t, err, founded(t, w))

	require.NoError(t, os.Rename(datadirtest.Born(t), w.member.DataDir))
	err = w.run()
	require.ErrorContains(t, err, "abc123")
	require.ErrorContains(t, err, hex(stand(t, w.member.DataDir).ClusterID))
}

func TestGoingBackHappensOnce(t *testing.T) {
	w := newWorld(t)
	w.used()
	to := stand(t, w.member.DataDir).Revision
	w.put("a mistake")
	w.backUp(1)
	var flushed []string
	w.options.Flush = func(_ context.Context, dataDir string, _ datadir.Standing) error {
		flushed = append(flushed, dataDir)
		return nil
	}
	w.options.Request = &Request{Target: archive.Target{Revision: to}, ID: "drop"}
	require.NoError(t, w.run())
	keys, _ := w.keys()
	assert.Equal(t, []string{"key"}, keys)
	assert.Len(t, w.asides(), 1)
	assert.Equal(t, []string{w.member.DataDir}, flushed)

	w.put("later")
	require.NoError(t, w.run())
	keys, _ = w.keys()
	assert.Equal(t, []string{"key", "later"}, keys, "the id was used")

	w.backUp(2)
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	require.NoError(t, os.Remove(filepath.Join(w.volume, positionFile)))
	require.NoError(t, w.run())
	keys, _ = w.keys()
	assert.Equal(t, []string{"key", "later"}, keys, "the store remembers it, too")
}

func TestATargetThatIsNotKeptMovesNothing(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.options.Request = &Request{Target: archive.Target{Revision: 4711}, ID: "drop"}
	err := w.run()
	var refusal *Refusal
	require.ErrorAs(t, err, &refusal)
	assert.True(t, refusal.Configuration)
	require.ErrorContains(t, err, "revision 4711 is not kept")
	require.ErrorContains(t, err, "revisions 2 to 2")
	assert.Empty(t, w.asides())
}

func TestNeverSaysWhatCouldComeBackAndTouchesNothing(t *testing.T) {
	w := newWorld(t)
	w.used()
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

func TestABrokenVolumeDoesNotWaitForTheStore(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.spoil()
	w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
	err := w.run()
	require.ErrorContains(t, err, "store unavailable")
	require.ErrorContains(t, err, "see that the store can be reached")
}

func TestAVolumeThatTheStoreMayKnowBetterAboutWaits(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.store.Inject(memory.Fault{Op: memory.Get, Times: 5, Err: store.ErrUnavailable})
	require.NoError(t, w.run())
	assert.Contains(t, w.log.String(), "it is waited for")
}

func TestAMemberOfSeveralThatAreNotNamedIsLeftAsItIs(t *testing.T) {
	w := newWorld(t)
	w.used()
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
	w.used()
	cluster := hex(stand(t, w.member.DataDir).ClusterID)
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	for _, never := range []bool{false, true} {
		w.options.Never = never
		err := w.run()
		require.ErrorContains(t, err, "is cluster "+cluster+"'s")
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

func TestAMemberAloneWithoutAStore(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.options.Archive = nil
	before := stand(t, w.member.DataDir)
	require.NoError(t, w.run())
	assert.Equal(t, before, stand(t, w.member.DataDir))
	w.spoil()
	err := w.run()
	require.ErrorContains(t, err, "neither a store nor another member to bring them back from")
	require.ErrorContains(t, err, w.database())
	assert.Equal(t, exitcode.EtcdFailed, w.statusOf(err), "nobody can change that but people")
	assert.Empty(t, w.asides())
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	require.NoError(t, w.run())
}

// disasters are what can have happened to a volume, and how it ends.
var disasters = map[string]struct {
	happens func(*world)
	keys    []string
	asides  int
}{
	"lost":        {func(w *world) { require.NoError(w.t, os.RemoveAll(w.member.DataDir)) }, []string{"a", "key"}, 0},
	"broken":      {(*world).spoil, []string{"a", "key"}, 1},
	"rolled back": {(*world).rollBack, []string{"a", "key"}, 1},
	"going back": {func(w *world) {
		w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	}, []string{"key"}, 1},
}

// everywhere has runs cut off, and requests fail, at every place; otherwise some are tried. make test-recovery sets it.
var everywhere = flag.Bool("everywhere", false, "cut recovery off at every place")

// some is how far apart places are that are tried.
func some(apart int) int {
	if *everywhere {
		return 1
	}
	return apart
}

// stricken is a world in which that has happened.
func stricken(t *testing.T, disaster string) *world {
	w := newWorld(t)
	w.used()
	w.older = filepath.Join(t.TempDir(), "older")
	require.NoError(t, os.CopyFS(w.older, os.DirFS(w.member.DataDir)))
	w.put("a")
	w.backUp(1)
	disasters[disaster].happens(w)
	return w
}

// Wherever it is cut off, the next run comes to the same end.
func TestARunThatIsCutOffInFrontOfAnyActionIsBroughtToItsEnd(t *testing.T) {
	for name, disaster := range disasters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at := 0; ; at += some(3) {
				w := stricken(t, name)
				seen := 0
				err := w.runWith(func(Action) error {
					if seen++; seen > at {
						return errCut
					}
					return nil
				})
				if err == nil {
					require.Greater(t, at, 8, "there is something to cut off")
					return
				}
				require.ErrorIs(t, err, errCut)
				require.NoError(t, w.run())
				w.requireEnd(disaster.keys, disaster.asides)
			}
		})
	}
}

// Each request to the store fails once, with and without being done.
func TestAStoreThatFailsAtAnyRequestChangesNothingAboutTheEnd(t *testing.T) {
	for name, disaster := range disasters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at, more := 0, true; more; at += some(11) {
				for _, lost := range []bool{false, true} {
					w := stricken(t, name)
					begun := len(w.store.Calls())
					w.store.Inject(memory.Fault{After: at, Times: 1, Err: store.ErrUnavailable, ReplyLost: lost})
					if err := w.run(); err != nil {
						require.ErrorIs(t, err, store.ErrUnavailable)
						require.NoError(t, w.run())
					}
					more = len(w.store.Calls())-begun > at
					w.requireEnd(disaster.keys, disaster.asides)
				}
			}
		})
	}
}
