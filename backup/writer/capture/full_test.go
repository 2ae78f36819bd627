package capture

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/cmd/suites/etcdtest"
)

func TestSnapshot_isConsistentDuringWrites(t *testing.T) {
	reader, etcd := reader(t)
	last := put(t, etcd, "a", "before")
	snapshot, err := reader.Snapshot()
	require.NoError(t, err)
	defer snapshot.Close()
	small := digests(t, reader, etcd)
	assert.Equal(t, small["lease"], snapshot.Digests()["lease"])
	assert.Equal(t, small["members"], snapshot.Digests()["members"])
	assert.Len(t, snapshot.Digests(), len(small))
	assert.EqualValues(t, 1, reader.Open())
	for range 100 {
		put(t, etcd, "a", "after the snapshot was opened")
	}
	etcd.Server.Backend().ForceCommit()
	file, err := os.Create(filepath.Join(t.TempDir(), "db"))
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, snapshot.WriteTo(t.Context(), file))
	assert.Zero(t, reader.Open(), "copying closes the transaction")
	assert.Positive(t, snapshot.Held())
	assert.Equal(t, last, snapshot.Revision)
	rows := etcdtest.Rows(t, file.Name())
	assert.Equal(t, last, mvcc.BytesToBucketKey(rows[len(rows)-1].Key).Main)
}

func TestSnapshot_compactedRevision(t *testing.T) {
	reader, etcd := reader(t)
	_, uncompacted := copied(t, reader)
	assert.Zero(t, uncompacted.Compacted)
	put(t, etcd, "a", "1")
	second := put(t, etcd, "a", "2")
	_, err := etcd.Client.Compact(t.Context(), second)
	require.NoError(t, err)
	_, snapshot := copied(t, reader)
	assert.Equal(t, second, snapshot.Compacted)
}

func TestSnapshot_canceledCopyClosesItsTransaction(t *testing.T) {
	reader, etcd := reader(t)
	put(t, etcd, "a", "1")
	for name, copyTo := range map[string]func(ctx context.Context, s *Snapshot) error{
		"file": func(ctx context.Context, s *Snapshot) error {
			file, err := os.Create(filepath.Join(t.TempDir(), "db"))
			require.NoError(t, err)
			defer file.Close()
			return s.WriteTo(ctx, file)
		},
		"writer without ReadFrom": func(ctx context.Context, s *Snapshot) error { return s.WriteTo(ctx, discard{}) },
	} {
		t.Run(name, func(t *testing.T) {
			snapshot, err := reader.Snapshot()
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, copyTo(ctx, snapshot), context.Canceled)
			assert.Zero(t, reader.Open())
			require.NoError(t, etcd.Server.Backend().Defrag(), "a defragmentation waits for all open transactions")
		})
	}
}

// discard is a writer without the method ReadFrom, unlike io.Discard.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// large returns a database whose rows have the given total size.
func large(b *testing.B, size int) backend.Backend {
	b.Helper()
	database := empty(b)
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

// BenchmarkFull copies a 2 GB database to a file and reports how long the transaction was open.
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

// BenchmarkManyLeases reads the small buckets of a database with 100,000 leases and reports how long the transaction
// was open.
func BenchmarkManyLeases(b *testing.B) {
	database := empty(b)
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
		rows, err := reader.ReadRows(Request{From: 1, Beyond: true, Buckets: true})
		require.NoError(b, err)
		longest = max(longest, rows.Held)
	}
	b.ReportMetric(float64(longest.Milliseconds()), "ms-held-at-most")
}
