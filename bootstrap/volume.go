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

// A Volume is the directory that holds the exit record and, in a pod, the data directory. Its lock prevents two
// wrappers from using the same volume: it is taken before the first call to the sidecar and held until the process
// ends.
type Volume struct {
	path   string
	locked *os.File
	data   *os.File // lock on the data directory if it is outside the volume's directory
}

// NewVolume returns the volume at path, a directory. It does not access it.
func NewVolume(path string) *Volume { return &Volume{path: path} }

// Check returns an error with the way out if no data can be kept at the volume's path. It does not create a missing
// directory: the path is mistyped or its volume is not mounted, and a new cluster would start although the data
// exists.
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

// Lock takes the lock, or returns ErrVolumeBusy without waiting. It may be called again while it holds the lock. It
// can also lock a read-only volume.
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

// lockDirectory locks the directory itself, which leaves no file behind, until the returned file is closed.
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

// Unlock releases both locks, for tests that simulate several processes. A process releases them when it ends.
func (v *Volume) Unlock() (err error) {
	for _, held := range []**os.File{&v.locked, &v.data} {
		if *held != nil {
			err = errors.Join(err, (*held).Close())
			*held = nil
		}
	}
	return err
}

// ErrDataInUse means that another process has data open for writing, or has locked the data directory for that.
var ErrDataInUse = errors.New("a running etcd has its data on the volume")

// Limits of the search for databases. A real volume has the data directory at its first level and few other
// directories.
const (
	maxDepth       = 8     // maximum number of levels below the volume
	maxDirectories = 10000 // maximum number of directories to search, the shallowest first
)

// LockMode describes how other processes use a database.
type LockMode int

// Uses of a database, according to bbolt's lock on the file.
const (
	Unused  LockMode = iota
	Reading          // a shared lock: etcd has to wait, but nothing changes
	Writing          // an exclusive lock: a running etcd, in this program or another
)

// LockModeOf returns how other processes use a database file at the moment. Call it before this process opens the
// database. A file that cannot be opened counts as unused, because etcd will report the problem.
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

// isLocked reports whether another process prevents a lock. It takes the lock and releases it immediately.
func isLocked(database string, lock int) bool {
	file, err := os.OpenFile(database, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer file.Close() // releases the lock
	return errors.Is(unix.Flock(int(file.Fd()), lock|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Probe returns ErrDataInUse with a path if a process has a database on the volume open for writing, such as an etcd
// that does not take the volume's lock. It searches 8 levels deep and does not follow symbolic links to directories.
func (v *Volume) Probe() error {
	for directory := range v.dataDirs() {
		database := filepath.Join(directory, "member", "snap", "db")
		if isLocked(database, unix.LOCK_SH) { // a shared lock does not block readers
			return fmt.Errorf("%s: %w", database, ErrDataInUse)
		}
	}
	return nil
}

// Logs returns the directories on the volume that contain an etcd log, as deep as Probe searches.
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

// dataDirs yields the directories on the volume that may be a data directory of etcd, the shallowest first.
func (v *Volume) dataDirs() iter.Seq[string] {
	return func(yield func(string) bool) {
		level := []string{v.path}
		for depth, seen := 0, 0; depth <= maxDepth && seen < maxDirectories; depth++ {
			var next []string
			for _, directory := range level[:min(len(level), maxDirectories-seen)] {
				if !yield(directory) {
					return
				}
				entries, _ := os.ReadDir(directory) // a directory that cannot be listed is skipped
				for _, entry := range entries {
					if entry.IsDir() && entry.Name() != "member" { // no data directory exists below a member directory
						next = append(next, filepath.Join(directory, entry.Name()))
					}
				}
			}
			seen += len(level)
			level = next
		}
	}
}

// LockData locks etcd's data directory and creates it if necessary. It returns ErrDataInUse immediately if another
// wrapper, with its own volume, uses the same directory. Call it for each configuration, before anything in the
// directory is opened: if the path now leads elsewhere, it releases the previous lock. The lock is held until the
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

// isOpen reports whether open is the directory at path.
func isOpen(open *os.File, path string) bool {
	if open == nil {
		return false
	}
	here, errHere := open.Stat()
	there, errThere := os.Stat(path)
	return errHere == nil && errThere == nil && os.SameFile(here, there)
}
