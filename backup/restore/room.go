package restore

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrNoRoom says that a volume has not the room for what is to be written.
var ErrNoRoom = errors.New("not enough room")

const (
	rowOverhead = 2       // a row just larger than half of a page has one of its own
	spare       = 8 << 20 // bytes, for what is rounded up
)

// CheckRoom is an ErrNoRoom with both numbers if the volume has less than is needed. A volume that does not say how much
// it has is tried.
func CheckRoom(dir string, source Source, options Options) error {
	var disk unix.Statfs_t
	if unix.Statfs(dir, &disk) != nil {
		return nil
	}
	needed := source.DatabaseBytes + source.RowBytes*rowOverhead + options.Beside + spare
	free := int64(disk.Bavail) * int64(disk.Bsize) //nolint:gosec,unconvert // far from overflowing; the types differ by system
	if free < needed {
		return fmt.Errorf("%w on the volume of %s: %d MiB are needed and %d MiB are free", ErrNoRoom, dir, (needed+1<<20-1)>>20, free>>20)
	}
	return nil
}
