package disk_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/internal/disk"
)

// TestSyncDir_missing checks only errors. The fault suite tests that directories are synced, which only a power
// failure can reveal.
func TestSyncDir_missing(t *testing.T) {
	require.NoError(t, disk.SyncDirectory(t.TempDir()))
	missing := filepath.Join(t.TempDir(), "missing")
	err := disk.SyncDirectory(missing)
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, missing)
}

func TestSyncDir_errorNamesDirectory(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("the test requires /proc, whose directories cannot be synced")
	}
	assert.ErrorContains(t, disk.SyncDirectory("/proc/self/fd"), "cannot sync directory /proc/self/fd: ")
}

func TestReplace_permissionsAndLeftovers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	require.NoError(t, os.WriteFile(path, []byte("a longer old content"), 0o644))
	require.NoError(t, disk.Replace(path, []byte("new")))
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "new", string(content))
	info, err := os.Lstat(path)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), info.Mode())
	assert.Equal(t, []string{"record"}, names(t, filepath.Dir(path)))
}

func TestReplace_failureKeepsTheContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	require.NoError(t, os.MkdirAll(filepath.Join(path, "held"), 0o700)) // a file cannot replace a directory that is not empty
	require.Error(t, disk.Replace(path, []byte("new")))
	assert.DirExists(t, filepath.Join(path, "held"))
	assert.Equal(t, []string{"record"}, names(t, filepath.Dir(path)))
}

func TestRemove_fileOrDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	require.NoError(t, disk.Remove(path), "removing a missing file must succeed")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, disk.Remove(path))
	assert.Empty(t, names(t, filepath.Dir(path)))
	require.NoError(t, os.MkdirAll(filepath.Join(path, "held"), 0o700))
	require.NoError(t, disk.Remove(path))
	assert.NoFileExists(t, path)
	preserved, err := filepath.Glob(path + ".aside-*/held")
	require.NoError(t, err)
	assert.Len(t, preserved, 1)
}

func TestRemove_failedSync(t *testing.T) {
	assert.Error(t, disk.Remove(filepath.Join(t.TempDir(), "missing", "record")))
}

func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
