package capture

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"
)

// etcd's buffer of what waits for a commit holds a key twice if it was written twice under one lock.
func TestAnEntryThatWasWrittenTwiceSinceTheLastCommitIsReadOnce(t *testing.T) {
	database := backend.NewDefaultBackend(zap.NewNop(), filepath.Join(t.TempDir(), "db"))
	defer database.Close()
	put := func(values ...string) {
		tx := database.BatchTx()
		tx.LockInsideApply()
		defer tx.Unlock()
		tx.UnsafeCreateBucket(schema.Key)
		tx.UnsafeCreateBucket(schema.Meta)
		for _, value := range values {
			tx.UnsafePut(schema.Meta, []byte("key"), []byte(value))
			tx.UnsafePut(schema.Meta, []byte("another key"), []byte(value))
		}
	}
	put("of a commit before")
	database.ForceCommit()
	put("older", "newer")

	rows, err := NewReader(func() backend.Backend { return database }).Since(Request{From: 1, Limit: all, Beyond: true, Buckets: true})
	require.NoError(t, err)
	for _, bucket := range rows.Buckets {
		if bucket.Name != string(schema.Meta.Name()) {
			continue
		}
		require.Equal(t, 2, bucket.Len())
		for key, value := range bucket.Entries() {
			assert.Equal(t, "newer", string(value), "%s", key)
		}
	}
}
