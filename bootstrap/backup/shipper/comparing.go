package shipper

import (
	"errors"
	"fmt"
	"time"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/capture"
	"etcd-wrapper/bootstrap/backup/segment"
)

// surpassed tells whether the chain has all rows of a closed etcd, and another member has gone on with it, which then has to see to
// what is beside the rows: that member's leases and users are newer.
func (s *Shipper) surpassed(head archive.Head) bool {
	by, writer := head.Revision()-s.options.Etcd.Revision(), head.Full.Member
	if head.Segment != nil {
		writer = head.Segment.Member
	}
	return s.options.Reconciled && (by > 0 || by == 0 && writer != s.options.Etcd.MemberID()) || s.options.SegmentsOnly && by >= 0
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
		s.mustNot(fmt.Sprintf("%s has backups up to revision %d of cluster %s, and etcd's data ends at revision %d: it is older than its backups, as after its volume was rolled back; restore the newest backup, or point --backup-store at another place",
			s.archive, head.Revision(), head.Cluster, s.revision))
	}
	return true
}

// onTheWay compares the rows of the last revision in the store with this member's own, where it has them still.
func (s *Shipper) onTheWay(head archive.Head) bool {
	if head.Empty() || head.Last == (segment.Digest{}) {
		return true
	}
	same, err := s.has(head.Revision(), head.Last)
	if err != nil {
		s.failed(aboutLook, "cannot compare etcd's data with its backups", err)
		return false
	}
	if !same {
		s.mustNot(fmt.Sprintf("revision %d in %s is not the one in etcd's data, though both are cluster %s's: the data took another way than its backups, as after its volume was rolled back; restore the newest backup, or point --backup-store at another place",
			head.Revision(), s.archive, head.Cluster))
	}
	return same
}

// has compares the rows of a revision with a digest. Rows that were compacted can't be, and count as the same: there is a
// gap then anyway.
func (s *Shipper) has(revision int64, digest segment.Digest) (bool, error) {
	rows, err := s.reader.Since(capture.Request{From: revision, UpTo: revision, Limit: 1})
	var gap *capture.GapError
	if errors.As(err, &gap) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	chain := segment.Continue(segment.Digest{}, segment.Position{Revision: revision})
	for _, row := range rows.Rows {
		if err := chain.Add(row); err != nil {
			return false, err
		}
	}
	_, last := chain.End()
	return last == digest, nil
}
