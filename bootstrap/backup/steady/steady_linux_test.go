package steady_test

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestWhatIsDroppedDoesNotFillThePageCache(t *testing.T) {
	path := written(t, make([]byte, size))
	skipInMemory(t, path)
	require.LessOrEqual(t, cached(t, path), size/4)
}

// skipInMemory skips the test where files are nowhere else than in memory.
func skipInMemory(t *testing.T, path string) {
	var disk unix.Statfs_t
	require.NoError(t, unix.Statfs(path, &disk))
	if disk.Type == unix.TMPFS_MAGIC {
		t.Skip("the directory is in memory")
	}
}

// cached is how many bytes of a file are in the page cache.
func cached(t *testing.T, path string) (bytes int) {
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	mapped, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mapped)) }()
	pages := make([]byte, size/os.Getpagesize())
	_, _, failed := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapped[0])), size, uintptr(unsafe.Pointer(&pages[0]))) //nolint:gosec // as mincore(2) has it
	require.Zero(t, failed)
	for _, page := range pages {
		bytes += int(page&1) * os.Getpagesize()
	}
	return bytes
}
