package recovery

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

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
			w := newWorld(t)
			w.used()
			w.spoil()
			theirs := w.member.DataDir + ending
			require.NoError(t, os.MkdirAll(filepath.Join(theirs, "member"), 0o700))
			locked(t, theirs)
			require.ErrorIs(t, w.run(), errTaken)
			assert.DirExists(t, filepath.Join(theirs, "member"))
			assert.Empty(t, w.asides())
		})
	}
}

func TestWhatWasBuiltIsHeldUntilItIsInstalled(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.spoil()
	seen := 0
	require.NoError(t, w.runWith(func(action Action) error {
		if action == ProveData || action == ClaimGeneration || action == InstallData {
			seen++
			require.True(t, inUse(w.member.DataDir+restored), action)
		}
		return nil
	}))
	assert.Equal(t, 3, seen)
	assert.False(t, inUse(w.member.DataDir), "etcd-wrapper locks it now")
	w.requireEnd([]string{"key"}, 1)
}

func TestDataThatHaveAppearedSinceAreNotSetAside(t *testing.T) {
	w := newWorld(t)
	w.used()
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
	w := newWorld(t)
	w.used()
	w.spoil()
	err := w.runWith(func(action Action) error {
		if action == SetVolumeAside {
			locked(t, w.database())
		}
		return nil
	})
	require.ErrorIs(t, err, errTaken)
	assert.FileExists(t, w.database())
	assert.Empty(t, w.asides())
}
