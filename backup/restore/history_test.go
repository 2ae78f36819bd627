package restore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// history runs etcd and records its rows, its states and full snapshots.
type history struct {
	t       *testing.T
	random  *rand.Rand
	server  *embed.Etcd
	client  *clientv3.Client
	leases  []clientv3.LeaseID
	rows    []format.Row
	moments []moment // in the order in which they were recorded
	fulls   []full

	compared int // number of compared hashes
}

// moment is the state of etcd at a revision.
type moment struct {
	revision, compacted int64
	buckets             []*format.Bucket
	hash                mvcc.KeyValueHash
	compactions         []mvcc.KeyValueHash
}

type full struct {
	moment
	path string // path of a stock snapshot
}

func newHistory(t *testing.T, seed uint64) *history {
	server, err := datadirtest.Start(filepath.Join(t.TempDir(), "live.etcd"))
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return &history{t: t, random: rand.New(rand.NewPCG(seed, 0)), server: server, client: v3client.New(server.Server)}
}

// run sends one random request per step and records the resulting state.
func (h *history) run(steps int) {
	for range steps {
		h.act()
		h.record()
		if len(h.fulls) == 0 || h.random.IntN(12) == 0 {
			h.takeFull()
		}
	}
}

func (h *history) key() string { return fmt.Sprintf("key-%02d", h.random.IntN(30)) }

func (h *history) value() string {
	return string(bytes.Repeat([]byte{byte('a' + h.random.IntN(26))}, h.random.IntN(3000)))
}

func (h *history) act() {
	ctx := h.t.Context()
	var err error
	switch h.random.IntN(16) {
	case 0, 1:
		_, err = h.client.Delete(ctx, h.key())
	case 2:
		_, err = h.client.Delete(ctx, h.key(), clientv3.WithRange("key-30"))
	case 3, 4:
		_, err = h.client.Txn(ctx).Then(clientv3.OpPut("txn-a"+h.key(), h.value()), clientv3.OpDelete(h.key()), clientv3.OpPut("txn-b", h.value())).Commit()
	case 5:
		err = h.grant(ctx)
	case 6:
		err = h.revoke(ctx)
	case 7:
		_, err = h.client.Compact(ctx, h.currentRevision()-h.random.Int64N(4), clientv3.WithCompactPhysical())
		if err != nil && err.Error() == "etcdserver: mvcc: required revision has been compacted" {
			err = nil
		}
	case 8:
		err = h.server.Server.Defragment()
	case 9:
		_, err = h.client.RoleAdd(ctx, fmt.Sprintf("role-%d", len(h.rows)))
	case 10:
		_, err = h.client.UserAddWithOptions(ctx, fmt.Sprintf("user-%d", len(h.rows)), "", &clientv3.UserAddOptions{NoPassword: true})
	default:
		_, err = h.client.Put(ctx, h.key(), h.value())
	}
	if err != nil && err.Error() != "etcdserver: role name already exists" && err.Error() != "etcdserver: user name already exists" {
		require.NoError(h.t, err)
	}
}

func (h *history) grant(ctx context.Context) error {
	granted, err := h.client.Grant(ctx, 10_000+h.random.Int64N(1000))
	if err != nil {
		return err
	}
	h.leases = append(h.leases, granted.ID)
	_, err = h.client.Put(ctx, h.key(), "leased", clientv3.WithLease(granted.ID))
	return err
}

func (h *history) revoke(ctx context.Context) error {
	if len(h.leases) < 3 {
		return nil
	}
	_, err := h.client.Revoke(ctx, h.leases[0])
	h.leases = h.leases[1:]
	return err
}

func (h *history) currentRevision() int64 { return h.server.Server.KV().Rev() }

func (h *history) recordedRevision() int64 {
	if len(h.rows) == 0 {
		return 0
	}
	return mvcc.BytesToRev(h.rows[len(h.rows)-1].Key).Main
}

