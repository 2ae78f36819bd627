package restore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/lease/leasepb"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
)

// leased returns an etcd with a full snapshot, and a key whose lease was granted after it.
func leased(t *testing.T) (h *history, id int64) {
	h = newHistory(t, 12)
	h.look()
	h.full()
	require.NoError(t, h.grant(t.Context()))
	h.look()
	return h, int64(h.leases[0])
}

// bucketOf returns a small bucket of a moment.
func (m moment) bucketOf(name string) (found *format.Bucket) {
	for _, bucket := range m.buckets {
		if bucket.Name == name {
			found = bucket
		}
	}
	return found
}

// leasesOf returns the leases of a rebuilt database, with their TTLs.
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

// Buckets are recorded less often than rows: the lease of a key may be in none of them.
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
		"in a bucket before":                    {[]*format.Bucket{granted}, nil, map[int64]int64{id: ttl}},
		"in the next bucket":                    {nil, states(granted), map[int64]int64{id: ttl}},
		"expired before the next bucket":        {nil, states(format.NewBucket("lease")), map[int64]int64{id: 1}},
		"expired, and another one granted":      {nil, states(other), map[int64]int64{id: 1}},
		"in no later bucket":                    {nil, states(nil), map[int64]int64{id: 60}},
		"never recorded":                        {nil, nil, map[int64]int64{id: 60}},
		"never recorded, another one is longer": {[]*format.Bucket{other}, nil, map[int64]int64{7: 500, id: 500}},
	} {
		source, path := h.source(h.fulls[0], to), filepath.Join(t.TempDir(), "db")
		rows := source.Rows
		source.Rows = func(ctx context.Context, row func(format.Row) error) (archive.Reading, error) {
			_, err := rows(ctx, row)
			return archive.Reading{Buckets: example.buckets}, err
		}
		source.Recorded = example.recorded
		_, err := Database(t.Context(), source, path, Options{Above: 1000})
		require.NoError(t, err)
		require.Equal(t, example.leases, leasesOf(t, path), what)
	}
}

func TestLeasesWithoutKeysAreNotLookedUp(t *testing.T) {
	for what, change := range map[string]func(h *history) error{
		"deleted": func(h *history) error {
			_, err := h.client.Delete(t.Context(), "key-", clientv3.WithPrefix())
			return err
		},
		"put anew": func(h *history) error {
			keys, err := h.client.Get(t.Context(), "key-", clientv3.WithPrefix())
			require.NoError(t, err)
			_, err = h.client.Put(t.Context(), string(keys.Kvs[0].Key), "without a lease")
			return err
		},
		"ran out": func(h *history) error { _, err := h.client.Revoke(t.Context(), h.leases[0]); return err },
	} {
		h, _ := leased(t)
		require.NoError(t, change(h))
		h.look()
		source, path := h.source(h.fulls[0], h.moments[len(h.moments)-1]), filepath.Join(t.TempDir(), "db")
		rows := source.Rows
		source.Rows = func(ctx context.Context, row func(format.Row) error) (archive.Reading, error) {
			_, err := rows(ctx, row)
			return archive.Reading{}, err
		}
		source.Recorded = func(context.Context) (*format.Bucket, error) { return nil, errors.New("asked") }
		_, err := Database(t.Context(), source, path, Options{})
		require.NoError(t, err, what)
		require.Empty(t, leasesOf(t, path), what)
	}
}

func TestAnErrorOfTheLeaseLookupIsReturned(t *testing.T) {
	h, id := leased(t)
	source := h.source(h.fulls[0], h.moments[len(h.moments)-1])
	rows, lost := source.Rows, errors.New("the store is away")
	source.Rows = func(ctx context.Context, row func(format.Row) error) (archive.Reading, error) {
		_, err := rows(ctx, row)
		return archive.Reading{}, err
	}
	source.Recorded = func(context.Context) (*format.Bucket, error) { return nil, lost }
	path := filepath.Join(t.TempDir(), "db")
	_, err := Database(t.Context(), source, path, Options{})
	require.ErrorIs(t, err, lost)
	require.ErrorContains(t, err, fmt.Sprintf("%x", id))
	require.NoFileExists(t, path)
}

func TestKeyAndLease(t *testing.T) {
	for name, kv := range map[string]mvccpb.KeyValue{
		"nothing":          {},
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
