package member_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
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

// born leaves behind what an etcd does that has run and was stopped.
func born(t *testing.T) (dir, segment string) {
	t.Helper()
	dir, segment, _ = bornOf(t)
	return dir, segment
}

// bornOf returns what it ran with as well.
func bornOf(t *testing.T) (dir, segment string, config *embed.Config) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "[new].etcd") // a pattern of path/filepath
	b := newBench(t, dir)
	require.NoError(t, b.Open(soon(t)))
	require.Eventually(t, func() bool { return strings.Contains(b.log.String(), "set initial cluster version") }, patience, tick)
	_, err := b.client(t).Put(soon(t), "key", "value")
	require.NoError(t, err)
	_, err = b.Close()
	require.NoError(t, err)
	return dir, filepath.Join(dir, "member", "wal", "0000000000000000-0000000000000000.wal"), b.config
}

// losses are of a member that was born. etcd would take each for a new one and wait for ever to be elected, or to be heard.
var losses = map[string]func(t *testing.T, dir, segment string){
	"the log is lost": func(t *testing.T, dir, _ string) {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "member", "wal")))
	},
	"the log's segment is lost": func(t *testing.T, _, segment string) { require.NoError(t, os.Remove(segment)) },
	"the log is cut off":        func(t *testing.T, _, segment string) { require.NoError(t, os.Truncate(segment, 100)) },
	"the log is cut off, and etcd has repaired it": func(t *testing.T, _, segment string) {
		require.NoError(t, os.Truncate(segment, 100))
		require.True(t, wal.Repair(zap.NewNop(), filepath.Dir(segment)))
	},
	"the log's entries are zeros": func(t *testing.T, _, segment string) {
		zeroEntries(t, segment)
	},
	"the log's entries are zeros and the database is lost": func(t *testing.T, dir, segment string) {
		zeroEntries(t, segment)
		require.NoError(t, os.Remove(filepath.Join(dir, "member", "snap", "db")))
	},
}

// zeroEntries writes zeros where the first entry was, as a torn log ends.
func zeroEntries(t *testing.T, segment string) {
	t.Helper()
	unborn := filepath.Join(t.TempDir(), "new.etcd")
	unbornMember(t, unborn)
	head, err := os.ReadFile(filepath.Join(unborn, "member", "wal", filepath.Base(segment)))
	require.NoError(t, err)
	content, err := os.ReadFile(segment)
	require.NoError(t, err)
	copy(content[len(bytes.TrimRight(head, "\x00")):], make([]byte, 64))
	require.NoError(t, os.WriteFile(segment, content, 0o600))
}

func TestAMemberThatHasLostItsLogIsRefusedAndKept(t *testing.T) {
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			dir, segment := born(t)
			lose(t, dir, segment)
			before := tree(t, dir)
			b := newBench(t, dir)
			require.ErrorContains(t, b.Open(soon(t)), "names nobody who has a vote, although its member was born")
			opened, err := b.Close()
			assert.True(t, opened, "the data was found unfit: the next start must not take it for good")
			require.Error(t, err)
			assert.Equal(t, before, tree(t, dir))
		})
	}
}

func TestAMemberWithItsLogIsNeverRefusedOrSetAside(t *testing.T) {
	for _, lost := range []string{"member/snap/db", "nothing"} {
		t.Run("without "+lost, func(t *testing.T) {
			dir, _ := born(t)
			require.NoError(t, os.RemoveAll(filepath.Join(dir, lost)))
			b := newBench(t, dir)
			require.NoError(t, b.Open(soon(t)))
			reply, err := b.client(t).Get(soon(t), "key")
			require.NoError(t, err)
			require.Len(t, reply.Kvs, 1, "the log has it all")
			_, err = b.Close()
			require.NoError(t, err)
			assert.Empty(t, setAside(t, dir))
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
