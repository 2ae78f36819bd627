package datadir

import (
	"encoding/json"
	"errors"

	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
)

// refuseShort is an error if the database was cut off, or if the disk proves that the log was: etcd mends a damaged log
// by cutting it off, and serves without what was acknowledged behind the damage. What can't be read is left to etcd, which
// says why.
func (f *Findings) refuseShort() error {
	if errors.Is(f.contentsErr, errCutOff) {
		return cutOff.because(f.database, f.contentsErr)
	}
	if tail := f.tail(); tail != nil && f.contentsErr == nil {
		return f.contents.refuseTail(f.member, tail)
	}
	return nil
}

// newestSegment is the path of the last segment.
func (m *member) newestSegment() string {
	segments := m.segments()
	return m.segment(segments[len(segments)-1])
}

// refuseTail is an error if the log's tail proves that etcd would drop what was acknowledged, or ends before the database.
//
// In the second case a member that is alone would drop what is proposed until the log is as long again; it has been
// damaged, because such a member applies an entry only after its log was flushed. Of several members it need not be
// damage. A follower of etcd 3.6 hands an entry that it learns of together with its commitment to the database while its
// log is still being written (raftNode.start; etcd 3.5.5 and later wait). After a power loss at the right moment its
// database is ahead. Such a member has not acknowledged what its log lacks and would do no harm. But its disk looks just
// as after damage, and then it has acknowledged to a leader what it does not have any more, and would help to elect one
// that does not have it either. So both are refused, and have the same way out. That loses neither data nor the
// quorum: an entry is committed because a majority of logs has it already, so that only a minority can be without.
func (c contents) refuseTail(m *member, tail *history) error {
	switch {
	case tail.breach.proven(c.single36()):
		return lostTail.because(m.newestSegment(), tail.breach.at, tail.breach.last, tail.breach.commitment(), c.applied)
	case tail.last < c.applied && c.voters() > 1:
		return shortFollower.because(m.wal.path, tail.last, len(c.members), c.applied)
	case tail.last < c.applied:
		return shortLog.because(m.wal.path, tail.last, c.applied)
	}
	return nil
}

// voters is how many members have a vote.
func (c contents) voters() (voters int) {
	for _, member := range c.members {
		var of membership.Member
		if err := json.Unmarshal(member, &of); err != nil || !of.IsLearner {
			voters++
		}
	}
	return voters
}
