package datadirtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

// Segments are the paths of the log's segments, in sequence.
func Segments(t *testing.T, dir string) []string { return matching(t, dir+"/member/wal/*.wal") }

// Snapshots are the paths of the snapshot files, oldest first.
func Snapshots(t *testing.T, dir string) []string { return matching(t, dir+"/member/snap/*.snap") }

func matching(t *testing.T, pattern string) []string {
	paths, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.Greater(t, len(paths), 1, "the test data has too few of %s", pattern)
	return paths
}

// Flip inverts one byte of a file.
func Flip(t *testing.T, path string, offset int64) {
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

// UsedBytes is how much of the database's file holds pages; the rest was only set aside.
func UsedBytes(t *testing.T, dir string) (used int64) {
	db, err := bolt.Open(dir+"/member/snap/db", 0, &bolt.Options{ReadOnly: true})
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.View(func(tx *bolt.Tx) error { used = tx.Size(); return nil }))
	return used
}
