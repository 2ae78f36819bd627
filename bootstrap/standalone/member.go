package standalone

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// segmentName matches what etcd calls a WAL segment: its place in the sequence and the first entry in it, both in hex.
var segmentName = regexp.MustCompile(`^([0-9a-f]{16})-([0-9a-f]{16})\.wal$`)

// passersby are names in a data directory that say nothing about a member: the first is put there by file systems, the
// second by etcd when it tests whether it may write.
var passersby = map[string]bool{"lost+found": true, ".touch": true}

// member lists the files of an etcd member that matter to a validation. Others are left alone: etcd ignores them too.
type member struct {
	walDir, snapDir string
	db              string      // path of the database
	dbInfo          fs.FileInfo // nil if there is no database
	segments        []string    // names in walDir, in sequence
	snapshots       []string    // names in snapDir, oldest first
}

// unborn says that etcd died before it had set up its log. It never told anybody that it had stored anything.
func (m *member) unborn() bool { return len(m.segments) == 0 && len(m.snapshots) == 0 }

// hasReceived says whether the database that a leader sent with the snapshot of that entry waits to be swapped in.
func (m *member) hasReceived(index uint64) bool {
	info, err := os.Lstat(filepath.Join(m.snapDir, fmt.Sprintf("%016x.snap.db", index)))
	return err == nil && info.Mode().IsRegular()
}

// survey lists the member in dataDir and checks the structure of its files. It returns nil if there is none yet.
func survey(dataDir string) (*member, error) {
	root, err := list(dataDir)
	if errors.Is(err, fs.ErrNotExist) && !exists(dataDir) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read data directory: %w", err)
	}
	if empty, err := isEmpty(dataDir, root); err != nil || empty {
		return nil, err
	}
	return surveyMember(filepath.Join(dataDir, "member"))
}

// isEmpty refuses a directory that holds something, but no member: etcd would start a new one beside what may be the
// data that somebody moved away.
func isEmpty(dataDir string, entries []fs.DirEntry) (bool, error) {
	stranger := ""
	for _, entry := range entries {
		if entry.Name() == "member" {
			return false, nil
		}
		if !passersby[entry.Name()] {
			stranger = entry.Name()
		}
	}
	if stranger != "" {
		return false, fmt.Errorf("data directory %s has no member directory, but holds %q", dataDir, stranger)
	}
	return true, nil
}

func surveyMember(dir string) (*member, error) {
	found := &member{
		walDir: filepath.Join(dir, "wal"), snapDir: filepath.Join(dir, "snap"), db: filepath.Join(dir, "snap", "db"),
	}
	if _, err := list(dir); err != nil {
		return nil, fmt.Errorf("cannot read member directory: %w", err)
	}
	for _, part := range []func() error{found.listSegments, found.listSnapshots, found.findDatabase} {
		if err := part(); err != nil {
			return nil, err
		}
	}
	if !found.unborn() {
		return found, found.complete()
	}
	if found.dbInfo == nil || found.dbInfo.Size() == 0 {
		return nil, nil
	}
	return found, nil
}

// complete says what a member that has begun to store data lacks.
func (m *member) complete() error {
	switch {
	case len(m.segments) == 0:
		return fmt.Errorf("%s holds no WAL segment", m.walDir)
	case m.dbInfo == nil:
		return fmt.Errorf("there is no database %s", m.db)
	case m.dbInfo.Size() == 0:
		return fmt.Errorf("database %s is empty", m.db)
	}
	return nil
}

// listSegments also checks that no segment is missing in the sequence. etcd itself would skip a segment whose name it
// can't read, and so lose what is in it.
func (m *member) listSegments() error {
	entries, err := list(m.walDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot read WAL directory: %w", err)
	}
	previous := uint64(0)
	for _, entry := range entries { // in order of their names, which is that of the sequence
		if !strings.HasSuffix(entry.Name(), ".wal") {
			continue
		}
		path := filepath.Join(m.walDir, entry.Name())
		parts := segmentName.FindStringSubmatch(entry.Name())
		if parts == nil || !entry.Type().IsRegular() {
			return fmt.Errorf("%s is not a WAL segment", path)
		}
		sequence, _ := strconv.ParseUint(parts[1], 16, 64) // 16 hex digits always fit
		if len(m.segments) > 0 && sequence != previous+1 {
			return fmt.Errorf("%s does not follow WAL segment %s", path, m.segments[len(m.segments)-1])
		}
		previous = sequence
		m.segments = append(m.segments, entry.Name())
	}
	return nil
}

func (m *member) listSnapshots() error {
	entries, err := list(m.snapDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot read snapshot directory: %w", err)
	}
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), ".snap") {
			m.snapshots = append(m.snapshots, entry.Name())
		}
	}
	return nil
}

func (m *member) findDatabase() error {
	info, err := os.Lstat(m.db)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("cannot read database: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("database %s is not a regular file", m.db)
	}
	m.dbInfo = info
	return nil
}

// list is os.ReadDir for directories only: opening a pipe would block.
func list(dir string) ([]fs.DirEntry, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a directory", dir)
	}
	return os.ReadDir(dir)
}

// exists is true for a symbolic link that points nowhere, too.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
