package datadir

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// Inspect must return an error if a single member's log ends before the applied index. etcd itself would drop new
// proposals until the log reaches that index again.
func TestInspect_logEndsBeforeDatabase(t *testing.T) {
	for lost := range 4 {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			dir := datadirtest.Initialized(t)
			_, ends := datadirtest.Entries(t, firstSegmentOf(dir))
			truncate(t, firstSegmentOf(dir), ends[len(ends)-1-lost])
			err := Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop())
			if lost == 0 {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, fmt.Sprintf("the log in %q was truncated or damaged: it ends at index %d, "+
				"but the database has entries up to %d", dir+"/member/wal", len(ends)-lost, len(ends)))
		})
	}
}

func TestInspect_truncatedDatabase(t *testing.T) {
	dir := datadirtest.Initialized(t)
	halveDatabase(t, dir)
	err := Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop())
	require.ErrorIs(t, err, errCutOff)
	require.ErrorContains(t, err, "database "+dir+"/member/snap/db is incomplete")
}

func TestInspect_dataOfAnotherMember(t *testing.T) {
	dir := datadirtest.Initialized(t)
	// Change the owner of the data directory from "default" to "etcd-1".
	update(t, dir, func(tx *bolt.Tx) error {
		members := tx.Bucket([]byte("members"))
		id, value := members.Cursor().First()
		var owner map[string]any
		require.NoError(t, json.Unmarshal(value, &owner))
		owner["name"], owner["peerURLs"] = "etcd-1", []string{"http://b:1"}
		value, err := json.Marshal(owner)
		require.NoError(t, err)
		return members.Put(id, value)
	})
	cluster := "etcd-0=http://a:1,etcd-1=http://b:1"
	for what, test := range map[string]struct {
		configured Identity
		err, log   string
	}{
		"same name, other URL":            {configured: Identity{"etcd-1", []string{"http://b:2"}, cluster}},
		"other name, same URL":            {configured: Identity{"etcd-0", []string{"http://b:1"}, cluster}},
		"other member of the cluster":     {configured: Identity{"etcd-0", []string{"http://a:1"}, cluster}, err: `belongs to member "etcd-1" at ["http://b:1"], not to member "etcd-0" at ["http://a:1"]`},
		"name not in the initial cluster": {configured: Identity{"etcd-0", []string{"http://a:1"}, "etcd-0=http://a:1"}, log: "a different name and peer URLs"},
	} {
		t.Run(what, func(t *testing.T) {
			var log bytes.Buffer
			err := Look(dir, "").Inspect(test.configured, zerolog.New(&log))
			if test.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.err)
			}
			assert.Contains(t, log.String(), test.log)
			assert.Equal(t, test.log == "", log.Len() == 0)
		})
	}
}

// Inspect must return an error if the log ends before the applied index, regardless of the number of members.
func TestInspect_logEndsBeforeDatabaseInAnyCluster(t *testing.T) {
	for learner, wayOut := range map[bool]string{
		false: "ends at index %d, but the database of this member (one of 2) has entries up to %d: the member lost power " +
			"while catching up, or the log was truncated or damaged; to recover: move the data directory aside and replace the member; the other members have the missing entries",
		true: "it ends at index %d, but the database has entries up to %d; to recover: create a new data directory from the database ",
	} {
		t.Run(fmt.Sprintf("learner is %t", learner), func(t *testing.T) {
			dir := datadirtest.Initialized(t)
			addMember(t, dir, learner)
			require.NoError(t, Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop()))
			_, ends := datadirtest.Entries(t, firstSegmentOf(dir))
			truncate(t, firstSegmentOf(dir), ends[len(ends)-2])
			wayOut := fmt.Sprintf(wayOut, len(ends)-1, len(ends)) // the number of entries varies with etcd's timing
			err := Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop())
			require.ErrorContains(t, err, wayOut)
			require.ErrorContains(t, result(t, dir, bootstrap.Full), wayOut)
		})
	}
}

