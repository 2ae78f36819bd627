package writer

import (
	"errors"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/writer/capture"
)

// startChain has a full made, since there is no chain to go on with.
func (s *Shipper) startChain(reason string) {
	if s.options.SegmentsOnly {
		s.left = &brought{ErrNoChain}
		return
	}
	if !s.writes() || s.chainless {
		return
	}
	s.tail, s.markers, s.gap, s.chainless = nil, nil, noGap, true
	s.statistic.Broken = &Broken{Since: s.options.Now(), Reason: reason}
	s.fullsDue = append([]due{{reason: reason}}, s.fullsDue...)
	for i := range s.flushes {
		s.flushes[i].target = segment.Position{} // was one of the chain that ends
	}
}

// gapped notes that rows behind the tail may be missing. Unless another member extends the chain meanwhile, it ends.
func (s *Shipper) gapped(found *capture.GapError) {
	if s.gap.at.IsZero() {
		s.gap, s.stale = gap{at: time.Now(), err: found}, true
		return
	}
	patience := s.pace.gap
	if s.tookOver {
		patience *= guest // the leader may be about to store its own full
	}
	if time.Since(s.gap.at) < patience || len(s.waiting) > 0 || time.Now().Before(s.rested) {
		return
	}
	if !s.storedAt.After(s.gap.at) || time.Since(s.storedAt) > 2*s.pace.gap {
		s.stale = true
		return
	}
	reason := "gap: " + found.Error()
	s.options.Log.Warn().Msgf("backups: %s, so what comes behind it cannot be added to the backups before; a full is made", found)
	s.startChain(reason)
}

// abandon leaves a chain alone whose end is damaged, since nobody can go on from there: a full begins another one behind it.
func (s *Shipper) abandon(head archive.Head, why error) {
	if s.revision = s.options.Etcd.Revision(); !s.writes() || head.PastEnd.Revision > s.revision+1 {
		s.failed(aboutLook, "cannot go on from what the store has", why)
		return
	}
	if !s.onTheWay(head) {
		return
	}
	s.succeeded(aboutLook)
	s.stale, s.storedAt, s.beyond = false, time.Now(), head.PastEnd
	if s.chainless {
		return
	}
	s.options.Log.Error().Err(why).Msg("backups: the end of the chain is damaged, and stays as it is; a full begins another chain")
	s.discard()
	s.startChain("damaged: " + why.Error())
}

// replace has a full made within the chain in the place of a damaged one, once: nobody could begin with that.
func (s *Shipper) replace(damaged error) {
	if !errors.Is(damaged, seal.ErrDamaged) || damaged.Error() == s.replaced || !s.writes() || len(s.flushes) > 0 {
		return
	}
	s.replaced = damaged.Error()
	s.options.Log.Error().Err(damaged).Msg("backups: the newest full is damaged, and stays as it is; another one is made")
	s.askForFull(due{reason: "damaged: " + s.replaced})
}
