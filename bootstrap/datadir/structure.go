package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// passersby are names in a data directory that say nothing about a member: the first is put there by file systems, the
// second by etcd when it tests whether it may write.
var passersby = map[string]bool{"lost+found": true, ".touch": true}

// checkStructure judges what files there are and how they are called, without opening one. begun is false if there is
// nothing yet that could be read: the directory belongs to a new member.
func checkStructure(m *member) (begun bool, err error) {
	if m.root.unreadable() == nil && m.root.err != nil && !exists(m.root.path) {
		return false, nil
	}
	if m.root.err != nil {
		return false, fmt.Errorf("cannot read data directory: %w", m.root.err)
	}
	if vacant, err := isVacant(m.root); err != nil || vacant {
		return false, err
	}
	if m.dir.err != nil {
		return false, fmt.Errorf("cannot read member directory: %w", m.dir.err)
	}
	if err := checkSequence(m); err != nil {
		return false, err
	}
	if err := m.snap.unreadable(); err != nil {
		return false, fmt.Errorf("cannot read snapshot directory: %w", err)
	}
	return checkComplete(m)
}

// isVacant refuses a directory that holds something, but no member: etcd would start a new one beside what may be the
// data that somebody moved away.
func isVacant(root listing) (bool, error) {
	stranger := ""
	for _, entry := range root.entries {
		if entry.Name() == "member" {
			return false, nil
		}
		if !passersby[entry.Name()] {
			stranger = entry.Name()
		}
	}
	if stranger != "" {
		return false, fmt.Errorf("data directory %s has no member directory, but holds %q", root.path, stranger)
	}
	return true, nil
}

// checkSequence refuses names of segments that etcd does not give, and a sequence in which one is missing. etcd itself
// would skip a segment whose name it can't read, and so lose what is in it.
func checkSequence(m *member) error {
	if err := m.wal.unreadable(); err != nil {
		return fmt.Errorf("cannot read WAL directory: %w", err)
	}
	before, next := "", uint64(0)
	for _, entry := range m.wal.ending(".wal") {
		name := entry.Name()
		sequence, _, ok := parseSegmentName(name)
		if !ok || !entry.Type().IsRegular() {
			return fmt.Errorf("%s is not a WAL segment", m.segment(name))
		}
		if before != "" && sequence != next {
			return fmt.Errorf("%s does not follow WAL segment %s", m.segment(name), before)
		}
		before, next = name, sequence+1
	}
	return nil
}

// checkComplete says what a member that has begun to store data lacks. One that has neither log nor snapshot may be
// without a database.
func checkComplete(m *member) (begun bool, err error) {
	file, err := statDatabase(m.database)
	switch {
	case err != nil:
		return false, err
	case len(m.segments()) == 0 && len(m.snapshots()) == 0:
		return file != nil && file.Size() > 0, nil
	case len(m.segments()) == 0:
		return false, fmt.Errorf("%s holds no WAL segment", m.wal.path)
	case file == nil:
		return false, fmt.Errorf("there is no database %s", m.database)
	case file.Size() == 0:
		return false, fmt.Errorf("database %s is empty", m.database)
	}
	return true, nil
}

// statDatabase returns nil if there is no database.
func statDatabase(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot read database: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("database %s is not a regular file", path)
	}
	return info, nil
}

// exists is true for a symbolic link that points nowhere, too.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
