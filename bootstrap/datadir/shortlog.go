package datadir

import "errors"

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

// refuseTail is an error if the log's tail proves that etcd would drop what was acknowledged, or ends before the database. In
// the second case a member that is alone would drop what is proposed until the log is as long again. Another one may have
// acknowledged to a leader what it does not have any more, and help to elect one that does not have it either.
func (c contents) refuseTail(m *member, tail *history) error {
	switch {
	case tail.breach.proven(c.single36()):
		return lostTail.because(m.newestSegment(), tail.breach.at, tail.breach.last, tail.breach.commitment(), c.applied)
	case tail.last < c.applied:
		return shortLog.because(m.wal.path, tail.last, c.applied)
	}
	return nil
}
