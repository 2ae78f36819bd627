package recovery

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
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
	"etcd-wrapper/recovery/peers"
)

func TestUnclaimedRestoreIsDecidedAgainAfterACrash(t *testing.T) {
	for name, of := range map[string]struct {
		happens func(*world)
		keys    []string
	}{
		"nothing":                 {func(*world) {}, []string{"a", "key"}},
		"etcd has served since":   {func(w *world) { w.put("acknowledged since"); w.options.Request, w.options.Never = nil, true }, []string{"a", "acknowledged since", "b", "key"}},
		"it is not asked for now": {func(w *world) { w.options.Request = nil }, []string{"a", "b", "key"}},
		"another one is":          {func(w *world) { w.options.Request.Target = archive.Target{Revision: 2} }, []string{"key"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := cutOff(t, ClaimGeneration)
			require.Len(t, w.generations(), 1)
			of.happens(w)
			require.NoError(t, w.run())
			w.requireKeys(of.keys...)
			assert.Empty(t, w.leftovers())
		})
	}
}

// Only the store tells whether it was claimed.
// It hears of the stop while it asks for the next generation.
func TestRunStoppedDuringItsClaimIsCompleted(t *testing.T) {
	w := stricken(t, "going back")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := w.startWithin(ctx, before(ClaimGeneration, func() error {
		w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
		cancel()
		return nil
	}))
	require.ErrorIs(t, err, context.Canceled)
	w.store.ClearFaults()
	require.Len(t, w.generations(), 1)
	require.NoError(t, w.run())
	w.requireKeys("key")
}

func TestClaimNeedsTheStore(t *testing.T) {
	w, o := ofThree(t)
	o.listing = peers.Asking
	w.options.Request = &Request{Target: archive.Target{}, ID: "drop"}
	require.ErrorIs(t, w.cutAt(ClaimGeneration), errCut)
	w.options.Archive, w.options.Request = nil, nil
	o.listing = peers.Started
	w.requireRefused("start with --backup-store")
	require.NoError(t, os.Remove(w.volume+"/"+recordFile), "the way out")
	require.NoError(t, w.run())
	w.requireKeys("key")
}

func TestDataDirWithTrailingSlash(t *testing.T) {
	w := usedWorld(t)
	w.spoil()
	at := w.member.DataDir
	w.member.DataDir += "/"
	require.NoError(t, w.run())
	w.member.DataDir = at
	w.requireEnd([]string{"key"}, 1)
}

// A link of that name says where the data are to be: that is where they come back.
func TestDataDirThatIsASymbolicLink(t *testing.T) {
	for name, lost := range map[string]bool{"broken": false, "lost": true} {
		t.Run(name, func(t *testing.T) {
			w := usedWorld(t)
			w.spoil()
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
				assert.Len(t, w.asides(), 1)
			}
		})
	}
}

// Nothing can be given the name of a mount point. That has to be known before a generation is begun, since nothing else may come to
// be opened after that.
func TestMountPointIsRefusedBeforeAnythingIsFetched(t *testing.T) {
	w := usedWorld(t)
	w.lose()
	require.NoError(t, os.Mkdir(w.member.DataDir, 0o700))
	w.mount(t.TempDir(), w.member.DataDir)
	require.ErrorContains(t, w.run(), "is a mount point")
	assert.Empty(t, w.leftovers())
	assert.Len(t, w.generations(), 1)
}

