package bootstrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrDataInUse says that an etcd which is not ours has its database on the volume open.
var ErrDataInUse = errors.New("an etcd that runs has its data on the volume")

// ErrVolumeBusy says that another process holds the volume's lock.
var ErrVolumeBusy = errors.New("another process holds the volume")

// Volume is the directory that holds the exit record and, in a pod, the data directory. Its lock keeps two wrappers
// from working on one volume: the lock is taken before the first call to the sidecar and held until the process ends.
type Volume struct {
	path   string
	locked *os.File
}

// NewVolume returns the volume at path, a directory; it touches nothing.
func NewVolume(path string) *Volume { return &Volume{path: path} }

// Lock takes the lock, creating the directory if need be, or returns ErrVolumeBusy at once. Once it has succeeded it
// keeps succeeding. It locks the directory itself, so that nothing is left behind and a read-only volume still answers.
func (v *Volume) Lock() error {
	if v.locked != nil {
		return nil
	}
	if err := os.MkdirAll(v.path, 0o700); err != nil {
		return fmt.Errorf("cannot lock volume: %w", err)
	}
	directory, err := os.Open(v.path)
	if err != nil {
		return fmt.Errorf("cannot lock volume: %w", err)
	}
	if err := unix.Flock(int(directory.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		directory.Close() //nolint:errcheck // the lock was not taken
		return fmt.Errorf("cannot lock volume %s: %w", v.path, busy(err))
	}
	v.locked = directory
	return nil
}

// Probe returns ErrDataInUse while a database in a directory of the volume is open for writing, by whatever process: an
// etcd that does not know the volume's lock. What can't be looked at is not held against anybody.
func (v *Volume) Probe() error {
	databases, err := filepath.Glob(filepath.Join(v.path, "*", "member", "snap", "db"))
	if err != nil {
		return fmt.Errorf("cannot look for databases on the volume: %w", err)
	}
	for _, path := range databases {
		if isOpenForWriting(path) {
			return fmt.Errorf("%s: %w", path, ErrDataInUse)
		}
	}
	return nil
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

// Unlock releases the lock, for tests that play several processes; a process that ends releases it anyway.
func (v *Volume) Unlock() error {
	if v.locked == nil {
		return nil
	}
	err := v.locked.Close()
	v.locked = nil
	return err
}

func busy(err error) error {
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrVolumeBusy
	}
	return err
}
