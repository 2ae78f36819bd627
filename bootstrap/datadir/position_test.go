package datadir

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/pkg/v3/pbutil"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

func TestReadPosition_closedMember(t *testing.T) {
	dir := datadirtest.New(t)
	got := position(t, dir)
	assert.NotZero(t, got.ClusterID)
	assert.NotZero(t, got.MemberID)
	assert.Equal(t, 1, got.Members)
	assert.Greater(t, got.Revision, int64(100))
	assert.GreaterOrEqual(t, got.HighestRevision, got.Revision)
}

// HighestRevision must include the entries in the log that have not been applied to the database yet.
func TestReadPosition_logAheadOfDatabase(t *testing.T) {
	dir := datadirtest.Initialized(t)
	before := position(t, dir)
	require.Equal(t, before.Revision, before.HighestRevision, "after a clean shutdown, the database contains all log entries")
	old, err := os.ReadFile(database(dir))
	require.NoError(t, err)
	server, err := datadirtest.Start(dir)
	require.NoError(t, err)
	client := v3client.New(server.Server)
	for range 3 {
		_, err := client.Put(t.Context(), "key", "value")
		require.NoError(t, err)
	}
	server.Close()
	require.NoError(t, os.WriteFile(database(dir), old, 0o600))
	got := position(t, dir)
	assert.Equal(t, before.Revision, got.Revision)
	assert.Equal(t, before.Revision+3, got.HighestRevision)
}

// Entries that a later leader has overwritten must not be counted.
func TestReadPosition_overriddenEntries(t *testing.T) {
	for name, written := range map[string]struct {
		entries []raftpb.Entry
		changes int64
		last    uint64
	}{
		"nothing overwritten":      {[]raftpb.Entry{entry(1, 3, putRequest("a")), entry(2, 3, putRequest("b")), entry(3, 3, putRequest("c"))}, 3, 3},
		"all overwritten":          {[]raftpb.Entry{entry(1, 3, putRequest("a")), entry(2, 3, putRequest("b")), entry(3, 3, putRequest("c")), entry(1, 4, nil)}, 0, 1},
		"some overwritten":         {[]raftpb.Entry{entry(1, 3, putRequest("a")), entry(2, 3, putRequest("b")), entry(3, 3, putRequest("c")), entry(2, 4, nil), entry(3, 4, putRequest("d"))}, 2, 3},
		"same entry written twice": {[]raftpb.Entry{entry(1, 3, putRequest("a")), entry(2, 3, putRequest("b")), entry(2, 3, putRequest("b"))}, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			dir := datadirtest.Initialized(t)
			before := position(t, dir)
			log, err := wal.Open(zap.NewNop(), filepath.Join(dir, "member", "wal"), walpb.Snapshot{})
			require.NoError(t, err)
			_, state, _, err := log.ReadAll()
			require.NoError(t, err)
			for _, e := range written.entries {
				e.Index += before.Index
				require.NoError(t, log.Save(state, []raftpb.Entry{e}))
			}
			require.NoError(t, log.Close())
			got := position(t, dir)
			assert.Equal(t, before.Revision+written.changes, got.HighestRevision)
			assert.Equal(t, before.Index+written.last, got.Index)
		})
	}
}

// entry returns a log entry. If request is nil, the entry contains no data, like the first entry of a new leader.
func entry(index, term uint64, request *etcdserverpb.InternalRaftRequest) raftpb.Entry {
	e := raftpb.Entry{Index: index, Term: term}
	if request != nil {
		e.Data = pbutil.MustMarshal(request)
	}
	return e
}

// Entries that are not known to be committed must be counted, because a majority may have stored them.
func TestReadPosition_uncommittedEntries(t *testing.T) {
	dir := datadirtest.Initialized(t)
	before := position(t, dir)
	server, err := datadirtest.Start(dir)
	require.NoError(t, err)
	client := v3client.New(server.Server)
	_, err = client.MemberAdd(t.Context(), []string{"http://127.0.0.1:2"}) // the cluster loses its quorum
	require.NoError(t, err)
	short, end := context.WithTimeout(t.Context(), time.Second)
	defer end()
	_, err = client.Put(short, "key", "uncommitted")
	require.Error(t, err)
	server.Server.HardStop()
	server.Close()
	got := position(t, dir)
	assert.Equal(t, before.Revision, got.Revision)
	assert.Equal(t, before.Revision+1, got.HighestRevision)
	assert.Greater(t, got.Index, before.Index+1)
}

