package bootstrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrVolumeBusy says that another process holds the volume's lock.
var ErrVolumeBusy = errors.New("another process holds the volume")

// Volume is the directory that holds the exit record and, in a pod, the data directory. Its lock keeps two wrappers
// from working on one volume: the lock is taken before the first call to the sidecar and held until the process ends.
type Volume struct {
	path   string
	locked *os.File
	data   *os.File // the data directory's lock, if it is another directory
}

// NewVolume returns the volume at path, a directory; it touches nothing.
func NewVolume(path string) *Volume { return &Volume{path: path} }

// Lock takes the lock, creating the directory if need be, or returns ErrVolumeBusy at once. Once it has succeeded it
// keeps succeeding. A read-only volume can be locked, too.
func (v *Volume) Lock() error {
	if v.locked != nil {
		return nil
	}
	if err := os.MkdirAll(v.path, 0o700); err != nil {
		return fmt.Errorf("cannot lock volume: %w", err)
	}
	locked, err := lockDirectory(v.path)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrVolumeBusy
		if by := holder(v.path); by != "" {
			err = fmt.Errorf("%w: %s", err, by)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot lock volume %s: %w", v.path, err)
	}
	v.locked = locked
	return nil
}

// lockDirectory locks a directory itself, which leaves nothing behind, until the file that it returns is closed.
func lockDirectory(path string) (*os.File, error) {
	directory, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(directory.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, directory.Close())
	}
	return directory, nil
}

// Holds reports whether what lies at path, or will be made there, is on the volume's own file system.
func (v *Volume) Holds(path string) (bool, error) {
	var here, there unix.Stat_t
	if err := unix.Stat(v.path, &here); err != nil {
		return false, fmt.Errorf("cannot look at volume %s: %w", v.path, err)
	}
	err := unix.Stat(path, &there)
	for errors.Is(err, unix.ENOENT) && path != filepath.Dir(path) {
		path = filepath.Dir(path)
		err = unix.Stat(path, &there)
	}
	if err != nil {
		return false, fmt.Errorf("cannot look at %s: %w", path, err)
	}
	return here.Dev == there.Dev, nil
}

// Unlock releases both locks, for tests that play several processes; a process that ends releases them anyway.
func (v *Volume) Unlock() (err error) {
	for _, held := range []**os.File{&v.locked, &v.data} {
		if *held != nil {
			err = errors.Join(err, (*held).Close())
			*held = nil
		}
	}
	return err
}
