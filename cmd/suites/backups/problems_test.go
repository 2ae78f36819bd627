package backups_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/cmd/suites/harness"
)

func hasProblem(b facts.Backups) bool { return b.Problem != nil }

func recovered(b facts.Backups) bool {
	return b.Problem == nil && b.Revision > 0 && b.LagRevisions == 0
}

// requireServingWithProblem requires that etcd is serving and that the status and metrics show the problem.
func (m *member) requireServingWithProblem(run *harness.Run, words string) {
	m.T.Helper()
	// wait for this problem, because the status may still show a previous one
	awaitBackupStatus(run, "the status shows the problem", func(b facts.Backups) bool { return hasProblem(b) && strings.Contains(b.Problem.Message, words) })
	m.write("during the problem", "written")
	assert.False(m.T, backupStatus(run).Problem.NextRetry.IsZero(), "the status shows the time of the next retry")
	assert.Equal(m.T, 200, run.Readyz())
	_, page := run.Request("GET", "/metrics")
	assert.Contains(m.T, page, "etcd_wrapper_backup_problem 1")
	out, log, code := m.Begin("status", "-v").Wait()
	require.Zero(m.T, code, log)
	assert.Contains(m.T, harness.OneLine(out), words)
}

func TestMissingFolder_isRetried(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	m.StartReady().Shutdown() // a member without data would refuse to start, because the data might have been lost
	moved := m.mount + ".away"
	rename(t, m.mount, moved)
	run := m.StartReady()
	m.write("key", "before the folder exists")
	m.requireServingWithProblem(run, m.mount)
	assert.NoDirExists(t, m.mount, "no folder is created at the mount point")
	rename(t, moved, m.mount)
	awaitBackupStatus(run, "backups continue", recovered)
	run.Shutdown()
	assert.Equal(t, "before the folder exists", m.keys(t, targetLatest)["key"])
}

// asUnprivilegedUser drops the capabilities that let root bypass file permissions.
func (m *member) asUnprivilegedUser() {
	m.T.Helper()
	if os.Geteuid() == 0 {
		m.Under = []string{"setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"}
	}
}

func TestReadOnlyFolder_isRetried(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	m.asUnprivilegedUser()
	require.NoError(t, os.Chmod(m.dir, 0o500))
	run := m.StartReady()
	m.requireServingWithProblem(run, "permission denied")
	require.NoError(t, os.Chmod(m.dir, 0o700))
	awaitBackupStatus(run, "backups continue", recovered)
	run.Shutdown()
	require.Len(t, m.requireSound(t), 1)
}

func TestStore_ofAnotherCluster(t *testing.T) {
	t.Parallel()
	first := newMember(t)
	run := first.StartReady()
	first.write("owner", "first cluster")
	run.Shutdown()
	before := files(t, first.dir)

	second := newMember(t)
	second.StartReady().Shutdown() // create data in a store of its own
	second.useStore(first.depot)
	other := second.StartReady()
	second.requireServingWithProblem(other, "cluster ID mismatch")
	assert.Regexp(t, "belongs to cluster [0-9a-f]{32}, but the data belongs to cluster [0-9a-f]{32}", backupStatus(other).Problem.Message)
	other.Shutdown()
	assert.Equal(t, before, files(t, first.dir), "the store is unchanged")
}

// The program must detect that it has been pointed at another cluster's store, even if both clusters have the same
// configuration and etcd has compacted every revision that they share.
func TestStore_ofAClusterWithTheSameConfiguration(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	firstRun := m.StartReady()
	m.write("owner", "first cluster")
	firstRun.Shutdown()
	first := m.depot
	before := files(t, first.dir)
	require.NoError(t, os.RemoveAll(m.Volume))
	m.useStore(newDepot(t))
	run := m.StartReady()
	last := m.write("owner", "second cluster")
	m.write("owner", "still second cluster")
	_, err := m.Etcd().Compact(t.Context(), last, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	run.AwaitStored(last + 1)
	run.Shutdown()

	m.useStore(first)
	restarted := m.StartReady()
	m.requireServingWithProblem(restarted, "cluster ID mismatch")
	restarted.Shutdown()
	assert.Equal(t, before, files(t, first.dir), "the store is unchanged")
}

// useStore makes subsequent runs use the given store.
func (m *member) useStore(d depot) {
	m.depot = d
	m.Flags = append(m.Flags, m.flag())
}

// files returns the path and size of every file under a directory.
func files(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	found := map[string]int64{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		found[path] = info.Size()
		return err
	}))
	return found
}

// If a user has deleted the backups or mounted an empty volume by mistake, the program must start a new chain.
func TestEmptiedStore_startsNewChain(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	run := m.StartReady()
	run.AwaitStored(m.write("key", "before"))
	run.Shutdown()
	require.NoError(t, os.RemoveAll(m.dir))
	require.NoError(t, os.Mkdir(m.dir, 0o700))
	restarted := m.StartReady()
	restarted.AwaitStored(m.write("another key", "after"))
	restarted.Shutdown()
	require.Len(t, m.requireSound(t), 1)
	assert.Equal(t, state{"key": "before", "another key": "after"}, m.keys(t, targetLatest))
}

func TestDataOlderThanBackups(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	m.StartReady().Shutdown()
	old := m.DataDir() + ".old"
	require.NoError(t, os.CopyFS(old, os.DirFS(m.DataDir())))
	run := m.StartReady()
	for range 5 {
		m.write("key", "newer")
	}
	run.Shutdown()
	kept := m.head(t)
	require.NoError(t, os.RemoveAll(m.DataDir()))
	rename(t, old, m.DataDir())

	restarted := m.Start()
	require.Equal(t, 70, restarted.Exit(harness.Patience), "the program exits because the data could be a copy that another process is using")
	restarted.AwaitLine(harness.Line{"message": "another copy of this data is writing to the same backups", "level": "error"})
	assert.Equal(t, kept, m.head(t))
}