// A member without writes must not appear to be behind its own first backup.
func TestReadPosition_memberWithoutWrites(t *testing.T) {
	dir := t.TempDir()
	server, err := datadirtest.Start(dir)
	require.NoError(t, err)
	revision := server.Server.KV().Rev()
	server.Close()
	assert.Equal(t, revision, position(t, dir).HighestRevision)
}

func database(dir string) string { return filepath.Join(dir, "member", "snap", "db") }

func TestReadPosition_missingDirectory(t *testing.T) {
	assert.Zero(t, position(t, filepath.Join(t.TempDir(), "none")))
}

func position(t *testing.T, dir string) Position {
	t.Helper()
	pos, err := ReadPosition(dir)
	require.NoError(t, err)
	return pos
}

// A temporarily unreadable volume must not count as empty.
func TestReadPosition_unreadableFiles(t *testing.T) {
	for name, breakData := range map[string]func(t *testing.T, dir string){
		"database is a directory":      func(t *testing.T, dir string) { unreadable(t, database(dir)) },
		"WAL directory is a file":      func(t *testing.T, dir string) { notADirectory(t, filepath.Join(dir, "member", "wal")) },
		"first segment is a directory": func(t *testing.T, dir string) { unreadable(t, firstSegmentOf(dir)) },
		"last segment is a directory": func(t *testing.T, dir string) {
			segments := segmentsOf(t, dir)
			require.Greater(t, len(segments), 1)
			unreadable(t, segments[len(segments)-1])
		},
		"database is locked by another process": func(t *testing.T, dir string) {
			held, err := bolt.Open(database(dir), 0o600, nil)
			require.NoError(t, err)
			t.Cleanup(func() { _ = held.Close() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := datadirtest.New(t)
			breakData(t, dir)
			_, err := ReadPosition(dir)
			assert.Error(t, err)
		})
	}
}

// unreadable replaces a file with a directory.
func unreadable(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o700))
}

func notADirectory(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(path))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
}

// A member with a complete log is not new, even if its database is lost.
func TestReadPosition_missingDatabase(t *testing.T) {
	dir := datadirtest.Initialized(t)
	before := position(t, dir)
	require.NoError(t, os.Remove(database(dir)))
	got := position(t, dir)
	assert.Equal(t, before.ClusterID, got.ClusterID)
	assert.Equal(t, before.Index, got.Index)
	assert.Equal(t, before.HighestRevision, got.HighestRevision)
}

func TestIsOnlyVoter_learner(t *testing.T) {
	dir := datadirtest.Initialized(t)
	self := position(t, dir)
	assert.True(t, self.IsOnlyVoter())
	addMember(t, dir, false)
	update(t, dir, func(tx *bolt.Tx) error {
		value, err := json.Marshal(map[string]any{"id": self.MemberID, "isLearner": true})
		require.NoError(t, err)
		return tx.Bucket([]byte("members")).Put(fmt.Appendf(nil, "%x", self.MemberID), value)
	})
	got := position(t, dir)
	assert.Equal(t, 1, got.Voters)
	assert.False(t, got.IsOnlyVoter())
}

func TestReadPosition_votersAndKnownMembers(t *testing.T) {
	dir := datadirtest.Initialized(t)
	assert.Equal(t, 1, position(t, dir).Voters)
	server, err := datadirtest.Start(dir)
	require.NoError(t, err)
	client := v3client.New(server.Server)
	first, err := client.MemberAddAsLearner(t.Context(), []string{"http://127.0.0.1:2"})
	require.NoError(t, err)
	_, err = client.MemberRemove(t.Context(), first.Member.ID)
	require.NoError(t, err)
	second, err := client.MemberAddAsLearner(t.Context(), []string{"http://127.0.0.1:3"})
	require.NoError(t, err)
	server.Close()
	got := position(t, dir)
	assert.Equal(t, 2, got.Members)
	assert.Equal(t, 1, got.Voters)
	for _, id := range []uint64{got.MemberID, first.Member.ID, second.Member.ID} {
		assert.Contains(t, got.Known, strconv.FormatUint(id, 16))
	}
	assert.Len(t, got.Known, 3)
	assert.False(t, got.Removed)
}