// There is time to change that as long as the data are in order. What is mounted again within them would be a part of other data by then.
func TestMountPointIsReportedWhileDataAreValid(t *testing.T) {
	for within, warning := range map[string]string{
		"":           "lost or damaged data could not be restored automatically",
		"member/wal": "member/wal is a mount point: if the data were replaced, the next start would find a part of the old data there",
	} {
		t.Run(within, func(t *testing.T) {
			w := usedWorld(t)
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
		w.t.Skipf("skipped: nothing can be mounted here: %v", err)
	}
	w.t.Cleanup(func() { require.NoError(w.t, unix.Unmount(at, unix.MNT_DETACH)) })
}

// cutOff is a world in which a restore was cut off in front of an action.
func cutOff(t *testing.T, before Action) *world {
	t.Helper()
	w := usedWorld(t)
	w.put("a")
	w.backUp(1)
	w.put("b")
	w.backUp(1)
	w.options.Request = &Request{Target: archive.Target{Revision: 3}, ID: "first"}
	require.ErrorIs(t, w.cutAt(before), errCut)
	return w
}

// What was asked for last is what etcd opens: later it would undo what was written meanwhile.
func TestLastRequestWinsOverARestoreThatWasCutOff(t *testing.T) {
	for _, before := range []Action{ClaimGeneration, SetVolumeAside, InstallData, Remember} {
		t.Run(string(before), func(t *testing.T) {
			t.Parallel()
			w := cutOff(t, before)
			w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "second"}
			require.NoError(t, w.run())
			w.requireKeys("key")
			w.put("later")
			require.NoError(t, w.run())
			w.requireKeys("key", "later")
		})
	}
}

func TestRestoreIsDoneOnce(t *testing.T) {
	const said = "restore \\\"drop\\\" was done before"
	w := usedWorld(t)
	w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	require.NoError(t, w.run())
	assert.NotContains(t, w.log.String(), said, "it was done now")
	w.put("later")
	for _, remembered := range []string{"on the volume", "in the store alone"} {
		w.log.Reset()
		w.options.Request.Target.Revision++ // whatever it asks for
		r := w.recovery()
		for range 2 {
			require.NoError(t, w.prepare(r))
		}
		assert.Equal(t, 1, strings.Count(w.log.String(), said), remembered)
		require.NoError(t, os.Remove(filepath.Join(w.volume, recordFile)))
	}
	w.requireKeys("key", "later")
}

// The flags may stay: they must not be in the way of a volume that is lost a year later.
func TestDoneRestoreIsKnownAfterItsGenerationIsDeleted(t *testing.T) {
	w := stricken(t, "going back")
	require.NoError(t, w.run())
	w.put("later")
	w.backUp(2)
	for range 2 {
		w.lose()
		require.NoError(t, os.Remove(filepath.Join(w.volume, recordFile)))
		require.NoError(t, w.run())
		w.requireKeys("key", "later")
		all := w.generations()
		w.backUp(all[len(all)-1].Number)
		for _, old := range all[:len(all)-1] {
			w.forget(archive.GenerationPrefix(old.Number))
		}
	}
	assert.Equal(t, []string{"drop"}, w.generations()[0].Restored)
}

// forget deletes what a retention lets go.
func (w *world) forget(prefix string) {
	w.t.Helper()
	for _, name := range w.objects(prefix) {
		require.NoError(w.t, w.store.Delete(w.t.Context(), name))
	}
}

// The store gets what a database has. Of an etcd that was killed the log has a moment more.
func TestChangesOnlyInTheLogAreReported(t *testing.T) {
	w := usedWorld(t)
	committed, err := os.ReadFile(w.database())
	require.NoError(t, err)
	w.put("a", "b")
	require.NoError(t, os.WriteFile(w.database(), committed, 0o600))
	w.options.Flush = func(context.Context, string, datadir.Position) error { return nil }
	w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	require.NoError(t, w.run())
	assert.Contains(t, w.log.String(), "up to 2 of the last changes are only in the log of the killed etcd")
	require.Len(t, w.asides(), 1)
}

// The kernel may have had no memory for the process that looks at what was built.
func TestRestoredDataThatCannotBeReadAreKept(t *testing.T) {
	w := cutOff(t, InstallData)
	verify := w.options.Validate
	w.options.Validate = func(context.Context, string, bootstrap.Mode) ([]string, error) { return nil, datadir.ErrUnable }
	err := w.run()
	assert.Equal(t, exitcode.Clean, w.statusOf(err))
	assert.DirExists(t, w.member.DataDir+restored, "it is claimed, and all there is")
	w.options.Validate = verify
	require.NoError(t, w.run())
	w.requireEnd([]string{"a", "key"}, 1)
	assert.Len(t, w.generations(), 2)
}

// Where neither a store nor others are asked, what seems to be an empty volume may be half of a restore.
func TestHalfOfARestoreIsNoEmptyVolume(t *testing.T) {
	for before, installed := range map[Action]bool{ClaimGeneration: false, InstallData: false, Remember: true} {
		w := cutOff(t, before)
		if w.options.Archive, w.options.Request = nil, nil; installed {
			require.NoError(t, w.run())
		} else {
			w.requireRefused("start with --backup-store")
		}
	}
}

// disasters are what can have happened to a volume, and how it ends.
var disasters = map[string]struct {
	happens func(*world)
	keys    []string
	asides  int
}{
	"lost":        {(*world).lose, []string{"a", "b", "c", "key"}, 0},
	"broken":      {(*world).spoil, []string{"a", "b", "c", "key"}, 1},
	"rolled back": {(*world).rollBack, []string{"a", "b", "c", "key"}, 1},
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
	w := usedWorld(t)
	w.copyVolume()
	w.put("a", "b", "c")
	w.backUp(1)
	disasters[disaster].happens(w)
	return w
}

// Wherever it is cut off, and where it is not, it comes to the same end.
func TestRunCutOffBeforeAnyActionIsCompleted(t *testing.T) {
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
				if err != nil {
					require.ErrorIs(t, err, errCut)
					require.NoError(t, w.run())
				}
				w.requireEnd(disaster.keys, disaster.asides)
				if err == nil {
					require.Greater(t, at, 8, "there is something to cut off")
					return
				}
			}
		})
	}
}

// Each request to the store fails once, with and without being done.
func TestFailureOfAnyRequestDoesNotChangeTheEnd(t *testing.T) {
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
