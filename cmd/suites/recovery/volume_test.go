package recovery_test

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/cmd/suites/harness"
)

// emptyVolume replaces the volume with an empty one.
func emptyVolume(p *harness.Pod) {
	p.T.Helper()
	require.NoError(p.T, os.RemoveAll(p.Volume))
	require.NoError(p.T, os.Mkdir(p.Volume, 0o700))
}

// breakDatabase overwrites the start of the database.
func breakDatabase(p *harness.Pod) {
	p.T.Helper()
	harness.CorruptFile(p.T, p.DBPath(), 0, 16<<10)
}

// copyVolume copies the volume and returns the path of the copy. The process must have exited.
func copyVolume(p *harness.Pod) (old string) {
	p.T.Helper()
	old = filepath.Join(p.Dir, "old")
	require.NoError(p.T, os.RemoveAll(old))
	copyDirectory(p, p.Volume, old)
	return old
}

// highestRevision returns the highest revision in a copy of the volume, including the revisions in its log.
func highestRevision(p *harness.Pod, old string) int64 {
	p.T.Helper()
	position, err := datadir.ReadPosition(filepath.Join(old, filepath.Base(p.DataDir())))
	require.NoError(p.T, err)
	return position.HighestRevision
}

// restoreVolume replaces the volume with an older copy.
func restoreVolume(p *harness.Pod, old string) {
	p.T.Helper()
	require.NoError(p.T, os.RemoveAll(p.Volume))
	copyDirectory(p, old, p.Volume)
}

// copyDirectory copies a directory. The files are sparse, because etcd preallocates log segments that contain mostly
// zeros.
func copyDirectory(p *harness.Pod, from, to string) {
	p.T.Helper()
	out, err := exec.Command("cp", "-a", "--sparse=always", from, to).CombinedOutput()
	require.NoError(p.T, err, string(out))
}

// preservedCopies returns the preserved copies of the data directory, oldest first.
func preservedCopies(p *harness.Pod) []string { return filesNextTo(p, ".aside-*") }

// unfinishedFiles returns the paths of files and directories that unfinished restores have left behind.
func unfinishedFiles(p *harness.Pod) []string { return filesNextTo(p, ".restor*") }

func filesNextTo(p *harness.Pod, pattern string) []string {
	p.T.Helper()
	found, err := filepath.Glob(p.DataDir() + pattern)
	require.NoError(p.T, err)
	return found
}

// lastSegment returns the last segment file of etcd's log.
func lastSegment(p *harness.Pod) string {
	p.T.Helper()
	segments, err := filepath.Glob(filepath.Join(p.DataDir(), "member", "wal", "*-*.wal"))
	require.NoError(p.T, err)
	require.NotEmpty(p.T, segments)
	return segments[len(segments)-1]
}
