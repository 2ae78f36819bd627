package recovery_test

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/cmd/suites/harness"
)

// lose leaves an empty volume, like a new one.
func lose(p *harness.Pod) {
	p.T.Helper()
	require.NoError(p.T, os.RemoveAll(p.Volume))
	require.NoError(p.T, os.Mkdir(p.Volume, 0o700))
}

// breakDatabase overwrites the start of the database.
func breakDatabase(p *harness.Pod) {
	p.T.Helper()
	harness.FlipBits(p.T, p.Database(), 0, 16<<10)
}

// keep keeps a copy of the volume of a process that has ended.
func keep(p *harness.Pod) (old string) {
	p.T.Helper()
	old = filepath.Join(p.Dir, "old")
	require.NoError(p.T, os.RemoveAll(old))
	copyDirectory(p, p.Volume, old)
	return old
}

// highestIn is the highest revision in a copy of the volume, its log included.
func highestIn(p *harness.Pod, old string) int64 {
	p.T.Helper()
	position, err := datadir.ReadPosition(filepath.Join(old, filepath.Base(p.DataDir())))
	require.NoError(p.T, err)
	return position.HighestRevision
}

// putBack has the volume be as it was.
func putBack(p *harness.Pod, old string) {
	p.T.Helper()
	require.NoError(p.T, os.RemoveAll(p.Volume))
	copyDirectory(p, old, p.Volume)
}

// copyDirectory leaves out the zeros that etcd allocates its log with.
func copyDirectory(p *harness.Pod, from, to string) {
	p.T.Helper()
	out, err := exec.Command("cp", "-a", "--sparse=always", from, to).CombinedOutput()
	require.NoError(p.T, err, string(out))
}

// preserved are the preserved copies of the data directory, the oldest first.
func preserved(p *harness.Pod) []string { return besides(p, ".aside-*") }

// halves lists files next to the data directory from operations that were interrupted.
func halves(p *harness.Pod) []string { return besides(p, ".restor*") }

func besides(p *harness.Pod, pattern string) []string {
	p.T.Helper()
	found, err := filepath.Glob(p.DataDir() + pattern)
	require.NoError(p.T, err)
	return found
}

// lastOfLog is the file that etcd's log ends in.
func lastOfLog(p *harness.Pod) string {
	p.T.Helper()
	segments, err := filepath.Glob(filepath.Join(p.DataDir(), "member", "wal", "*-*.wal"))
	require.NoError(p.T, err)
	require.NotEmpty(p.T, segments)
	return segments[len(segments)-1]
}