func TestReadPosition_removedMember(t *testing.T) {
	dir := datadirtest.Initialized(t)
	server, err := datadirtest.Start(dir)
	require.NoError(t, err)
	self := server.Server.MemberID()
	server.Close()
	update(t, dir, func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("members_removed")).Put([]byte(self.String()), []byte("removed"))
	})
	assert.True(t, position(t, dir).Removed)
}

// The number of voters must be 0 (unknown) if the log has membership changes that are not in the database, for
// example after a kill.
func TestReadPosition_membersChangedInTheLog(t *testing.T) {
	dir := datadirtest.Initialized(t)
	old, err := os.ReadFile(database(dir))
	require.NoError(t, err)
	server, err := datadirtest.Start(dir)
	require.NoError(t, err)
	_, err = v3client.New(server.Server).MemberAdd(t.Context(), []string{"http://127.0.0.1:2"})
	require.NoError(t, err)
	server.Close()
	assert.Equal(t, 2, position(t, dir).Voters)
	require.NoError(t, os.WriteFile(database(dir), old, 0o600))
	assert.Zero(t, position(t, dir).Voters)
}

func TestDivergence_earlierState(t *testing.T) {
	dir, earlier := datadirtest.Initialized(t), t.TempDir()
	require.NoError(t, os.CopyFS(earlier, os.DirFS(dir)))
	last := revisionAfter(t, dir, func(c *clientv3.Client) (int64, error) {
		reply, err := c.Put(t.Context(), "key", "later")
		return reply.Header.Revision, err
	})
	requireDivergence(t, 0, earlier, dir)
	requireDivergence(t, 0, dir, earlier)
	other := revisionAfter(t, earlier, func(c *clientv3.Client) (int64, error) {
		reply, err := c.Put(t.Context(), "key", "another")
		return reply.Header.Revision, err
	})
	require.Equal(t, last, other)
	requireDivergence(t, last, earlier, dir)
	requireDivergence(t, 0, earlier, dir, last)
}

func TestDivergence_deletion(t *testing.T) {
	dir, other := datadirtest.Initialized(t), t.TempDir()
	require.NoError(t, os.CopyFS(other, os.DirFS(dir)))
	put := func(c *clientv3.Client) (int64, error) {
		reply, err := c.Put(t.Context(), "key", "value")
		return reply.Header.Revision, err
	}
	revisionAfter(t, dir, put)
	revisionAfter(t, other, put)
	last := revisionAfter(t, dir, put)
	revisionAfter(t, other, func(c *clientv3.Client) (int64, error) {
		reply, err := c.Delete(t.Context(), "key")
		return reply.Header.Revision, err
	})
	requireDivergence(t, last, dir, other)
	requireDivergence(t, last, other, dir)
}

// changeRow changes the newest row of a closed database to simulate a faulty disk.
func changeRow(t *testing.T, dir string, change func(row *mvccpb.KeyValue)) {
	t.Helper()
	db, err := bolt.Open(database(dir), 0o600, nil)
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.Update(func(tx *bolt.Tx) error {
		rows := tx.Bucket(schema.Key.Name())
		key, value := rows.Cursor().Last()
		var row mvccpb.KeyValue
		require.NoError(t, row.Unmarshal(value))
		change(&row)
		return rows.Put(bytes.Clone(key), pbutil.MustMarshal(&row))
	}))
}

