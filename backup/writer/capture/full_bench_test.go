package capture

import (
	"crypto/rand"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"
)

// large fills a database with so many bytes of rows.
func large(b *testing.B, size int) backend.Backend {
	b.Helper()
	database := backend.NewDefaultBackend(zap.NewNop(), filepath.Join(b.TempDir(), "db"))
	b.Cleanup(func() { _ = database.Close() })
	tx := database.BatchTx()
	value := make([]byte, 64<<10)
	_, _ = rand.Read(value)
	tx.Lock()
	tx.UnsafeCreateBucket(schema.Key)
	tx.UnsafeCreateBucket(schema.Meta)
	tx.Unlock()
	for revision := range size / len(value) {
		tx.Lock()
		tx.UnsafeSeqPut(schema.Key, mvcc.RevToBytes(mvcc.Revision{Main: int64(revision + 2)}, mvcc.NewRevBytes()), value)
		tx.Unlock()
	}
	database.ForceCommit()
	return database
}

// BenchmarkFull copies a database of 2 GB and tells how long its transaction was held.
func BenchmarkFull(b *testing.B) {
	database := large(b, 2<<30)
	reader := NewReader(func() backend.Backend { return database })
	var longest time.Duration
	for b.Loop() {
		file, err := os.Create(filepath.Join(b.TempDir(), "copy"))
		require.NoError(b, err)
		snapshot, err := reader.Snapshot()
		require.NoError(b, err)
		require.NoError(b, snapshot.WriteTo(b.Context(), file))
		b.SetBytes(snapshot.Size)
		longest = max(longest, snapshot.Held())
		require.NoError(b, file.Close())
		require.NoError(b, os.Remove(file.Name()))
	}
	b.ReportMetric(longest.Seconds(), "s-held-at-most")
}

// BenchmarkManyLeases reads the small buckets of an etcd with 100,000 leases.
func BenchmarkManyLeases(b *testing.B) {
	database := backend.NewDefaultBackend(zap.NewNop(), filepath.Join(b.TempDir(), "db"))
	b.Cleanup(func() { _ = database.Close() })
	tx := database.BatchTx()
	tx.Lock()
	tx.UnsafeCreateBucket(schema.Lease)
	for id := range uint64(100_000) {
		tx.UnsafePut(schema.Lease, binary.BigEndian.AppendUint64(nil, id), make([]byte, 20))
	}
	tx.Unlock()
	database.ForceCommit()
	reader := NewReader(func() backend.Backend { return database })
	var longest time.Duration
	for b.Loop() {
		rows, err := reader.Since(Request{From: 1, Beyond: true, Buckets: true})
		require.NoError(b, err)
		longest = max(longest, rows.Held)
	}
	b.ReportMetric(float64(longest.Milliseconds()), "ms-held-at-most")
}