// Inspect must accept a log that ends with a snapshot from the leader, even though the entries before the snapshot
// were never in the log.
func TestInspect_logEndsWithReceivedSnapshot(t *testing.T) {
	dir := datadirtest.Initialized(t)
	addMember(t, dir, false)
	log, err := wal.Open(zap.NewNop(), dir+"/member/wal", walpb.Snapshot{})
	require.NoError(t, err)
	_, _, _, err = log.ReadAll()
	require.NoError(t, err)
	require.NoError(t, log.SaveSnapshot(walpb.Snapshot{Index: 1000, Term: 2, ConfState: &raftpb.ConfState{}}))
	require.NoError(t, log.Close())
	update(t, dir, func(tx *bolt.Tx) error { // simulate that etcd has swapped in the received database
		return tx.Bucket([]byte("meta")).Put([]byte("consistent_index"), binary.BigEndian.AppendUint64(nil, 1000))
	})
	require.NoError(t, Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop()))
}

// addMember adds a member to the database and marks the database as written by etcd 3.6, which makes its member list
// authoritative.
func addMember(t *testing.T, dir string, learner bool) {
	t.Helper()
	update(t, dir, func(tx *bolt.Tx) error {
		value, err := json.Marshal(map[string]any{"id": 7, "isLearner": learner, "peerURLs": []string{"http://b:1"}})
		require.NoError(t, err)
		require.NoError(t, tx.Bucket(schema.Meta.Name()).Put(schema.MetaStorageVersionName, []byte("3.6.0")))
		return tx.Bucket([]byte("members")).Put([]byte("0000000000000007"), value)
	})
}

// Inspect must detect damage anywhere in the last segment. etcd itself reports damage only at the start of a segment.
func TestInspect_damageAnywhereInTheLastSegment(t *testing.T) {
	dir := datadirtest.New(t)
	segment := last(segmentsOf(t, dir))
	content, err := os.ReadFile(segment)
	require.NoError(t, err)
	begins, ends := datadirtest.Entries(t, segment)
	require.Greater(t, len(begins), 10)
	for i, begin := range begins {
		for name, damage := range map[string]func(entry []byte){
			"a flipped byte": func(entry []byte) { entry[len(entry)/2] ^= 0xff },
			"a zeroed word":  func(entry []byte) { clear(entry[:8]) },
		} {
			damaged := bytes.Clone(content)
			damage(damaged[begin:ends[i]])
			require.NoError(t, os.WriteFile(segment, damaged, 0o600))
			err := Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop())
			if provenFlushed(t, content[ends[i]:]) {
				require.ErrorContains(t, err, fmt.Sprintf("WAL segment %s is damaged at position %d", segment, begin), name)
			} else { // no later record proves that the last entries were synced
				require.ErrorContains(t, err, "damaged", name)
			}
			require.ErrorContains(t, err, "; to recover: ", name)
		}
	}
}

// provenFlushed reports whether part of a segment proves that all earlier entries were synced, even if the first
// record of that part is damaged: there must be another entry, a hard state and a later record.
func provenFlushed(t *testing.T, rest []byte) bool {
	t.Helper()
	wanted := []int64{wal.EntryType, wal.StateType}
	for frame := range (&segment{content: rest}).frames() {
		r, err := frame.parse()
		require.NoError(t, err)
		if len(wanted) == 0 {
			return true
		}
		if r.kind == wanted[0] {
			wanted = wanted[1:]
		}
	}
	return false
}

func TestInspect_externalLog(t *testing.T) {
	dir, walDir := datadirtest.Initialized(t), filepath.Join(t.TempDir(), "wal")
	require.NoError(t, os.Rename(filepath.Join(dir, "member", "wal"), walDir))
	require.ErrorContains(t, Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop()), "has no voter")
	require.NoError(t, Look(dir, walDir).Inspect(Identity{Name: "default"}, zerolog.Nop()))
	segment := filepath.Join(walDir, firstSegment)
	_, ends := datadirtest.Entries(t, segment)
	truncate(t, segment, ends[len(ends)-2])
	err := Look(dir, walDir).Inspect(Identity{Name: "default"}, zerolog.Nop())
	require.ErrorContains(t, err, fmt.Sprintf("the log in %q was truncated or damaged", walDir))
}

