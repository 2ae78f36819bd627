package shipper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/store"
)

// lookPatience is how long it may take to find out where the chain ends.
const lookPatience = 2 * time.Minute

// watched is what a member that watches saw last.
type watched struct {
	at     time.Time
	behind bool // the chain had less than this member's data
	times  int  // how often in a row it was so and had not grown
}

// found is what a look at the store showed.
type found struct {
	archive    *archive.Archive
	abilities  store.Abilities
	generation archive.Generation
	head       archive.Head

	vet bool // whether it is looked for generations that followed
}

// look finds out where the chain ends, if that is not known well enough.
func (s *Shipper) look(ctx context.Context) {
	if !s.may() || !s.mustLook() {
		return
	}
	s.ask()
	known := found{archive: s.archive, abilities: s.abilities, generation: s.generation, vet: s.mustVet()}
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
	case !s.leads && time.Since(s.looked.at) >= s.watchInterval():
		return true
	default:
		return !s.knows() && (len(s.waiting) > 0 || len(s.fullsDue) > 0 || s.full != nil)
	}
}

// mustVet tells whether it was not looked lately for a cluster that was restored from this one's backups.
func (s *Shipper) mustVet() bool { return time.Since(s.vetted) >= s.pace.knows }

// watchInterval is how often a member that does not lead looks whether the chain grows.
func (s *Shipper) watchInterval() time.Duration {
	return max(10*s.options.Interval, s.pace.watch)
}

// find asks the store for what is not known yet, and for the head in any case. It begins the history of a store that has none
// if this is the member to do so.
func (f found) find(ctx context.Context, open func(context.Context) (*archive.Archive, error), cluster string, begin bool, at time.Time) (found, error) {
	var err error
	if f.archive == nil {
		if f.archive, err = open(ctx); err != nil {
			return found{}, err
		}
	}
	if f.generation.Number == 0 {
		if err := f.identify(ctx, cluster, begin, at); err != nil {
			return f, err
		}
	} else if f.vet {
		if err := f.superseded(ctx); err != nil && !errors.Is(err, store.ErrNotFound) { // an emptied store has no head, either
			return f, err
		}
	}
	if f.head, err = f.archive.Head(ctx, f.generation.Number); err == nil {
		err = f.head.Damaged
	}
	return f, err
}

func (f *found) identify(ctx context.Context, cluster string, begin bool, at time.Time) (err error) {
	if begin {
		f.generation, err = f.archive.Found(ctx, cluster, at)
	} else {
		f.generation, err = f.begun(ctx, cluster)
	}
	if err != nil {
		f.generation = archive.Generation{}
		return err
	}
	if err := f.superseded(ctx); err != nil {
		f.generation = archive.Generation{}
		return err
	}
	f.vet = true
	f.abilities, err = store.Probe(ctx, f.archive.Store())
	return err
}

// superseded says that a cluster was restored from this one's backups, and goes on with them. store.ErrNotFound says that there is no
// generation at all.
func (f *found) superseded(ctx context.Context) error {
	generations, err := f.archive.Generations(ctx)
	if err != nil {
		return err
	}
	if len(generations) == 0 {
		return fmt.Errorf("%w: every generation, while the store is emptied", store.ErrNotFound)
	}
	newest := generations[len(generations)-1]
	if newest.Number <= f.generation.Number {
		return nil
	}
	return fmt.Errorf("%w: this is cluster %s of generation %d, and %s went on with generation %d of cluster %s, which was restored from it; stop this cluster, or point --backup-store at another place",
		errSuperseded, f.generation.Cluster, f.generation.Number, f.archive, newest.Number, newest.Cluster)
}

// begun is the generation that another member has begun. store.ErrNotFound says that none has; between the birth certificate and
// the first generation is an instant at which somebody may have died.
func (f *found) begun(ctx context.Context, cluster string) (archive.Generation, error) {
	generation, err := f.archive.GenerationOf(ctx, cluster)
	if !errors.Is(err, archive.ErrForeign) {
		return generation, err
	}
	if certificate, failed := f.archive.Cluster(ctx); failed == nil && certificate.Cluster == cluster {
		return generation, fmt.Errorf("%w: the first generation of cluster %s", store.ErrNotFound, cluster)
	}
	return generation, err
}

// errSuperseded says that a restore took the place of this cluster.
var errSuperseded = errors.New("backups of this cluster have ended")

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
	case errors.Is(err, store.ErrNotFound) && s.options.SegmentsOnly:
		s.left = &brought{ErrNoChain}
	case errors.Is(err, store.ErrNotFound) && !s.leads && seen.generation.Number == 0:
		s.patience = time.Now().Add(s.watchInterval())
		s.looked.times++ // the leader has not begun yet
		s.takeOver(stalledAtBirth)
	case errors.Is(err, errSuperseded):
		s.mustNot(err.Error())
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
	grew := s.stored.Compare(head.Position) < 0 && !head.Empty()
	switch {
	case !head.Empty() && s.surpassed(head.Revision()-s.options.Etcd.Revision()):
		s.left = &brought{} // whoever wrote it has also seen to what is beside the rows
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
		s.discard() // it goes on from a full that is not there
		s.startChain("there was no full yet")
		return
	}
	s.align(head)
}

// remember keeps when the chain was last extended, and when the next full is due.
func (s *Shipper) remember(head archive.Head) {
	s.stored, s.storedAt, s.newest = head.Position, time.Now(), ""
	var last time.Time
	if head.Segment != nil {
		s.lastTime = later(s.lastTime, head.Segment.To)
	}
	if head.Full != nil {
		last, s.newest = head.Full.Time, head.Full.Name()
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
