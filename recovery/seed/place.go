package seed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxLinks is the maximum number of symbolic links to follow, as in the kernel.
const maxLinks = 40

// ResolvePath returns where a data directory is, or will be: a symbolic link is followed, even to a missing target.
// Directories that are renamed from or to it lie next to it, so on the same volume.
func ResolvePath(dataDir string) string {
	place := dataDir
	for range maxLinks {
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

// CheckPath returns why a finished directory cannot get that name.
func CheckPath(path string) error {
	if isMountPoint(path) {
		return fmt.Errorf("%s is a mount point, and nothing can be given its name; name a directory below it", path)
	}
	return nil
}

// ErrInUse reports that another process has locked the directory.
var ErrInUse = errors.New("another process uses the data directory")

// Lock locks a directory for this process until the file is closed. Two wrappers with different volumes may use one
// data directory: neither may remove what the other one builds. Some file systems have no locks.
func Lock(dir string) (*os.File, error) {
	lock, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if errors.Is(unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
		err = fmt.Errorf("%w: it restores data into %s; end it, or give this one a data-dir of its own", ErrInUse, dir)
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// MountedWithin returns a part of a data directory that is a mount point; empty if there is none. It stays with
// preserved data, and becomes part of the restored ones when it is mounted again.
func MountedWithin(dataDir string) string {
	for _, part := range []string{"member", "member/wal", "member/snap"} {
		if at := filepath.Join(dataDir, part); isMountPoint(at) {
			return at
		}
	}
	return ""
}
