package datadir

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
)

// unrelated are names in a data directory that say nothing about a member, as patterns. File systems put the first two
// there, etcd the third when it tests whether it may write. The others are there if the data directory is the volume
// itself: the exit record and what goes with it, the stored configuration, the sidecar's mark of who owns the volume. What
// the sidecar calls after the data directory (new.etcd.part, new.etcd.bak) is not among them: it may hold data.
var unrelated = []string{
	"lost+found", ".snapshot", ".touch",
	"exit_code", "exit_code.*",
	"etcd.conf.yaml", "etcd.conf.yaml.*.tmp", "safe_guard",
	"fixtures", // etcd's own certificates, with auto-tls
	uninitializedPrefix + "*", olderUninitializedPrefix + "*",
}

func isUnrelated(name string) bool {
	return slices.ContainsFunc(unrelated, func(pattern string) bool {
		matched, _ := path.Match(pattern, name) // the patterns are well-formed
		return matched
	})
}

// IsEmpty says that a directory is there and holds nothing yet of a member.
func IsEmpty(dataDir string) bool {
	initialized, err := checkStructure(survey(dataDir, ""))
	return err == nil && !initialized && exists(dataDir)
}

// checkStructure judges what files there are and how they are called, without opening one but for the log's head. initialized
// is false if there is nothing yet that could be read: the directory belongs to a new member.
func checkStructure(m *member) (initialized bool, err error) {
	if m.root.unreadable() == nil && m.root.err != nil && !exists(m.root.path) {
		return false, nil
	}
	if m.root.err != nil {
		return false, unreadableDirectory.because("data", m.root.err)
	}
	if fresh, err := isFresh(m.root); err != nil || fresh {
		return false, err
	}
	if m.dir.err != nil {
		return false, unreadableDirectory.because("member", m.dir.err)
	}
	if err := checkSequence(m); err != nil {
		return false, err
	}
	if err := m.snap.unreadable(); err != nil {
		return false, unreadableDirectory.because("snapshot", err)
	}
	return checkComplete(m)
}

// isFresh refuses a directory that holds something, but no member: etcd would start a new one beside what may be the
// data that were moved away.
func isFresh(root listing) (bool, error) {
	unknown := ""
	for _, entry := range root.entries {
		if entry.Name() == "member" {
			return false, nil
		}
		if !isUnrelated(entry.Name()) {
			unknown = entry.Name()
		}
	}
	if unknown != "" {
		return false, unknownEntry.because(root.path, unknown)
	}
	return true, nil
}

// checkSequence refuses what etcd would take for a segment although it did not write it, and a sequence in which one is
// missing.
func checkSequence(m *member) error {
	if err := m.wal.unreadable(); err != nil {
		return unreadableDirectory.because("WAL", err)
	}
	before, next := "", uint64(0)
	for _, name := range m.segments() {
		sequence, _, ok := parseSegmentName(name)
		if !ok || !isRegular(m.segment(name)) {
			return notASegment.because(m.segment(name))
		}
		if before != "" && sequence != next {
			return missingSegment.because(m.segment(name), before)
		}
		before, next = name, sequence+1
	}
	return nil
}

// checkComplete says what a member that is initialized lacks. One that has neither log nor snapshot may be
// without a database, and so may one whose log goes back to its first entry: etcd fills the database from that.
func checkComplete(m *member) (initialized bool, err error) {
	file, err := statDatabase(m.database)
	switch {
	case err != nil:
		return false, err
	case len(m.segments()) == 0 && len(m.snapshots()) == 0:
		return file != nil && file.Size() > 0, nil
	case len(m.segments()) == 0:
		return false, missingLog.because(m.wal.path)
	case file != nil && file.Size() > 0:
		return true, nil
	case !m.hadSnapshot() && m.segments()[0] == firstSegment && !m.namesNoVoter():
		return true, nil // unless it goes on from a restore
	case file == nil:
		return false, missingDatabase.because(m.database)
	default:
		return false, vacantDatabase.because(m.database)
	}
}

// statDatabase returns nil if there is no database.
func statDatabase(path string) (fs.FileInfo, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, corruptDatabase.because(path, err)
	case !info.Mode().IsRegular():
		return nil, notADatabase.because(path)
	}
	return info, nil
}

// vacant says that there is no database, or one without a byte.
func vacant(database string) (bool, error) {
	file, err := statDatabase(database)
	return file == nil || file.Size() == 0, err
}

// exists is true for a symbolic link that points nowhere, too.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// isRegular is true for a symbolic link to a regular file, too: etcd follows it.
func isRegular(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
