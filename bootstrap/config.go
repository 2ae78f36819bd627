package bootstrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"etcd-wrapper/internal/disk"
)

// ConfigPreview is the part of a configuration that decides how early it may be fetched.
type ConfigPreview struct {
	// NewAlone reports whether it is the configuration of the only member of a new cluster. The sidecar's answer
	// is then the same before and after an initialization: no other member's view could change it.
	NewAlone bool
	// LogDir is the directory of etcd's log; empty if none is named.
	LogDir string
}

// Preview reads a configuration, which need not be valid.
func Preview(config []byte) ConfigPreview {
	var keys struct {
		Cluster string `json:"initial-cluster"`
		State   string `json:"initial-cluster-state"`
		DataDir string `json:"data-dir"`
		WALDir  string `json:"wal-dir"`
	}
	if err := yaml.Unmarshal(config, &keys); err != nil {
		return ConfigPreview{}
	}
	preview := ConfigPreview{NewAlone: keys.State == "new" && strings.Count(keys.Cluster, "=") == 1 && !strings.Contains(keys.Cluster, ",")}
	switch {
	case keys.WALDir != "":
		preview.LogDir = filepath.Clean(keys.WALDir)
	case keys.DataDir != "":
		preview.LogDir = filepath.Join(keys.DataDir, "member", "wal")
	}
	return preview
}

// StoreConfig writes a copy of the fetched configuration to path, for operators' debug containers. Only the owner can
// read it. A reader sees the old copy or the new one. Nothing waits for the disk: after a power loss the
// configuration is fetched again.
func StoreConfig(path string, yaml []byte) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("cannot store etcd configuration: %w", err)
	}
	_, err = temporary.Write(yaml)
	err = errors.Join(err, temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("cannot store etcd configuration: %w", errors.Join(err, os.Remove(temporary.Name())))
	}
	return nil
}

// ErrCertificates means that certificate files are unusable at the moment: one is missing, cut off or of another
// pair, or its mount hangs. That passes while certificates are replaced, so it is a reason to try again, and none to
// discard the result of a validation. The check of etcd's configuration and the wrapper's own server return it.
var ErrCertificates = errors.New("certificate files cannot be used now")

// Mark returns an error that is kind as well, for errors.Is, and has the text of err alone.
func Mark(err, kind error) error { return marked{err, kind} }

type marked struct{ cause, kind error }

func (m marked) Error() string { return m.cause.Error() }

func (m marked) Unwrap() []error { return []error{m.cause, m.kind} }

// maxCertificates bounds what is read of one certificate or key file, in bytes. The bundles of whole operating systems
// have a quarter of it.
const maxCertificates = 1 << 20

// ReadCertificates reads a file of PEM blocks in at most 1 s; see disk.Read. The error does not name the path.
func ReadCertificates(path string) ([]byte, error) {
	content, err := disk.Read(path, maxCertificates)
	if err != nil {
		return nil, Mark(err, ErrCertificates)
	}
	return content, nil
}

// ForceNote is the file on a volume that records that etcd was started with force-new-cluster. While the key stays in etcd's
// configuration, it must not be performed again: every start would drop the members that have joined since.
type ForceNote struct{ path string }

// ForceNoteOn returns the note on a volume.
func ForceNoteOn(volumeDir string) ForceNote {
	return ForceNote{filepath.Join(volumeDir, "force-new-cluster.done")}
}

// Exists reports whether force-new-cluster was performed. A file that cannot be inspected counts as the note.
func (n ForceNote) Exists() bool {
	_, err := os.Lstat(n.path)
	return !os.IsNotExist(err)
}

// Write records that force-new-cluster was performed.
func (n ForceNote) Write() error {
	return disk.Replace(n.path, []byte("etcd was started with force-new-cluster; remove the key from its configuration\n"))
}

// Remove allows force-new-cluster to be performed again. It is for a start without the key.
func (n ForceNote) Remove() error {
	if !n.Exists() {
		return nil
	}
	return disk.Remove(n.path)
}
