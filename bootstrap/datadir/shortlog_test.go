package datadir

import (
	"io"
	"log"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// What refuseTail says of healthy members rests on this: which entries raft hands out to be applied although it hands them
// out to be stored in the same breath. etcd 3.6 does both at the same time.
func TestOnlyAFollowerAppliesWhatItsLogMayLack(t *testing.T) {
	entry := raftpb.Entry{Term: 1, Index: 2, Data: []byte("acknowledged by the others")}
	follower, _ := node(t, 1, 2, 3)
	require.NoError(t, follower.Step(raftpb.Message{
		Type: raftpb.MsgApp, From: 1, To: 2, Term: 1, LogTerm: 1, Index: 1, Entries: []raftpb.Entry{entry}, Commit: 2,
	}))
	ready := follower.Ready()
	require.Equal(t, []raftpb.Entry{entry}, ready.Entries)
	require.Equal(t, ready.Entries, ready.CommittedEntries)

	alone, storage := node(t, 2)
	require.NoError(t, alone.Campaign())
	stored, applies := uint64(0), 0
	for range 5 { // the election, and four proposals
		ready := alone.Ready()
		for _, applied := range ready.CommittedEntries {
			require.LessOrEqual(t, applied.Index, stored)
			applies++
		}
		for _, entry := range ready.Entries {
			stored = entry.Index
		}
		require.NoError(t, storage.Append(ready.Entries))
		alone.Advance(ready)
		require.NoError(t, alone.Propose([]byte("a value")))
	}
	require.Positive(t, applies)
}

// node is member 2 of a cluster with those voters.
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
