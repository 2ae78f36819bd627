package writer

import "time"

// publish makes facts of what is known now.
func (s *Shipper) publish() {
	facts := s.statistic
	facts.Role = s.role()
	if s.archive != nil {
		facts.Store = s.archive.String()
	}
	facts.Cluster, facts.Generation = s.options.Etcd.ClusterID(), s.generation.Number
	facts.Revision, facts.NextFull, facts.CreateIfAbsent = s.revision, s.nextFull, s.abilities.CreateIfAbsent
	facts.SpoolLimit, facts.SpoolSegments = s.spool.Limit(), len(s.waiting)
	for _, waiting := range s.waiting {
		facts.SpoolBytes += waiting.size
	}
	if !s.stored.IsZero() {
		facts.Stored = s.stored.Revision - 1
	}
	if facts.Role != Watching {
		facts.Behind, facts.BehindFor = max(0, s.revision-facts.Stored), s.behindFor()
	}
	facts.Trouble = s.troubleNow()
	if s.full != nil {
		facts.FullRunning = s.full.running()
	}
	s.facts.Store(&facts)
}

func (f *full) running() *Running {
	is := &Running{Reason: f.asked[0].reason, Since: f.since, Doing: f.doing}
	if f.copied != nil {
		is.Sent, is.Of = f.copied.sent.Load(), f.copied.size
	}
	if f.storing && is.Sent > 0 {
		is.Left = time.Duration(float64(time.Since(f.tried)) * float64(is.Of-is.Sent) / float64(is.Sent))
	}
	return is
}

func (s *Shipper) role() Role {
	switch {
	case s.foreign, s.strange, s.generation.Number == 0 && s.tail == nil:
		return Unknown
	case s.writes():
		return Writing
	default:
		return Watching
	}
}

// behindFor is how long the oldest change that is not in the store has been waiting.
func (s *Shipper) behindFor() time.Duration {
	switch {
	case len(s.waiting) > 0:
		return time.Since(s.waiting[0].since)
	case s.statistic.Broken != nil:
		return max(0, s.options.Now().Sub(s.statistic.Broken.Since))
	case len(s.markers) > 0:
		return time.Since(s.markers[0].seen)
	default:
		return 0
	}
}
