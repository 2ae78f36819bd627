package endtoend_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/folder"
	"etcd-wrapper/cmd/suites/harness"
)

// keepDatabase stores a full snapshot of the database of a stopped pod and returns the flag for the store.
func keepDatabase(p *harness.Pod) (flag string) {
	dir := p.T.TempDir()
	opened, err := folder.New(dir)
	require.NoError(p.T, err)
	kept := archive.New(opened, &format.Keys{})
	_, err = kept.Create(p.T.Context(), archive.Cluster{Cluster: "c1", Created: time.Now()}, 1)
	require.NoError(p.T, err)
	database, err := os.Open(p.DBPath())
	require.NoError(p.T, err)
	defer database.Close()
	revision := lastRevision(p)
	_, err = archivetest.PutFull(p.T.Context(), kept, archive.Full{
		Cluster: "c1", Generation: 1, Revision: revision, Time: time.Now(), Chain: format.Seed("c1", 1, revision), Member: "m", Reason: "begin",
	}, database)
	require.NoError(p.T, err)
	return "--backup-store=file://" + dir
}

func lastRevision(p *harness.Pod) (revision int64) {
	db, err := bolt.Open(p.DBPath(), 0o600, &bolt.Options{ReadOnly: true})
	require.NoError(p.T, err)
	defer db.Close()
	require.NoError(p.T, db.View(func(tx *bolt.Tx) error {
		last, _ := tx.Bucket([]byte("key")).Cursor().Last()
		revision = int64(binary.BigEndian.Uint64(last))
		return nil
	}))
	return revision
}

// visit runs a command that must succeed.
func visit(p *harness.Pod, args ...string) (out string) {
	p.T.Helper()
	out, log, status := p.Begin(args...).Wait()
	require.Equal(p.T, 0, status, "%v: %s", args, log)
	return out
}

func TestBackupCommands_verifyListExport(t *testing.T) {
	t.Parallel()
	p := harness.NewStandalonePod(t, nil)
	p.StartAndStop("greeting", "hello")
	store, scratch, snapshot := keepDatabase(p), t.TempDir(), filepath.Join(t.TempDir(), "out.db")

	p.Env = append(p.Env, "TMPDIR="+scratch)
	assert.Contains(t, visit(p, "backup", "list", store), "not yet")
	assert.Contains(t, visit(p, "backup", "verify", store), "could be restored")
	assert.Contains(t, visit(p, "backup", "list", store), "last verified   yes")
	assert.Contains(t, visit(p, "backup", "prune", store, "--backup-keep=points=24h"), "deleted 0 objects")
	left, err := os.ReadDir(scratch)
	require.NoError(t, err)
	assert.Empty(t, left)

	visit(p, "backup", "export", store, snapshot)
	visit(p, "etcdutl", "snapshot", "restore", snapshot, "--data-dir="+filepath.Join(t.TempDir(), "restored"))
	_, _, status := p.Begin("backup", "export", store, "--to=revision:1000", snapshot+"2").Wait()
	assert.Equal(t, 78, status)
}

// The commands report the damage and delete nothing.
func TestBackupCommands_damagedBackup(t *testing.T) {
	t.Parallel()
	p := harness.NewStandalonePod(t, nil)
	p.StartAndStop("greeting", "hello")
	store := keepDatabase(p)
	data, err := filepath.Glob(strings.TrimPrefix(store, "--backup-store=file://") + "/gen/000001/full/*/data")
	require.NoError(t, err)
	require.Len(t, data, 1)
	harness.CorruptFile(t, data[0], 100, 16)
	out, log, status := p.Begin("backup", "verify", store, "-o", "json").Wait()
	assert.Equal(t, 70, status)
	assert.Contains(t, out, `"outcome": "failed"`)
	assert.Contains(t, log, "the test restore failed")
	_, log, status = p.Begin("backup", "prune", store, "--backup-keep=points=24h").Wait()
	assert.Equal(t, 75, status)
	assert.Contains(t, log, "nothing is deleted")
}
