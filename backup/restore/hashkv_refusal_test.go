package restore

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// compactedAt4 is a database with revisions 2 to 6 of one key.
func compactedAt4(t *testing.T) string {
	e := start(t, t.TempDir())
	defer e.stop()
	for range 5 {
		e.Put([]byte("key"), []byte("value"), lease.NoLease)
	}
	e.compact(4)
	return e.file()
}

func TestAHashOverRowsThatAreNotThereIsRefused(t *testing.T) {
	path := compactedAt4(t)
	_, err := HashKV(t.Context(), path, 3, 6)
	require.ErrorIs(t, err, ErrCompacted)
	require.ErrorContains(t, err, "compacted at revision 4, and the hash begins behind 3")
	_, err = HashKV(t.Context(), path, -1, 6)
	require.ErrorIs(t, err, ErrCompacted)
	_, err = HashKV(t.Context(), path, 5, 4)
	require.ErrorIs(t, err, ErrCompacted)
	_, err = HashKVAtCompaction(t.Context(), path, 4, 7)
	require.ErrorIs(t, err, ErrFutureRevision)
	require.ErrorContains(t, err, "the database ends before that revision, at 6")
	_, err = HashKV(t.Context(), path, 4, 6)
	require.NoError(t, err)
}

func TestAHashEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := HashKV(ctx, compactedAt4(t), 4, 6)
	require.ErrorIs(t, err, context.Canceled)
}

func TestARowThatIsNoneIsNamed(t *testing.T) {
	for what, bad := range map[string]struct{ key, value, want string }{
		"length":    {"short", "", "73686f7274 is no revision"},
		"separator": {"\x00\x00\x00\x00\x00\x00\x00\x03.\x00\x00\x00\x00\x00\x00\x00\x00", "", "is no revision"},
		"negative":  {"\xff\x00\x00\x00\x00\x00\x00\x03_\x00\x00\x00\x00\x00\x00\x00\x00", "", "is a negative revision"},
		"value":     {"\x00\x00\x00\x00\x00\x00\x00\x03_\x00\x00\x00\x00\x00\x00\x00\x00", "\x0a\xff", "row 0000000000000003"},
		"tag":       {"\x00\x00\x00\x00\x00\x00\x00\x03_\x00\x00\x00\x00\x00\x00\x00\x00", "\xff", "row 0000000000000003"},
		"field":     {"\x00\x00\x00\x00\x00\x00\x00\x03_\x00\x00\x00\x00\x00\x00\x00\x00", "\x12\x09a", "row 0000000000000003"},
	} {
		path := compactedAt4(t)
		db, err := bolt.Open(path, 0, nil)
		require.NoError(t, err)
		require.NoError(t, db.Update(func(tx *bolt.Tx) error {
			return tx.Bucket(schema.Key.Name()).Put([]byte(bad.key), []byte(bad.value))
		}))
		require.NoError(t, db.Close())
		_, err = HashKV(t.Context(), path, 4, 6)
		require.ErrorContains(t, err, bad.want, what)
	}
}

func TestAFileThatIsNoDatabaseOfEtcdIsRefused(t *testing.T) {
	path := t.TempDir() + "/db"
	db, err := bolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	_, err = HashKV(t.Context(), path, 4, 6)
	require.ErrorContains(t, err, "it has no keys of etcd")
	_, err = HashKV(t.Context(), t.TempDir(), 4, 6)
	require.ErrorContains(t, err, "cannot open it")
}
