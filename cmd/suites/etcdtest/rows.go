package etcdtest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/format"
)

// Fill writes 10,000 rows of 1 KB, which corresponds to one second of heavy load. Like typical JSON, the rows can be
// compressed to half their size.
func (e *Etcd) Fill(t testing.TB) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 100 {
		var ops []clientv3.Op
		for j := range 100 {
			value := make([]byte, 1000)
			for k := range value {
				value[k] = "0123456789abcdef"[random.IntN(16)]
			}
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("/registry/things/%05d", 100*i+j), string(value)))
		}
		_, err := e.Client.Txn(t.Context()).Then(ops...).Commit()
		require.NoError(t, err)
	}
}

// Rows returns the rows of the "key" bucket in a database file, and checks the file's consistency. It uses only bbolt,
// so that the result does not depend on the code under test.
func Rows(t testing.TB, path string) (rows []format.Row) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.View(func(tx *bolt.Tx) error {
		for problem := range tx.Check() {
			require.NoError(t, problem)
		}
		return tx.Bucket(schema.Key.Name()).ForEach(func(k, v []byte) error {
			rows = append(rows, format.Row{Key: bytes.Clone(k), Value: bytes.Clone(v)})
			return nil
		})
	}))
	return rows
}

// RequireSameRows requires that the rows are equal. Unlike require.Equal, it prints only the first difference.
func RequireSameRows(t testing.TB, want, got []format.Row) {
	t.Helper()
	for i := range min(len(want), len(got)) {
		require.Equal(t, want[i].Key, got[i].Key, "row %d", i)
		require.Equal(t, want[i].Value, got[i].Value, "row %d", i)
	}
	require.Len(t, got, len(want))
}
