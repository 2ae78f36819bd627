// Package disk reads and changes small files, such as records, keys and certificates, on disks that may hang or lose
// power. A read never blocks forever, neither on a pipe nor on a hanging mount. When a change returns nil, it is on
// the disk. Files that are moved out of the way get names under which PreservedCopies finds them.
//
// The exit record is read and written with it. A rename or removal that the next start relies on ends with
// SyncDirectory.
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// SyncDirectory makes the names in a directory durable: files that were created, renamed or removed in it, but not
// their content. Errors name the directory and the cause. Any goroutine may call it; it takes as long as the disk
// does.
func SyncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	err = directory.Sync()
	if err != nil {
		err = fmt.Errorf("cannot sync directory %s: %w", path, err)
	}
	return errors.Join(err, directory.Close())
}

// Rename renames a file or directory durably.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDirectory(filepath.Dir(to))
}

// Replace replaces the file at path with one that has this content and mode 0600: temporary file, fsync, rename,
// fsync of the directory. At every moment the path has either the old content or the new. Errors name the file and
// the cause. Only one goroutine at a time may change a path.
func Replace(path string, content []byte) error {
	temporary := path + ".tmp"
	// An interrupted write may have left anything there. O_EXCL below guarantees a new regular file.
	if err := clearPath(temporary); err != nil {
		return err
	}
	if err := writeSynced(temporary, content); err != nil {
		return errors.Join(err, clearPath(temporary))
	}
	if err := os.Rename(temporary, path); err != nil {
		return errors.Join(err, clearPath(temporary))
	}
	return SyncDirectory(filepath.Dir(path))
}

func writeSynced(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// Remove durably removes the file at path. It is not an error if there is none. A directory with content is not ours
// to delete: it is moved to PreservedName, because it would prevent the record from being written.
func Remove(path string) error {
	if err := clearPath(path); err != nil {
		return err
	}
	return SyncDirectory(filepath.Dir(path))
}

func clearPath(path string) error {
	err := os.Remove(path)
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
		err = os.Rename(path, PreservedName(path, time.Now()))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

const (
	infix = ".aside-"
	// layout is the time format in a copy's name. Names sort by time.
	layout = "20060102T150405.000Z"
)

// A PreservedCopy is a file or directory that was moved out of the way. It stays in the same directory.
type PreservedCopy struct {
	Path string
	At   time.Time
}

// PreservedName returns the name to which the file or directory at path is moved. If the clock was set back, it is a
// millisecond later than the newest copy's name, so that the newest always sorts last.
func PreservedName(path string, at time.Time) string {
	if all := PreservedCopies(path); len(all) > 0 {
		if newest := all[len(all)-1].At; !at.Truncate(time.Millisecond).After(newest) {
			at = newest.Add(time.Millisecond)
		}
	}
	return path + infix + at.UTC().Format(layout)
}

// PreservedCopies returns the preserved copies of a path, the oldest first. It omits similar names that users chose.
func PreservedCopies(path string) (all []PreservedCopy) {
	if path == "" {
		return nil
	}
	prefix := path + infix
	entries, _ := os.ReadDir(filepath.Dir(prefix)) // sorted; a directory that cannot be listed has no copies
	for _, entry := range entries {
		stamp, found := strings.CutPrefix(entry.Name(), filepath.Base(prefix))
		if at, err := time.Parse(layout, stamp); found && err == nil {
			all = append(all, PreservedCopy{prefix + stamp, at})
		}
	}
	return all
}
