package member

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
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"etcd-wrapper/bootstrap/dataversion"
)

// dataWith is a data directory whose database names a cluster version, if that is not empty, and whose log has an entry
// for each request, from index 1 on; nil is another kind of entry.
func dataWith(t *testing.T, inDatabase string, requests ...*etcdserverpb.InternalRaftRequest) (dir, walDir string) {
	t.Helper()
	dir = t.TempDir()
	walDir = datadir.ToWALDir(dir)
	require.NoError(t, os.MkdirAll(datadir.ToSnapDir(dir), 0o700))
	database, err := bolt.Open(datadir.ToBackendFileName(dir), 0o600, nil)
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
			require.NoError(t, os.WriteFile(filepath.Join(datadir.ToSnapDir(dir), name), nil, 0o600))
		}
	}
	require.NoError(t, log.Close())
	return dir, walDir
}

// A snapshot follows the entry of the first; that of the second is not in the log.
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

func TestTheHighestVersionThatEtcdMeetsIsRecorded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		database string
		log      []*etcdserverpb.InternalRaftRequest
		recorded dataversion.Version
	}{
		{"none in new data", "", nil, dataversion.Version{}},
		{"that of the database", "3.6.0", []*etcdserverpb.InternalRaftRequest{nil, puts("a"), puts("b")}, dataversion.Of3_6},
		{"that which the database has not got yet", "", []*etcdserverpb.InternalRaftRequest{nil, puts("a"), sets("3.6.0"), puts("b")}, dataversion.Of3_6},
		{"that which the database has left behind, and is replayed", "3.5.0", []*etcdserverpb.InternalRaftRequest{nil, sets("3.6.0"), sets("3.5.0")}, dataversion.Of3_6},
		{"not that which a snapshot stands for", "3.5.0", []*etcdserverpb.InternalRaftRequest{sets("3.6.0"), sets("3.5.0"), snapshots, puts("a")}, dataversion.Of3_5},
		{"that behind a snapshot", "3.5.0", []*etcdserverpb.InternalRaftRequest{sets("3.5.0"), snapshots, sets("3.6.0")}, dataversion.Of3_6},
		{"that before a snapshot which the log does not have", "3.5.0", []*etcdserverpb.InternalRaftRequest{snapshots, sets("3.6.0"), sets("3.5.0"), orphans}, dataversion.Of3_6},
		{"not what a value looks like", "3.5.0", []*etcdserverpb.InternalRaftRequest{puts(string(pbutil.MustMarshal(sets("3.6.0"))))}, dataversion.Of3_5},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir, walDir := dataWith(t, c.database, c.log...)
			recorded, err := recordedVersion(dir, walDir)
			require.NoError(t, err)
			require.Equal(t, c.recorded, recorded)
		})
	}
}

func TestOnlySegmentsThatAreReplayedAreRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"0000000000000002-0000000000000020.wal", "0000000000000000-0000000000000000.wal", "0000000000000001-0000000000000010.wal"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	for index, count := range map[uint64]int{0: 3, 0xf: 3, 0x10: 2, 0x1f: 2, 0x20: 1, 0x100: 1} {
		segments, err := segmentsFrom(dir, index)
		require.NoError(t, err)
		require.Len(t, segments, count, "from %x", index)
	}
	segments, err := segmentsFrom(filepath.Join(dir, "none"), 1)
	require.NoError(t, err)
	require.Empty(t, segments)
}

func TestDataWithoutADatabaseHaveNoRecord(t *testing.T) {
	t.Parallel()
	dir, walDir := dataWith(t, "")
	require.NoError(t, os.Remove(datadir.ToBackendFileName(dir)))
	_, err := recordedVersion(dir, walDir)
	require.ErrorIs(t, err, os.ErrNotExist)
}
