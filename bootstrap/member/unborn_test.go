package member_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
}

// Left alone, etcd would start and wait for ever to be elected.
func TestAMemberThatWasKilledBeforeItStoredAnythingStartsAfresh(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	for range 2 { // the second finds the first one's leftovers
		require.NoError(t, os.RemoveAll(dir))
		unbornMember(t, dir)
		b := newBench(t, dir)
		require.NoError(t, b.Open(soon(t)))
		_, err := b.client(t).Put(soon(t), "key", "value")
		require.NoError(t, err)
		_, err = b.Close()
		require.NoError(t, err)
		assert.Contains(t, b.log.String(), "it starts afresh")
		assert.DirExists(t, dir+".unborn")
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
			assert.NoDirExists(t, damaged+".unborn")
			for _, path := range before {
				assert.FileExists(t, path)
			}
		})
	}
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
