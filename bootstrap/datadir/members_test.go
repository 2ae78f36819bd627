package datadir

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/pkg/v3/pbutil"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v2store"
	layout "go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// oldData describes the members and versions in the data of etcd 3.5 or earlier.
type oldData struct {
	bucket  map[uint64]bool // members in the database, and whether each one is a voter
	applied uint64
	start   []uint64 // voters in the v2 store of a snapshot at entry 3; nil if there is no snapshot
	log     []raftpb.Entry
	since36 bool
}

func (d oldData) write(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	require.NoError(t, os.MkdirAll(layout.ToSnapDir(dir), 0o700))
	database, err := bolt.Open(layout.ToBackendFileName(dir), 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, database.Update(func(tx *bolt.Tx) error {
		for _, name := range []string{"key", "meta", "members", "cluster"} {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		for id, voter := range d.bucket {
			member := membership.Member{ID: types.ID(id), RaftAttributes: membership.RaftAttributes{IsLearner: !voter}, Attributes: membership.Attributes{Name: fmt.Sprint("e", id)}}
			if err := tx.Bucket(schema.Members.Name()).Put(fmt.Appendf(nil, "%x", id), toJSON(t, member)); err != nil {
				return err
			}
		}
		if d.since36 {
			if err := tx.Bucket(schema.Meta.Name()).Put(schema.MetaStorageVersionName, []byte("3.6.0")); err != nil {
				return err
			}
		}
		return tx.Bucket(schema.Meta.Name()).Put(schema.MetaConsistentIndexKeyName, binary.BigEndian.AppendUint64(nil, d.applied))
	}))
	require.NoError(t, database.Close())
	log, err := wal.Create(zap.NewNop(), layout.ToWALDir(dir), pbutil.MustMarshal(&etcdserverpb.Metadata{NodeID: 1, ClusterID: 2}))
	require.NoError(t, err)
	for i := range d.log {
		d.log[i].Term, d.log[i].Index = 1, uint64(i)+1
	}
	require.NoError(t, log.Save(raftpb.HardState{Term: 1, Commit: uint64(len(d.log))}, d.log))
	if d.start != nil {
		store := v2store.New(membership.StoreMembersPrefix)
		for _, id := range d.start {
			_, err := store.Create(membership.MemberStoreKey(types.ID(id))+"/raftAttributes", false, `{"peerURLs":["http://127.0.0.1:1"]}`, false, v2store.TTLOptionSet{})
			require.NoError(t, err)
		}
		content, err := store.Save()
		require.NoError(t, err)
		state := raftpb.ConfState{Voters: d.start}
		require.NoError(t, snap.New(zap.NewNop(), layout.ToSnapDir(dir)).SaveSnap(raftpb.Snapshot{
			Data: content, Metadata: raftpb.SnapshotMetadata{Index: 3, Term: 1, ConfState: state},
		}))
		require.NoError(t, log.SaveSnapshot(walpb.Snapshot{Index: 3, Term: 1, ConfState: &state}))
	}
	require.NoError(t, log.Close())
	return dir
}

func toJSON(t *testing.T, value any) []byte {
	content, err := json.Marshal(value)
	require.NoError(t, err)
	return content
}

func conf(kind raftpb.ConfChangeType, id uint64) raftpb.Entry {
	return raftpb.Entry{Type: raftpb.EntryConfChange, Data: pbutil.MustMarshal(&raftpb.ConfChange{Type: kind, NodeID: id})}
}

func addVoter(id uint64) raftpb.Entry     { return conf(raftpb.ConfChangeAddNode, id) }
func addLearner(id uint64) raftpb.Entry   { return conf(raftpb.ConfChangeAddLearnerNode, id) }
func removeMember(id uint64) raftpb.Entry { return conf(raftpb.ConfChangeRemoveNode, id) }

// v2 returns a log entry with a v2 API request, as written by etcd 3.4.
func v2(method, path, value string) raftpb.Entry {
	return raftpb.Entry{Data: pbutil.MustMarshal(&etcdserverpb.Request{ID: 7, Method: method, Path: path, Val: value})}
}

// v2InV3 returns a v2 API request inside a v3 API request.
func v2InV3(method, path string) raftpb.Entry {
	return raftpb.Entry{Data: pbutil.MustMarshal(&etcdserverpb.InternalRaftRequest{ID: 7, V2: &etcdserverpb.Request{ID: 7, Method: method, Path: path}})}
}

func TestLeftoverMembers(t *testing.T) {
	t.Parallel()
	voters := func(ids ...uint64) map[uint64]bool {
		members := map[uint64]bool{}
		for _, id := range ids {
			members[id] = true
		}
		return members
	}
	other := putRequest("value")
	put := raftpb.Entry{Data: pbutil.MustMarshal(other)}
	for name, c := range map[string]struct {
		data    oldData
		refused string
	}{
		"the lists match":                                  {oldData{bucket: voters(1, 2, 3), applied: 4, log: []raftpb.Entry{addVoter(1), addVoter(2), addVoter(3), put}}, ""},
		"member removed":                                   {oldData{bucket: voters(1, 2), applied: 4, log: []raftpb.Entry{addVoter(1), addVoter(2), addVoter(3), removeMember(3)}}, ""},
		"removed member still in the database":             {oldData{bucket: voters(1, 2, 3), applied: 4, log: []raftpb.Entry{addVoter(1), addVoter(2), addVoter(3), removeMember(3)}}, `member 3 ("e3"), which was removed`},
		"removal not applied yet":                          {oldData{bucket: voters(1, 2, 3), applied: 3, log: []raftpb.Entry{addVoter(1), addVoter(2), addVoter(3), removeMember(3)}}, ""},
		"removal overwritten by a later leader":            {oldData{bucket: voters(1, 2, 3), applied: 4, log: []raftpb.Entry{addVoter(1), addVoter(2), addVoter(3), put}}, ""},
		"applied index of etcd 3.4 too low":                {oldData{bucket: voters(1, 2, 3), applied: 1, log: []raftpb.Entry{addVoter(1), addVoter(2), addVoter(3), put}}, ""},
		"member that the log does not add":                 {oldData{bucket: voters(1, 9), applied: 2, log: []raftpb.Entry{addVoter(1), put}}, `member 9 ("e9"), which was removed`},
		"snapshot lists all members":                       {oldData{bucket: voters(1, 2), applied: 4, start: []uint64{1, 2}, log: []raftpb.Entry{addVoter(1), put, put, put}}, ""},
		"member missing from the snapshot":                 {oldData{bucket: voters(1, 2, 9), applied: 4, start: []uint64{1, 2}, log: []raftpb.Entry{addVoter(1), put, put, put}}, `member 9 ("e9"), which was removed`},
		"member added after the snapshot":                  {oldData{bucket: voters(1, 2, 3), applied: 4, start: []uint64{1, 2}, log: []raftpb.Entry{addVoter(1), put, put, addVoter(3)}}, ""},
		"member removed after the snapshot":                {oldData{bucket: voters(1, 2, 3), applied: 4, start: []uint64{1, 2, 3}, log: []raftpb.Entry{addVoter(1), put, put, removeMember(3)}}, `member 3 ("e3"), which was removed`},
		"database older than the snapshot":                 {oldData{bucket: voters(1, 2, 9), applied: 2, start: []uint64{1, 2}, log: []raftpb.Entry{addVoter(1), put, put, put}}, ""},
		"learner":                                          {oldData{bucket: map[uint64]bool{1: true, 2: false}, applied: 2, log: []raftpb.Entry{addVoter(1), addLearner(2)}}, ""},
		"promoted learner":                                 {oldData{bucket: voters(1, 2), applied: 3, log: []raftpb.Entry{addVoter(1), addLearner(2), addVoter(2)}}, ""},
		"promoted learner still a learner in the database": {oldData{bucket: map[uint64]bool{1: true, 2: false}, applied: 3, log: []raftpb.Entry{addVoter(1), addLearner(2), addVoter(2)}}, `member 2 ("e2") as a learner`},
		"data written by etcd 3.6":                         {oldData{bucket: voters(1, 9), applied: 2, since36: true, log: []raftpb.Entry{addVoter(1), put}}, ""},
		"single member, which is not checked":              {oldData{bucket: voters(9), applied: 2, log: []raftpb.Entry{addVoter(1), put}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := Look(c.data.write(t), "").checkV2Members()
			if c.refused == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.refused)
			require.ErrorContains(t, err, "etcd 3.5.26")
		})
	}
}

