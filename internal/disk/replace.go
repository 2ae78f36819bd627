// Package disk reads and writes small files, such as records, keys and certificates, on disks that may hang or lose
// power. Reads never block forever on a pipe or a hanging mount. A change is durable once the function returns nil.
// PreservedCopies lists the files and directories that were moved to a PreservedName.
//
// Callers that rename or remove a file by other means must call SyncDirectory if the next start depends on the
// change.
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

// SyncDirectory makes the creation, renaming and removal of files in a directory durable, but not the content of the
// files. Errors name the directory and the cause. SyncDirectory is safe for concurrent use and has no time limit.
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

// Rename durably renames a file or directory.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDirectory(filepath.Dir(to))
}

// Replace atomically and durably replaces the file at path with a file that has the given content and mode 0600.
// Replace writes and syncs a temporary file, renames it and syncs the directory. Errors name the file and the cause.
// Replace must not be called concurrently for the same path.
func Replace(path string, content []byte) error {
	temporary := path + ".tmp"
	// A file may already exist at this path if a write was interrupted. O_EXCL guarantees that the file is new and
	// regular.
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

// Remove durably removes the file at path, if any. A directory that is not empty is moved to PreservedName instead of
// being removed: Replace cannot write to a path that is a directory, but users may need its contents.
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
	// layout is the time format in the name of a copy. Names sort by time.
	layout = "20060102T150405.000Z"
)

// A PreservedCopy is a file or directory that was preserved under another name in the same directory.
type PreservedCopy struct {
	Path string
	At   time.Time
}

// PreservedName returns the new name for a file or directory at path that must be preserved. If the clock was set
// back, the name contains a time one millisecond after the newest copy, so the names always sort by age.
func PreservedName(path string, at time.Time) string {
	if all := PreservedCopies(path); len(all) > 0 {
		if newest := all[len(all)-1].At; !at.Truncate(time.Millisecond).After(newest) {
			at = newest.Add(time.Millisecond)
		}
	}
	return path + infix + at.UTC().Format(layout)
}

// PreservedCopies returns the preserved copies of a path, oldest first. Similar names that were chosen by users are
// omitted.
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
