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

// ErrVolumeBusy means that another process has locked the volume.
var ErrVolumeBusy = errors.New("locked by another process")

// A Volume is the directory that contains the exit record and, in a pod, the data directory. The wrapper locks the
// volume, so two wrappers cannot use the same one. The wrapper takes the lock before the first call to the sidecar
// and holds it until the process exits.
type Volume struct {
	path   string
	locked *os.File
	data   *os.File // lock on a data directory outside the volume directory
}

// NewVolume returns the volume at path without accessing it.
func NewVolume(path string) *Volume { return &Volume{path: path} }

// Check returns an error with advice if the volume cannot store data. Check does not create a missing directory: if
// the path were wrong or the volume not mounted, etcd would start a new cluster even though data exists elsewhere.
func (v *Volume) Check() error {
	info, err := os.Stat(v.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--volume-dir: %s does not exist; mount the volume, fix the path, or create the directory for a new cluster", v.path)
	case err != nil:
		return fmt.Errorf("--volume-dir: %w; fix the path or grant user %d access to it", err, os.Geteuid())
	case !info.IsDir():
		return fmt.Errorf("--volume-dir: %s is a file; specify the directory that contains the data directory", v.path)
	case errors.Is(unix.Access(v.path, unix.W_OK), unix.EROFS):
		return fmt.Errorf("--volume-dir: %s: %w; mount the volume read-write", v.path, unix.EROFS)
	}
	return nil
}

// Lock locks the volume, or returns ErrVolumeBusy without waiting. Locking the volume again does nothing. Read-only
// volumes can also be locked.
func (v *Volume) Lock() error {
	if v.locked != nil {
		return nil
	}
	locked, err := lockDirectory(v.path)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrVolumeBusy
		if by := holder(v.path); by != "" {
			err = fmt.Errorf("%w (%s)", err, by)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot lock volume %s: %w", v.path, err)
	}
	v.locked = locked
	return nil
}

// lockDirectory locks the directory itself until the returned file is closed. No lock file is created.
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

// Contains reports whether path is on the same file system as the volume. The path does not have to exist.
func (v *Volume) Contains(path string) (bool, error) {
	var here, there unix.Stat_t
	if err := unix.Stat(v.path, &here); err != nil {
		return false, fmt.Errorf("cannot stat volume %s: %w", v.path, err)
	}
	err := unix.Stat(path, &there)
	for errors.Is(err, unix.ENOENT) && path != filepath.Dir(path) {
		path = filepath.Dir(path)
		err = unix.Stat(path, &there)
	}
	if err != nil {
		return false, fmt.Errorf("cannot stat %s: %w", path, err)
	}
	return here.Dev == there.Dev, nil
}

// Unlock releases both locks. Unlock is needed only in tests that simulate more than one process, because the kernel
// releases the locks of a process when it exits.
func (v *Volume) Unlock() (err error) {
	for _, held := range []**os.File{&v.locked, &v.data} {
		if *held != nil {
			err = errors.Join(err, (*held).Close())
			*held = nil
		}
	}
	return err
}

// ErrDataInUse means that another process has the data open for writing or has locked the data directory.
var ErrDataInUse = errors.New("the data is in use by a running etcd process")

// Limits for the search for databases. On a real volume, the data directory is at the top level and has few
// siblings.
const (
	maxDepth       = 8     // maximum number of levels below the volume
	maxDirectories = 10000 // maximum number of directories to search, shallowest first
)

// LockMode describes how other processes are using a database.
type LockMode int

// Lock modes, derived from bbolt's lock on the file.
const (
	Unused  LockMode = iota
	Reading          // shared lock: etcd has to wait, but the data is not changing
	Writing          // exclusive lock: etcd is running in this or another process
)

// LockModeOf returns how other processes are using a database file. Call LockModeOf before this process opens the
// database. A file that cannot be opened counts as unused because etcd will report the error.
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

// isLocked reports whether another process holds a conflicting lock. To find out, isLocked takes the lock and
// immediately releases it.
func isLocked(database string, lock int) bool {
	file, err := os.OpenFile(database, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer file.Close() // releases the lock
	return errors.Is(unix.Flock(int(file.Fd()), lock|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Probe returns ErrDataInUse with the path if another process has a database on the volume open for writing. The
// search is needed because plain etcd does not lock the volume. Probe searches 8 levels deep and does not follow
// symbolic links to directories.
func (v *Volume) Probe() error {
	for directory := range v.dataDirs() {
		database := filepath.Join(directory, "member", "snap", "db")
		// Only a process that has the database open for writing prevents a shared lock.
		if isLocked(database, unix.LOCK_SH) {
			return fmt.Errorf("%s: %w", database, ErrDataInUse)
		}
	}
	return nil
}

// Logs returns the WAL directories on the volume, searching to the same depth as Probe.
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

// dataDirs yields the directories on the volume that may be etcd data directories, shallowest first.
func (v *Volume) dataDirs() iter.Seq[string] {
	return func(yield func(string) bool) {
		level := []string{v.path}
		for depth, seen := 0, 0; depth <= maxDepth && seen < maxDirectories; depth++ {
			var next []string
			for _, directory := range level[:min(len(level), maxDirectories-seen)] {
				if !yield(directory) {
					return
				}
				entries, _ := os.ReadDir(directory) // skip a directory that cannot be listed
				for _, entry := range entries {
					if entry.IsDir() && entry.Name() != "member" { // a member directory never contains a data directory
						next = append(next, filepath.Join(directory, entry.Name()))
					}
				}
			}
			seen += len(level)
			level = next
		}
	}
}

// LockData locks the etcd data directory, creating the directory if necessary. LockData returns ErrDataInUse
// immediately if another wrapper uses the same directory from a different volume. Call LockData for each
// configuration before opening any file in the directory. If the path now refers to a different directory, the
// previous lock is released. The lock is held until the process exits.
func (v *Volume) LockData(directory string) error {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return fmt.Errorf("cannot create data directory: %w", err)
	}
	if isOpen(v.locked, directory) || isOpen(v.data, directory) {
		return nil
	}
	locked, err := lockDirectory(directory)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return Mark(fmt.Errorf("data directory %s is locked by another etcd-wrapper; stop that process or set a different "+
			"data-dir", directory), ErrDataInUse)
	}
	if err == nil && !isOpen(locked, directory) {
		err = errors.Join(errors.New("the directory was replaced concurrently"), locked.Close())
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

// isOpen reports whether open refers to the directory at path.
func isOpen(open *os.File, path string) bool {
	if open == nil {
		return false
	}
	here, errHere := open.Stat()
	there, errThere := os.Stat(path)
	return errHere == nil && errThere == nil && os.SameFile(here, there)
}
