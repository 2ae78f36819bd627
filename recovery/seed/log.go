package seed

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// firstTerm is the term of the entries that the log begins with. They are committed, as every member has the same ones.
const firstTerm = 1

// commit is the index of the last of those entries: there is one for each member.
func (c *cluster) commit() uint64 { return uint64(len(c.Members())) }

// writeLog begins the log with the members, and a snapshot that stands for the database.
func (c *cluster) writeLog(member string) (err error) {
	metadata, err := (&etcdserverpb.Metadata{NodeID: uint64(c.self.ID), ClusterID: uint64(c.ID())}).Marshal()
	if err != nil {
		return err
	}
	entries, err := c.entries()
	if err != nil {
		return err
	}
	log, err := wal.Create(zap.NewNop(), filepath.Join(member, "wal"), metadata)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	state := c.confState()
	if err := log.Save(raftpb.HardState{Term: firstTerm, Vote: state.Voters[0], Commit: c.commit()}, entries); err != nil {
		return err
	}
	if err := c.saveSnapshot(filepath.Join(member, "snap"), *state); err != nil {
		return err
	}
	return log.SaveSnapshot(walpb.Snapshot{Index: c.commit(), Term: firstTerm, ConfState: state})
}

// saveSnapshot keeps the file for its owner: etcd leaves that to the umask.
func (c *cluster) saveSnapshot(dir string, state raftpb.ConfState) error {
	err := snap.New(zap.NewNop(), dir).SaveSnap(raftpb.Snapshot{
		Data:     etcdserver.GetMembershipInfoInV2Format(zap.NewNop(), c.RaftCluster),
		Metadata: raftpb.SnapshotMetadata{Index: c.commit(), Term: firstTerm, ConfState: state},
	})
	if err != nil {
		return err
	}
	return os.Chmod(filepath.Join(dir, fmt.Sprintf("%016x-%016x.snap", firstTerm, c.commit())), 0o600)
}

// entries add one member each.
func (c *cluster) entries() (entries []raftpb.Entry, err error) {
	for i, m := range c.Members() {
		change := raftpb.ConfChange{Type: raftpb.ConfChangeAddNode, NodeID: uint64(m.ID)}
		if m.IsLearner {
			change.Type = raftpb.ConfChangeAddLearnerNode
		}
		if change.Context, err = json.Marshal(m); err != nil {
			return nil, err
		}
		data, err := change.Marshal()
		if err != nil {
			return nil, err
		}
		entries = append(entries, raftpb.Entry{Type: raftpb.EntryConfChange, Term: firstTerm, Index: uint64(i + 1), Data: data})
	}
	return entries, nil
}
