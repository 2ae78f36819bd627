package sidecarstore_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/restore/sidecarstore"
	"etcd-wrapper/backup/restore/sidecarstore/sidecarstoretest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

func names(objects []sidecarstore.Object) (names []string) {
	for _, object := range objects {
		names = append(names, object.Name)
	}
	return names
}

func TestList_bothLayouts(t *testing.T) {
	s := memory.New()
	for _, name := range []string{
		"v1/Backup-1518427675/Incr-00000005-00000008-1518427600",
		"v1/Backup-1518427675/Full-00000000-00000010-1518427675",
		"v1/Backup-1518427675/Incr-00000011-00000020-1518427700",
		"Backup-1518427690/Incr-00000021-00000022-1518427705.zlib",
		"v2/Full-00000000-00000030-1763726400.gz",
		"v2/Incr-00000031-00000040-1763726420.gz",
		"v2/Incr-00000041-100000000041-1763726440.Z",
		"v2/Full-00000000-100000000041-1763726500.final",
		"v2/Full-00000000-100000000041-1763726499.gz.final",
		// None of these objects belongs to the sidecar or this cluster.
		"v2/Full-00000000-00000002-1763726400.gz/0000000001", "v2/Full-00000009-00000002-1763726400", "v2/Full-0-99999999999999999999-1",
		"v2/Full-00000000-00000010-1000.gz.chunk/0000000001",
		"v2/etcd-member-0/Full-00000000-00000030-1763726400.gz", "shoot--other/v2/Full-00000000-00000099-1763726400.gz", "v2/notes.txt",
		"Full-00000000-00000002-1763726400-9", "chain/2026/full",
	} {
		s.SetContent(name, []byte(name))
	}
	kept := list(t, s)

	assert.Equal(t, []string{"v1/Backup-1518427675/Incr-00000005-00000008-1518427600"}, names(kept.Stray))
	require.Len(t, kept.Chains, 4)
	first := kept.Chains[0]
	assert.Equal(t, "v1/Backup-1518427675/Full-00000000-00000010-1518427675", first.Full.Name)
	assert.Equal(t, []string{"v1/Backup-1518427675/Incr-00000011-00000020-1518427700", "Backup-1518427690/Incr-00000021-00000022-1518427705.zlib"},
		names(first.Deltas))
	assert.EqualValues(t, 22, first.LastConnected().Last)
	assert.Equal(t, time.Unix(1518427705, 0).UTC(), first.LastConnected().Created)
	assert.EqualValues(t, 100000000041, kept.Chains[1].LastConnected().Last)
	assert.EqualValues(t, len("v2/Full-00000000-00000030-1763726400.gz"), kept.Chains[1].Full.Size)
	assert.Equal(t, "v2/Full-00000000-100000000041-1763726500.final", kept.Chains[3].Full.Name)
}

func TestLastConnected(t *testing.T) {
	kept := keep(t, memory.New(), "v2/Full-00000000-00000010-1000", "v2/Incr-00000011-00000020-1001", "v2/Incr-00000011-00000025-1002",
		"v2/Incr-00000012-00000013-1003", "v2/Incr-00000026-00000030-1003", "v2/Incr-00000032-00000040-1004")
	assert.EqualValues(t, 30, kept.Chains[0].LastConnected().Last)
}

func TestList_ordersFullSnapshotsOfOneRevisionByTime(t *testing.T) {
	kept := keep(t, memory.New(), "v2/Full-00000000-00000010-1000", "v2/Full-00000000-00000010-999")
	assert.EqualValues(t, 1000, kept.Chains[1].Full.Created.Unix())
}

