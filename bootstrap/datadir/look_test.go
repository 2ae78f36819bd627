package datadir

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/membershippb"
	"go.etcd.io/etcd/pkg/v3/pbutil"
	layout "go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// dataWith returns a data directory whose log has an entry for each request, starting at index 1. If a request is
// nil, the entry has a different type. inDatabase is the cluster version in the database, if any.
func dataWith(t *testing.T, inDatabase string, requests ...*etcdserverpb.InternalRaftRequest) (dir string) {
	t.Helper()
	dir = t.TempDir()
	walDir := layout.ToWALDir(dir)
	require.NoError(t, os.MkdirAll(layout.ToSnapDir(dir), 0o700))
	database, err := bolt.Open(layout.ToBackendFileName(dir), 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, database.Update(func(tx *bolt.Tx) error {
		cluster, _ := tx.CreateBucket(schema.Cluster.Name())
		if inDatabase == "" {
			return nil
		}
		return cluster.Put(schema.ClusterClusterVersionKeyName, []byte(inDatabase))
	}))
	require.NoError(t, database.Close())
	log, err := wal.Create(zap.NewNop(), walDir, nil)
	require.NoError(t, err)
	for i, request := range requests {
		entry := raftpb.Entry{Term: 2, Index: uint64(i) + 1, Type: raftpb.EntryConfChange}
		if request != nil {
			entry.Type, entry.Data = raftpb.EntryNormal, pbutil.MustMarshal(request)
		}
		require.NoError(t, log.Save(raftpb.HardState{Term: 2, Commit: entry.Index}, []raftpb.Entry{entry}))
		if request == snapshots {
			require.NoError(t, log.SaveSnapshot(walpb.Snapshot{Term: 2, Index: entry.Index, ConfState: &raftpb.ConfState{}}))
		}
		if request == snapshots || request == orphans {
			name := fmt.Sprintf("%016x-%016x.snap", 2, entry.Index)
			require.NoError(t, os.WriteFile(filepath.Join(layout.ToSnapDir(dir), name), nil, 0o600))
		}
	}
	require.NoError(t, log.Close())
	return dir
}

// Snapshots after the entries in snapshots have a record in the log. Snapshots after the entries in orphans do not.
var snapshots, orphans = puts("a snapshot follows"), puts("an orphaned snapshot follows")

func sets(version string) *etcdserverpb.InternalRaftRequest {
	return &etcdserverpb.InternalRaftRequest{
		Header: &etcdserverpb.RequestHeader{ID: 7}, ClusterVersionSet: &membershippb.ClusterVersionSetRequest{Ver: version},
	}
}

func puts(value string) *etcdserverpb.InternalRaftRequest {
	return &etcdserverpb.InternalRaftRequest{
		Header: &etcdserverpb.RequestHeader{ID: 7}, Put: &etcdserverpb.PutRequest{Key: []byte("k"), Value: []byte(value)},
	}
}

func TestClusterVersions(t *testing.T) {
	t.Parallel()
	type log []*etcdserverpb.InternalRaftRequest
	for _, c := range []struct {
		name     string
		database string
		log      log
		met      []string
	}{
		{"none in new data", "", nil, []string{""}},
		{"that of the database", "3.6.0", log{nil, puts("a"), puts("b")}, []string{"3.6.0"}},
		{"that which the database has not got yet", "", log{nil, puts("a"), sets("3.6.0"), puts("b")}, []string{"", "3.6.0"}},
		{"that which the database has left behind, and is replayed", "3.5.0", log{nil, sets("3.6.0"), sets("3.5.0")}, []string{"3.5.0", "3.6.0", "3.5.0"}},
		{"not that which a snapshot stands for", "3.5.0", log{sets("3.6.0"), sets("3.4.0"), snapshots, puts("a")}, []string{"3.5.0"}},
		{"that behind a snapshot", "3.5.0", log{sets("3.4.0"), snapshots, sets("3.6.0")}, []string{"3.5.0", "3.6.0"}},
		{"that before a snapshot which the log does not have", "3.5.0", log{snapshots, sets("3.6.0"), sets("3.5.0"), orphans}, []string{"3.5.0", "3.6.0", "3.5.0"}},
		{"not what a value looks like", "3.5.0", log{puts(string(pbutil.MustMarshal(sets("3.6.0"))))}, []string{"3.5.0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := dataWith(t, c.database, c.log...)
			met, err := Look(dir, "").ClusterVersions()
			require.NoError(t, err)
			require.Equal(t, c.met, met)
		})
	}
}

func TestSegmentsFrom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"0000000000000002-0000000000000020.wal", "0000000000000000-0000000000000000.wal", "0000000000000001-0000000000000010.wal"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	for index, count := range map[uint64]int{0: 3, 0xf: 3, 0x10: 2, 0x1f: 2, 0x20: 1, 0x100: 1} {
		require.Len(t, (&member{wal: list(dir)}).segmentsFrom(index), count, "from %x", index)
	}
	require.Empty(t, (&member{wal: list(filepath.Join(dir, "none"))}).segmentsFrom(1))
}

func TestClusterVersions_withoutDatabase(t *testing.T) {
	t.Parallel()
	dir := dataWith(t, "")
	require.NoError(t, os.Remove(layout.ToBackendFileName(dir)))
	_, err := Look(dir, "").ClusterVersions()
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Truncated or malformed protobuf messages must neither panic nor yield a version.
func TestNoteOf_malformed(t *testing.T) {
	t.Parallel()
	whole := pbutil.MustMarshal(sets("3.6.0"))
	for length := range whole {
		_, ok := noteOf(pbutil.MustMarshal(&raftpb.Entry{Index: 1, Data: whole[:length]}))
		require.False(t, ok, "cut off at %d", length)
	}
	n, _ := noteOf(pbutil.MustMarshal(&raftpb.Entry{Index: 1, Data: whole}))
	require.Equal(t, "3.6.0", n.version)
}
