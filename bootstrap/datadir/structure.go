package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
)

// unrelated are patterns of names in a data directory that are no part of a member. File systems create the first
// two, etcd the third when it checks that it may write. The others appear if the data directory is the volume itself:
// the exit record with its notes, the stored configuration, the sidecar's mark of the volume's owner. The directories
// that the sidecar names after the data directory (new.etcd.part, new.etcd.bak) are not among them: they may hold
// data.
var unrelated = []string{
	"lost+found", ".snapshot", ".touch",
	"exit_code", "exit_code.*",
	"etcd.conf.yaml", "etcd.conf.yaml.*.tmp", "safe_guard",
	"fixtures", // etcd's own certificates, with auto-tls
	uninitializedPrefix + "*",
}

func isIgnored(name string) bool {
	return slices.ContainsFunc(unrelated, func(pattern string) bool {
		matched, _ := path.Match(pattern, name) // the patterns are well-formed
		return matched
	})
}

// IsEmpty reports whether a directory exists and holds nothing of a member yet.
func IsEmpty(dataDir string) bool {
	initialized, err := checkStructure(survey(dataDir, ""))
	return err == nil && !initialized && exists(dataDir)
}

// checkStructure judges which files exist and what they are called. It opens none but the log's first. initialized is
// false if there is nothing to read yet: the directory belongs to a new member.
func checkStructure(m *member) (initialized bool, err error) {
	if m.root.readError() == nil && m.root.err != nil && !exists(m.root.path) {
		return false, nil
	}
	if m.root.err != nil {
		return false, unreadableDirectory.errorf("data", m.root.err)
	}
	if fresh, err := isFresh(m.root); err != nil || fresh {
		return false, err
	}
	if m.dir.err != nil {
		return false, unreadableDirectory.errorf("member", m.dir.err)
	}
	if err := checkSequence(m); err != nil {
		return false, err
	}
	if err := m.snap.readError(); err != nil {
		return false, unreadableDirectory.errorf("snapshot", err)
	}
	return checkComplete(m)
}

// isFresh refuses a directory that holds something, but no member: etcd would start a new one next to what may be the
// data that were moved away.
func isFresh(root listing) (bool, error) {
	unknown := ""
	for _, entry := range root.entries {
		if entry.Name() == "member" {
			return false, nil
		}
		if !isIgnored(entry.Name()) {
			unknown = entry.Name()
		}
	}
	if unknown != "" {
		return false, unknownEntry.errorf(root.path, unknown)
	}
	return true, nil
}

// checkSequence refuses what etcd would take for a segment although it did not write it, and a sequence in which one is
// missing.
func checkSequence(m *member) error {
	if err := m.wal.readError(); err != nil {
		return unreadableDirectory.errorf("WAL", err)
	}
	before, next := "", uint64(0)
	for _, name := range m.segments() {
		sequence, first, _ := parseSegmentName(name)
		if name != fmt.Sprintf(segmentName, sequence, first) || !isRegular(m.segment(name)) {
			return notASegment.errorf(m.segment(name))
		}
		if before != "" && sequence != next {
			return missingSegment.errorf(m.segment(name), before)
		}
		before, next = name, sequence+1
	}
	return nil
}

// checkComplete refuses an initialized member that lacks a part. One without log and snapshot may lack a database,
// and so may one whose log starts with its first entry: etcd fills the database from that.
func checkComplete(m *member) (initialized bool, err error) {
	file, err := statDB(m.database)
	switch {
	case err != nil:
		return false, err
	case len(m.segments()) == 0 && len(m.snapshots()) == 0:
		return file != nil && file.Size() > 0, nil
	case len(m.segments()) == 0:
		return false, missingLog.errorf(m.wal.path)
	case file != nil && file.Size() > 0:
		return true, nil
	case !m.hadSnapshot() && m.segments()[0] == firstSegment && !m.namesNoVoter():
		return true, nil // unless it continues a restore
	case file == nil:
		return false, missingDatabase.errorf(m.database)
	default:
		return false, vacantDatabase.errorf(m.database)
	}
}

// statDB returns nil if there is no database.
func statDB(path string) (fs.FileInfo, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, corruptDatabase.errorf(path, err)
	case !info.Mode().IsRegular():
		return nil, notADatabase.errorf(path)
	}
	return info, nil
}

// isDBEmpty reports whether there is no database, or one of 0 bytes.
func isDBEmpty(database string) (bool, error) {
	file, err := statDB(database)
	return file == nil || file.Size() == 0, err
}

// exists is true for a dangling symbolic link, too.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// isRegular is true for a symbolic link to a regular file, too: etcd follows it.
func isRegular(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
