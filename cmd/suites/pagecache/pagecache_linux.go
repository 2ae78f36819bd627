// Package pagecache lets tests measure how much of a file is in the page cache.
package pagecache

import (
	"bytes"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Share returns the fraction of a file's pages, from 0 to 1, that are in memory. The file must not be empty.
func Share(t testing.TB, path string) float64 {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close() // nothing was written, so a close error is harmless
	about, err := file.Stat()
	require.NoError(t, err)
	content, err := unix.Mmap(int(file.Fd()), 0, int(about.Size()), unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(content)) }()
	pages := make([]byte, (len(content)+os.Getpagesize()-1)/os.Getpagesize())
	_, _, failed := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&content[0])), uintptr(len(content)), uintptr(unsafe.Pointer(&pages[0]))) //nolint:gosec // mincore(2) takes pointers
	require.Zero(t, failed)
	return float64(bytes.Count(pages, []byte{1})) / float64(len(pages))
}

// RequireDisk skips the test if the directory is on an in-memory file system.
func RequireDisk(t testing.TB, dir string) {
	t.Helper()
	var system unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &system))
	if system.Type == unix.TMPFS_MAGIC {
		t.Skip("skipped: the temporary directory is in memory (tmpfs)")
	}
}
