package recovery

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/exitcode"
)

// If the data directory is a symbolic link, recovery keeps the link and restores the data to its target.
func TestDataDirThatIsASymbolicLink(t *testing.T) {
	for name, lost := range map[string]bool{"broken": false, "lost": true} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			w.damage()
			elsewhere := filepath.Join(t.TempDir(), "etcd")
			require.NoError(t, os.Rename(w.member.DataDir, elsewhere))
			require.NoError(t, os.Symlink(elsewhere, w.member.DataDir))
			if lost {
				require.NoError(t, os.RemoveAll(elsewhere))
			}
			link := w.member.DataDir
			require.NoError(t, w.run())
			target, err := os.Readlink(link)
			require.NoError(t, err, "the link is as it was")
			assert.Equal(t, elsewhere, target)
			w.member.DataDir = elsewhere
			w.requireKeys("key")
			if !lost {
				assert.Len(t, w.preserved(), 1)
			}
		})
	}
}

// A mount point cannot be replaced by renaming. Recovery must detect this before it creates a generation, which is
// irreversible.
func TestMountPointIsRefusedBeforeAnythingIsFetched(t *testing.T) {
	w := newFilledWorld(t)
	w.lose()
	require.NoError(t, os.Mkdir(w.member.DataDir, 0o700))
	w.mount(t.TempDir(), w.member.DataDir)
	require.ErrorContains(t, w.run(), "is a mount point")
	assert.Empty(t, w.leftovers())
	assert.Len(t, w.generations(), 1)
}

// The user can only fix the mount point while the data is valid. After a restore, the mounted part of the old data
// would appear in the new data.
func TestMountPointIsReportedWhileDataAreValid(t *testing.T) {
	for within, warning := range map[string]string{
		"":           "automatic recovery of lost or damaged data would fail",
		"member/wal": "member/wal is a mount point, so part of the old data would remain there after a restore",
	} {
		t.Run(within, func(t *testing.T) {
			w := newFilledWorld(t)
			w.requireStarts()
			assert.NotContains(t, w.log.String(), warning)
			at := filepath.Join(w.member.DataDir, within)
			w.mount(at, at)
			w.requireStarts()
			assert.Contains(t, w.log.String(), warning)
			assert.Contains(t, w.log.String(), at+" is a mount point")
		})
	}
}

// mount mounts a directory over another one until the test ends.
func (w *world) mount(what, at string) {
	w.t.Helper()
	if err := unix.Mount(what, at, "", unix.MS_BIND, ""); err != nil {
		w.t.Skipf("skipped: cannot mount a file system: %v", err)
	}
	w.t.Cleanup(func() { require.NoError(w.t, unix.Unmount(at, unix.MNT_DETACH)) })
}

// cutOff returns a world in which a restore was interrupted before an action.
func cutOff(t *testing.T, before Action) *world {
	t.Helper()
	w := newFilledWorld(t)
	w.put("a")
	w.backUp()
	w.put("b")
	w.backUp()
	w.options.Request = &Request{Target: archive.Target{Revision: 3}, ID: "first"}
	require.ErrorIs(t, w.cutAt(before), errCut)
	return w
}

// Only the contents of the database are uploaded, but after a kill etcd's log has a few more changes.
func TestChangesOnlyInTheLogAreReported(t *testing.T) {
	w := newFilledWorld(t)
	committed, err := os.ReadFile(w.database())
	require.NoError(t, err)
	w.put("a", "b")
	require.NoError(t, os.WriteFile(w.database(), committed, 0o600))
	w.options.Flush = func(context.Context, string, datadir.Position) error { return nil }
	w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	require.NoError(t, w.run())
	assert.Contains(t, w.log.String(), "up to 2 of the latest changes were not uploaded because they are only in the write-ahead log")
	require.Len(t, w.preserved(), 1)
}

// The validation process may have been killed because the machine ran out of memory.
func TestRestoredDataThatCannotBeReadAreKept(t *testing.T) {
	w := cutOff(t, InstallData)
	verify := w.options.Validate
	w.options.Validate = func(context.Context, string, bootstrap.Mode) ([]string, error) { return nil, datadir.ErrUnable }
	err := w.run()
	assert.Equal(t, exitcode.Clean, w.statusOf(err))
	assert.DirExists(t, w.member.DataDir+restoredSuffix, "it is claimed, and all there is")
	w.options.Validate = verify
	require.NoError(t, w.run())
	w.requireEnd([]string{"a", "key"}, 1)
	assert.Len(t, w.generations(), 2)
}

// disasters maps the ways to lose the data on a volume to the expected result of recovery.
var disasters = map[string]struct {
	happens func(*world)
	keys    []string
	asides  int
}{
	"lost":        {(*world).lose, []string{"a", "b", "c", "key"}, 0},
	"broken":      {(*world).damage, []string{"a", "b", "c", "key"}, 1},
	"rolled back": {(*world).rollBack, []string{"a", "b", "c", "key"}, 1},
	"going back": {func(w *world) {
		w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	}, []string{"key"}, 1},
}

// everywhere tests a crash or a failed request at every point instead of at a sample of points. The target
// test-recovery of the Makefile sets it.
var everywhere = flag.Bool("everywhere", false, "cut recovery off at every place")

// some returns the distance between the points to test.
func some(apart int) int {
	if *everywhere {
		return 1
	}
	return apart
}

// afterDisaster returns a world after a disaster.
func afterDisaster(t *testing.T, disaster string) *world {
	w := newFilledWorld(t)
	w.copyVolume()
	w.put("a", "b", "c")
	w.backUp()
	disasters[disaster].happens(w)
	return w
}

// cutEverywhere interrupts a run before each action, or before a sample of the actions, and checks the result of the
// next run. At least atLeast actions must be interrupted.
func cutEverywhere(t *testing.T, apart, atLeast int, begin func() *world, requireEnd func(w *world, start string)) {
	t.Helper()
	for at := 0; ; at += apart {
		w, seen := begin(), 0
		start, err := w.start(func(Action) error {
			if seen++; seen > at {
				return errCut
			}
			return nil
		})
		cut := err != nil
		if cut {
			require.ErrorIs(t, err, errCut)
			start, err = w.start(nil)
			require.NoError(t, err)
		}
		requireEnd(w, start)
		if !cut {
			require.GreaterOrEqual(t, at, atLeast, "there is something to cut off")
			return
		}
	}
}

// The result must not depend on where a run is interrupted.
func TestRunCutOffBeforeAnyActionIsCompleted(t *testing.T) {
	for name, disaster := range disasters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin := func() *world { return afterDisaster(t, name) }
			cutEverywhere(t, some(3), 9, begin, func(w *world, _ string) { w.requireEnd(disaster.keys, disaster.asides) })
		})
	}
}

// After a crash, a rejoin resumes from the member list of the cluster.
func TestRejoinCutOffBeforeAnyActionIsCompleted(t *testing.T) {
	begin := func() *world {
		w, _ := ofThree(t)
		w.damage()
		return w
	}
	cutEverywhere(t, 1, 10, begin, func(w *world, start string) {
		assert.Equal(t, "m-0=http://m-0,m-2=http://m-2", start)
		assert.Len(t, w.preserved(), 1)
		assert.Equal(t, []string{"removed", "added"}, w.member.Peers.(*fakePeers).changes)
	})
}

// Each request to the store fails once, either before or after it takes effect.
func TestFailureOfAnyRequestDoesNotChangeTheEnd(t *testing.T) {
	for name, disaster := range disasters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at, more := 0, true; more; at += some(11) {
				for _, lost := range []bool{false, true} {
					w := afterDisaster(t, name)
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
