package restore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/pkg/v3/traceutil"
	"go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"
	"pgregory.net/rapid"
)

func key(t *rapid.T) []byte { return fmt.Appendf(nil, "key-%d", rapid.IntRange(0, 6).Draw(t, "key")) }

// drawTableSize draws the maximum number of keys per pass. With a small number, computing a hash requires multiple
// passes.
func drawTableSize(t *rapid.T) int {
	return rapid.SampledFrom([]int{1, 2, 3, tableSize}).Draw(t, "table size")
}

// change makes a random change to a key: it deletes the key or puts a value, with or without a lease.
func (e *etcd) change(t *rapid.T, w mvcc.WriteView, key []byte) {
	switch rapid.IntRange(0, 9).Draw(t, "change") {
	case 0, 1, 2:
		w.DeleteRange(key, nil)
	case 3:
		if len(e.leases) > 0 {
			w.Put(key, []byte("leased"), rapid.SampledFrom(e.leases).Draw(t, "lease"))
		}
	default:
		w.Put(key, rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "value"), lease.NoLease)
	}
}

// transaction changes up to four keys in a transaction, each only once, because etcd rejects a transaction that puts
// and deletes the same key.
func (e *etcd) transaction(t *rapid.T) {
	keys := rapid.SliceOfNDistinct(rapid.Custom(key), 1, 4, func(key []byte) string { return string(key) }).Draw(t, "keys")
	txn := e.Write(traceutil.TODO())
	defer txn.End() // also runs if rapid aborts the test to shrink the history
	for _, key := range keys {
		e.change(t, txn, key)
	}
}

func (e *etcd) grantOrRevoke(t *rapid.T) {
	if len(e.leases) > 0 && rapid.Bool().Draw(t, "revoke") {
		require.NoError(t, e.lessor.Revoke(e.leases[0]))
		e.leases = e.leases[1:]
		return
	}
	granted, err := e.lessor.Grant(lease.LeaseID(rapid.Int64Range(1, 1<<40).Draw(t, "id")), 1000)
	if err == nil {
		e.leases = append(e.leases, granted.ID)
	}
}

// compactAndCompare compacts etcd and compares the hash that etcd stores during the compaction with the hash of a
// copy of the database from before the compaction.
func (e *etcd) compactAndCompare(t *rapid.T, at int64) {
	before := e.file()
	e.compact(at)
	for _, stored := range e.HashStorage().Hashes() {
		if stored.Revision != at {
			continue
		}
		hash, err := hashKV(t.Context(), before, HashRequest{stored.CompactRevision, stored.Revision, true}, drawTableSize(t))
		require.NoError(t, err)
		require.Equal(t, stored.Hash, hash, "compaction at %d after %d", stored.Revision, stored.CompactRevision)
	}
}

// compare compares the hash that etcd returns for a random revision with the hash of a copy of the database.
func (e *etcd) compare(t *rapid.T) {
	at := rapid.Int64Range(max(1, e.FirstRev()), e.Rev()).Draw(t, "at")
	for _, stored := range e.HashStorage().Hashes() {
		if stored.Revision == at {
			return // etcd returns the hash stored by the compaction, which also covers deleted rows
		}
	}
	etcdHash, _, err := e.HashStorage().HashByRev(at)
	require.NoError(t, err)
	copied := e.file()
	hash, err := hashKV(t.Context(), copied, HashRequest{etcdHash.CompactRevision, at, false}, drawTableSize(t))
	require.NoError(t, err)
	require.Equal(t, etcdHash.Hash, hash, "revision %d, compacted at %d", at, etcdHash.CompactRevision)
}

// act performs a random action on etcd.
func (e *etcd) act(t *rapid.T) {
	switch what := rapid.SampledFrom(actions).Draw(t, "action"); what {
	case "change":
		e.change(t, e, key(t))
	case "deletion":
		e.DeleteRange(key(t), []byte("key-9"))
	case "transaction":
		e.transaction(t)
	case "lease":
		e.grantOrRevoke(t)
	case "compaction", "interrupted compaction":
		at := rapid.Int64Range(e.FirstRev()+1, max(e.FirstRev()+1, e.Rev())).Draw(t, "compaction at")
		if at > e.Rev() {
			return
		}
		if what == "compaction" {
			e.compactAndCompare(t, at)
			return
		}
		e.compactInterrupted(at)
		e.await()
	case "defragmentation":
		require.NoError(t, e.back.Defrag())
	case "restart":
		e.stop()
		e.open(0)
	}
}

var actions = []string{
	"change", "change", "change", "change", "change", "transaction", "transaction", "deletion", "lease",
	"compaction", "interrupted compaction", "defragmentation", "restart",
}

func TestHashKV_equalsEtcdsAfterRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "hashkv-")
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		e := start(t, dir)
		defer func() { e.stop() }()
		for range rapid.IntRange(1, 40).Draw(t, "actions") {
			e.act(t)
			e.compare(t)
		}
	})
}

// compactedAt4 returns a database with one key at revisions 2 to 6, compacted at revision 4.
func compactedAt4(t *testing.T) string {
	e := start(t, t.TempDir())
	defer e.stop()
	for range 5 {
		e.Put([]byte("key"), []byte("value"), lease.NoLease)
	}
	e.compact(4)
	return e.file()
}

