package datadirtest

import (
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

// Entries returns the start and end offsets of the entries in a segment.
func Entries(t *testing.T, segment string) (begins, ends []int64) {
	t.Helper()
	file, err := os.Open(segment)
	require.NoError(t, err)
	defer file.Close() // opened read-only, so a close error is harmless
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

// Initialize writes the files that etcd leaves behind if it is killed early in its first start: a log without entries
// and a database without buckets.
func Initialize(t *testing.T, dir string) {
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
