package capture

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
)

func TestASnapshotIsTheDatabaseOfItsRevisionHoweverMuchIsWrittenMeanwhile(t *testing.T) {
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
		put(t, etcd, "a", "meanwhile")
	}
	etcd.Server.Backend().ForceCommit()
	file, err := os.Create(filepath.Join(t.TempDir(), "db"))
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, snapshot.WriteTo(t.Context(), file))
	assert.Zero(t, reader.Open(), "the transaction ends with the copy")
	assert.Positive(t, snapshot.Held())
	assert.Equal(t, last, snapshot.Revision)
	rows := stored(t, file.Name())
	assert.Equal(t, last, mvcc.BytesToBucketKey(rows[len(rows)-1].Key).Main)
}

func TestASnapshotKnowsTheCompactionOfItsOwnTransaction(t *testing.T) {
	reader, etcd := reader(t)
	_, none := copied(t, reader)
	assert.Zero(t, none.Compacted)
	put(t, etcd, "a", "1")
	second := put(t, etcd, "a", "2")
	_, err := etcd.Client.Compact(t.Context(), second)
	require.NoError(t, err)
	_, snapshot := copied(t, reader)
	assert.Equal(t, second, snapshot.Compacted)
}

func TestACopyEndsWithItsContextAndFreesTheDatabase(t *testing.T) {
	reader, etcd := reader(t)
	put(t, etcd, "a", "1")
	for name, to := range map[string]func(ctx context.Context, s *Snapshot) error{
		"file": func(ctx context.Context, s *Snapshot) error {
			file, err := os.Create(filepath.Join(t.TempDir(), "db"))
			require.NoError(t, err)
			defer file.Close()
			return s.WriteTo(ctx, file)
		},
		"other": func(ctx context.Context, s *Snapshot) error { return s.WriteTo(ctx, discard{}) },
	} {
		t.Run(name, func(t *testing.T) {
			snapshot, err := reader.Snapshot()
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, to(ctx, snapshot), context.Canceled)
			assert.Zero(t, reader.Open())
			require.NoError(t, etcd.Server.Backend().Defrag(), "which waits for every open transaction")
		})
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
