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

// dataWith returns a data directory whose log has an entry for each request, starting at index 1. A nil request adds
// a membership change. inDatabase is the cluster version in the database, or "" for none.
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
		if request == withSnapshot {
			require.NoError(t, log.SaveSnapshot(walpb.Snapshot{Term: 2, Index: entry.Index, ConfState: &raftpb.ConfState{}}))
		}
		if request == withSnapshot || request == withOrphan {
			name := fmt.Sprintf("%016x-%016x.snap", 2, entry.Index)
			require.NoError(t, os.WriteFile(filepath.Join(layout.ToSnapDir(dir), name), nil, 0o600))
		}
	}
	require.NoError(t, log.Close())
	return dir
}

// dataWith adds a snapshot after the entry of each of these two requests. Only the snapshot after withSnapshot has a
// record in the log.
var withSnapshot, withOrphan = putRequest("a snapshot follows"), putRequest("an orphaned snapshot follows")

func setVersion(version string) *etcdserverpb.InternalRaftRequest {
	return &etcdserverpb.InternalRaftRequest{
		Header: &etcdserverpb.RequestHeader{ID: 7}, ClusterVersionSet: &membershippb.ClusterVersionSetRequest{Ver: version},
	}
}

func putRequest(value string) *etcdserverpb.InternalRaftRequest {
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
		want     []string
	}{
		{"new data", "", nil, []string{""}},
		{"version only in the database", "3.6.0", log{nil, putRequest("a"), putRequest("b")}, []string{"3.6.0"}},
		{"version only in the log", "", log{nil, putRequest("a"), setVersion("3.6.0"), putRequest("b")}, []string{"", "3.6.0"}},
		{"downgrade in the log that etcd replays", "3.5.0", log{nil, setVersion("3.6.0"), setVersion("3.5.0")}, []string{"3.5.0", "3.6.0", "3.5.0"}},
		{"versions before the snapshot", "3.5.0", log{setVersion("3.6.0"), setVersion("3.4.0"), withSnapshot, putRequest("a")}, []string{"3.5.0"}},
		{"version after the snapshot", "3.5.0", log{setVersion("3.4.0"), withSnapshot, setVersion("3.6.0")}, []string{"3.5.0", "3.6.0"}},
		{"versions before a snapshot that is not in the log", "3.5.0", log{withSnapshot, setVersion("3.6.0"), setVersion("3.5.0"), withOrphan}, []string{"3.5.0", "3.6.0", "3.5.0"}},
		{"value that looks like a version request", "3.5.0", log{putRequest(string(pbutil.MustMarshal(setVersion("3.6.0"))))}, []string{"3.5.0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := dataWith(t, c.database, c.log...)
			versions, err := Look(dir, "").ClusterVersions()
			require.NoError(t, err)
			require.Equal(t, c.want, versions)
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
	whole := pbutil.MustMarshal(setVersion("3.6.0"))
	for length := range whole {
		_, ok := noteOf(pbutil.MustMarshal(&raftpb.Entry{Index: 1, Data: whole[:length]}))
		require.False(t, ok, "truncated to %d bytes", length)
	}
	n, _ := noteOf(pbutil.MustMarshal(&raftpb.Entry{Index: 1, Data: whole}))
	require.Equal(t, "3.6.0", n.version)
}
