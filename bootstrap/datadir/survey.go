package datadir

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	layout "go.etcd.io/etcd/server/v3/storage/datadir"
)

// A member lists the files in an etcd member's data directory. Files with unrecognized names are ignored, as they
// are by etcd.
type member struct {
	root, dir, wal, snap listing
	database             string // path of the database, even if it does not exist

	warnings []string // problems that etcd tolerates
}

// A listing is the content of a directory.
type listing struct {
	path    string
	entries []fs.DirEntry // sorted by name
	err     error         // error from listing the directory, such as fs.ErrNotExist
}

// survey lists the data directory and, if walDir is set, a separate WAL directory. A directory that cannot be
// listed is reported only when a check needs it.
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

// checkNames returns warnings about suspicious file names that etcd tolerates.
func (m *member) checkNames() (oddities []string) {
	for _, name := range m.ignoredSegments() {
		oddities = append(oddities, fmt.Sprintf("%s is not named like a WAL segment; etcd ignores the file", m.segment(name)))
	}
	for _, path := range append([]string{m.database}, m.paths()...) {
		if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			oddities = append(oddities, fmt.Sprintf("%s is a symbolic link; etcd follows the link and may replace it with a file", path))
		}
	}
	return oddities
}

// segments returns the names of the WAL segments in order.
func (m *member) segments() []string {
	return slices.DeleteFunc(m.wal.withSuffix(".wal"), func(name string) bool { return !isSegmentName(name) })
}

// lastSegment returns the name of the last segment, or "" if there is none.
func (m *member) lastSegment() string {
	segments := m.segments()
	if len(segments) == 0 {
		return ""
	}
	return segments[len(segments)-1]
}

// ignoredSegments returns the names of the files that end in .wal but that etcd ignores, because the rest of the name
// is not that of a segment.
func (m *member) ignoredSegments() []string {
	return slices.DeleteFunc(m.wal.withSuffix(".wal"), isSegmentName)
}

func (m *member) segment(name string) string { return filepath.Join(m.wal.path, name) }

// snapshots returns the names of the snapshot files, oldest first.
func (m *member) snapshots() []string { return m.snap.withSuffix(".snap") }

func (m *member) snapshot(name string) string { return filepath.Join(m.snap.path, name) }

// hadSnapshot reports whether there is any trace of a snapshot, including files that were only partly received or
// that etcd has renamed.
func (m *member) hadSnapshot() bool {
	for _, entry := range m.snap.entries {
		if strings.Contains(entry.Name(), ".snap") {
			return true
		}
	}
	return false
}

// paths returns the paths of all segments and snapshots.
func (m *member) paths() (paths []string) {
	for _, name := range m.segments() {
		paths = append(paths, m.segment(name))
	}
	for _, name := range m.snapshots() {
		paths = append(paths, m.snapshot(name))
	}
	return paths
}

// hasReceived reports whether the directory contains a database that was received from the leader with the snapshot
// at an index. etcd replaces its own database with the received one at startup.
func (m *member) hasReceived(index uint64) bool {
	return isRegular(m.snapshot(fmt.Sprintf("%016x.snap.db", index)))
}

// list is like os.ReadDir but opens only directories, because opening a pipe would block.
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

// readError returns the error from listing the directory, or nil if the directory does not exist.
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

// segmentName is the format of a segment name: the sequence number and the index of the first entry.
const segmentName = "%016x-%016x.wal"

// parseSegmentName parses a segment name like server/storage/wal/util.go in etcd, which also accepts shorter numbers
// and trailing text.
func parseSegmentName(name string) (sequence, first uint64, ok bool) {
	_, err := fmt.Sscanf(name, segmentName, &sequence, &first)
	return sequence, first, err == nil
}

func isSegmentName(name string) bool {
	_, _, ok := parseSegmentName(name)
	return ok
}

// lastBefore returns the index of the last entry before a segment. After etcd has purged old segments, the index
// appears only in the name of the first remaining segment.
func lastBefore(segment string) uint64 {
	_, first, _ := parseSegmentName(segment)
	return max(first, 1) - 1
}

// snapshotIndex returns the index in the name of a snapshot file, which is the index of the last entry in the
// snapshot.
func snapshotIndex(name string) (index uint64, ok bool) {
	var term uint64
	_, err := fmt.Sscanf(name, "%016x-%016x.snap", &term, &index)
	return index, err == nil
}

// unrelated lists name patterns of files in a data directory that do not belong to a member. The first two are
// created by file systems, and .touch by etcd to check for write permission. The other files appear if the data
// directory is also the volume directory: the exit record with its notes, the stored configuration, and the
// sidecar's record of the volume owner. The sidecar's new.etcd.part and new.etcd.bak directories are not in the
// list because they may contain data.
var unrelated = []string{
	"lost+found", ".snapshot", ".touch",
	"exit_code", "exit_code.*",
	"etcd.conf.yaml", "etcd.conf.yaml.*.tmp", "safe_guard",
	"fixtures", // created by etcd for auto-tls
	uninitializedPrefix + "*",
}