// A membership change must be ignored if a later leader overwrote its entry, even if the new entry is in the next
// segment.
func TestOverriddenChangesDoNotCount(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]bool{"in the same segment": false, "in the next segment": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := oldData{bucket: map[uint64]bool{1: true, 3: true}, applied: 3, log: []raftpb.Entry{addVoter(1), addVoter(3), removeMember(3)}}
			dir := data.write(t)
			require.Error(t, Look(dir, "").checkV2Members())
			log, err := wal.Open(zap.NewNop(), layout.ToWALDir(dir), walpb.Snapshot{})
			require.NoError(t, err)
			_, _, _, err = log.ReadAll()
			require.NoError(t, err)
			if cut {
				large := raftpb.Entry{Term: 1, Index: 4, Data: []byte(strings.Repeat("v", int(wal.SegmentSizeBytes)))}
				require.NoError(t, log.Save(raftpb.HardState{Term: 1, Commit: 2}, []raftpb.Entry{large}))
			}
			entry := raftpb.Entry{Term: 2, Index: 3, Data: pbutil.MustMarshal(putRequest("value"))}
			require.NoError(t, log.Save(raftpb.HardState{Term: 2, Commit: 3}, []raftpb.Entry{entry}))
			require.NoError(t, log.Close())
			found := Look(dir, "")
			require.Equal(t, cut, len(found.segments()) > 1)
			require.NoError(t, found.checkV2Members())
		})
	}
}

