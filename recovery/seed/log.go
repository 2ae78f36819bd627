package seed

import (
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

// firstTerm is the term of the entry that the log begins with. It is committed, as every member has the same one.
const firstTerm = 1

// apart is how far a restored log begins above the one that it replaces. etcd's simple tokens carry the index at which they were made, and a
// request with one waits until that is applied: those of the former log would wait for as long. No cluster appends so many entries between
// two backups, and members that restore different ones of them, each for itself, still begin at the same index.
const apart = 1 << 40

// commit is the index of the entry that the log begins with, behind the snapshot.
func (c *cluster) commit() uint64 { return c.begins + 1 }

// above is a number of a new cluster's, such as where its log begins, that is above what the cluster of the database has come to, and those
// that were restored since, which the database may know nothing of: each has come less than a step further. It is the same for all who
// restore the same. Only data that were adopted from a store with more generations may have come further.
func (c *cluster) above(was, step uint64) uint64 {
	return max(was/step+1, c.generation) * step
}

// writeLog begins the log with a snapshot that stands for the database and its members. The empty entry behind it has etcd know at once
// that it has applied what is committed.
func (c *cluster) writeLog(member string) (err error) {
	metadata, err := (&etcdserverpb.Metadata{NodeID: uint64(c.self.ID), ClusterID: uint64(c.ID())}).Marshal()
	if err != nil {
		return err
	}
	log, err := wal.Create(zap.NewNop(), filepath.Join(member, "wal"), metadata)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	state := c.confState()
	if err := log.SaveSnapshot(walpb.Snapshot{Index: c.begins, Term: firstTerm, ConfState: state}); err != nil {
		return err
	}
	if err := c.saveSnapshot(filepath.Join(member, "snap"), *state); err != nil {
		return err
	}
	first := raftpb.Entry{Type: raftpb.EntryNormal, Term: firstTerm, Index: c.commit()}
	return log.Save(raftpb.HardState{Term: firstTerm, Vote: state.Voters[0], Commit: first.Index}, []raftpb.Entry{first})
}

// saveSnapshot keeps the file for its owner: etcd leaves that to the umask.
func (c *cluster) saveSnapshot(dir string, state raftpb.ConfState) error {
	err := snap.New(zap.NewNop(), dir).SaveSnap(raftpb.Snapshot{
		Data:     etcdserver.GetMembershipInfoInV2Format(zap.NewNop(), c.RaftCluster),
		Metadata: raftpb.SnapshotMetadata{Index: c.begins, Term: firstTerm, ConfState: state},
	})
	if err != nil {
		return err
	}
	return os.Chmod(filepath.Join(dir, fmt.Sprintf("%016x-%016x.snap", firstTerm, c.begins)), 0o600)
}
