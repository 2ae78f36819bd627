package datadir

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	layout "go.etcd.io/etcd/server/v3/storage/datadir"
)

// member lists the files in the data directory of an etcd member. Files with other names are left out: etcd ignores
// them, too.
type member struct {
	root, dir, wal, snap listing
	database             string // path of the database, which need not be there

	warnings []string // of what was found that etcd puts up with
}

// listing is the content of a directory.
type listing struct {
	path    string
	entries []fs.DirEntry // in order of their names
	err     error         // why it was not listed, that it does not exist included
}

// survey lists the data directory, and the log's directory if walDir names another one. It judges nothing, also not a
// directory that cannot be listed.
func survey(dataDir, walDir string) *member {
	m := &member{
		root: list(dataDir), dir: list(layout.ToMemberDir(dataDir)),
		wal: list(cmp.Or(walDir, layout.ToWALDir(dataDir))), snap: list(layout.ToSnapDir(dataDir)),
		database: layout.ToBackendFileName(dataDir),
	}
	m.warnings = m.checkNames()
	return m
}

func (m *member) warn(format string, args ...any) {
	m.warnings = append(m.warnings, fmt.Sprintf(format, args...))
}

// tolerated returns sentences about what etcd tolerates and an operator should know.
func (m *member) checkNames() (oddities []string) {
	for _, name := range m.ignoredSegments() {
		oddities = append(oddities, fmt.Sprintf("%s is not a name of a WAL segment; etcd ignores the file", m.segment(name)))
	}
	for _, path := range append([]string{m.database}, m.paths()...) {
		if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			oddities = append(oddities, fmt.Sprintf("%s is a symbolic link; etcd follows it, and may replace it by a file", path))
		}
	}
	return oddities
}

// segment returns the path of a segment.
func (m *member) segments() []string {
	return slices.DeleteFunc(m.wal.withSuffix(".wal"), func(name string) bool { return !isSegmentName(name) })
}

// lastSegment returns the name of the last segment, or "".
func (m *member) lastSegment() string {
	segments := m.segments()
	if len(segments) == 0 {
		return ""
	}
	return segments[len(segments)-1]
}

// misnamed returns the files with the suffix of a segment that etcd ignores.
func (m *member) ignoredSegments() []string {
	return slices.DeleteFunc(m.wal.withSuffix(".wal"), isSegmentName)
}

// segment is the path of one of them.
func (m *member) segment(name string) string { return filepath.Join(m.wal.path, name) }

// snapshots returns the names of the snapshot files, oldest first.
func (m *member) snapshots() []string { return m.snap.withSuffix(".snap") }

// snapshot returns the path of a snapshot file.
func (m *member) snapshot(name string) string { return filepath.Join(m.snap.path, name) }

// hadSnapshot reports whether any file is, or was, a snapshot: also one that was received in part, or renamed by
// etcd.
func (m *member) hadSnapshot() bool {
	for _, entry := range m.snap.entries {
		if strings.Contains(entry.Name(), ".snap") {
			return true
		}
	}
	return false
}

// paths returns the paths of segments and snapshots.
func (m *member) paths() (paths []string) {
	for _, name := range m.segments() {
		paths = append(paths, m.segment(name))
	}
	for _, name := range m.snapshots() {
		paths = append(paths, m.snapshot(name))
	}
	return paths
}

// hasReceived reports whether the database that a leader sent with the snapshot of that entry is there, to be swapped
// in.
func (m *member) hasReceived(index uint64) bool {
	return isRegular(m.snapshot(fmt.Sprintf("%016x.snap.db", index)))
}

// list is os.ReadDir for directories only: opening a pipe would block.
func list(path string) listing {
	info, err := os.Stat(path)
	if err != nil {
		return listing{path: path, err: err}
	}
	if !info.IsDir() {
		return listing{path: path, err: fmt.Errorf("%s is not a directory", path)}
	}
	entries, err := os.ReadDir(path)
	return listing{path: path, entries: entries, err: err}
}

// unreadable returns the reason why a directory that exists cannot be listed.
func (l listing) readError() error {
	if errors.Is(l.err, fs.ErrNotExist) {
		return nil
	}
	return l.err
}

func (l listing) withSuffix(suffix string) (names []string) {
	for _, entry := range l.entries {
		if strings.HasSuffix(entry.Name(), suffix) {
			names = append(names, entry.Name())
		}
	}
	return names
}

// segmentName is the format of a segment's name: its place in the sequence and the index of its first entry.
const segmentName = "%016x-%016x.wal"

// parseSegmentName parses the name of a segment as etcd does (server/storage/wal/util.go), which accepts short numbers, and
// anything after the name.
func parseSegmentName(name string) (sequence, first uint64, ok bool) {
	_, err := fmt.Sscanf(name, segmentName, &sequence, &first)
	return sequence, first, err == nil
}

func isSegmentName(name string) bool {
	_, _, ok := parseSegmentName(name)
	return ok
}

// lastBefore returns the index of the last entry before a segment. After etcd has purged old segments, the name of
// the first one left is the only trace of them.
func lastBefore(segment string) uint64 {
	_, first, _ := parseSegmentName(segment)
	return max(first, 1) - 1
}

// snapshotIndex returns the index of the last entry that a snapshot file includes, by its name.
func snapshotIndex(name string) (index uint64, ok bool) {
	var term uint64
	_, err := fmt.Sscanf(name, "%016x-%016x.snap", &term, &index)
	return index, err == nil
}
