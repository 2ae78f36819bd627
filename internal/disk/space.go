package disk

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Space returns how many bytes of a directory's volume are available to this process, and the size of the volume. The
// error names the directory and the cause.
func Space(dir string) (left, size int64, err error) {
	var volume unix.Statfs_t
	if err := unix.Statfs(dir, &volume); err != nil {
		return 0, 0, fmt.Errorf("cannot see how much room the volume of %s has: %w", dir, err)
	}
	block := int64(volume.Bsize)                                           //nolint:unconvert // the types differ by system
	return int64(volume.Bavail) * block, int64(volume.Blocks) * block, nil //nolint:gosec // far from overflowing
}
