package writer

import (
	"context"
	"errors"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store"
)

// lookPatience is how long it may take to find out where the chain ends.
const lookPatience = 2 * time.Minute

// watched is what a member that watches saw last.
type watched struct {
	at      time.Time
	young   bool      // there was no chain yet
	counted time.Time // when it was last so, as far as it counts
	behind  bool      // the chain had less than this member's data
	times   int       // how often in a row it was so and had not grown, or was not there
}

// look finds out where the chain ends, if that is not known well enough.
func (s *Shipper) look(ctx context.Context) {
	if !s.may() || !s.mustLook() {
		return
	}
	s.ask()
	known := found{
		archive: s.archive, abilities: s.abilities, generation: s.generation,
		vet: time.Since(s.vetted) >= s.pace.knows, known: end{last: s.last, full: s.newest},
	}
	cluster, begins, now, open := s.options.Etcd.ClusterID(), (s.leads || s.tookOver) && !s.options.SegmentsOnly, s.options.Now(), s.options.Open
	s.job(func() func() {
		ctx, cancel := context.WithTimeout(ctx, lookPatience)
		defer cancel()
		seen, err := known.find(ctx, open, cluster, begins, now)
		return func() { s.saw(seen, err) }
	})
}

func (s *Shipper) mustLook() bool {
	switch {
	case s.full.begins():
		return false // the chain that it begins is not there to be seen
	case s.generation.Number == 0, s.stale:
		return true
	case s.writes() && s.tail == nil && !s.chainless:
		return true
	case !s.leads && time.Since(s.looked.at) >= s.lookInterval():
		return true
	default: // also where nothing changes: another cluster may have begun in a store that was emptied
		return !s.knows()
	}
}

// watchInterval is how often a member that does not lead looks whether the chain grows.
func (s *Shipper) watchInterval() time.Duration {
	return max(10*s.options.Interval, s.pace.watch)
}

// lookInterval is shorter where there is no chain yet: the sooner it is seen, the sooner it is known to be the one that etcd's data go
// with. Should this member lead when its rows are compacted, nothing would show that any more.
func (s *Shipper) lookInterval() time.Duration {
	if s.looked.young {
		return s.pace.young
	}
	return s.watchInterval()
}

// sawNone is for a member that does not lead, as long as nobody has begun a chain.
func (s *Shipper) sawNone() {
	s.looked.young = true
	if time.Since(s.looked.counted) >= s.watchInterval() {
		s.looked.times++
		s.looked.counted = time.Now()
	}
	s.takeOver(stalledAtBirth)
}

// saw goes on from what a look showed.
func (s *Shipper) saw(seen found, err error) {
	s.busy = false
	s.looked.at = time.Now()
	if seen.archive != nil {
		s.archive = seen.archive
	}
	switch {
	case errors.Is(err, archive.ErrForeign):
		s.mustNot(err.Error() + "; point --backup-store at another place, or restore from this one")
	case errors.Is(err, archive.ErrUnsigned):
		s.mustNot(err.Error() + "; give it, or point --backup-store at another place")
	case errors.Is(err, store.ErrNotFound) && s.options.SegmentsOnly:
		s.left = &brought{ErrNoChain}
	case errors.Is(err, store.ErrNotFound) && !s.leads && seen.generation.Number == 0:
		s.patience = time.Now().Add(s.pace.young)
		s.sawNone()
	case errors.Is(err, errSuperseded):
		s.mustNot(err.Error())
	case s.full.begins() && (err == nil || !seen.head.PastEnd.IsZero()):
		// it began before the chain did that is about to be stored
	case errors.Is(err, seal.ErrDamaged) && !seen.head.PastEnd.IsZero():
		s.identified(seen)
		s.abandon(seen.head, err)
	case err != nil:
		s.failed(aboutLook, "cannot find out what the store has", err)
	default:
		s.identified(seen)
		s.reconcile(seen.head)
	}
}

func (s *Shipper) identified(seen found) {
	if s.generation.Number == 0 {
		s.options.Log.Info().Str("store", seen.archive.String()).Int("generation", seen.generation.Number).
			Msg("backups: " + seen.abilities.String())
	}
	if seen.vet {
		s.vetted = time.Now()
	}
	s.abilities, s.generation, s.foreign = seen.abilities, seen.generation, false
}

// mustNot says why nothing may be written to the store. That is looked at again once in a while.
func (s *Shipper) mustNot(sentence string) {
	t := s.trouble(aboutLook)
	if t.text != sentence {
		s.options.Log.Error().Msg("backups: " + sentence)
	}
	t.text, t.next = sentence, s.options.Now().Add(s.pace.foreign)
	s.generation, s.foreign, s.patience = archive.Generation{}, true, time.Now().Add(s.pace.foreign)
}

// reconcile compares the end of the chain with this member's data and with what waits in the spool, and goes on from there.
func (s *Shipper) reconcile(head archive.Head) {
	if head.Empty() && !s.stored.IsZero() {
		s.beginAnew()
		return
	}
	s.heed(head)
	s.observe()
	grew := s.stored.Compare(head.Position) < 0 && !head.Empty()
	switch {
	case !head.Empty() && s.surpassed(head):
		s.left = &brought{ErrRowsOnly}
		return
	case s.tooFarAhead(head):
		return
	case !s.onTheWay(head):
		return
	}
	s.succeeded(aboutLook)
	s.watchGrowth(head, grew)
	s.stale = false
	s.remember(head)
	if head.Empty() {
		s.discard()              // it goes on from a full that is not there
		s.lastTime = time.Time{} // that of another history, whose clock may have been ahead
		s.startChain("there was no full yet")
		return
	}
	s.beyond = segment.Position{}
	s.align(head)
	s.replace(head.Newer)
}

// remember keeps when the chain was last extended, and when the next full is due.
func (s *Shipper) remember(head archive.Head) {
	s.stored, s.storedAt, s.newest, s.last = head.Position, time.Now(), "", segment.Position{}
	var last time.Time
	if head.Segment != nil {
		s.last = head.Segment.Position
		s.lastTime = later(s.lastTime, head.Segment.To)
	}
	if head.Full != nil {
		last, s.newest, s.checked = head.Full.Time, head.Full.Name(), s.storedAt
		s.lastTime = later(s.lastTime, last)
	}
	if !last.IsZero() {
		s.plan(last)
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
