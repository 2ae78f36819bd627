package member_test

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
)

// unbornMember leaves behind what an etcd does that is killed in the first moment of its first start.
func unbornMember(t *testing.T, dir string) {
	t.Helper()
	metadata, err := (&etcdserverpb.Metadata{NodeID: 1, ClusterID: 2}).Marshal()
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "member", "snap"), 0o700))
	log, err := wal.Create(zap.NewNop(), filepath.Join(dir, "member", "wal"), metadata)
	require.NoError(t, err)
	require.NoError(t, log.Close())
	database, err := bolt.Open(filepath.Join(dir, "member", "snap", "db"), 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, database.Close())
}

// setAside returns the member directories that were moved out of the way.
func setAside(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "member.unborn-*"))
	require.NoError(t, err)
	return found
}

// Left alone, etcd would start and wait for ever to be elected.
func TestAMemberThatWasKilledBeforeItStoredAnythingStartsAfresh(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	for round := range 2 { // the second finds the first one's leftovers
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "member")))
		unbornMember(t, dir)
		b := newBench(t, dir)
		require.NoError(t, b.Open(soon(t)))
		_, err := b.client(t).Put(soon(t), "key", "value")
		require.NoError(t, err)
		_, err = b.Close()
		require.NoError(t, err)
		assert.Contains(t, b.log.String(), "it starts afresh")
		assert.Len(t, setAside(t, dir), round+1)
	}
}

func TestAMemberWithAnyDataIsNeverSetAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	first := newBench(t, dir)
	require.NoError(t, first.Open(soon(t)))
	_, err := first.Close()
	require.NoError(t, err)
	for _, lost := range []string{"member/wal", "member/snap/db", "nothing"} {
		t.Run("without "+lost, func(t *testing.T) {
			damaged := filepath.Join(t.TempDir(), "new.etcd")
			require.NoError(t, os.CopyFS(damaged, os.DirFS(dir)))
			require.NoError(t, os.RemoveAll(filepath.Join(damaged, lost)))
			before := tree(t, damaged)
			b := newBench(t, damaged)
			_ = b.Open(soon(t)) // whether etcd can start with that is not the question
			_, _ = b.Close()
			assert.Empty(t, setAside(t, damaged))
			for _, path := range before {
				assert.FileExists(t, path)
			}
		})
	}
}

// The head of the WAL is damaged so that it reads as empty, and the database is lost: two faults, and the rest is still
// worth a look.
func TestAWALThatReadsAsEmptyIsNotSetAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	first := newBench(t, dir)
	require.NoError(t, first.Open(soon(t)))
	_, err := first.Close()
	require.NoError(t, err)
	segments, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
	require.NoError(t, err)
	content, err := os.ReadFile(segments[0])
	require.NoError(t, err)
	unborn := filepath.Join(t.TempDir(), "new.etcd")
	unbornMember(t, unborn)
	head, err := os.ReadFile(filepath.Join(unborn, "member", "wal", filepath.Base(segments[0])))
	require.NoError(t, err)
	used := len(bytes.TrimRight(head, "\x00"))
	copy(content[used:used+64], make([]byte, 64)) // what follows the head ends in zeros, as a torn log does
	require.NoError(t, os.WriteFile(segments[0], content, 0o600))
	require.NoError(t, os.Remove(filepath.Join(dir, "member", "snap", "db")))
	b := newBench(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_ = b.Open(ctx)
	_, _ = b.Close()
	assert.Empty(t, setAside(t, dir))
}

func tree(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && filepath.Ext(path) != ".tmp" {
			files = append(files, path)
		}
		return err
	}))
	return files
}
