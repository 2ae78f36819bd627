package bootstrap

import (
	"os"
	"path/filepath"

	"etcd-wrapper/internal/disk"
)

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
