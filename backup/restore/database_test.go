package restore

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/lease/leasepb"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// histories sets the number of random histories. For a longer run, use go test ./backup/restore -histories 100.
var histories = flag.Uint64("histories", 2, "number of random etcd histories to rebuild")

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == inspected {
		Inspect(os.Args[2])
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "unknown" {
		os.Exit(3)
	}
	status := m.Run()
	datadirtest.Clean()
	os.Exit(status)
}

func TestDatabase_equalsEtcds(t *testing.T) {
	for seed := range *histories {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			h := newHistory(t, seed)
			h.run(80)
			for i := range 12 {
				from, to := h.pick()
				path := filepath.Join(t.TempDir(), fmt.Sprint(i))
				result, err := Database(t.Context(), h.source(from, to), path, Options{})
				require.NoError(t, err)
				require.Equal(t, to.revision, result.Revision)
				h.requireSame(from, to, path)
			}
			require.Positive(t, h.compared, "at least one hash must be compared")
		})
	}
}

// requireSame requires that a rebuilt database equals etcd's database at the same moment, by comparing the rows and
// etcd's hashes.
func (h *history) requireSame(from full, to moment, path string) {
	t := h.t
	t.Logf("full at %d (compacted at %d), rebuilt at %d (compacted at %d)", from.revision, from.compacted, to.revision, to.compacted)
	require.Equal(t, append(rowsOf(t, from.path), h.between(from.revision, to.revision)...), rowsOf(t, path))
	if to.hash.CompactRevision >= from.compacted { // otherwise etcd returned the hash of a compaction before the full snapshot
		got, err := HashKV(t.Context(), path, HashRequest{to.hash.CompactRevision, to.revision, slices.Contains(to.compactions, to.hash)})
		require.NoError(t, err)
		require.Equal(t, to.hash.Hash, got)
		h.compared++
	}
	h.requireBuckets(from, to, path)
}

func (h *history) requireBuckets(from full, to moment, path string) {
	inDatabase(h.t, path, func(tx *bolt.Tx) {
		for _, want := range to.buckets {
			got := format.NewBucket(want.Name)
			require.NoError(h.t, tx.Bucket([]byte(want.Name)).ForEach(func(k, v []byte) error {
				got.Add(k, v)
				return nil
			}))
			if want.Name != string(schema.Meta.Name()) {
				require.Equal(h.t, want.Digest(), got.Digest(), want.Name)
			}
		}
		require.Equal(h.t, to.compacted, revisionIn(tx.Bucket(schema.Meta.Name()), schema.ScheduledCompactKeyName))
		require.Equal(h.t, from.compacted, revisionIn(tx.Bucket(schema.Meta.Name()), schema.FinishedCompactKeyName))
	})
}

func inDatabase(t *testing.T, path string, inspect func(tx *bolt.Tx)) {
	t.Helper()
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true})
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.View(func(tx *bolt.Tx) error {
		for problem := range tx.Check() {
			require.NoError(t, problem)
		}
		inspect(tx)
		return nil
	}))
}

func rowsOf(t *testing.T, path string) (rows []format.Row) {
	inDatabase(t, path, func(tx *bolt.Tx) {
		require.NoError(t, tx.Bucket(schema.Key.Name()).ForEach(func(k, v []byte) error {
			rows = append(rows, format.Row{Key: append([]byte{}, k...), Value: append([]byte{}, v...)})
			return nil
		}))
	})
	return rows
}

func TestDatabase_schedulesACompaction(t *testing.T) {
	h := newHistory(t, 11)
	h.run(20)
	from, to := h.fulls[0], h.moments[len(h.moments)-1]
	source, path := returning(h.source(from, to), archive.Reading{Compacted: to.revision - 1}), filepath.Join(t.TempDir(), "db")
	_, err := Database(t.Context(), source, path, Options{})
	require.NoError(t, err)
	inDatabase(t, path, func(tx *bolt.Tx) {
		require.Equal(t, to.revision-1, revisionIn(tx.Bucket(schema.Meta.Name()), schema.ScheduledCompactKeyName))
	})
}

