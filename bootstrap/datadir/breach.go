package datadir

import (
	"fmt"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
)

// breach is the place where etcd cuts the log off when it starts, and what lies behind it and would be lost.
//
// A power loss leaves such a place, too, and then nothing behind it was acknowledged, because the file was not flushed.
// Two things prove that it was flushed, and that the disk has lost what it had:
//
// Whoever wrote the log: wal.Save writes entries, then the hard state, and flushes the file if there was an entry; wal.SaveSnapshot
// flushes it, too. Both hold a lock until then. So an entry is on the disk as soon as anything follows the hard state that
// follows the entry. A follower acknowledges its entries to the leader before it goes on.
//
// A single member of etcd 3.6: its commit index covers an entry. There a leader counts itself only after its entries
// were flushed (appendEntry in raft 3.6: "The leader needs to self-ack the entries just appended once they have been
// durably persisted"). A leader of etcd 3.5 counts itself at once (maybeCommit in appendEntry in raft 3.5), and a
// follower of any version learns of entries and that they are committed in one message: both write an entry and the
// commit index that covers it before one flush.
type breach struct {
	at        int64  // in bytes
	last      uint64 // index of the last entry before
	committed uint64 // the highest index that a record behind it says is committed
	flushed   bool   // an entry behind it was on the disk before what follows was written

	lost, ended bool // an entry was lost, and all that was written with it has been seen
}

// breachIn looks behind the place where the segment can't be read on. Before that, written is all that the log says.
func breachIn(s *segment, written *history) breach {
	b := breach{at: s.at, last: written.last}
	for r := range s.survivors() {
		b.take(r)
	}
	return b
}

// take keeps to the rules above. Of a record that is not known to be whole only what it is counts, and its index.
func (b *breach) take(r survivor) {
	b.flushed = b.flushed || b.ended || b.lost && r.kind == wal.SnapshotType
	switch r.kind {
	case wal.EntryType:
		b.lost = b.lost || b.reaches(entryIndex(r.data), r.at)
	case wal.StateType:
		var state raftpb.HardState
		if r.checked && state.Unmarshal(r.data) == nil && b.reaches(state.Commit, r.at) {
			b.committed, b.lost = max(b.committed, state.Commit), true
		}
		b.ended = b.lost
	}
}

// reaches is true of the index of an entry that was lost between the breach and another place. Even the smallest takes
// more than two words: what says that there were more is a part of a value that looks like a log.
func (b *breach) reaches(index uint64, at int64) bool {
	return index > b.last && index-b.last <= uint64(at-b.at)/(2*word)+1 //nolint:gosec // never negative
}

// proven says that an acknowledged entry would be lost. single says that the member is alone in its cluster and that etcd
// 3.6 wrote its log.
func (b *breach) proven(single bool) bool { return b.flushed || single && b.committed > b.last }

// commitment says what the records behind the breach know to be committed, if they say so.
func (b *breach) commitment() string {
	if b.committed == 0 {
		return ""
	}
	return fmt.Sprintf(", where index %d was committed", b.committed)
}
