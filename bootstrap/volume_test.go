package bootstrap_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/bootstrap"
)

func TestVolumeLock_oneHolder(t *testing.T) {
	path := t.TempDir()
	first, second := bootstrap.NewVolume(path), bootstrap.NewVolume(path)
	require.NoError(t, first.Lock())
	require.NoError(t, first.Lock(), "locking again does nothing")
	busy := second.Lock()
	require.ErrorIs(t, busy, bootstrap.ErrVolumeBusy)
	if locks, err := os.ReadFile("/proc/locks"); err == nil && bytes.Contains(locks, fmt.Appendf(nil, " %d ", os.Getpid())) {
		assert.ErrorContains(t, busy, fmt.Sprintf("(pid %d, bootstrap.test)", os.Getpid()))
	}
	require.NoError(t, first.Unlock())
	require.NoError(t, second.Lock())
	require.NoError(t, second.Unlock())
	left, err := os.ReadDir(path)
	require.NoError(t, err)
	assert.Empty(t, left, "the lock must not create any files")
}

// databaseAt creates a database in a data directory and locks it like bbolt.
func databaseAt(t *testing.T, dataDir string, lock int) (path string, holder *os.File) {
	t.Helper()
	path = filepath.Join(dataDir, "member", "snap", "db")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	holder, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { holder.Close() })
	require.NoError(t, unix.Flock(int(holder.Fd()), lock))
	return path, holder
}

func TestDatabaseInUse_anywhereOnTheVolume(t *testing.T) {
	for _, dir := range []string{".", "new.etcd", "a/b", "a/b/c/d/e/f/g/h"} {
		t.Run(dir, func(t *testing.T) {
			path := t.TempDir()
			volume := bootstrap.NewVolume(path)
			database, holder := databaseAt(t, filepath.Join(path, dir), unix.LOCK_EX)
			err := volume.Probe()
			require.ErrorIs(t, err, bootstrap.ErrDataInUse)
			require.ErrorContains(t, err, database)
			require.NoError(t, unix.Flock(int(holder.Fd()), unix.LOCK_SH))
			require.NoError(t, volume.Probe(), "a database that is only read is not in use")
		})
	}
}

func TestDatabaseInUse_searchIsBounded(t *testing.T) {
	path, elsewhere := t.TempDir(), t.TempDir()
	databaseAt(t, filepath.Join(path, strings.Repeat("deep/", 9)), unix.LOCK_EX)
	databaseAt(t, elsewhere, unix.LOCK_EX)
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(path, "link")))
	require.NoError(t, os.Symlink(path, filepath.Join(path, "circle")))
	require.NoError(t, bootstrap.NewVolume(path).Probe())
	require.NoError(t, bootstrap.NewVolume(filepath.Join(path, "absent")).Probe())
}

func TestDatabaseInUse_readerOrWriter(t *testing.T) {
	database, holder := databaseAt(t, t.TempDir(), unix.LOCK_SH)
	assert.Equal(t, bootstrap.Reading, bootstrap.LockModeOf(database))
	require.NoError(t, unix.Flock(int(holder.Fd()), unix.LOCK_EX))
	assert.Equal(t, bootstrap.Writing, bootstrap.LockModeOf(database))
	require.NoError(t, unix.Flock(int(holder.Fd()), unix.LOCK_UN))
	assert.Equal(t, bootstrap.Unused, bootstrap.LockModeOf(database))
	assert.Equal(t, bootstrap.Unused, bootstrap.LockModeOf(database+".absent"))
}

func TestDataDirectoryLock_twoVolumes(t *testing.T) {
	data := filepath.Join(t.TempDir(), "made", "on", "demand")
	first, second := bootstrap.NewVolume(t.TempDir()), bootstrap.NewVolume(t.TempDir())
	require.NoError(t, first.Lock())
	require.NoError(t, second.Lock())
	require.NoError(t, first.LockData(data))
	require.NoError(t, first.LockData(data), "locking again does nothing")
	err := second.LockData(data)
	require.ErrorIs(t, err, bootstrap.ErrDataInUse)
	require.ErrorContains(t, err, data)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(data, link))
	require.ErrorIs(t, second.LockData(link), bootstrap.ErrDataInUse, "a symbolic link leads to the same directory")
	require.NoError(t, first.Unlock())
	require.NoError(t, second.LockData(data))
	require.NoError(t, second.Unlock())
}

func TestDataDirectoryLock_isTheVolume(t *testing.T) {
	path := t.TempDir()
	first, second := bootstrap.NewVolume(path), bootstrap.NewVolume(t.TempDir())
	require.NoError(t, first.Lock())
	require.NoError(t, first.LockData(path))
	require.ErrorIs(t, second.LockData(path), bootstrap.ErrDataInUse)
}

// LockData must lock the new directory if the data directory was replaced, as it is when the sidecar restores a
// backup.
func TestDataDirectoryLock_replacedDirectory(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	first, second := bootstrap.NewVolume(t.TempDir()), bootstrap.NewVolume(t.TempDir())
	require.NoError(t, first.LockData(data))
	require.NoError(t, os.Rename(data, data+".old"))
	require.NoError(t, first.LockData(data))
	require.ErrorIs(t, second.LockData(data), bootstrap.ErrDataInUse)
	require.NoError(t, second.LockData(data+".old"), "the lock on the replaced directory was released")
	require.ErrorContains(t, first.LockData(filepath.Join("/dev/null", "x")), "cannot create data directory")
}

func TestUnusableVolume(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for path, problem := range map[string]string{
		dir:                            "",
		file:                           "is a file; specify the directory",
		filepath.Join(dir, "mistyped"): "does not exist; mount the volume, fix the path",
		filepath.Join(file, "below"):   "not a directory; fix the path",
	} {
		err := bootstrap.NewVolume(path).Check()
		if problem == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "--volume-dir: ")
		require.ErrorContains(t, err, problem)
	}
	require.NoDirExists(t, filepath.Join(dir, "mistyped"))
}
