package writer

import (
	"time"

	"etcd-wrapper/backup/archive"
)

// fence is what a leader wrote that came after this member's term. Rows have their place in the chain by their revisions, but leases
// and users change without one, so whoever has no more rows than the chain may have older ones of these.
type fence struct {
	term     uint64
	revision int64
	since    time.Time
}

// heed notes who wrote the end of the chain.
func (s *Shipper) heed(head archive.Head) {
	if term := head.Term(); term > s.fence.term {
		s.fence = fence{term: term, since: time.Now()}
	}
	s.fence.revision = head.Revision()
}

// outdated tells whether the leases and users of a member that has applied raft's log up to an index are older than those that the chain
// has: it lags, and has nothing to tell of them until it does no longer. Whoever leads has soon applied all there is; if not, its data were
// put back.
func (s *Shipper) outdated(applied uint64) bool {
	if s.tail == nil || applied >= s.tail.Applied {
		s.lags = time.Time{}
		return false
	}
	if s.lags.IsZero() {
		s.lags = time.Now()
	}
	return !s.leads || time.Since(s.lags) < s.pace.ahead
}

// deposed tells whether a later leader than this one has written to the chain. A member that was paused believes for a moment that it
// leads still, until it hears from the others. Whoever hears of nobody runs on data that were put back.
func (s *Shipper) deposed() bool {
	return s.options.Etcd.Term() < s.fence.term && s.options.Etcd.Revision() <= s.fence.revision && time.Since(s.fence.since) < s.pace.ahead
}
