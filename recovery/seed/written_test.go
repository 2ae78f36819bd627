package seed

import (
	"encoding/binary"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"etcd-wrapper/backup/restore"
)

// Tools read these, and an etcd that is told to begin a new cluster of its own; one that starts as usual knows the members
// from the snapshot.
func TestLogAndDatabaseTellTheSameMembers(t *testing.T) {
	source, _ := old(t)
	s := alone(filepath.Join(t.TempDir(), "new.etcd"))
	s.Members = append(s.Members, Member{Name: "learner", PeerURLs: []string{"http://127.0.0.1:2"}, Learner: true})
	_, err := s.Build(t.Context(), source, restore.Options{})
	require.NoError(t, err)

	log, err := wal.OpenForRead(zap.NewNop(), filepath.Join(s.DataDir, "member", "wal"), walpb.Snapshot{})
	require.NoError(t, err)
	defer log.Close()
	_, state, entries, err := log.ReadAll()
	require.NoError(t, err)
	require.EqualValues(t, 2, state.Commit)
	voters := map[uint64]bool{}
	for _, entry := range entries {
		var change raftpb.ConfChange
		require.NoError(t, change.Unmarshal(entry.Data))
		voters[change.NodeID] = change.Type == raftpb.ConfChangeAddNode
	}
	confState := confStateOf(t, s)
	require.Len(t, confState.Voters, 1)
	require.Len(t, confState.Learners, 1)
	require.Equal(t, map[uint64]bool{confState.Voters[0]: true, confState.Learners[0]: false}, voters)
}

// confStateOf is what the database says of raft.
func confStateOf(t *testing.T, s Seed) (state raftpb.ConfState) {
	db, err := bolt.Open(filepath.Join(s.DataDir, "member", "snap", "db"), 0, &bolt.Options{ReadOnly: true})
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(schema.Meta.Name())
		require.EqualValues(t, 2, binary.BigEndian.Uint64(meta.Get(schema.MetaConsistentIndexKeyName)))
		require.EqualValues(t, firstTerm, binary.BigEndian.Uint64(meta.Get(schema.MetaTermKeyName)))
		return json.Unmarshal(meta.Get(schema.MetaConfStateName), &state)
	}))
	return state
}
