package lifecycle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// withRoom adds to an error about a full disk how full it is. It looks at the disk, so it is for a piece of work.
func withRoom(err error) error {
	path := pathOf(err)
	if path == "" || !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	var disk unix.Statfs_t
	dir := filepath.Dir(path)
	if unix.Statfs(dir, &disk) != nil {
		return err
	}
	const mebibyte = 1 << 20
	size := uint64(disk.Bsize) //nolint:gosec // no file system has blocks of negative size
	return fmt.Errorf("%w (%s has %d MiB free of %d MiB; enlarge the volume or make room on it)",
		err, dir, disk.Bavail*size/mebibyte, disk.Blocks*size/mebibyte)
}

// pathOf is the file that an error is about, empty if it names none.
func pathOf(err error) string {
	var about *fs.PathError
	var renamed *os.LinkError
	switch {
	case errors.As(err, &about):
		return about.Path
	case errors.As(err, &renamed):
		return renamed.New
	}
	return ""
}
