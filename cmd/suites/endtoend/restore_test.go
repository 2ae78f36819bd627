package endtoend_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// restore creates the pod's data directory from a database file with etcdutl, as the runbook describes.
func restore(p *harness.Pod, database string, flags ...string) {
	p.T.Helper()
	_, log, status := p.Begin(append([]string{
		"etcdutl", "snapshot", "restore", database, "--skip-hash-check", "--data-dir=" + p.DataDir(),
		"--name=etcd-main-0", "--initial-cluster=etcd-main-0=" + p.PeerURL(), "--initial-advertise-peer-urls=" + p.PeerURL(),
	}, flags...)...).Wait()
	require.Equal(p.T, 0, status, log)
}

// moveDataDir renames the data directory and returns the path of the database in it.
func moveDataDir(p *harness.Pod) (database string) {
	p.T.Helper()
	moved := p.DataDir() + ".moved"
	require.NoError(p.T, os.Rename(p.DataDir(), moved))
	return filepath.Join(moved, "member", "snap", "db")
}

// startFully removes the exit record, starts the program and requires that it performs a full validation.
func startFully(p *harness.Pod) *harness.Run {
	p.T.Helper()
	require.NoError(p.T, os.RemoveAll(p.RecordPath()))
	run := p.StartReady()
	require.Equal(p.T, []string{"full"}, validated(run))
	return run
}

// The restore procedure in the Kubernetes documentation must work. It increases the revision, so that controllers
// never see a revision that is lower than before.
func TestStandalone_bumpedRevision(t *testing.T) {
	t.Parallel()
	p := harness.NewStandalonePod(t, nil)
	p.StartAndStop("key", "value")
	database := moveDataDir(p)
	for round := range 2 { // the second restore uses the result of the first
		restore(p, database, "--bump-revision=1000000000", "--mark-compacted")
		startFully(p).Shutdown()
		second := startFully(p)
		assert.Equal(t, "value", p.Get("key"))
		p.Put("another key", "value")
		second.Kill()
		third := startFully(p)
		assert.Equal(t, "value", p.Get("another key"))
		third.Shutdown()
		startFully(p).Shutdown()
		if round == 0 {
			require.NoError(t, os.Rename(filepath.Dir(database), filepath.Dir(database)+".first"))
			require.NoError(t, os.Rename(filepath.Join(p.DataDir(), "member", "snap"), filepath.Dir(database)))
			require.NoError(t, os.RemoveAll(p.DataDir()))
		}
	}
}

// truncateLog removes the last entries from the log.
func truncateLog(p *harness.Pod) {
	p.T.Helper()
	segments, err := filepath.Glob(filepath.Join(p.DataDir(), "member", "wal", "*.wal"))
	require.NoError(p.T, err)
	require.Len(p.T, segments, 1)
	require.NoError(p.T, os.Truncate(segments[0], 2000))
}

func TestTruncatedLog_suggestedCommandKeepsTheDatabase(t *testing.T) {
	t.Parallel()
	p := harness.NewStandalonePod(t, nil)
	p.StartAndStop("key", "value", "long", strings.Repeat("v", 2000))
	truncateLog(p)
	require.NoError(t, os.RemoveAll(p.RecordPath()))

	second := p.Start()
	require.Equal(t, 70, second.Exit(harness.Patience))
	refused := harness.Line{"message": "validation ended", "result": "Failed"}
	second.AwaitLine(refused)
	assert.Contains(t, second.Log.Matching(refused)[0]["error"], "to recover: create a new data directory from the database with "+
		`"etcd-wrapper etcdutl snapshot restore DIR/member/snap/db --skip-hash-check"`)

	restore(p, moveDataDir(p))
	third := startFully(p)
	assert.Equal(t, "value", p.Get("key"))
	third.Shutdown()
}

// If the wrapper rejects data that the sidecar has validated, the message must explain that the sidecar does not check
// for this kind of damage.
func TestRefusal_validForTheSidecar(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.StartAndStop("key", "value", "long", strings.Repeat("v", 2000))
	truncateLog(p)
	p.ExpectTerminationMessage()
	second := p.Start()
	require.NotZero(t, second.Exit(harness.Patience))
	message := terminationMessage(p)
	assert.Contains(t, message, "was truncated or damaged")
	assert.Contains(t, message, "to recover: create a new data directory from the database")
	assert.Contains(t, message, "neither the validation nor the sidecar checks for this)")
}

// The data directory may be the volume itself, which also contains the wrapper's own files.
func TestStandalone_dataDirectoryIsTheVolume(t *testing.T) {
	t.Parallel()
	p := harness.NewStandalonePod(t, nil)
	file := filepath.Join(p.Dir, "etcd.yaml")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, append(text, "\ndata-dir: "+p.Volume+"\n"...), 0o600))
	p.WriteRecord("nonsense")
	first := p.StartReady()
	p.Put("key", "value")
	first.Kill()
	second := p.StartReady()
	assert.Equal(t, "value", p.Get("key"))
	second.Shutdown()
}

// The wrapper must start even if the data directory contains only a preserved copy, which happens if a start fails
// before etcd has created its files.
func TestStandalone_preservedUninitializedMember(t *testing.T) {
	t.Parallel()
	p := harness.NewStandalonePod(t, nil)
	require.NoError(t, os.MkdirAll(filepath.Join(p.DataDir(), "member.uninitialized-20261121T223534.000Z", "snap"), 0o700))
	p.StartReady().Shutdown()
}
