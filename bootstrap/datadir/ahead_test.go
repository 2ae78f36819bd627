package datadir

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A file without data takes no time to read, and memory as any other.
func TestAllOfAFileIsReadAhead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	requireDisk(t, filepath.Dir(path))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 100<<20))
	require.NotEqual(t, 1.0, inMemory(t, path))
	intoMemory(t.Context(), path)
	// A machine that is short of memory may have dropped some of it again.
	assert.Greater(t, inMemory(t, path), 0.9)
}

// inMemory is the share of a file's pages that the kernel has in memory.
func inMemory(t *testing.T, path string) float64 {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close() // nothing was written
	content, err := mapped(file)
	require.NoError(t, err)
	defer func() { _ = unix.Munmap(content) }() // it was read
	pages := make([]byte, len(content)/os.Getpagesize())
	_, _, failed := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&content[0])), uintptr(len(content)), uintptr(unsafe.Pointer(&pages[0]))) //nolint:gosec // as mincore(2) has it
	require.Zero(t, failed)
	return float64(bytes.Count(pages, []byte{1})) / float64(len(pages))
}

// requireDisk skips the test on a file system that is in memory itself.
func requireDisk(t *testing.T, dir string) {
	t.Helper()
	var system unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &system))
	if system.Type == unix.TMPFS_MAGIC {
		t.Skip("files are in memory here")
	}
}
