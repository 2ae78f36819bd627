package datadir

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// etcd would bring the log's entries into such a database, and then die of a member that this does not have, at each start.
func TestADatabaseOfAnotherClusterThanTheLogIsRefused(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other.etcd")
	server, err := datadirtest.Start(other, func(config *embed.Config) { config.InitialClusterToken = "other" })
	require.NoError(t, err)
	server.Close()
	for name, dir := range map[string]string{"a log from its first entry on": datadirtest.Born(t), "a log that was shortened": datadirtest.New(t)} {
		t.Run(name, func(t *testing.T) {
			log := filepath.Join(dir, "member", "wal")
			require.NoError(t, os.RemoveAll(filepath.Join(other, "member", "wal")))
			require.NoError(t, os.CopyFS(filepath.Join(other, "member", "wal"), os.DirFS(log)))
			says := fmt.Sprintf("database %s knows none of the members that the log in %s names: they are of two clusters",
				filepath.Join(other, "member", "snap", "db"), filepath.Join(other, "member", "wal"))
			require.ErrorContains(t, verdict(t, other, bootstrap.Sanity), says)
			require.ErrorContains(t, verdict(t, other, bootstrap.Full), says)
			require.ErrorContains(t, Look(other, "").Inspect(Identity{Name: "default"}, zerolog.Nop()), says)
		})
	}
}

// What is known of the members grows entry by entry, so that one that has just come need not know itself.
func TestADatabaseThatKnowsSomebodyOfTheLogIsTheLogs(t *testing.T) {
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
	nobody := map[string][]byte{}
	for id, refuses := range map[string]bool{"a": false, "b": false, "c": false, "d": false, "e": true} {
		known := map[string][]byte{id: nil}
		assert.Equal(t, refuses, refuseForeign(survey(dir, ""), contents{members: known}) != nil, id)
		assert.Equal(t, refuses, refuseForeign(survey(dir, ""), contents{members: map[string][]byte{"f": nil}, former: known}) != nil, id)
		assert.NoError(t, refuseForeign(survey(dir, ""), contents{members: nobody, former: known}), "it has none yet")
	}
}