// losses contains functions that damage the data of an initialized member so that etcd treats the member as new and
// waits forever for an election.
var losses = map[string]func(t *testing.T, dir, segment string){
	"no WAL directory": func(t *testing.T, dir, _ string) {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "member", "wal")))
	},
	"no segment":        func(t *testing.T, _, segment string) { require.NoError(t, os.Remove(segment)) },
	"truncated segment": func(t *testing.T, _, segment string) { require.NoError(t, os.Truncate(segment, 100)) },
	"truncated segment, repaired by etcd": func(t *testing.T, _, segment string) {
		require.NoError(t, os.Truncate(segment, 100))
		require.True(t, wal.Repair(zap.NewNop(), filepath.Dir(segment)))
	},
	"zeroed entries": func(t *testing.T, _, segment string) {
		zeroEntries(t, segment)
	},
	"zeroed entries and no database": func(t *testing.T, dir, segment string) {
		zeroEntries(t, segment)
		require.NoError(t, os.Remove(filepath.Join(dir, "member", "snap", "db")))
	},
}

func TestInspect_lostLog(t *testing.T) {
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			dir := datadirtest.Initialized(t)
			lose(t, dir, firstSegmentOf(dir))
			before := fingerprint(t, dir)
			err := Look(dir, "").Inspect(Identity{}, zerolog.Nop())
			require.ErrorContains(t, err, "has no voters, but this is not a new member")
			require.Error(t, result(t, dir, bootstrap.Full))
			assert.Equal(t, before, fingerprint(t, dir))
		})
	}
}

// resetDatabase replaces the content of the database with the given number of members, as if one entry had added each
// of them.
func resetDatabase(t *testing.T, dir string, members int) {
	update(t, dir, func(tx *bolt.Tx) error {
		var errs []error
		for _, name := range []string{"key", "meta", "members"} {
			if err := tx.DeleteBucket([]byte(name)); !errors.Is(err, bolterrors.ErrBucketNotFound) {
				errs = append(errs, err)
			}
			_, err := tx.CreateBucket([]byte(name))
			errs = append(errs, err)
		}
		for id := range members {
			errs = append(errs, tx.Bucket([]byte("members")).Put(fmt.Appendf(nil, "%x", id), []byte("{}")))
		}
		applied := binary.BigEndian.AppendUint64(nil, uint64(members)) //nolint:gosec // a number of members is never negative
		return errors.Join(append(errs, tx.Bucket([]byte("meta")).Put([]byte("consistent_index"), applied))...)
	})
}

func TestUninitializedMember_isValidAndMoved(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, dir string){
		"log without entries": datadirtest.Initialize,
		"log without entries, database with the initial members": func(t *testing.T, dir string) {
			datadirtest.Initialize(t, dir)
			resetDatabase(t, dir, 3)
		},
		"no log": func(t *testing.T, dir string) {
			datadirtest.Initialize(t, dir)
			remove(t, filepath.Join(dir, "member", "wal"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "new.etcd")
			make(t, dir)
			requireValid(t, dir)
			hasLog := exists(filepath.Join(dir, "member", "wal"))
			require.NoError(t, Look(dir, "").Inspect(Identity{}, zerolog.Nop()))
			moved, err := filepath.Glob(filepath.Join(dir, "member.uninitialized-*"))
			require.NoError(t, err)
			assert.Equal(t, hasLog, len(moved) == 1, "the directory is moved only if there is a log")
		})
	}
}

func TestInitialized_databaseWithKeys(t *testing.T) {
	dir := datadirtest.Initialized(t)
	update(t, dir, func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Delete([]byte("consistent_index")) })
	remove(t, filepath.Join(dir, "member", "wal"))
	for _, mode := range []bootstrap.Mode{bootstrap.Sanity, bootstrap.Full} {
		require.ErrorContains(t, result(t, dir, mode), "the database has keys, but")
	}
	require.ErrorContains(t, Look(dir, "").Inspect(Identity{}, zerolog.Nop()), "has no voter")
}

func TestInitialized_appliedEntries(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	datadirtest.Initialize(t, dir)
	resetDatabase(t, dir, 1)
	update(t, dir, func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("meta")).Put([]byte("consistent_index"), binary.BigEndian.AppendUint64(nil, 2))
	})
	require.ErrorContains(t, result(t, dir, bootstrap.Full), "the database has entries up to 2")
	require.ErrorContains(t, Look(dir, "").Inspect(Identity{}, zerolog.Nop()), "has no voter")
}

