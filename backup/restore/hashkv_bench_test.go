package restore

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// BenchmarkHash hashes a million rows of half a million keys, 1 KB each.
func BenchmarkHash(b *testing.B) {
	const rows = 1_000_000
	path := filepath.Join(b.TempDir(), "db")
	fill(b, path, rows)
	b.ReportAllocs()
	for b.Loop() {
		_, err := HashKV(b.Context(), path, rows*3/4, rows)
		require.NoError(b, err)
	}
	b.ReportMetric(rows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

func fill(b *testing.B, path string, rows int64) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true})
	require.NoError(b, err)
	defer db.Close()
	value := make([]byte, 1000)
	for first := int64(2); first <= rows; first += 10_000 {
		require.NoError(b, db.Update(func(tx *bolt.Tx) error {
			keys, err := tx.CreateBucketIfNotExists(schema.Key.Name())
			require.NoError(b, err)
			_, err = tx.CreateBucketIfNotExists(schema.Meta.Name())
			require.NoError(b, err)
			for at := first; at < first+10_000 && at <= rows; at++ {
				binary.BigEndian.PutUint64(value, uint64(at))
				kv := mvccpb.KeyValue{Key: fmt.Appendf(nil, "/registry/pods/default/%08d", at%(rows/2)), Value: value, ModRevision: at}
				row, err := kv.Marshal()
				require.NoError(b, err)
				require.NoError(b, keys.Put(mvcc.RevToBytes(mvcc.Revision{Main: at}, mvcc.NewRevBytes()), row))
			}
			return nil
		}))
	}
}