func TestRequestsOfTheV2API(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		entry    raftpb.Entry
		refused  string
		versions []string
	}{
		"/health probe":                      {v2("QGET", "", ""), "QGET at entry 2", nil},
		"/health probe inside a v3 request":  {v2InV3("QGET", "/"), "QGET at entry 2", nil},
		"client request":                     {v2("PUT", "/1/key", "value"), "PUT at entry 2", nil},
		"leader's SYNC request":              {v2("SYNC", "", ""), "SYNC at entry 2", nil},
		"cluster version":                    {v2("PUT", "/0/version", "3.4.0"), "", []string{"3.4.0"}},
		"member attributes":                  {v2("PUT", "/0/members/8e9e05c52164694d/attributes", `{"name":"e1"}`), "", nil},
		"value that looks like a v2 request": {raftpb.Entry{Data: pbutil.MustMarshal(putRequest(string(v2("QGET", "", "").Data)))}, "", nil},
		"new leader's empty entry":           {raftpb.Entry{}, "", nil},
		"malformed entry":                    {raftpb.Entry{Data: []byte{0xff, 0xff}}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := Look(oldData{applied: 1, bucket: map[uint64]bool{1: true}, log: []raftpb.Entry{addVoter(1), c.entry}}.write(t), "")
			versions, err := found.ClusterVersions()
			require.NoError(t, err)
			assert.Equal(t, append([]string{""}, c.versions...), versions)
			err = found.Inspect(Identity{Name: "e1"}, zerolog.Nop())
			if c.refused == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.refused)
			require.ErrorContains(t, err, "--snapshot-count=1")
		})
	}
}

