package seed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// longestWay is how many symbolic links may lie behind each other, as for the kernel.
const longestWay = 40

// Place is where a data directory really is, or will be: a symbolic link in its place, which may lead to nothing yet, is followed. What
// gets the directory's name, or gives it up, lies beside it, and so on the same volume.
func Place(dataDir string) string {
	place := dataDir
	for range longestWay {
		place = filepath.Clean(place)
		if parent, err := filepath.EvalSymlinks(filepath.Dir(place)); err == nil {
			place = filepath.Join(parent, filepath.Base(place))
		}
		target, err := os.Readlink(place)
		if err != nil {
			return place
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(place), target)
		}
		place = target
	}
	return dataDir
}

// CheckPlace says why a finished directory cannot be given that name.
func CheckPlace(place string) error {
	if isMountPoint(place) {
		return fmt.Errorf("%s is a mount point, and nothing can be given its name; name a directory below it", place)
	}
	return nil
}

// ErrInUse is of a directory that another process has locked.
var ErrInUse = errors.New("another process uses the data directory")

// Hold locks a directory for this process until the file is closed. Two wrappers with volumes of their own may have been given one data
// directory: neither must remove what the other one builds. Not every file system has locks.
func Hold(dir string) (*os.File, error) {
	held, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if errors.Is(unix.Flock(int(held.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
		err = fmt.Errorf("%w: it restores data into %s; end it, or give this one a data-dir of its own", ErrInUse, dir)
		return nil, errors.Join(err, held.Close())
	}
	return held, nil
}

// MountedWithin is a part of a data directory that is a mount point; empty if none is. It stays with the data that are set aside, and
// comes back into the place of that part of the restored ones when it is mounted again.
func MountedWithin(place string) string {
	for _, part := range []string{"member", "member/wal", "member/snap"} {
		if at := filepath.Join(place, part); isMountPoint(at) {
			return at
		}
	}
	return ""
}
