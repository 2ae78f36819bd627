package datadir

import (
	"maps"
	"slices"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v2store"
	"go.etcd.io/raft/v3/raftpb"
)

// Members returns how many members the cluster has as far as the data know: those in the database, with the changes that it has
// not applied yet.
func (f *Inspection) Members() int {
	members := map[uint64]bool{}
	for id := range f.contents.members {
		members[id] = true
	}
	f.change(members, f.contents.applied, ^uint64(0))
	return len(members)
}

// change applies the changes of the members after one entry and up to another one. The value of a member is true if it is a
// voter.
func (f *Inspection) change(members map[uint64]bool, after, until uint64) {
	for _, n := range f.notes {
		if n.change == nil || n.index <= after || n.index > until {
			continue
		}
		switch id := n.change.NodeID; n.change.Type {
		case raftpb.ConfChangeAddNode:
			members[id] = true
		case raftpb.ConfChangeAddLearnerNode:
			members[id] = false
		case raftpb.ConfChangeRemoveNode:
			delete(members, id)
		case raftpb.ConfChangeUpdateNode: // it has other URLs
		}
	}
}

// OnlyRestored reports whether the data are those of a restored snapshot that no member has run on yet: what the database
// records of versions is about the cluster that the snapshot was taken of.
func (f *Inspection) OnlyRestored() bool {
	segments, tail := f.segments(), f.tail()
	if len(segments) != 1 || tail == nil || len(tail.snapshots) == 0 || tail.snapshots[len(tail.snapshots)-1].Index != tail.last {
		return false
	}
	head, err := readHead(f.segment(segments[0]))
	return err == nil && head.restored
}

// checkV2Requests refuses a log that etcd 3.6 panics over when it replays it, at every start.
func (f *Inspection) checkV2Requests() error {
	for _, n := range f.notes {
		if n.method != "" {
			return v2Request.errorf(f.wal.path, n.method, n.index)
		}
	}
	return nil
}

// checkV2Members refuses data whose two lists of members differ. etcd 3.5 and older list them in a second store, the v2 store,
// and go by that one; etcd 3.6 goes by the database. Older versions have left members in the database that were removed long
// ago, and learners that were promoted. etcd 3.6 takes them over, and panics when such a member is removed. etcd 3.5.26 and later
// correct the database when they start.
//
// The v2 store is in the snapshot that etcd starts from, and the entries behind it change it. A member that any of these adds is
// no leftover: an etcd 3.4 may have added it to the database before it noted there that it had applied the entry.
func (f *Inspection) checkV2Members() error {
	if f.contentsErr != nil || f.replayErr != nil || f.contents.since36 || len(f.contents.members) < 2 || f.start > f.contents.applied {
		return nil
	}
	members, err := f.v2Members()
	if err != nil {
		return nil //nolint:nilerr // etcd says why it cannot start from its snapshot
	}
	f.change(members, f.start, f.contents.applied)
	for _, id := range slices.Sorted(maps.Keys(f.contents.members)) {
		member := f.contents.members[id]
		switch voter, listed := members[id]; {
		case !listed && !f.adds(id):
			return leftoverMember.errorf(f.database, types.ID(id), member.Name)
		case voter && member.IsLearner:
			return leftoverLearner.errorf(f.database, types.ID(id), member.Name)
		}
	}
	return nil
}

// adds reports whether an entry that the database may not have applied adds the member.
func (f *Inspection) adds(id uint64) bool {
	return slices.ContainsFunc(f.notes, func(n note) bool {
		return n.index > f.contents.applied && n.change != nil && n.change.NodeID == id && n.change.Type != raftpb.ConfChangeRemoveNode
	})
}

// v2Members returns the members in the v2 store of the snapshot that etcd starts from, and whether each is a voter.
func (f *Inspection) v2Members() (map[uint64]bool, error) {
	members := map[uint64]bool{}
	if f.start == 0 {
		return members, nil
	}
	names := f.snapshots()
	content, err := readSnapshot(f.snapshot(names[slices.IndexFunc(names, func(name string) bool {
		index, ok := snapshotIndex(name)
		return ok && index == f.start
	})]))
	if err != nil {
		return nil, err
	}
	store, cluster := v2store.New(), membership.NewCluster(nil)
	cluster.SetStore(store)
	err = recoverPanic(func() error {
		if err := store.Recovery(content.Data); err != nil {
			return err
		}
		cluster.UnsafeLoad() // panics if it cannot read a member
		return nil
	})
	for _, m := range cluster.Members() {
		members[uint64(m.ID)] = !m.IsLearner
	}
	return members, err
}