// v2 API requests before the snapshot must be accepted, because etcd does not replay the entries before a snapshot.
func TestRequestsOfTheV2APIBeforeASnapshotAreNotReplayed(t *testing.T) {
	t.Parallel()
	data := oldData{applied: 3, bucket: map[uint64]bool{1: true}, start: []uint64{1}, log: []raftpb.Entry{addVoter(1), v2("QGET", "", ""), v2("PUT", "/0/version", "3.4.0")}}
	found := Look(data.write(t), "")
	require.NoError(t, found.checkV2Requests())
	versions, err := found.ClusterVersions()
	require.NoError(t, err)
	assert.Equal(t, []string{""}, versions)
}

func TestMembers_includeUnappliedChanges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		data oldData
		want int
	}{
		"in the database":                       {oldData{bucket: map[uint64]bool{1: true, 2: true}, applied: 2, log: []raftpb.Entry{addVoter(1), addVoter(2)}}, 2},
		"in the log":                            {oldData{log: []raftpb.Entry{addVoter(1), addVoter(2), addVoter(3)}}, 3},
		"added after the applied index":         {oldData{bucket: map[uint64]bool{1: true}, applied: 1, log: []raftpb.Entry{addVoter(1), addVoter(2)}}, 2},
		"removed after the applied index":       {oldData{bucket: map[uint64]bool{1: true, 2: true}, applied: 2, log: []raftpb.Entry{addVoter(1), addVoter(2), removeMember(2)}}, 1},
		"applied index too low, as in etcd 3.4": {oldData{bucket: map[uint64]bool{1: true, 2: true}, applied: 0, log: []raftpb.Entry{addVoter(1), addVoter(2)}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, c.want, Look(c.data.write(t), "").Members())
		})
	}
}

func TestOnlyRestored(t *testing.T) {
	t.Parallel()
	used := datadirtest.Initialized(t)
	assert.False(t, Look(used, "").OnlyRestored())
	assert.False(t, Look(t.TempDir(), "").OnlyRestored())
	dir := filepath.Join(t.TempDir(), "restored.etcd")
	require.NoError(t, snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: layout.ToBackendFileName(used), SkipHashCheck: true, Name: "default", OutputDataDir: dir,
		PeerURLs: []string{"http://127.0.0.1:1"}, InitialCluster: "default=http://127.0.0.1:1,other=http://127.0.0.1:2", InitialClusterToken: "token",
	}))
	found := Look(dir, "")
	assert.True(t, found.OnlyRestored())
	assert.Equal(t, 2, found.Members())
	require.NoError(t, found.checkV2Members())

	log, err := wal.Open(zap.NewNop(), layout.ToWALDir(dir), walpb.Snapshot{Index: 2, Term: 1})
	require.NoError(t, err)
	_, _, _, err = log.ReadAll()
	require.NoError(t, err)
	require.NoError(t, log.Save(raftpb.HardState{Term: 2, Commit: 3}, []raftpb.Entry{{Term: 2, Index: 3}}))
	require.NoError(t, log.Close())
	assert.False(t, Look(dir, "").OnlyRestored(), "an election counts as a use of the data")
}

// Uncommitted must count the entries that were written before a crash but are not covered by the commit index on
// disk. After a clean stop, the result must be 0.
func TestUncommittedEntries(t *testing.T) {
	t.Parallel()
	dir := oldData{log: []raftpb.Entry{addVoter(1), addVoter(2), {}}}.write(t)
	entries, _ := Look(dir, "").Uncommitted()
	assert.Zero(t, entries)
	log, err := wal.Open(zap.NewNop(), layout.ToWALDir(dir), walpb.Snapshot{})
	require.NoError(t, err)
	_, _, _, err = log.ReadAll()
	require.NoError(t, err)
	require.NoError(t, log.Save(raftpb.HardState{Term: 1, Commit: 3}, []raftpb.Entry{{Term: 1, Index: 4}, {Term: 1, Index: 5}}))
	require.NoError(t, log.Close())
	entries, committed := Look(dir, "").Uncommitted()
	assert.EqualValues(t, 2, entries)
	assert.EqualValues(t, 3, committed)
	entries, _ = Look(t.TempDir(), "").Uncommitted()
	assert.Zero(t, entries, "data without a log has no uncommitted entries")
}