// record records the state of etcd. At the revision of the last compaction, etcd returns the hash that was computed
// during the compaction.
func (h *history) record() {
	tx := h.server.Server.Backend().ConcurrentReadTx()
	tx.RLock()
	defer tx.RUnlock()
	keys, values := tx.UnsafeRange(schema.Key, revisionKey(h.recordedRevision()+1), revisionKey(math.MaxInt64), 0)
	for i := range keys {
		h.rows = append(h.rows, format.Row{Key: bytes.Clone(keys[i]), Value: bytes.Clone(values[i])})
	}
	now := moment{revision: h.currentRevision(), buckets: smallBuckets(h.t, tx)}
	now.compacted, _ = mvcc.UnsafeReadScheduledCompact(tx)
	now.compactions = h.server.Server.KV().HashStorage().Hashes()
	var err error
	now.hash, _, err = h.server.Server.KV().HashStorage().HashByRev(now.revision)
	require.NoError(h.t, err)
	h.moments = append(h.moments, now)
}

func smallBuckets(t *testing.T, tx backend.UnsafeReader) (buckets []*format.Bucket) {
	for _, bucket := range schema.AllBuckets[1:] {
		small := format.NewBucket(string(bucket.Name()))
		require.NoError(t, tx.UnsafeForEach(bucket, func(k, v []byte) error {
			small.Add(bytes.Clone(k), bytes.Clone(v))
			return nil
		}))
		buckets = append(buckets, small)
	}
	return buckets
}

// takeFull takes a stock snapshot at the last recorded moment.
func (h *history) takeFull() {
	path := filepath.Join(h.t.TempDir(), fmt.Sprint(len(h.fulls)))
	file, err := os.Create(path)
	require.NoError(h.t, err)
	defer file.Close()
	sum, snapshot := sha256.New(), h.server.Server.Backend().Snapshot()
	_, err = snapshot.WriteTo(io.MultiWriter(file, sum))
	require.NoError(h.t, err)
	require.NoError(h.t, snapshot.Close())
	_, err = file.Write(sum.Sum(nil))
	require.NoError(h.t, err)
	h.fulls = append(h.fulls, full{h.moments[len(h.moments)-1], path})
}

// source returns the Source for restoring a moment from a full snapshot. It overwrites each row after passing it on,
// because callers must not retain the row.
func (h *history) source(from full, to moment) Source {
	source := Source{
		Snapshot: func(context.Context) (io.ReadCloser, error) { return os.Open(from.path) },
		Rows: func(_ context.Context, row func(format.Row) error) (archive.Reading, error) {
			for _, kept := range h.between(from.revision, to.revision) {
				passing := format.Row{Key: bytes.Clone(kept.Key), Value: bytes.Clone(kept.Value)}
				if err := row(passing); err != nil {
					return archive.Reading{}, err
				}
				clear(passing.Key)
				clear(passing.Value)
			}
			return archive.Reading{Buckets: to.buckets, Compacted: to.compacted}, nil
		},
	}
	return source
}

// returning returns the source with a different Reading.
func returning(source Source, reading archive.Reading) Source {
	rows := source.Rows
	source.Rows = func(ctx context.Context, row func(format.Row) error) (archive.Reading, error) {
		_, err := rows(ctx, row)
		return reading, err
	}
	return source
}

// between returns the rows with revisions in (from, to].
func (h *history) between(from, to int64) (rows []format.Row) {
	for _, row := range h.rows {
		if at := mvcc.BytesToRev(row.Key).Main; from < at && at <= to {
			rows = append(rows, row)
		}
	}
	return rows
}

// pick chooses a full snapshot and a moment no earlier than the snapshot.
func (h *history) pick() (from full, to moment) {
	from = h.fulls[h.random.IntN(len(h.fulls))]
	for to = (moment{revision: -1}); to.revision < from.revision; {
		to = h.moments[h.random.IntN(len(h.moments))]
	}
	return from, to
}
