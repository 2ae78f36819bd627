package capture

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/cmd/suites/etcdtest"
)

func digests(t *testing.T, r *Reader, etcd *etcdtest.Etcd) map[string]format.Digest {
	t.Helper()
	rows, err := r.ReadRows(Request{From: etcd.Revision() + 1, UpTo: etcd.Revision(), Limit: all, Beyond: true, Buckets: true})
	require.NoError(t, err)
	require.Len(t, rows.Buckets, len(schema.AllBuckets)-1)
	found := map[string]format.Digest{}
	for _, bucket := range rows.Buckets {
		found[bucket.Name] = Digest(bucket)
	}
	return found
}

func TestSmallBucket_digestChanges(t *testing.T) {
	reader, etcd := reader(t)
	before := digests(t, reader, etcd)
	changed := func() (names []string) {
		after := digests(t, reader, etcd)
		for name, digest := range after {
			if before[name] != digest && name != "cluster" && name != "meta" { // a young cluster still settles its versions
				names = append(names, name)
			}
		}
		before = after
		return names
	}
	put(t, etcd, "a", "1")
	_, err := etcd.Client.Compact(t.Context(), put(t, etcd, "a", "2"))
	require.NoError(t, err)
	etcd.Server.Backend().ForceCommit()
	assert.Empty(t, changed(), "puts, compactions and commits change none")

	lease, err := etcd.Client.Grant(t.Context(), 3600)
	require.NoError(t, err)
	assert.Equal(t, []string{"lease"}, changed())
	_, err = etcd.Client.Revoke(t.Context(), lease.ID)
	require.NoError(t, err)
	assert.Equal(t, []string{"lease"}, changed())
	_, err = etcd.Client.UserAdd(t.Context(), "root", "secret")
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{"auth", "authUsers"}, changed())
}

func TestMetaBucket_bookkeepingIsIgnored(t *testing.T) {
	meta := func(index, version string) format.Digest {
		bucket := format.NewBucket("meta")
		bucket.Add([]byte("confState"), []byte("1"))
		for _, key := range []string{"consistent_index", "finishedCompactRev", "scheduledCompactRev"} {
			bucket.Add([]byte(key), []byte(index))
		}
		bucket.Add([]byte("storageVersion"), []byte(version))
		bucket.Add([]byte("term"), []byte(index))
		return Digest(bucket)
	}
	assert.Equal(t, meta("1", "3.6"), meta("2", "3.6"))
	assert.NotEqual(t, meta("1", "3.6"), meta("1", "3.5"))
}

// entries are those of all small buckets.
func entries(t *testing.T, database backend.Backend) (all []string) {
	t.Helper()
	rows, err := NewReader(func() backend.Backend { return database }).ReadRows(Request{From: 1, Limit: 1 << 30, Beyond: true, Buckets: true})
	require.NoError(t, err)
	for _, bucket := range rows.Buckets {
		for key, value := range bucket.Entries() {
			all = append(all, fmt.Sprintf("%s/%s %s", bucket.Name, key, value))
		}
	}
	return all
}

func TestSmallBuckets_uncommitted(t *testing.T) {
	database := empty(t)
	write := func(key, value string) {
		tx := database.BatchTx()
		tx.Lock()
		defer tx.Unlock()
		tx.UnsafeCreateBucket(schema.Lease)
		tx.UnsafePut(schema.Lease, []byte(key), []byte(value))
	}
	write("b", "in the file")
	write("d", "replaced")
	database.ForceCommit()
	write("c", "waits")
	write("d", "replacement")
	write("a", "waits")
	assert.Equal(t, []string{"lease/a waits", "lease/b in the file", "lease/c waits", "lease/d replacement"}, entries(t, database))
}

// etcd's buffer of uncommitted writes holds a key twice if it was written twice under one lock.
func TestSmallBuckets_entryWrittenTwice(t *testing.T) {
	database := empty(t)
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

	assert.Equal(t, []string{"meta/another key newer", "meta/key newer"}, entries(t, database))
}

// etcd shows its readers what a write puts before it commits what the same write deletes, as one that takes a user's rights away does.
func TestSmallBuckets_deletionAndPutTogether(t *testing.T) {
	database, done := empty(t), make(chan struct{})
	defer func() { <-done }()
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
	for writing := true; writing; {
		select {
		case <-done:
			writing = false
		default:
		}
		if found := entries(t, database); slices.Contains(found, "auth/user is there") || slices.Contains(found, "auth/user is gone") {
			require.Equal(t, slices.Contains(found, "auth/user is there"), slices.Contains(found, "authUsers/user there"), "%v", found)
		}
	}
}
