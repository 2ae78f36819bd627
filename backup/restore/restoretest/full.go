// Package restoretest builds large full snapshots, and archives of them, for benchmarks, without an etcd, which would take an hour to fill.
package restoretest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
)

// Full builds a stock snapshot with revisions up to one and half as many keys, and returns a function that opens it. A value has size bytes.
func Full(t testing.TB, path string, revision int64, size int) restore.Source {
	t.Helper()
	source := empty(t)
	source.Rows = func(_ context.Context, row func(format.Row) error) (archive.Reading, error) {
		return archive.Reading{}, Rows(2, revision, size, row)
	}
	result, err := restore.Export(t.Context(), source, path, restore.Options{})
	require.NoError(t, err)
	return restore.Source{
		Snapshot:      func(context.Context) (io.ReadCloser, error) { return os.Open(path) },
		DatabaseBytes: result.Bytes - sha256.Size,
	}
}

// empty is a snapshot without a key.
func empty(t testing.TB) restore.Source {
	path := filepath.Join(t.TempDir(), "empty")
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true, NoFreelistSync: true})
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bolt.Tx) error {
		for _, bucket := range schema.AllBuckets {
			if _, err := tx.CreateBucket(bucket.Name()); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, db.Close())
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	sum := sha256.Sum256(content)
	content = append(content, sum[:]...)
	return restore.Source{Snapshot: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }}
}

// Rows are those of revisions from one to another.
func Rows(from, to int64, size int, row func(format.Row) error) error {
	random := rand.NewChaCha8([32]byte{})
	value := make([]byte, size)
	for at := from; at <= to; at++ {
		_, _ = random.Read(value[:size/4])            // never fails; the rest compresses well
		binary.BigEndian.PutUint64(value, uint64(at)) //nolint:gosec // a revision
		kv := mvccpb.KeyValue{Key: fmt.Appendf(nil, "/registry/pods/default/%08d", at%(to/2)), Value: value, ModRevision: at, CreateRevision: at, Version: 1}
		stored, err := kv.Marshal()
		if err != nil {
			return err
		}
		if err := row(format.Row{Key: mvcc.RevToBytes(mvcc.Revision{Main: at}, mvcc.NewRevBytes()), Value: stored}); err != nil {
			return err
		}
	}
	return nil
}
