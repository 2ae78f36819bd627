package capture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/cmd/suites/etcdtest"
)

const all = 1 << 30

func reader(t testing.TB) (*Reader, *etcdtest.Etcd) {
	t.Helper()
	etcd := etcdtest.Start(t, t.TempDir())
	return NewReader(etcd.Server.Backend), etcd
}

// empty returns an empty database that no etcd server uses.
func empty(t testing.TB) backend.Backend {
	database := backend.NewDefaultBackend(zap.NewNop(), filepath.Join(t.TempDir(), "db"))
	t.Cleanup(func() { _ = database.Close() })
	return database
}

func put(t testing.TB, etcd *etcdtest.Etcd, key, value string) int64 {
	t.Helper()
	answer, err := etcd.Client.Put(t.Context(), key, value)
	require.NoError(t, err)
	return answer.Header.Revision
}

// copied writes a snapshot of the current database to a file. It returns the path of the file and the closed snapshot.
func copied(t *testing.T, r *Reader) (string, *Snapshot) {
	t.Helper()
	snapshot, err := r.Snapshot()
	require.NoError(t, err)
	defer snapshot.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "db"))
	require.NoError(t, err)
	require.NoError(t, snapshot.WriteTo(t.Context(), file))
	require.NoError(t, file.Close())
	return file.Name(), snapshot
}

// write sends random puts, deletions, transactions and lease requests, and stops at the first error.
func write(ctx context.Context, client *clientv3.Client, random *rand.Rand) {
	key := func() string { return fmt.Sprint("key", random.IntN(50)) }
	lease, err := client.Grant(ctx, 3600)
	for range 150 {
		if err != nil {
			return
		}
		switch random.IntN(5) {
		case 0:
			_, err = client.Delete(ctx, key())
		case 1:
			_, err = client.Delete(ctx, "key1", clientv3.WithPrefix())
		case 2:
			var ops []clientv3.Op
			for i := range random.IntN(100) {
				ops = append(ops, clientv3.OpPut(fmt.Sprint("many", i), "value"))
			}
			_, err = client.Txn(ctx).Then(ops...).Commit()
		default:
			_, err = client.Put(ctx, key(), string(make([]byte, random.IntN(3000))), clientv3.WithLease(lease.ID))
		}
	}
	_, _ = client.Revoke(ctx, lease.ID)
}

func TestCaptures_haveEveryRowInOrder(t *testing.T) {
	reader, etcd := reader(t)
	var writers sync.WaitGroup
	for seed := range uint64(4) {
		writers.Go(func() { write(t.Context(), etcd.Client, rand.New(rand.NewPCG(seed, 1))) })
	}
	written := make(chan struct{})
	go func() { writers.Wait(); close(written) }()

	var rows []format.Row
	random, from, finished := rand.New(rand.NewPCG(9, 9)), int64(1), false
	for last := false; !finished || !last; {
		select {
		case <-written:
			finished = true
		default:
		}
		upTo := etcd.Revision()
		beyond := random.IntN(2) == 0
		got, err := reader.ReadRows(Request{From: from, UpTo: upTo, Limit: 1 << random.IntN(20), Beyond: beyond})
		require.NoError(t, err)
		require.True(t, beyond || got.End <= upTo)
		rows, from, last = append(rows, got.Rows...), got.End+1, !got.More && finished
	}

	file, snapshot := copied(t, reader)
	assert.Equal(t, etcd.Revision(), snapshot.Revision)
	etcdtest.RequireSameRows(t, etcdtest.Rows(t, file), rows)
	assert.Zero(t, reader.Open())
}

func TestCapture_endsWithACompleteRevision(t *testing.T) {
	reader, etcd := reader(t)
	var ops []clientv3.Op
	for i := range 100 {
		ops = append(ops, clientv3.OpPut(fmt.Sprint(i), "value"))
	}
	done, err := etcd.Client.Txn(t.Context()).Then(ops...).Commit()
	require.NoError(t, err)
	put(t, etcd, "next", "value")

	rows, err := reader.ReadRows(Request{From: done.Header.Revision, UpTo: etcd.Revision(), Limit: 1, Beyond: true, Buckets: true})
	require.NoError(t, err)
	assert.Len(t, rows.Rows, 100)
	assert.Equal(t, done.Header.Revision, rows.End)
	assert.True(t, rows.More)
	assert.Empty(t, rows.Buckets, "the buckets belong to a later revision than the rows")
	assert.Greater(t, rows.Bytes, 100*len("value"))
}

func TestCapture_stopsAtTheRequestedRevision(t *testing.T) {
	reader, etcd := reader(t)
	first := put(t, etcd, "a", "1")
	put(t, etcd, "a", "2")
	rows, err := reader.ReadRows(Request{From: first, UpTo: first, Limit: all})
	require.NoError(t, err)
	assert.Equal(t, first, rows.End)
	assert.Len(t, rows.Rows, 1)
	assert.False(t, rows.More)

	none, err := reader.ReadRows(Request{From: etcd.Revision() + 1, UpTo: etcd.Revision(), Limit: all})
	require.NoError(t, err)
	assert.Equal(t, etcd.Revision(), none.End)
	assert.Empty(t, none.Rows)
}

