package writer

import (
	"errors"
	"fmt"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/writer/capture"
)

// surpassed tells whether the chain has all rows of a closed etcd, and another member has gone on with it, which then has to see to
// what is beside the rows: that member's leases and users are newer.
func (s *Shipper) surpassed(head archive.Head) bool {
	by := head.Revision() - s.options.Etcd.Revision()
	return s.options.Reconciled && (by > 0 || by == 0 && head.Writer() != s.options.Etcd.MemberID()) || s.options.SegmentsOnly && by >= 0
}

// tooFarAhead notices that the chain has revisions that this member doesn't. A follower may be slow; a leader that stays so
// runs on data that is older than its backups.
func (s *Shipper) tooFarAhead(head archive.Head) bool {
	s.revision = s.options.Etcd.Revision()
	if head.Empty() || head.Revision() <= s.revision {
		s.ahead = time.Time{}
		return false
	}
	if s.ahead.IsZero() {
		s.ahead = time.Now()
	}
	s.patience = time.Now().Add(time.Second)
	if s.leads && time.Since(s.ahead) > s.pace.ahead {
		s.goAstray()
		s.mustNot(fmt.Sprintf("%s has backups up to revision %d of cluster %s, and etcd's data ends at revision %d: it is older than its backups, as after its volume was rolled back; restore the newest backup, or point --backup-store at another place",
			s.archive, head.Revision(), head.Cluster, s.revision))
	}
	return true
}

// onTheWay tells whether the chain is of the history that this member's data are of. That both have one cluster id says little: etcd
// computes it of the configuration, so two clusters of one configuration have the same, and so have data that were put back. But a
// revision has the same rows for ever, so those of the last one in the store are compared with this member's own.
//
// Where etcd has compacted these, as it does while a store is away for long, the data must have been on the way before, as far
// as that is remembered beside them. Older rows that are left would not do instead: clusters that were set up alike have
// the same, and whoever writes what is encrypted cannot read it. A member that looked before there was a chain has seen it begin.
func (s *Shipper) onTheWay(head archive.Head) bool {
	s.strange = false
	if head.Empty() && head.PastEnd.IsZero() {
		return true
	}
	compared, same, err := s.compare(head.Start)
	if err == nil && same && head.Segment != nil {
		same, err = s.alike(*head.Segment)
	}
	switch {
	case err != nil:
		s.failed(aboutLook, "cannot compare etcd's data with its backups", err)
		return false
	case compared && !same:
		s.goAstray()
		s.mustNot(fmt.Sprintf("revision %d in %s is not the one in etcd's data, though both are cluster %s's: the data took another way than its backups, as after its volume was rolled back; restore the newest backup, or point --backup-store at another place",
			head.Revision(), s.archive, head.Cluster))
		return false
	case !compared && !s.looked.young && !s.cameAlong():
		return s.stranger(head)
	}
	s.goAlong()
	return true
}

// stranger is for data of which it cannot be told whether the chain is theirs. Whoever writes must not; others may watch.
func (s *Shipper) stranger(head archive.Head) bool {
	s.strange = true
	if s.writes() {
		s.mustNot(fmt.Sprintf("%s may have the backups of another cluster of the same configuration, since both have the id %s: they end with revision %d, which cannot be compared with etcd's data any more, and these were not seen to go with them before; point --backup-store at another place, or, if you know that they are of this cluster, write %s into %s",
			s.archive, s.generation.Cluster, max(0, head.Revision()), wayOf(s.generation), s.options.WayFile))
	}
	return !s.foreign
}

// compare compares the last rows of a chain with etcd's. They cannot be compared if the chain tells nothing of them, or if they differ
// and etcd may have compacted some. Every history begins without any: a chain that has none is of data that have none, either, and says
// nothing about others.
func (s *Shipper) compare(end segment.Start) (compared, same bool, err error) {
	if end.Last == (segment.Digest{}) {
		none := end.Position.Revision == segment.After(1).Revision && s.options.Etcd.Revision() == 1
		return none, none, nil
	}
	own, whole, err := s.digest(end.Position.Revision - 1)
	same = err == nil && own == end.Last
	return same || err == nil && whole, same, err
}

// alike compares all rows of a segment with etcd's, as far as these are not compacted: clusters that do the same may have a last revision
// that is the same.
func (s *Shipper) alike(with segment.Manifest) (bool, error) {
	chain := segment.Continue(with.Before, with.Position)
	for more := true; more; {
		rows, err := s.reader.Since(capture.Request{From: chain.Revision() + 1, UpTo: with.End, Limit: chunk})
		var gap *capture.GapError
		if errors.As(err, &gap) {
			return true, nil
		}
		for _, row := range rows.Rows {
			if err == nil {
				err = chain.Add(row)
			}
		}
		if err != nil {
			return false, err
		}
		more = rows.More
	}
	own, _ := chain.End()
	return own == with.After, nil
}

// digest is that of the rows of a revision, as far as they are left, and tells whether all are.
func (s *Shipper) digest(revision int64) (own segment.Digest, whole bool, err error) {
	rows, whole, err := s.reader.Left(revision)
	chain := segment.Continue(segment.Digest{}, segment.Position{Revision: revision})
	for _, row := range rows {
		if err == nil {
			err = chain.Add(row)
		}
	}
	_, own = chain.End()
	return own, whole, err
}
