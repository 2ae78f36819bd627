package datadirtest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"
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

// UsedBytes is how much of the database's file holds pages; the rest is only allocated.
func UsedBytes(t *testing.T, dir string) (used int64) {
	db, err := bolt.Open(dir+"/member/snap/db", 0, &bolt.Options{ReadOnly: true})
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.View(func(tx *bolt.Tx) error { used = tx.Size(); return nil }))
	return used
}

// FirstSegment is the path of the only segment that the log of Initialized has.
func FirstSegment(dir string) string {
	return filepath.Join(dir, "member", "wal", "0000000000000000-0000000000000000.wal")
}

// EntryEnds are the offsets at which the segment's entries end.
func EntryEnds(t *testing.T, segment string) []int64 {
	t.Helper()
	_, ends := entries(t, segment)
	return ends
}

// EntryBegins are the offsets at which the segment's entries begin.
func EntryBegins(t *testing.T, segment string) []int64 {
	t.Helper()
	begins, _ := entries(t, segment)
	return begins
}

func entries(t *testing.T, segment string) (begins, ends []int64) {
	t.Helper()
	file, err := os.Open(segment)
	require.NoError(t, err)
	defer file.Close() // nothing was written
	decoder := wal.NewDecoder(fileutil.NewFileReader(file))
	for record, begin := (walpb.Record{}), int64(0); decoder.Decode(&record) == nil; begin = decoder.LastOffset() {
		switch record.Type {
		case wal.CrcType:
			decoder.UpdateCRC(record.Crc)
		case wal.EntryType:
			begins, ends = append(begins, begin), append(ends, decoder.LastOffset())
		}
	}
	return begins, ends
}

// MakeUninitialized leaves behind what an etcd does that is killed in the first moment of its first start.
func MakeUninitialized(t *testing.T, dir string) {
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

// ZeroEntries writes zeros where the segment's first entry was, as a torn log ends.
func ZeroEntries(t *testing.T, segment string) {
	t.Helper()
	fresh := filepath.Join(t.TempDir(), "new.etcd")
	MakeUninitialized(t, fresh)
	head, err := os.ReadFile(FirstSegment(fresh))
	require.NoError(t, err)
	content, err := os.ReadFile(segment)
	require.NoError(t, err)
	copy(content[len(bytes.TrimRight(head, "\x00")):], make([]byte, 64))
	require.NoError(t, os.WriteFile(segment, content, 0o600))
}