func TestInspect_memberWithSnapshotIsNotMoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	datadirtest.Initialize(t, dir)
	write(t, filepath.Join(dir, "member", "snap", "0000000000000002-0000000000000005.snap.broken"), "?")
	require.NoError(t, Look(dir, "").Inspect(Identity{}, zerolog.Nop()))
	require.True(t, exists(filepath.Join(dir, "member")), "the directory must not be moved")
}

// A member whose log starts with a snapshot from the leader must not be treated as uninitialized, because it may have
// voted.
func TestInspect_memberThatReceivedASnapshotIsNotMoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	datadirtest.Initialize(t, dir)
	log, err := wal.Open(zap.NewNop(), filepath.Join(dir, "member", "wal"), walpb.Snapshot{})
	require.NoError(t, err)
	_, _, _, err = log.ReadAll()
	require.NoError(t, err)
	require.NoError(t, log.SaveSnapshot(walpb.Snapshot{Index: 5, Term: 2, ConfState: &raftpb.ConfState{Voters: []uint64{1, 2}}}))
	require.NoError(t, log.Save(raftpb.HardState{Term: 2, Vote: 2, Commit: 5}, nil))
	require.NoError(t, log.Close())
	require.ErrorContains(t, Look(dir, "").Inspect(Identity{}, zerolog.Nop()), "belongs to a restored database")
	require.True(t, exists(filepath.Join(dir, "member")), "the directory must not be moved")
}

func TestInitialized_unreadableIndex(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	datadirtest.Initialize(t, dir)
	resetDatabase(t, dir, 1)
	update(t, dir, func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("meta")).Put([]byte("consistent_index"), []byte("four"))
	})
	require.ErrorContains(t, result(t, dir, bootstrap.Sanity), "consistent index has 4 bytes instead of 8")
	require.NoError(t, Look(dir, "").Inspect(Identity{}, zerolog.Nop()), "etcd itself reports the error")
	require.True(t, exists(filepath.Join(dir, "member")), "the directory must not be moved")
}

// The directory of an uninitialized member must not be moved if the log is in another directory, because the log
// would be left behind.
func TestInspect_uninitializedMemberWithExternalLog(t *testing.T) {
	dir, walDir := filepath.Join(t.TempDir(), "new.etcd"), filepath.Join(t.TempDir(), "wal")
	datadirtest.Initialize(t, dir)
	require.NoError(t, os.Rename(filepath.Join(dir, "member", "wal"), walDir))
	before := fingerprint(t, dir)
	require.NoError(t, Look(dir, walDir).Inspect(Identity{}, zerolog.Nop()))
	assert.Equal(t, before, fingerprint(t, dir))
}

// A database that belongs to a different cluster than the log must be rejected, because etcd would crash on every
// start.
func TestDatabaseOfAnotherCluster_isRefused(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other.etcd")
	server, err := datadirtest.Start(other, func(config *embed.Config) { config.InitialClusterToken = "other" })
	require.NoError(t, err)
	server.Close()
	for name, dir := range map[string]string{"one segment": datadirtest.Initialized(t), "with snapshots": datadirtest.New(t)} {
		t.Run(name, func(t *testing.T) {
			log := filepath.Join(dir, "member", "wal")
			require.NoError(t, os.RemoveAll(filepath.Join(other, "member", "wal")))
			require.NoError(t, os.CopyFS(filepath.Join(other, "member", "wal"), os.DirFS(log)))
			message := fmt.Sprintf("database %s has none of the members named by the log in %s: they belong to different clusters",
				filepath.Join(other, "member", "snap", "db"), filepath.Join(other, "member", "wal"))
			require.ErrorContains(t, result(t, other, bootstrap.Sanity), message)
			require.ErrorContains(t, result(t, other, bootstrap.Full), message)
			require.ErrorContains(t, Look(other, "").Inspect(Identity{Name: "default"}, zerolog.Nop()), message)
			m := survey(other, "")
			first := m.segment(m.segments()[0])
			_, ends := datadirtest.Entries(t, first)
			flip(t, first, ends[1]-10)
			require.ErrorContains(t, result(t, other, bootstrap.Sanity), message, "later damage does not matter")
		})
	}
}

