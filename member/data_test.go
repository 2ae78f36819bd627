package member_test

import (
	"io"
	"log"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"etcd-wrapper/member"
)

func TestDataThatAreRemovedUnderARunningEtcdAreNoticed(t *testing.T) {
	for name, remove := range map[string]func(dir string) error{
		"all":          os.RemoveAll,
		"the database": func(dir string) error { return os.Remove(filepath.Join(dir, "member", "snap", "db")) },
		"the log":      func(dir string) error { return os.RemoveAll(filepath.Join(dir, "member", "wal")) },
		"replaced": func(dir string) error {
			if err := os.Rename(dir, dir+".old"); err != nil {
				return err
			}
			return os.CopyFS(dir, os.DirFS(dir+".old"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, filepath.Join(t.TempDir(), "new.etcd"))
			require.NoError(t, b.Open(soon(t)))
			require.NoError(t, b.LostData())
			require.NoError(t, remove(b.config.Dir))
			require.Eventually(t, func() bool { return b.LostData() != nil }, patience, tick)
			require.ErrorContains(t, b.LostData(), "was removed or replaced while etcd runs")
			_, err := b.Close()
			require.ErrorIs(t, err, b.LostData(), "a stop must not look clean")
		})
	}
}

func TestDataThatAreRemovedRightBeforeAStopDoNotCloseInOrder(t *testing.T) {
	b := newBench(t, filepath.Join(t.TempDir(), "new.etcd"))
	require.NoError(t, b.Open(soon(t)))
	require.NoError(t, os.RemoveAll(b.config.Dir))
	_, err := b.Close()
	require.ErrorContains(t, err, "was removed or replaced")
}

func TestADefragmentationIsNoLossOfTheDatabase(t *testing.T) {
	b := newBench(t, filepath.Join(t.TempDir(), "new.etcd"))
	require.NoError(t, b.Open(soon(t)))
	require.Eventually(t, func() bool { return b.Defragment() == nil }, patience, tick)
	require.Eventually(t, func() bool { return b.Maintenance().Last != nil }, patience, tick)
	_, err := b.Close()
	require.NoError(t, err)
}

// The reasons are raft's own, by a follower with less than it has confirmed and by one with other entries.
func TestCrashesOfOutdatedDataAreTold(t *testing.T) {
	heartbeat := raftpb.Message{Type: raftpb.MsgHeartbeat, From: 2, To: 1, Term: 2, Commit: 9}
	conflict := raftpb.Message{Type: raftpb.MsgApp, From: 2, To: 1, Term: 2, Index: 0, Entries: []raftpb.Entry{{Index: 1, Term: 2}}}
	for name, message := range map[string]raftpb.Message{"lacks entries": heartbeat, "has other entries": conflict} {
		t.Run(name, func(t *testing.T) {
			storage := raft.NewMemoryStorage()
			require.NoError(t, storage.Append([]raftpb.Entry{{Index: 1, Term: 1}}))
			require.NoError(t, storage.SetHardState(raftpb.HardState{Term: 1, Commit: 1}))
			node, err := raft.NewRawNode(&raft.Config{ID: 1, ElectionTick: 10, HeartbeatTick: 1, Storage: storage, MaxSizePerMsg: 1, MaxInflightMsgs: 1,
				Logger: &raft.DefaultLogger{Logger: log.New(io.Discard, "", 0)}})
			require.NoError(t, err)
			reason := func() (reason any) {
				defer func() { reason = recover() }()
				_ = node.Step(message)
				return nil
			}()
			assert.True(t, member.DiedOfOutdatedData(reason.(string)), reason)
		})
	}
	assert.True(t, member.DiedOfOutdatedData("etcd: failed to update; member unknown, cluster-id 1"))
	assert.False(t, member.DiedOfOutdatedData("etcd: failed to sync: no space left on device"))
}
