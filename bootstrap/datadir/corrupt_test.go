package datadir

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// segmentsOf returns the paths of the WAL segments in order.
func segmentsOf(t *testing.T, dir string) []string { return matching(t, dir+"/member/wal/*.wal") }

// snapshotsOf returns the paths of the snapshot files, oldest first.
func snapshotsOf(t *testing.T, dir string) []string { return matching(t, dir+"/member/snap/*.snap") }

func matching(t *testing.T, pattern string) []string {
	paths, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.Greater(t, len(paths), 1, "the test needs more than one file that matches %s", pattern)
	return paths
}

// flip inverts a byte of a file.
func flip(t *testing.T, path string, offset int64) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	one := make([]byte, 1)
	_, err = file.ReadAt(one, offset)
	require.NoError(t, err)
	one[0] ^= 0xff
	_, err = file.WriteAt(one, offset)
	require.NoError(t, err)
}

// usedBytes returns the number of bytes of the database file that contain pages. The rest of the file is allocated
// but unused.
func usedBytes(t *testing.T, dir string) (used int64) {
	db, err := bolt.Open(dir+"/member/snap/db", 0, &bolt.Options{ReadOnly: true})
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.View(func(tx *bolt.Tx) error { used = tx.Size(); return nil }))
	return used
}

// firstSegmentOf returns the path of the only WAL segment of datadirtest.Initialized.
func firstSegmentOf(dir string) string {
	return filepath.Join(dir, "member", "wal", firstSegment)
}

// zeroEntries zeroes a segment from the first entry to the end, like a torn write.
func zeroEntries(t *testing.T, segment string) {
	t.Helper()
	fresh := filepath.Join(t.TempDir(), "new.etcd")
	datadirtest.Initialize(t, fresh)
	head, err := os.ReadFile(firstSegmentOf(fresh))
	require.NoError(t, err)
	content, err := os.ReadFile(segment)
	require.NoError(t, err)
	copy(content[len(bytes.TrimRight(head, "\x00")):], make([]byte, 64))
	require.NoError(t, os.WriteFile(segment, content, 0o600))
}