func TestFulls(t *testing.T) {
	kept := keep(t, memory.New(), "v2/Full-00000000-00000010-1000", "v2/Full-00000000-00000020-2000", "v2/Full-00000000-00000030-3000")
	for _, c := range []struct {
		to   archive.Target
		want []int64
	}{
		{archive.Target{}, []int64{30, 20, 10}},
		{archive.Target{Revision: 29}, []int64{20, 10}},
		{archive.Target{Revision: 20}, []int64{20, 10}},
		{archive.Target{Time: time.Unix(2000, 999)}, []int64{10}}, // times in names have a resolution of one second
		{archive.Target{Time: time.Unix(2001, 0)}, []int64{20, 10}},
	} {
		fulls, err := kept.FullSnapshots(c.to)
		require.NoError(t, err)
		revisions := []int64{}
		for _, full := range fulls {
			revisions = append(revisions, full.Last)
		}
		assert.Equal(t, c.want, revisions, c.to.String())
	}
	_, err := kept.FullSnapshots(archive.Target{Revision: 9})
	require.ErrorIs(t, err, archive.ErrNotKept)
	assert.EqualError(t, err, "not available: revision 9 is older than the oldest full snapshot (v2/Full-00000000-00000010-1000, created 1970-01-01T00:16:40Z)")
	_, err = list(t, memory.New()).FullSnapshots(archive.Target{})
	assert.EqualError(t, err, "not available: no full snapshots from the sidecar in memory://test/")
}

func TestList_returnsStoreErrors(t *testing.T) {
	s := memory.New()
	s.Inject(memory.Fault{Op: memory.List, Err: store.ErrDenied})
	_, err := sidecarstore.List(t.Context(), s)
	require.ErrorIs(t, err, store.ErrDenied)
}

func snapshot(t *testing.T, kept *sidecarstore.Archive) ([]byte, error) {
	reader, err := kept.Snapshot(t.Context(), kept.Chains[0].Full)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	return io.ReadAll(restore.NewDigestReader(t.Context(), reader))
}

// noon is the initial time of the simulated sidecars' clocks.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// put returns a put event.
func put(revision int64, key, value string) sidecarstoretest.Event {
	return sidecarstoretest.Event{
		Time: noon.Add(time.Duration(revision) * time.Second),
		EtcdEvent: &clientv3.Event{Kv: &mvccpb.KeyValue{
			Key: []byte(key), Value: []byte(value), CreateRevision: revision, ModRevision: revision, Version: 1,
		}},
	}
}

// puts returns one event per revision from first to last.
func puts(first, last int64) (events []sidecarstoretest.Event) {
	for revision := first; revision <= last; revision++ {
		events = append(events, put(revision, fmt.Sprintf("key-%d", revision), "value"))
	}
	return events
}

// keep stores full snapshots and deltas whose content matches their names, and returns the archive.
func keep(t testing.TB, s *memory.Store, names ...string) *sidecarstore.Archive {
	for _, name := range names {
		var first, last int64
		if _, err := fmt.Sscanf(name, "v2/Incr-%d-%d-", &first, &last); err == nil {
			s.SetContent(name, sidecarstoretest.Delta(t, puts(first, last)...))
		} else {
			s.SetContent(name, sidecarstoretest.WithDigest([]byte("the database "+name)))
		}
	}
	return list(t, s)
}

func list(t testing.TB, s *memory.Store) *sidecarstore.Archive {
	kept, err := sidecarstore.List(t.Context(), s)
	require.NoError(t, err)
	return kept
}

// collectRows returns the rows to add to the best full snapshot, whose last revision is base, in order to reach the
// target.
func collectRows(t testing.TB, kept *sidecarstore.Archive, base int64, to archive.Target) (rows []format.Row, err error) {
	fulls, err := kept.FullSnapshots(to)
	require.NoError(t, err)
	return collect(t, kept, fulls[0], sidecarstore.Base{Revision: base}, to)
}

func collect(t testing.TB, kept *sidecarstore.Archive, full sidecarstore.Object, base sidecarstore.Base, to archive.Target) (
	rows []format.Row, err error,
) {
	for row, err := range kept.Rows(t.Context(), full, base, to) {
		if err != nil {
			return rows, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// keysOf returns the key in the value of each row.
func keysOf(t testing.TB, rows []format.Row) (keys []string) {
	for _, row := range rows {
		var kv mvccpb.KeyValue
		require.NoError(t, kv.Unmarshal(row.Value))
		keys = append(keys, string(kv.Key))
	}
	return keys
}
