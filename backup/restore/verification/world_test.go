package verification

import (
	"bytes"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

const cluster = "cdf818194e3a8c32"

// world has an etcd and an archive, which the test fills.
type world struct {
	*archive.Archive
	t      *testing.T
	server *embed.Etcd
	client *clientv3.Client
	full   archive.Full
	next   format.Start
	alter  func(*format.Row)            // simulates a broken writer
	decay  func(database []byte) []byte // simulates a broken disk
	hashed int64                        // the newest compaction whose hash is in the archive
}

func newWorld(t *testing.T, s store.Store, keys *format.Keys) *world {
	server, err := datadirtest.Start(filepath.Join(t.TempDir(), "live.etcd"))
	require.NoError(t, err)
	t.Cleanup(server.Close)
	w := &world{Archive: archive.New(s, keys), t: t, server: server, client: v3client.New(server.Server), alter: func(*format.Row) {}, decay: bytes.Clone}
	_, err = w.Create(t.Context(), archive.Cluster{Cluster: cluster, Created: time.Now()}, 1)
	require.NoError(t, err)
	return w
}

func (w *world) put(times int) {
	for i := range times {
		_, err := w.client.Put(w.t.Context(), string(rune('a'+i%5)), "value")
		require.NoError(w.t, err)
	}
}

// compact compacts at the current revision.
func (w *world) compact() {
	_, err := w.client.Compact(w.t.Context(), w.server.Server.KV().Rev(), clientv3.WithCompactPhysical())
	require.NoError(w.t, err)
}

// putFull starts a chain with a full snapshot of etcd.
func (w *world) putFull(change ...func(*archive.Full)) archive.Full {
	var content bytes.Buffer
	snapshot := w.server.Server.Backend().Snapshot()
	_, err := snapshot.WriteTo(&content)
	require.NoError(w.t, err)
	require.NoError(w.t, snapshot.Close())
	revision := w.server.Server.KV().Rev()
	hash, _, err := w.server.Server.KV().HashStorage().HashByRev(revision)
	require.NoError(w.t, err)
	full := archive.Full{
		Cluster: cluster, Generation: 1, Revision: revision, Time: time.Now(), Reason: "for a test", Chain: format.Seed(cluster, 1, revision),
		Hash: &format.Hash{Revision: hash.Revision, Compacted: hash.CompactRevision, Hash: hash.Hash}, Compacted: max(w.server.Server.KV().FirstRev(), 0),
	}
	for _, change := range change {
		change(&full)
	}
	w.full, err = archivetest.PutFull(w.t.Context(), w.Archive, full, bytes.NewReader(w.decay(content.Bytes())))
	require.NoError(w.t, err)
	w.next = w.full.Start()
	return w.full
}

// putSegment stores the changes since the last object, and the hashes of compactions.
func (w *world) putSegment() {
	tx := w.server.Server.Backend().ConcurrentReadTx()
	tx.RLock()
	first := mvcc.RevToBytes(mvcc.Revision{Main: w.next.Position.Revision}, mvcc.NewRevBytes())
	last := mvcc.RevToBytes(mvcc.Revision{Main: math.MaxInt64}, mvcc.NewRevBytes())
	keys, values := tx.UnsafeRange(schema.Key, first, last, 0)
	tx.RUnlock()
	builder, err := format.NewSegmentBuilder(w.Keys(), w.next)
	require.NoError(w.t, err)
	for i := range keys {
		row := format.Row{Key: bytes.Clone(keys[i]), Value: bytes.Clone(values[i])}
		w.alter(&row)
		require.NoError(w.t, builder.Add(&row))
	}
	require.NoError(w.t, builder.Add(&format.Marker{Revision: builder.End(), Time: formattest.TimeAt(builder.End())}))
	for _, hash := range w.server.Server.KV().HashStorage().Hashes() {
		if hash.Revision > w.hashed {
			require.NoError(w.t, builder.Add(&format.Hash{Revision: hash.Revision, Compacted: max(hash.CompactRevision, 0), Hash: hash.Hash}))
			w.hashed = hash.Revision
		}
	}
	object, err := builder.Finish(format.Source{Compacted: max(w.server.Server.KV().FirstRev(), 0), Term: 2, Member: "8e9e05c52164694d"})
	require.NoError(w.t, err)
	require.NoError(w.t, archivetest.PutSegment(w.t.Context(), w.Archive, object))
	w.next = object.Start()
}

// ofFull returns the job that restores the full snapshot; test returns one that restores a revision.
func (w *world) ofFull() Job { return w.test(w.full.Revision) }

func (w *world) test(revision int64) Job {
	return Job{Generation: 1, Full: w.full.Name(), Revision: revision}
}

// verify also checks that no file remains.
func (w *world) verify(job Job) (archive.Result, error) {
	scratch := filepath.Join(w.t.TempDir(), "scratch")
	result, err := Verify(w.t.Context(), w.Archive, job, scratch)
	require.NoDirExists(w.t, scratch)
	return result, err
}

func (w *world) requireVerified(job Job) archive.Result {
	w.t.Helper()
	result, err := w.verify(job)
	require.NoError(w.t, err)
	require.Equal(w.t, archive.Verified, result.Outcome, result.Why)
	return result
}

func (w *world) requireFailed(job Job, why string) {
	w.t.Helper()
	result, err := w.verify(job)
	require.NoError(w.t, err)
	require.Equal(w.t, archive.Failed, result.Outcome)
	require.Contains(w.t, result.Why, why)
}