func TestCapture_gapAfterCompaction(t *testing.T) {
	reader, etcd := reader(t)
	first := put(t, etcd, "a", "1")
	second := put(t, etcd, "a", "2")
	third := put(t, etcd, "a", "3")
	_, err := etcd.Client.Compact(t.Context(), second)
	require.NoError(t, err)

	for _, from := range []int64{first, second} {
		rows, err := reader.ReadRows(Request{From: from, UpTo: third, Limit: all, Beyond: true, Buckets: true})
		require.ErrorIs(t, err, ErrCompacted)
		assert.EqualError(t, err, fmt.Sprintf("etcd was compacted at revision %d before revision %d was captured", second, from))
		assert.Empty(t, rows.Rows)
	}
	rows, err := reader.ReadRows(Request{From: third, UpTo: third, Limit: all})
	require.NoError(t, err)
	assert.Len(t, rows.Rows, 1)
	assert.Equal(t, second, rows.Compacted)
}

func TestCapture_skipsBumpedRevisions(t *testing.T) {
	database := empty(t)
	tx := database.BatchTx()
	tx.Lock()
	tx.UnsafeCreateBucket(schema.Key)
	tx.UnsafeCreateBucket(schema.Meta)
	const bumped = 2_000_000_000
	for _, revision := range []int64{2, 3, bumped, bumped + 1} {
		tx.UnsafeSeqPut(schema.Key, mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes()), []byte("row"))
	}
	tx.Unlock()

	rows, err := NewReader(func() backend.Backend { return database }).ReadRows(Request{From: 1, UpTo: bumped + 1, Limit: all})
	require.NoError(t, err)
	assert.Len(t, rows.Rows, 4)
	assert.EqualValues(t, bumped+1, rows.End)
}

func TestCapture_databaseClosedMeanwhile(t *testing.T) {
	database := backend.NewDefaultBackend(zap.NewNop(), filepath.Join(t.TempDir(), "db"))
	reader := NewReader(func() backend.Backend { return database })
	require.NoError(t, database.Close())
	_, err := reader.ReadRows(Request{From: 1, UpTo: 1, Limit: all})
	require.ErrorIs(t, err, ErrClosed)
	_, err = reader.Snapshot()
	require.ErrorIs(t, err, ErrClosed)
	assert.Zero(t, reader.Open())
}

// BenchmarkSince reads 10,000 rows of 1 KB, which etcd writes in about one second under heavy load. It also reports
// how long the transaction was open.
func BenchmarkSince(b *testing.B) {
	reader, etcd := reader(b)
	etcd.Fill(b)
	var longest time.Duration
	for b.Loop() {
		rows, err := reader.ReadRows(Request{From: 2, UpTo: etcd.Revision(), Limit: all})
		require.NoError(b, err)
		require.Len(b, rows.Rows, 10_000)
		longest = max(longest, rows.Held)
	}
	b.ReportMetric(float64(longest.Microseconds()), "µs-held-at-most")
}

func TestCapture_partlyCompactedRevision(t *testing.T) {
	reader, etcd := reader(t)
	replaced := put(t, etcd, "a", "1")
	last := put(t, etcd, "a", "2")
	for _, compacted := range []int64{0, last} {
		if compacted > 0 {
			_, err := etcd.Client.Compact(t.Context(), compacted, clientv3.WithCompactPhysical())
			require.NoError(t, err)
		}
		for _, revision := range []int64{replaced, last} {
			rows, err := reader.ReadRows(Request{From: revision, UpTo: revision, Limit: 1, Left: true})
			require.NoError(t, err)
			assert.Equal(t, compacted, rows.Compacted)
			assert.Equal(t, compacted > revision, len(rows.Rows) == 0)
		}
	}
}

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
			// After a start, etcd updates the cluster version in these two buckets at any time.
			if before[name] != digest && name != "cluster" && name != "meta" {
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
	assert.Empty(t, changed(), "puts, compactions and commits do not change any digest")

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

// entries returns the entries of all small buckets in the form "bucket/key value".
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
	write("b", "committed")
	write("d", "replaced")
	database.ForceCommit()
	write("c", "uncommitted")
	write("d", "replacement")
	write("a", "uncommitted")
	assert.Equal(t, []string{"lease/a uncommitted", "lease/b committed", "lease/c uncommitted", "lease/d replacement"}, entries(t, database))
}

// A key that etcd writes twice within one transaction must be returned only once, with the later value.
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
	put("committed")
	database.ForceCommit()
	put("older", "newer")

	assert.Equal(t, []string{"meta/another key newer", "meta/key newer"}, entries(t, database))
}

// A put and a deletion that etcd applies together must be read together. Otherwise, a backup could contain a deleted
// user.
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
				state := "present"
				if i%2 == 1 {
					state = "deleted"
					tx.UnsafeDelete(schema.AuthUsers, []byte("user"))
				} else {
					tx.UnsafePut(schema.AuthUsers, []byte("user"), []byte("present"))
				}
				tx.UnsafePut(schema.Auth, []byte("user is"), []byte(state))
			})
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		found := entries(t, database)
		isPresent, isDeleted := slices.Contains(found, "auth/user is present"), slices.Contains(found, "auth/user is deleted")
		if isPresent || isDeleted {
			require.Equal(t, isPresent, slices.Contains(found, "authUsers/user present"), "%v", found)
		}
	}
}
