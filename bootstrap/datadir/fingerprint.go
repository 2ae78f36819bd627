package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// Fingerprint describes the files of a member that is not running, as seen from outside. etcd writes to its log as
// soon as it has opened the data, so if two fingerprints are equal, no etcd has had the data open for writing in
// between. Segments that etcd has only prepared (*.tmp) do not count, and neither do modes and owners, which
// Kubernetes sets when it mounts a volume.
type Fingerprint struct {
	DataDir string            `json:"data_dir"`
	WALDir  string            `json:"wal_dir,omitempty"` // where the log is, if that is not in the data directory
	Files   []FileFingerprint `json:"files"`             // the database, the log's segments, the snapshots
}

// FileFingerprint describes one file. A copy has another inode.
type FileFingerprint struct {
	Path     string `json:"path"`
	Size     int64  `json:"size"`
	Inode    uint64 `json:"inode"`
	Modified int64  `json:"modified"` // nanoseconds since 1970
}

// TakeFingerprint describes the data directory, and the log's if walDir names another one. It opens no file.
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
		return Fingerprint{}, fmt.Errorf("cannot look at the data's files: %w", err)
	}
	return taken, nil
}

// Changed returns how the data differ now; nil if they do not. Those of the zero value always do.
func (f Fingerprint) Changed() error {
	if f.DataDir == "" {
		return errors.New("it is not known what the data looked like")
	}
	now, err := TakeFingerprint(f.DataDir, f.WALDir)
	if err != nil {
		return err
	}
	for _, file := range f.Files {
		if !slices.Contains(now.Files, file) {
			return fmt.Errorf("%s was changed or removed", file.Path)
		}
	}
	if len(now.Files) > len(f.Files) {
		return fmt.Errorf("%s has more files than there were", f.DataDir)
	}
	return nil
}

// Note returns the fingerprint as text, for ChangedSince.
func (f Fingerprint) Note() []byte {
	note, _ := json.Marshal(f) // of texts, numbers and times it never fails
	return note
}

// ChangedSince returns how the data differ from those in a note; nil if they do not.
func ChangedSince(note []byte) error {
	var then Fingerprint
	if err := json.Unmarshal(note, &then); err != nil {
		return fmt.Errorf("what the data looked like cannot be read: %w", err)
	}
	return then.Changed()
}
