// Package restoretest builds large full snapshots and archives for benchmarks. Filling a real etcd server with the
// same amount of data would take an hour.
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
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
)

// Full writes a stock snapshot with the given number of revisions, half as many keys, and values of size bytes, and
// returns a Source for the snapshot.
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

// empty returns a snapshot without keys.
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

// Rows calls row with one row for each revision.
func Rows(from, to int64, size int, row func(format.Row) error) error {
	random := rand.NewChaCha8([32]byte{})
	value := make([]byte, size)
	for at := from; at <= to; at++ {
		_, _ = random.Read(value[:size/4])            // never fails; the rest of the value compresses well
		binary.BigEndian.PutUint64(value, uint64(at)) //nolint:gosec // a revision is not negative
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

// PutFull creates a cluster in an archive, stores a full snapshot that Full builds at path, and returns the position
// after the snapshot.
func PutFull(t testing.TB, a *archive.Archive, cluster, path string, revision int64, size int) format.Start {
	t.Helper()
	_, err := a.Create(t.Context(), archive.Cluster{Cluster: cluster, Owner: "etcd-cluster", Created: time.Now()}, 1)
	require.NoError(t, err)
	source := Full(t, path, revision, size)
	database, err := os.Open(path)
	require.NoError(t, err)
	defer database.Close() // the file is only read, so a close error is harmless
	full, err := archivetest.PutFull(t.Context(), a, archive.Full{
		Cluster: cluster, Generation: 1, Revision: revision, Time: time.Now(), Reason: "for a measurement", Chain: format.Seed(cluster, 1, revision),
	}, io.LimitReader(database, source.DatabaseBytes))
	require.NoError(t, err)
	return full.Start()
}

// PutSegments stores segments of the given number of revisions up to the last revision, and merges the segments into
// hourly segments, as the wrapper does.
func PutSegments(t testing.TB, a *archive.Archive, start format.Start, last, each int64, size int) {
	t.Helper()
	for from := start.Position.Revision; from <= last; from = start.Position.Revision {
		builder, err := format.NewSegmentBuilder(a.Keys(), start)
		require.NoError(t, err)
		require.NoError(t, Rows(from, min(last, from+each-1), size, func(row format.Row) error { return builder.Add(&row) }))
		require.NoError(t, builder.Add(&format.Marker{Revision: builder.End(), Time: time.Now()}))
		object, err := builder.Finish(format.Source{Term: 2, Member: "8e9e05c52164694d"})
		require.NoError(t, err)
		require.NoError(t, archivetest.PutSegment(t.Context(), a, object))
		start = object.Start()
	}
	objects, err := a.Objects(t.Context(), 1, archive.Segment)
	require.NoError(t, err)
	_, err = a.Merge(t.Context(), archive.Hour, objects)
	require.NoError(t, err)
}
