package capture

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"
)

// etcd shows its readers what a write puts before it commits what the same write deletes, as one that takes a user's rights away does.
func TestADeletionIsNotCapturedWithoutWhatWasPutBesideIt(t *testing.T) {
	database := backend.NewDefaultBackend(zap.NewNop(), filepath.Join(t.TempDir(), "db"))
	done := make(chan struct{})
	defer func() {
		<-done
		database.Close()
	}()
	write := func(do func(tx backend.BatchTx)) {
		tx := database.BatchTx()
		tx.LockInsideApply()
		defer tx.Unlock()
		do(tx)
	}
	write(func(tx backend.BatchTx) {
		for _, bucket := range schema.AllBuckets {
			tx.UnsafeCreateBucket(bucket)
		}
	})
	const writes = 300
	go func() {
		defer close(done)
		for i := range writes {
			write(func(tx backend.BatchTx) {
				is := "there"
				if i%2 == 1 {
					is = "gone"
					tx.UnsafeDelete(schema.AuthUsers, []byte("user"))
				} else {
					tx.UnsafePut(schema.AuthUsers, []byte("user"), []byte("there"))
				}
				tx.UnsafePut(schema.Auth, []byte("user is"), []byte(is))
			})
		}
	}()
	r := NewReader(func() backend.Backend { return database })
	for writing := true; writing; {
		select {
		case <-done:
			writing = false
		default:
		}
		rows, err := r.Since(Request{From: 1, Limit: all, Beyond: true, Buckets: true})
		require.NoError(t, err)
		found := map[string]string{}
		for _, bucket := range rows.Buckets {
			for key, value := range bucket.Entries() {
				found[fmt.Sprintf("%s/%s", bucket.Name, key)] = string(value)
			}
		}
		if is, known := found["auth/user is"]; known {
			require.Equal(t, is == "there", found["authUsers/user"] != "", "%v", found)
		}
	}
}