func TestChangedRevisions(t *testing.T) {
	put := clientv3.OpPut
	flip := func(row *mvccpb.KeyValue) { row.Value[0] ^= 1 }
	for name, c := range map[string]struct {
		last    clientv3.Op
		change  func(*mvccpb.KeyValue)
		changed bool
	}{
		"nothing altered":              {put("a", "5"), func(*mvccpb.KeyValue) {}, false},
		"value altered":                {put("a", "5"), flip, true},
		"key altered":                  {put("a", "5"), func(row *mvccpb.KeyValue) { row.Key[0] ^= 1 }, true},
		"nothing altered, transaction": {clientv3.OpTxn(nil, []clientv3.Op{put("a", "5"), put("b", "6")}, nil), func(*mvccpb.KeyValue) {}, false},
		"altered value matches a put in a skipped branch":  {clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpTxn(nil, []clientv3.Op{put("a", "3")}, nil)}), flip, false},
		"value of the second put in a transaction altered": {clientv3.OpTxn(nil, []clientv3.Op{put("a", "5"), put("b", "6")}, nil), flip, true},
		"nothing altered, put with IgnoreValue":            {put("a", "", clientv3.WithIgnoreValue()), func(*mvccpb.KeyValue) {}, false},
		"value altered, put with IgnoreValue":              {put("a", "", clientv3.WithIgnoreValue()), flip, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := datadirtest.Initialized(t)
			last := putAll(t, dir, put("a", "0"), put("a", "1"), put("a", "2"), c.last)
			changeRow(t, dir, c.change)
			if c.changed {
				requireChanged(t, dir, last)
			} else {
				requireChanged(t, dir)
			}
		})
	}
}

// The log contains neither deleted keys nor the values kept by a put with IgnoreValue. Rows created by deletions or
// by puts with IgnoreValue must not count as altered.
func TestChangedRevisions_afterOtherRequests(t *testing.T) {
	dir, put := datadirtest.Initialized(t), clientv3.OpPut
	last := putAll(t, dir, put("a", "0"), put("b", "1"), put("a", "", clientv3.WithIgnoreValue()),
		clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpDelete("b")}, nil), put("c", "2"))
	requireChanged(t, dir)
	changeRow(t, dir, func(row *mvccpb.KeyValue) { row.Value[0] ^= 1 })
	requireChanged(t, dir, last)
}

// ChangedRevisions must return nothing unless the log proves that the disk altered a row. There is no proof if the
// volume was copied and then written to, or if the log is too short.
func TestChangedRevisions_noProof(t *testing.T) {
	puts := func(dir string, values ...string) {
		var ops []clientv3.Op
		for _, value := range values {
			ops = append(ops, clientv3.OpPut("a", value))
		}
		putAll(t, dir, ops...)
	}
	dir, other := datadirtest.Initialized(t), t.TempDir()
	require.NoError(t, os.CopyFS(other, os.DirFS(dir)))
	puts(dir, "1", "2", "3", "4")
	puts(other, "5", "6", "7", "8")
	requireChanged(t, other)
	content, err := os.ReadFile(database(dir))
	require.NoError(t, err)
	// Four rows of the copied database differ from the puts in the log, and only the row from before the copy matches.
	// Because the matching rows are not in the majority, no row counts as altered.
	require.NoError(t, os.WriteFile(database(other), content, 0o600))
	requireChanged(t, other)
}

func requireDivergence(t *testing.T, expected int64, dir, other string, except ...int64) {
	t.Helper()
	revision, err := Divergence(dir, other, except...)
	require.NoError(t, err)
	require.Equal(t, expected, revision)
}

// revisionAfter starts etcd on a data directory, calls write and returns the resulting revision.
func revisionAfter(t *testing.T, dir string, write func(*clientv3.Client) (int64, error)) int64 {
	t.Helper()
	server, err := datadirtest.Start(dir)
	require.NoError(t, err)
	defer server.Close()
	revision, err := write(v3client.New(server.Server))
	require.NoError(t, err)
	assert.Positive(t, revision)
	return revision
}

// replaceLog replaces the log with one that starts at a higher index, as after a restore or a snapshot from the
// leader.
func replaceLog(t *testing.T, dir string, write func(log *wal.WAL, state raftpb.HardState, entries []raftpb.Entry)) {
	t.Helper()
	path := filepath.Join(dir, "member", "wal")
	old, err := wal.Open(zap.NewNop(), path, walpb.Snapshot{})
	require.NoError(t, err)
	metadata, state, entries, err := old.ReadAll()
	require.NoError(t, err)
	require.NoError(t, old.Close())
	require.NoError(t, os.RemoveAll(path))
	log, err := wal.Create(zap.NewNop(), path, metadata)
	require.NoError(t, err)
	write(log, state, entries)
	require.NoError(t, log.Close())
}