// checkCluster must accept a database that contains any member of the log. A new member may be missing from its own
// database, because the log adds the members one entry at a time.
func TestCheckCluster_databaseKnowsAMemberOfTheLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	metadata, err := (&etcdserverpb.Metadata{NodeID: 0xa, ClusterID: 1}).Marshal()
	require.NoError(t, err)
	log, err := wal.Create(zap.NewNop(), filepath.Join(dir, "member", "wal"), metadata)
	require.NoError(t, err)
	added := raftpb.ConfChange{Type: raftpb.ConfChangeAddNode, NodeID: 0xb}
	data, err := added.Marshal()
	require.NoError(t, err)
	require.NoError(t, log.Save(raftpb.HardState{Term: 1}, []raftpb.Entry{{Type: raftpb.EntryConfChange, Term: 1, Index: 1, Data: data}}))
	require.NoError(t, log.SaveSnapshot(walpb.Snapshot{Index: 1, Term: 1, ConfState: &raftpb.ConfState{Voters: []uint64{0xc}, Learners: []uint64{0xd}}}))
	require.NoError(t, log.Close())
	type members = map[uint64]membership.Member
	for id, rejected := range map[uint64]bool{0xa: false, 0xb: false, 0xc: false, 0xd: false, 0xe: true} {
		known := members{id: {}}
		assert.Equal(t, rejected, checkCluster(survey(dir, ""), contents{members: known}) != nil, id)
		assert.Equal(t, rejected, checkCluster(survey(dir, ""), contents{members: members{0xf: {}}, removedMembers: known}) != nil, id)
		assert.NoError(t, checkCluster(survey(dir, ""), contents{removedMembers: known}), "a database without members is accepted")
	}
}

// TestRaft_onlyFollowersApplyUnstoredEntries checks an assumption of checkTail: a follower may apply an entry before
// the entry is stored, but a single member never does.
func TestRaft_onlyFollowersApplyUnstoredEntries(t *testing.T) {
	entry := raftpb.Entry{Term: 1, Index: 2, Data: []byte("stored by the others")}
	follower, _ := node(t, 1, 2, 3)
	require.NoError(t, follower.Step(raftpb.Message{
		Type: raftpb.MsgApp, From: 1, To: 2, Term: 1, LogTerm: 1, Index: 1, Entries: []raftpb.Entry{entry}, Commit: 2,
	}))
	ready := follower.Ready()
	require.Equal(t, []raftpb.Entry{entry}, ready.Entries)
	require.Equal(t, ready.Entries, ready.CommittedEntries)

	single, storage := node(t, 2)
	require.NoError(t, single.Campaign())
	stored, applies := uint64(0), 0
	for range 5 { // one entry for the election, four for proposals
		ready := single.Ready()
		for _, applied := range ready.CommittedEntries {
			require.LessOrEqual(t, applied.Index, stored)
			applies++
		}
		for _, entry := range ready.Entries {
			stored = entry.Index
		}
		require.NoError(t, storage.Append(ready.Entries))
		single.Advance(ready)
		require.NoError(t, single.Propose([]byte("a value")))
	}
	require.Positive(t, applies)
}

// node returns member 2 of a cluster with the given voters.
func node(t *testing.T, voters ...uint64) (*raft.RawNode, *raft.MemoryStorage) {
	t.Helper()
	storage := raft.NewMemoryStorage()
	begin := raftpb.SnapshotMetadata{Index: 1, Term: 1, ConfState: raftpb.ConfState{Voters: voters}}
	require.NoError(t, storage.ApplySnapshot(raftpb.Snapshot{Metadata: begin}))
	node, err := raft.NewRawNode(&raft.Config{
		ID: 2, ElectionTick: 10, HeartbeatTick: 1, Storage: storage, MaxSizePerMsg: 1 << 20, MaxInflightMsgs: 16,
		Logger: &raft.DefaultLogger{Logger: log.New(io.Discard, "", 0)},
	})
	require.NoError(t, err)
	return node, storage
}