func TestReadAndInsert_keepsOrderAndContent(t *testing.T) {
	var memory []byte
	sizes := []int{0, 1, batchSize, 10, 3 * batchSize, batchSize - 8, 7, 1000}
	read := func(_ context.Context, row func(format.Row) error) (archive.Reading, error) {
		for n := range 50 * len(sizes) {
			memory = append(memory[:0], bytes.Repeat([]byte{byte(n)}, sizes[n%len(sizes)])...)
			if err := row(format.Row{Key: revisionKey(int64(n + 1)), Value: memory}); err != nil {
				return archive.Reading{}, err
			}
		}
		return archive.Reading{Compacted: 3}, nil
	}
	n := 0
	changed, err := readAndInsert(t.Context(), read, func(row format.Row) error {
		require.Equal(t, revisionKey(int64(n+1)), row.Key)
		require.True(t, bytes.Equal(bytes.Repeat([]byte{byte(n)}, sizes[n%len(sizes)]), row.Value), "row %d", n)
		n++
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 50*len(sizes), n)
	require.EqualValues(t, 3, changed.Compacted)
}

func TestReadAndInsert_stopsAfterInsertError(t *testing.T) {
	refused := errors.New("refused")
	endless := func(_ context.Context, row func(format.Row) error) (archive.Reading, error) {
		for n := int64(1); ; n++ {
			if err := row(format.Row{Key: revisionKey(n), Value: make([]byte, 1000)}); err != nil {
				return archive.Reading{}, err
			}
		}
	}
	_, err := readAndInsert(t.Context(), endless, func(format.Row) error { return refused })
	require.ErrorIs(t, err, refused)
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err = readAndInsert(ctx, endless, func(format.Row) error { cancel(refused); return nil })
	require.ErrorIs(t, err, refused)
}

func TestReadAndInsert_recoversPanics(t *testing.T) {
	_, err := readAndInsert(t.Context(), func(context.Context, func(format.Row) error) (archive.Reading, error) { panic("the reader failed") }, nil)
	require.ErrorIs(t, err, ErrDamaged)
}

// leased returns a history with a full snapshot and a key whose lease was granted after the snapshot.
func leased(t *testing.T) (h *history, id int64) {
	h = newHistory(t, 12)
	h.record()
	h.takeFull()
	require.NoError(t, h.grant(t.Context()))
	h.record()
	return h, int64(h.leases[0])
}

// bucketOf returns the content of a small bucket, or nil if the bucket was not recorded.
func (m moment) bucketOf(name string) (found *format.Bucket) {
	for _, bucket := range m.buckets {
		if bucket.Name == name {
			found = bucket
		}
	}
	return found
}

// leasesOf returns the leases of a rebuilt database and their TTLs.
func leasesOf(t *testing.T, path string) map[int64]int64 {
	found := map[int64]int64{}
	inDatabase(t, path, func(tx *bolt.Tx) {
		require.NoError(t, tx.Bucket(schema.Lease.Name()).ForEach(func(_, value []byte) error {
			var lease leasepb.Lease
			require.NoError(t, lease.Unmarshal(value))
			found[lease.ID] = lease.TTL
			return nil
		}))
	})
	return found
}

// A key must have a lease after the restore even if the lease is not in the last recorded lease bucket.
func TestLeasesOfKeysAreRestored(t *testing.T) {
	h, id := leased(t)
	to := h.moments[len(h.moments)-1]
	granted := to.bucketOf("lease")
	other := format.NewBucket("lease")
	value, err := (&leasepb.Lease{ID: 7, TTL: 500}).Marshal()
	require.NoError(t, err)
	other.Add(leaseKey(7), value)
	ttl := func() (ttl int64) {
		for _, value := range granted.Entries() {
			var lease leasepb.Lease
			require.NoError(t, lease.Unmarshal(value))
			ttl = lease.TTL
		}
		return ttl
	}()
	states := func(next *format.Bucket) func(context.Context) (*format.Bucket, error) {
		return func(context.Context) (*format.Bucket, error) { return next, nil }
	}
	for what, example := range map[string]struct {
		buckets  []*format.Bucket
		recorded func(context.Context) (*format.Bucket, error)
		leases   map[int64]int64
	}{
		"recorded before the target":                    {[]*format.Bucket{granted}, nil, map[int64]int64{id: ttl}},
		"recorded after the target":                     {nil, states(granted), map[int64]int64{id: ttl}},
		"expired before the next recording":             {nil, states(format.NewBucket("lease")), map[int64]int64{id: 1}},
		"expired, other lease granted":                  {nil, states(other), map[int64]int64{id: 1}},
		"not recorded after the target":                 {nil, states(nil), map[int64]int64{id: 60}},
		"never recorded":                                {nil, nil, map[int64]int64{id: 60}},
		"never recorded, other lease with a longer TTL": {[]*format.Bucket{other}, nil, map[int64]int64{7: 500, id: 500}},
	} {
		source, path := returning(h.source(h.fulls[0], to), archive.Reading{Buckets: example.buckets}), filepath.Join(t.TempDir(), "db")
		source.Recorded = example.recorded
		_, err := Database(t.Context(), source, path, Options{Above: 1000})
		require.NoError(t, err)
		require.Equal(t, example.leases, leasesOf(t, path), what)
	}
}

func TestLeaseLookup_skipsLeasesWithoutKeys(t *testing.T) {
	for what, change := range map[string]func(h *history) error{
		"deleted": func(h *history) error {
			_, err := h.client.Delete(t.Context(), "key-", clientv3.WithPrefix())
			return err
		},
		"overwritten": func(h *history) error {
			keys, err := h.client.Get(t.Context(), "key-", clientv3.WithPrefix())
			require.NoError(t, err)
			_, err = h.client.Put(t.Context(), string(keys.Kvs[0].Key), "without a lease")
			return err
		},
		"lease revoked": func(h *history) error { _, err := h.client.Revoke(t.Context(), h.leases[0]); return err },
	} {
		h, _ := leased(t)
		require.NoError(t, change(h))
		h.record()
		source := returning(h.source(h.fulls[0], h.moments[len(h.moments)-1]), archive.Reading{})
		path := filepath.Join(t.TempDir(), "db")
		source.Recorded = func(context.Context) (*format.Bucket, error) { return nil, errors.New("the lease lookup must not run") }
		_, err := Database(t.Context(), source, path, Options{})
		require.NoError(t, err, what)
		require.Empty(t, leasesOf(t, path), what)
	}
}

func TestLeaseLookup_returnsError(t *testing.T) {
	h, id := leased(t)
	source, lost := returning(h.source(h.fulls[0], h.moments[len(h.moments)-1]), archive.Reading{}), errors.New("store unavailable")
	source.Recorded = func(context.Context) (*format.Bucket, error) { return nil, lost }
	path := filepath.Join(t.TempDir(), "db")
	_, err := Database(t.Context(), source, path, Options{})
	require.ErrorIs(t, err, lost)
	require.ErrorContains(t, err, fmt.Sprintf("%x", id))
	require.NoFileExists(t, path)
}

func TestKeyAndLease(t *testing.T) {
	for name, kv := range map[string]mvccpb.KeyValue{
		"empty":            {},
		"a key":            {Key: []byte("a"), CreateRevision: 3, ModRevision: 5, Version: 2, Value: []byte("v")},
		"a lease":          {Key: []byte("a"), Value: []byte("v"), Lease: 1 << 40},
		"a negative lease": {Key: []byte{0, 255}, Lease: -1},
	} {
		t.Run(name, func(t *testing.T) {
			value, err := kv.Marshal()
			require.NoError(t, err)
			key, lease, err := keyAndLease(value)
			require.NoError(t, err)
			require.Equal(t, string(kv.Key), string(key))
			require.Equal(t, kv.Lease, lease)
		})
	}
}

func TestKeyAndLease_invalid(t *testing.T) {
	value, err := (&mvccpb.KeyValue{Key: []byte("a"), Value: []byte("v"), Lease: 77}).Marshal()
	require.NoError(t, err)
	for cut := range len(value) {
		_, lease, _ := keyAndLease(value[:cut])
		require.Zero(t, lease)
	}
	_, lease, _ := keyAndLease([]byte{0xff})
	require.Zero(t, lease)
}
