package datadir

import (
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
)

// refuseForeign is an error if the database is of another cluster than the log: one of them was put back, copied or mounted
// without the other. etcd would bring what the log has into that database, and die of a member that it does not know. One that
// knows itself need not be asked any further. What can't be read is another's concern.
func refuseForeign(m *member, found contents) error {
	identity, err := m.identity()
	if err != nil || identity.NodeID == 0 || len(found.members) == 0 || found.knows(identity.NodeID) {
		return nil //nolint:nilerr // see above
	}
	named, err := m.named()
	if err != nil || len(named) == 0 || slices.ContainsFunc(named, found.knows) {
		return nil //nolint:nilerr // see above
	}
	return foreignDatabase.because(m.database, m.wal.path)
}

// knows tells whether a member is, or was, of the cluster.
func (c contents) knows(id uint64) bool {
	key := fmt.Sprintf("%x", id)
	_, is := c.members[key]
	_, was := c.former[key]
	return is || was
}

// named are the members that the log names where it tells of changes and of snapshots.
func (m *member) named() (named []uint64, unread error) {
	for _, name := range m.segments() {
		unread = errors.Join(unread, readSegment(m.segment(name), func(s *segment) error {
			for frame := range s.frames() {
				r, err := frame.parse()
				switch {
				case err != nil: // it tells nothing
				case r.kind == wal.EntryType && changesMembers(r.data):
					named = append(named, changed(r.data)...)
				case r.kind == wal.SnapshotType:
					named = append(named, counted(r.data)...)
				}
			}
			return nil
		}))
	}
	return named, unread
}

// changed is the member that an entry is about; none if that can't be read.
func changed(entry []byte) []uint64 {
	var change raftpb.ConfChange
	if change.Unmarshal(message(entry, entryData)) != nil || change.NodeID == 0 {
		return nil
	}
	return []uint64{change.NodeID}
}

// counted are the members at the time of a snapshot; none if that can't be read, or an etcd before 3.5 has recorded it.
func counted(record []byte) []uint64 {
	var snapshot walpb.Snapshot
	if snapshot.Unmarshal(record) != nil || snapshot.ConfState == nil {
		return nil
	}
	return slices.Concat(snapshot.ConfState.Voters, snapshot.ConfState.VotersOutgoing, snapshot.ConfState.Learners)
}
