package recovery

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/seed"
)

// A locked or unreadable database must not be mistaken for a new member.
func TestUnreadableVolumeIsNotEmpty(t *testing.T) {
	w, o := ofThree(t)
	held, err := bolt.Open(w.database(), 0o600, nil)
	require.NoError(t, err)
	defer held.Close()
	_, err = w.recovery().prepare(t.Context(), w.member, func(context.Context) error { return nil })
	require.ErrorContains(t, err, "cannot read the last revision of the data")
	assert.Empty(t, w.preserved())
	assert.Empty(t, o.changes)
}

// A sanity validation may miss the damage.
func TestPartlyReadableVolumeIsDamaged(t *testing.T) {
	w, o := ofThree(t)
	w.damage()
	o.listing = peers.Unknown
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.wait = func(context.Context, int) { cancel() }
	_, err := w.recovery().prepare(ctx, w.member, func(context.Context) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, peers.Ruins, o.holds)
	assert.Empty(t, w.preserved())
}

// etcd must start with the valid data without waiting for the store.
func TestFullVolumeDoesNotWaitForAStoreThatHangs(t *testing.T) {
	w := newFilledWorld(t)
	w.verify()
	w.options.Never, w.options.SpoolDir, w.room = true, filepath.Join(w.options.VolumeDir, "spool"), 0
	for _, name := range []string{"new.etcd.aside-" + copyTimes["oldest"], "new.etcd.aside-" + copyTimes["newest"], "spool.aside-" + copyTimes["newest"]} {
		require.NoError(t, os.MkdirAll(filepath.Join(w.volume, name, "member"), 0o700))
	}
	w.store.Inject(memory.Fault{Hang: true})
	synctest.Test(t, func(t *testing.T) {
		w.t = t
		start := time.Now()
		require.NoError(t, w.run())
		assert.LessOrEqual(t, time.Since(start), 5*time.Second)
	})
	w.t = t
	assert.Len(t, w.preservedCopies(), 2)
	assert.NoDirExists(t, w.member.DataDir+".aside-"+copyTimes["oldest"])
}

// locked locks a directory or file until the test ends.
func locked(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_EX))
}

// Two wrappers with different volumes share one data directory.
func TestDirectoryOfAnotherProcessIsKept(t *testing.T) {
	for _, ending := range []string{restoredSuffix, restoredSuffix + unfinishedSuffix} {
		t.Run(ending, func(t *testing.T) {
			w := newFilledWorld(t)
			w.damage()
			theirs := w.member.DataDir + ending
			require.NoError(t, os.MkdirAll(filepath.Join(theirs, "member"), 0o700))
			locked(t, theirs)
			require.ErrorIs(t, w.run(), seed.ErrInUse)
			assert.DirExists(t, filepath.Join(theirs, "member"))
			assert.Empty(t, w.preserved())
		})
	}
}

func TestBuiltDirectoryIsLockedUntilInstalled(t *testing.T) {
	w := newFilledWorld(t)
	w.damage()
	seen := 0
	require.NoError(t, w.runWith(func(action Action) error {
		if action == ProveData || action == ClaimGeneration || action == InstallData {
			seen++
			_, err := seed.Lock(w.member.DataDir + restoredSuffix)
			require.ErrorIs(t, err, seed.ErrInUse, action)
		}
		return nil
	}))
	assert.Equal(t, 3, seen)
	held, err := seed.Lock(w.member.DataDir)
	require.NoError(t, err, "etcd-wrapper locks it now")
	require.NoError(t, held.Close())
	w.requireEnd([]string{"key"}, 1)
}

func TestDataInUseAreNotMoved(t *testing.T) {
	for message, of := range map[string]struct{ lose, happens func(*world) }{
		"data appeared in the": {(*world).lose, func(w *world) { require.NoError(t, os.MkdirAll(filepath.Dir(w.database()), 0o700)) }},
		"a running etcd has ":  {(*world).damage, func(w *world) { locked(t, w.database()) }},
	} {
		w := newFilledWorld(t)
		of.lose(w)
		var there []string
		require.ErrorContains(t, w.runWith(before(SetVolumeAside, func() error { of.happens(w); there = w.files(); return nil })), message)
		assert.Equal(t, there, w.files())
		assert.Empty(t, w.preserved())
	}
}
