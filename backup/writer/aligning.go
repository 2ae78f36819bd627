package writer

import (
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/writer/spool"
)

// align takes up what waits in the spool, if it goes on from the head; otherwise the database is captured again from there.
func (s *Shipper) align(head archive.Head) {
	if s.aligned(head) {
		return
	}
	s.held, s.markers, s.gap = nil, nil, noGap
	s.tail, s.chainless = nil, false
	if f := s.full; f != nil && !f.storing && f.Next != head.Position {
		f.adrift = true
	}
	if s.takeUp(head) {
		return
	}
	s.discard()
	if s.writes() {
		start := head.Start
		s.tail = &start
		s.retake()
	}
}

// retake has the small buckets read again: nothing is known of what the chain has of them.
func (s *Shipper) retake() { s.buckets, s.hashes, s.applied, s.bucketsAfter = nil, nil, 0, time.Time{} }

// aligned tells whether what waits, or else the tail, goes on from the head already.
func (s *Shipper) aligned(head archive.Head) bool {
	switch {
	case s.tail == nil || s.tail.Generation != head.Generation || s.tail.Cluster != head.Cluster:
		return false
	case len(s.waiting) > 0:
		return s.waiting[0].position == head.Position && s.waiting[0].before == head.Before
	default:
		return s.tail.Position == head.Position && s.tail.Before == head.Before
	}
}

// takeUp goes on from the segments that wait in the spool, if they follow the head.
func (s *Shipper) takeUp(head archive.Head) bool {
	if err := s.spool.Remove(head.Position); err != nil {
		return false
	}
	first, ok := s.spool.First()
	if !ok || first.Position != head.Position {
		return false
	}
	manifest, err := s.spool.Manifest(first.Position, s.options.Keys)
	if err != nil || manifest.Before != head.Before || manifest.Cluster != head.Cluster || manifest.Generation != head.Generation ||
		head.Outdates(manifest) {
		return false
	}
	return s.queue()
}

// queue makes everything in the spool wait to be stored, and its end the tail.
func (s *Shipper) queue() bool {
	s.waiting = nil
	for _, entry := range s.spool.Entries() {
		s.waiting = append(s.waiting, waiting{position: entry.Position, next: entry.Next, size: entry.Size, since: time.Now()})
	}
	last, err := s.spool.Manifest(s.waiting[len(s.waiting)-1].position, s.options.Keys)
	if err != nil {
		s.waiting = nil
		return false
	}
	first, err := s.spool.Manifest(s.waiting[0].position, s.options.Keys)
	if err != nil {
		s.waiting = nil
		return false
	}
	s.waiting[0].before, s.last = first.Before, first.Position // the store may have it
	if !first.From.IsZero() {
		s.waiting[0].since = time.Now().Add(-max(0, s.options.Now().Sub(first.From)))
	}
	tail := last.Start()
	s.tail, s.lastTime = &tail, later(s.lastTime, last.To)
	s.retake()
	return true
}

// resume goes on from what an earlier process left in the spool, as far as that fits etcd's data, so that etcd's compactions
// leave no gap should the store be away. What is of other data is set aside: nobody else may have it.
func (s *Shipper) resume() error {
	if _, ok := s.spool.First(); !ok || !s.queue() {
		return nil
	}
	same, err := s.continues(*s.tail)
	if same && s.tail.Cluster == s.options.Etcd.ClusterID() && s.tail.Position.Revision <= s.options.Etcd.Revision()+1 {
		return nil
	}
	s.tail, s.waiting = nil, nil
	where, failed := s.spool.SetAside(func(spool.Entry) bool { return true })
	if failed == nil {
		s.options.Log.Warn().Err(err).Str("aside", where).Msg("backups: what waited for the store is of other data, and is set aside")
	}
	return failed
}

// continues tells whether etcd's data go on from where a chain ends, be it as is remembered.
func (s *Shipper) continues(end segment.Start) (bool, error) {
	compared, same, err := s.compare(end)
	if err == nil && !compared {
		same, _ = s.went(func(w way) bool { return w.Cluster == end.Cluster && w.Generation == end.Generation })
	}
	return same, err
}

// lead follows etcd's leadership.
func (s *Shipper) lead(leads bool) {
	if leads == s.leads {
		return
	}
	s.leads, s.tookOver = leads, false
	s.looked.times = 0
	if s.well() {
		s.patience = time.Time{}
	}
	s.stale = true // others may have extended the chain meanwhile
}

const (
	// stalled is how often in a row the chain must not have grown, though there was something to add, before a member that
	// does not lead takes over.
	stalled = 2
	// stalledAtBirth is the same where there is no chain yet. Whoever begins one makes a full.
	stalledAtBirth = 6
)

// watchGrowth is for members that don't lead: it takes over, and steps back.
func (s *Shipper) watchGrowth(head archive.Head, grew bool) {
	if s.leads {
		return
	}
	if head.Empty() {
		s.sawNone()
		return
	}
	behind := head.Revision() < s.revision
	switch {
	case grew:
		s.looked.times = 0
		s.stepBack()
	case s.looked.behind && behind:
		s.looked.times++
	default:
		s.looked.times = 0
	}
	s.looked.behind, s.looked.young = behind, false
	s.takeOver(stalled)
}

func (s *Shipper) takeOver(patience int) {
	if s.tookOver || s.leads || s.strange || s.looked.times < patience {
		return
	}
	s.tookOver, s.tail = true, nil
	s.options.Log.Warn().Time("since", s.looked.at).Msg("backups: the leader's have not grown for a while, so this member makes them")
}

// stepBack leaves the chain to whoever else extends it.
func (s *Shipper) stepBack() {
	if !s.tookOver {
		return
	}
	s.tookOver = false
	if len(s.waiting) == 0 {
		s.tail = nil
	}
	s.options.Log.Info().Msg("backups: another member makes them again")
}