func isIgnored(name string) bool {
	return slices.ContainsFunc(unrelated, func(pattern string) bool {
		matched, _ := path.Match(pattern, name) // the patterns are well-formed
		return matched
	})
}

// IsEmpty reports whether a directory exists and contains no member data.
func IsEmpty(dataDir string) bool {
	initialized, err := checkStructure(survey(dataDir, ""))
	return err == nil && !initialized && exists(dataDir)
}

// checkStructure checks which files exist and how they are named. The only file that checkStructure opens is the
// first segment. initialized is false if the directory belongs to a new member.
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

// isFresh reports whether the data directory belongs to a new member. isFresh returns an error if the directory
// contains files but no member, because the files may be a member's data that was moved, and etcd would start a new
// member next to it.
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

// checkSequence returns an error if etcd would mistake a file for a segment or if a segment is missing.
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

// checkComplete returns an error if part of an initialized member is missing. The database may be missing if there
// is neither a log nor a snapshot, or if the log starts with the first entry, because etcd then fills the database
// from the log.
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
		return true, nil // etcd fills the database from the log; checkRestore rejects the log of a restored database
	case file == nil:
		return false, missingDatabase.errorf(m.database)
	default:
		return false, vacantDatabase.errorf(m.database)
	}
}

// statDB returns the file info of the database, or nil if there is no database.
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

// isDBEmpty reports whether the database is missing or has 0 bytes.
func isDBEmpty(database string) (bool, error) {
	file, err := statDB(database)
	return file == nil || file.Size() == 0, err
}

// exists reports whether a path exists, even if it is a dangling symbolic link.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// isRegular reports whether a path is a regular file or a symbolic link to one, which etcd follows.
func isRegular(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// Fingerprint describes the files of a stopped member without opening them. If two fingerprints are equal, no etcd
// server has opened the data for writing in between, because etcd writes to the log as soon as it opens the data.
// Preallocated segments (*.tmp) are not included. File modes and owners are not included either, because Kubernetes
// changes them when it mounts a volume.
type Fingerprint struct {
	DataDir string            `json:"data_dir"`
	WALDir  string            `json:"wal_dir,omitempty"` // WAL directory if it is outside the data directory
	Files   []FileFingerprint `json:"files"`             // the database, the log segments and the snapshots
}

// FileFingerprint describes a file. Because of the inode, it differs from the FileFingerprint of a copy of the file.
type FileFingerprint struct {
	Path     string `json:"path"`
	Size     int64  `json:"size"`
	Inode    uint64 `json:"inode"`
	Modified int64  `json:"modified"` // in nanoseconds since 1970
}

// TakeFingerprint takes the fingerprint of the data directory and, if walDir is set, of a separate WAL directory. No
// file is opened.
func TakeFingerprint(dataDir, walDir string) (Fingerprint, error) {
	m := survey(dataDir, walDir)
	taken := Fingerprint{DataDir: dataDir, WALDir: walDir}
	err := errors.Join(m.dir.readError(), m.wal.readError(), m.snap.readError())
	for _, path := range append([]string{m.database}, m.paths()...) {
		info, statErr := os.Stat(path)
		if errors.Is(statErr, fs.ErrNotExist) {
			continue
		}
		if statErr != nil {
			err = errors.Join(err, statErr)
			continue
		}
		file := FileFingerprint{Path: path, Size: info.Size(), Modified: info.ModTime().UnixNano()}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			file.Inode = stat.Ino
		}
		taken.Files = append(taken.Files, file)
	}
	if err != nil {
		return Fingerprint{}, fmt.Errorf("cannot stat the data files: %w", err)
	}
	return taken, nil
}

// Changed returns an error that describes how the data has changed, or nil. The zero Fingerprint counts as changed.
func (f Fingerprint) Changed() error {
	if f.DataDir == "" {
		return errors.New("no fingerprint of the data files was recorded")
	}
	now, err := TakeFingerprint(f.DataDir, f.WALDir)
	if err != nil {
		return err
	}
	for _, file := range f.Files {
		if !slices.Contains(now.Files, file) {
			return fmt.Errorf("%s was modified or removed", file.Path)
		}
	}
	if len(now.Files) > len(f.Files) {
		return fmt.Errorf("files were added to %s", f.DataDir)
	}
	return nil
}

// Note encodes the fingerprint for ChangedSince.
func (f Fingerprint) Note() []byte {
	note, _ := json.Marshal(f) // encoding strings, numbers and times never fails
	return note
}

// ChangedSince returns an error that describes how the data has changed since the fingerprint in the note, or nil.
func ChangedSince(note []byte) error {
	var then Fingerprint
	if err := json.Unmarshal(note, &then); err != nil {
		return fmt.Errorf("cannot decode the fingerprint of the data files: %w", err)
	}
	return then.Changed()
}