func TestHashKV_rejectsMissingRows(t *testing.T) {
	path := compactedAt4(t)
	_, err := HashKV(t.Context(), path, HashRequest{Compacted: 3, Revision: 6})
	require.ErrorIs(t, err, ErrCompacted)
	require.ErrorContains(t, err, "compacted at revision 4, after the requested compaction at 3")
	_, err = HashKV(t.Context(), path, HashRequest{Compacted: -1, Revision: 6})
	require.ErrorIs(t, err, ErrCompacted)
	_, err = HashKV(t.Context(), path, HashRequest{Compacted: 5, Revision: 4})
	require.ErrorIs(t, err, ErrCompacted)
	_, err = HashKV(t.Context(), path, HashRequest{Compacted: 4, Revision: 7, Compaction: true})
	require.ErrorIs(t, err, ErrFutureRevision)
	require.ErrorContains(t, err, "revision is newer than the database, which ends at 6")
	_, err = HashKV(t.Context(), path, HashRequest{Compacted: 4, Revision: 6})
	require.NoError(t, err)
}

func TestHashKV_endsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := HashKV(ctx, compactedAt4(t), HashRequest{Compacted: 4, Revision: 6})
	require.ErrorIs(t, err, context.Canceled)
}

func TestHashKV_namesInvalidRows(t *testing.T) {
	for what, bad := range map[string]struct{ key, value, want string }{
		"length":    {"short", "", "row 73686f7274"},
		"separator": {"\x00\x00\x00\x00\x00\x00\x00\x03.\x00\x00\x00\x00\x00\x00\x00\x00", "", "row 0000000000000003"},
		"negative":  {"\xff\x00\x00\x00\x00\x00\x00\x03_\x00\x00\x00\x00\x00\x00\x00\x00", "", "row ff00000000000003"},
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
		_, err = HashKV(t.Context(), path, HashRequest{Compacted: 4, Revision: 6})
		require.ErrorContains(t, err, bad.want, what)
		require.ErrorIs(t, err, ErrDamaged, what)
	}
}

func TestHashKV_rejectsOtherDatabases(t *testing.T) {
	path := t.TempDir() + "/db"
	db, err := bolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	_, err = HashKV(t.Context(), path, HashRequest{Compacted: 4, Revision: 6})
	require.ErrorContains(t, err, "not an etcd database")
	_, err = HashKV(t.Context(), t.TempDir(), HashRequest{Compacted: 4, Revision: 6})
	require.ErrorContains(t, err, "cannot open database")
}

// etcd runs etcd's key-value store without a log or clients.
type etcd struct {
	t      require.TestingT
	dir    string
	back   backend.Backend
	lessor lease.Lessor
	mvcc.WatchableKV
	leases []lease.LeaseID
}

func start(t require.TestingT, dir string) *etcd {
	e := &etcd{t: t, dir: dir}
	e.open(time.Millisecond)
	return e
}

// open starts the store, which resumes an interrupted compaction. A long pause between the batches of a compaction
// makes it possible to interrupt the compaction.
func (e *etcd) open(pause time.Duration) {
	config := backend.DefaultBackendConfig(zap.NewNop())
	config.Path, config.UnsafeNoFsync = filepath.Join(e.dir, "db"), true
	e.back = backend.New(config)
	e.lessor = lease.NewLessor(zap.NewNop(), e.back, nil, lease.LessorConfig{MinLeaseTTL: 1000})
	e.WatchableKV = mvcc.New(zap.NewNop(), e.back, e.lessor, mvcc.StoreConfig{CompactionBatchLimit: 2, CompactionSleepInterval: pause})
}

func (e *etcd) stop() {
	require.NoError(e.t, e.Close())
	e.lessor.Stop()
	require.NoError(e.t, e.back.Close())
}

// await waits until no compaction is running.
func (e *etcd) await() {
	tx := e.back.ReadTx()
	require.Eventually(e.t, func() bool {
		tx.RLock()
		defer tx.RUnlock()
		scheduled, _ := mvcc.UnsafeReadScheduledCompact(tx)
		finished, _ := mvcc.UnsafeReadFinishedCompact(tx)
		return scheduled == finished
	}, time.Minute, time.Millisecond)
}

// file copies the current database and returns the path of the copy.
func (e *etcd) file() string {
	file, err := os.CreateTemp(e.dir, "copy")
	require.NoError(e.t, err)
	snapshot := e.back.Snapshot()
	_, err = snapshot.WriteTo(file)
	require.NoError(e.t, err)
	require.NoError(e.t, snapshot.Close())
	require.NoError(e.t, file.Close())
	return file.Name()
}

// compact compacts the store and waits until all compacted rows are deleted.
func (e *etcd) compact(revision int64) {
	done, err := e.Compact(traceutil.TODO(), revision)
	require.NoError(e.t, err)
	<-done
}

// compactInterrupted stops etcd in the middle of a compaction and starts it again.
func (e *etcd) compactInterrupted(revision int64) {
	e.stop()
	e.open(time.Hour)
	_, err := e.Compact(traceutil.TODO(), revision)
	require.NoError(e.t, err)
	e.stop()
	e.open(time.Millisecond)
}