// putAll executes requests and returns the revision of the last one.
func putAll(t *testing.T, dir string, ops ...clientv3.Op) int64 {
	t.Helper()
	return revisionAfter(t, dir, func(client *clientv3.Client) (revision int64, err error) {
		for _, op := range ops {
			reply, err := client.Do(t.Context(), op)
			require.NoError(t, err)
			if txn := reply.Txn(); txn != nil {
				revision = txn.Header.Revision
			} else {
				revision = reply.Put().Header.Revision
			}
		}
		return revision, nil
	})
}

func requireChanged(t *testing.T, dir string, expected ...int64) {
	t.Helper()
	revisions, err := ChangedRevisions(t.Context(), dir)
	require.NoError(t, err)
	require.Equal(t, expected, revisions)
}

// A revision that is missing from the log must not count as altered by the disk, even if an older revision resembles
// a request in the log.
func TestChangedRevisions_olderThanTheLog(t *testing.T) {
	put := clientv3.OpPut
	for name, first := range map[string]clientv3.Op{
		"put of the same value":                     put("a", "constant"),
		"put of an empty value":                     put("a", ""),
		"skipped branch with the same value":        clientv3.OpTxn(nil, nil, []clientv3.Op{put("a", "constant")}),
		"skipped branch with values of other sizes": clientv3.OpTxn(nil, nil, []clientv3.Op{put("a", "constant"), put("x", "1"), put("y", "2")}),
		"skipped branch with IgnoreValue":           clientv3.OpTxn(nil, nil, []clientv3.Op{put("a", "constant"), put("z", "", clientv3.WithIgnoreValue())}),
	} {
		t.Run(name, func(t *testing.T) {
			dir := datadirtest.Initialized(t)
			putAll(t, dir, put("a", "constant"), put("x", ""), put("y", ""))
			start := position(t, dir).Index
			last := putAll(t, dir, first, put("b", "1"), put("c", "2"), put("d", "3"), put("e", "4"), put("f", "5"))
			replaceLog(t, dir, func(log *wal.WAL, state raftpb.HardState, entries []raftpb.Entry) {
				at := slices.IndexFunc(entries, func(e raftpb.Entry) bool { return e.Index == start })
				require.NoError(t, log.SaveSnapshot(walpb.Snapshot{Index: start, Term: entries[at].Term, ConfState: &raftpb.ConfState{}}))
				require.NoError(t, log.Save(state, entries[at+1:]))
			})
			requireChanged(t, dir)
			changeRow(t, dir, func(row *mvccpb.KeyValue) { row.Value[0] ^= 1 })
			requireChanged(t, dir, last)
		})
	}
}

// ChangedRevisions must ignore the uncommitted entries of a previous leader that has received a snapshot.
func TestChangedRevisions_snapshotOverUncommitted(t *testing.T) {
	dir := datadirtest.Initialized(t)
	putAll(t, dir, clientv3.OpPut("a", "1"), clientv3.OpPut("b", "2"), clientv3.OpPut("c", "3"), clientv3.OpPut("d", "4"))
	end := position(t, dir).Index
	putAll(t, dir, clientv3.OpPut("a", "5"), clientv3.OpPut("b", "6"))
	replaceLog(t, dir, func(log *wal.WAL, state raftpb.HardState, entries []raftpb.Entry) {
		at := slices.IndexFunc(entries, func(e raftpb.Entry) bool { return e.Index == end })
		state.Commit = end
		require.NoError(t, log.Save(state, entries[:at+1]))
		uncommitted := []raftpb.Entry{entry(end+1, state.Term, nil), entry(end+2, state.Term, nil), entry(end+3, state.Term, nil)}
		for i, put := range []*etcdserverpb.PutRequest{{Key: []byte("a"), Value: []byte("7")}, {Key: []byte("b"), Value: []byte("8")}, {Key: []byte("c"), Value: []byte("9")}} {
			uncommitted[i].Data = pbutil.MustMarshal(&etcdserverpb.InternalRaftRequest{Put: put})
		}
		require.NoError(t, log.Save(state, uncommitted))
		require.NoError(t, log.SaveSnapshot(walpb.Snapshot{Index: end + 2, Term: state.Term + 1, ConfState: &raftpb.ConfState{}}))
		state.Term, state.Commit = state.Term+1, end+2
		require.NoError(t, log.Save(state, nil))
	})
	requireChanged(t, dir)
}
