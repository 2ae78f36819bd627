package bootstrap

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrVolumeBusy means that another process holds the volume's lock.
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

// Check returns an error with the way out if no data can be kept at the volume's path. A path that does not exist is mistyped,
// or its volume is not mounted: to create it there would start a new cluster next to the data.
func (v *Volume) Check() error {
	info, err := os.Stat(v.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--volume-dir: %s does not exist; mount the volume, correct the path, or create the directory for a new cluster", v.path)
	case err != nil:
		return fmt.Errorf("--volume-dir: %w; correct the path, or make it accessible for user %d", err, os.Geteuid())
	case !info.IsDir():
		return fmt.Errorf("--volume-dir: %s is a file; name the directory that holds the data directory", v.path)
	case errors.Is(unix.Access(v.path, unix.W_OK), unix.EROFS):
		return fmt.Errorf("--volume-dir: %s: %w; mount it writable", v.path, unix.EROFS)
	}
	return nil
}

// Lock takes the lock, or returns ErrVolumeBusy without a wait. A lock that is held can be taken again. A read-only volume
// can be locked, too.
func (v *Volume) Lock() error {
	if v.locked != nil {
		return nil
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

// Contains reports whether path, which need not exist, is on the volume's own file system.
func (v *Volume) Contains(path string) (bool, error) {
	var here, there unix.Stat_t
	if err := unix.Stat(v.path, &here); err != nil {
		return false, fmt.Errorf("cannot inspect volume %s: %w", v.path, err)
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

// ErrDataInUse means that another process has data open for writing, or has locked the data directory to do so.
var ErrDataInUse = errors.New("a running etcd has its data on the volume")

// Bounds of the search for databases. Real volumes have the data directory on their first level, and few others.
const (
	maxDepth       = 8     // levels below the volume
	maxDirectories = 10000 // looked into, the shallow ones first
)

// LockMode is the use of a database by other processes.
type LockMode int

// The uses that can be seen from bbolt's lock on the file.
const (
	Unused  LockMode = iota
	Reading          // a shared lock: it keeps etcd waiting, and changes nothing
	Writing          // an exclusive lock: an etcd that runs, of this program or not
)

// LockModeOf returns the use of a database file by other processes at the moment. Call it before this process opens the
// database. A file that cannot be opened counts as unused: etcd reports what is wrong with it.
func LockModeOf(database string) LockMode {
	switch {
	case isLocked(database, unix.LOCK_SH):
		return Writing
	case isLocked(database, unix.LOCK_EX):
		return Reading
	default:
		return Unused
	}
}

// isLocked reports whether a lock is refused. It takes the lock and releases it.
func isLocked(database string, lock int) bool {
	file, err := os.OpenFile(database, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer file.Close() // releases the lock
	return errors.Is(unix.Flock(int(file.Fd()), lock|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Probe returns ErrDataInUse with a path while any process has a database on the volume open for writing, such as an
// etcd that does not know the volume's lock. It searches 8 levels deep and follows no symbolic link to a directory.
func (v *Volume) Probe() error {
	for directory := range v.dataDirs() {
		database := filepath.Join(directory, "member", "snap", "db")
		if isLocked(database, unix.LOCK_SH) { // which keeps no reader waiting
			return fmt.Errorf("%s: %w", database, ErrDataInUse)
		}
	}
	return nil
}

// Logs returns the directories on the volume that hold a log of etcd, as deep as Probe searches.
func (v *Volume) Logs() (found []string) {
	for directory := range v.dataDirs() {
		log := filepath.Join(directory, "member", "wal")
		segments, err := os.ReadDir(log)
		if err == nil && slices.ContainsFunc(segments, func(e os.DirEntry) bool { return strings.HasSuffix(e.Name(), ".wal") }) {
			found = append(found, log)
		}
	}
	return found
}

// dataDirs yields those on the volume that may be etcd's data directory, the shallow ones first.
func (v *Volume) dataDirs() iter.Seq[string] {
	return func(yield func(string) bool) {
		level := []string{v.path}
		for depth, seen := 0, 0; depth <= maxDepth && seen < maxDirectories; depth++ {
			var next []string
			for _, directory := range level[:min(len(level), maxDirectories-seen)] {
				if !yield(directory) {
					return
				}
				entries, _ := os.ReadDir(directory) // what cannot be listed has none
				for _, entry := range entries {
					if entry.IsDir() && entry.Name() != "member" { // etcd's own has no other
						next = append(next, filepath.Join(directory, entry.Name()))
					}
				}
			}
			seen += len(level)
			level = next
		}
	}
}

// LockData takes a lock on etcd's data directory, creating the directory if need be, or returns ErrDataInUse at once
// if another wrapper with a volume of its own was given the same one. Call it for each configuration, before anything
// is opened there: a lock of an earlier one is released if the path leads elsewhere now. The lock is held until the
// process ends.
func (v *Volume) LockData(directory string) error {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return fmt.Errorf("cannot lock data directory: %w", err)
	}
	if isOpen(v.locked, directory) || isOpen(v.data, directory) {
		return nil
	}
	locked, err := lockDirectory(directory)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return Mark(fmt.Errorf("data directory %s is in use: another etcd-wrapper has locked it; end that one, or give this one a "+
			"data-dir of its own", directory), ErrDataInUse)
	}
	if err == nil && !isOpen(locked, directory) {
		err = errors.Join(errors.New("it was replaced meanwhile"), locked.Close())
	}
	if err != nil {
		return fmt.Errorf("cannot lock data directory %s: %w", directory, err)
	}
	if v.data != nil {
		err = v.data.Close()
	}
	v.data = locked
	return err
}

// isOpen reports whether the path leads to the open directory.
func isOpen(open *os.File, path string) bool {
	if open == nil {
		return false
	}
	here, errHere := open.Stat()
	there, errThere := os.Stat(path)
	return errHere == nil && errThere == nil && os.SameFile(here, there)
}
