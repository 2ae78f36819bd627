package writer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/backup/store"
)

const (
	// lookPatience is how long it may take to find out where the chain ends.
	lookPatience = 2 * time.Minute
	// stalls is how many looks in a row the chain must not have grown, though there was something to add, before a member that
	// does not lead takes over, and stallsAtFirst the same where there is no chain yet: to begin one takes a full snapshot.
	stalls        = 2
	stallsAtFirst = 6
)

// look finds out where the chain ends, if it is time.
func (w *Writer) look(ctx context.Context) {
	if !w.mayAsk() || (w.core.State == watching || w.core.State == writing) && time.Since(w.remote.looked.at) < w.watchInterval() {
		return
	}
	w.remote.asked = time.Now()
	seen := found{
		Options: w.options, begins: (w.core.Facts.leads || w.core.Facts.guest) && !w.options.SegmentsOnly,
		abilities: w.remote.abilities, generation: w.remote.generation, own: w.identity,
		vet: time.Since(w.remote.vetted) >= w.pace.vet, last: w.remote.last, full: w.remote.newest,
	}
	if time.Since(w.remote.checkpointAt) < archive.Grace { // later it may have been merged and deleted
		seen.checkpoint = w.remote.checkpoint
	}
	if w.core.State == watching && !seen.vet && time.Since(w.remote.looked.at) < w.pace.knows {
		seen.known, seen.wanted = w.remote.looked.head, w.revision
	}
	w.job(ctx, lookPatience, func(patient context.Context) func() {
		seen, err := seen.find(patient)
		return func() { w.saw(ctx, seen, err) }
	})
}

// mayAsk tells whether the store may be asked about the chain now.
func (w *Writer) mayAsk() bool { return w.remote.asked.IsZero() && !time.Now().Before(w.remote.after) }

func (w *Writer) askAgainIn(wait time.Duration) { w.remote.after = time.Now().Add(wait) }

// lookSoon is for a change of leadership: what counts begins anew, and is looked at unless the store is in trouble.
func (w *Writer) lookSoon() {
	w.remote.looked.times = 0
	if w.well() {
		w.remote.after = time.Time{}
	}
}

// watchInterval is how often a member that does not lead looks whether the chain grows.
func (w *Writer) watchInterval() time.Duration {
	return max(10*w.options.Interval, w.pace.watch)
}

// settled tells whether the end of the chain is known well enough to go on from there.
func (w *Writer) settled() bool {
	return slices.Contains(settled, w.core.State) && time.Since(w.remote.storedAt) < w.pace.knows
}

// saw has the table answer what a look showed.
func (w *Writer) saw(ctx context.Context, seen found, err error) {
	w.remote.asked = time.Time{}
	w.remote.looked.at, w.remote.looked.head = time.Now(), archive.Head{}
	nothing := errors.Is(err, store.ErrNotFound)
	damaged := archive.NotVerified(err) && !seen.head.PastEnd.IsZero() // the end is, and not the store
	switch {
	case errors.Is(err, archive.ErrForeign) && !damaged:
		wayOut := relation.OtherCluster.WayOut()
		if !seen.own.Known() {
			wayOut = "start the member again now that the store answers; or, " + relation.Unclaimed.WayOut()
		}
		w.take(ctx, refused, payload{err: fmt.Errorf("%w; %s", err, wayOut)})
	case errors.Is(err, archive.ErrUnsigned):
		w.take(ctx, refused, payload{err: fmt.Errorf("%w; give it, or point --backup-store at another place", err)})
	case errors.Is(err, ErrSucceeded):
		w.take(ctx, succeeded, payload{err: w.successor(seen.newest)})
	case err == nil && seen.head.Ending() != nil:
		w.take(ctx, succeeded, payload{err: w.successor(seen.head.Ending().Successor)})
	case nothing && (w.options.SegmentsOnly || !w.core.Facts.leads && seen.generation.Number == 0):
		w.askAgainIn(w.pace.young)
		w.take(ctx, nothingBegun, payload{err: ErrNoChain})
	case err != nil && !damaged:
		w.failed(aboutLook, "cannot find out what the store has", err)
	case w.core.State == beginning:
		// the look began before the chain did that is about to be stored
	default:
		if w.remote.generation.Number == 0 {
			w.options.Log.Info().Stringer("store", w.options.Archive).Str("cluster", seen.generation.Cluster).Str("owner", seen.generation.Owner).
				Int("generation", seen.generation.Number).Msg("backups: " + seen.abilities.String())
		}
		if seen.vet {
			w.remote.vetted = time.Now()
		}
		w.identity, w.remote.abilities, w.remote.generation = seen.own, seen.abilities, seen.generation
		if !seen.lost.IsZero() {
			w.remote.lost = seen.lost
		}
		w.observe(ctx)
		w.compared(ctx, seen.head, err)
	}
}

// compared compares the end of the chain with this member's data.
func (w *Writer) compared(ctx context.Context, head archive.Head, damaged error) {
	is := payload{head: head, creates: w.remote.abilities.CreateIfAbsent, err: damaged}
	if head.Empty() && damaged == nil && !w.remote.stored.IsZero() {
		w.take(ctx, emptied, is)
		return
	}
	if damaged == nil {
		w.heed(head)
		w.observe(ctx)
	}
	extends := w.core.Facts.Learn(chainFound, is).ours()
	switch {
	case damaged != nil && (!extends || head.PastEnd.Revision > w.revision+1):
		w.failed(aboutLook, "cannot go on from what the store has", damaged)
		if !extends {
			w.take(ctx, endDamaged, is)
		}
		return
	case damaged == nil && !head.Empty() && w.surpassed(head):
		w.take(ctx, surpassed, payload{err: ErrRowsOnly})
		return
	case damaged == nil && w.lags(ctx, head), !w.related(ctx, head):
		return
	}
	w.succeeded(aboutLook)
	switch {
	case damaged != nil:
		w.take(ctx, endDamaged, is)
	case head.Empty():
		is.err = errors.New("there was no full yet")
		w.take(ctx, noChain, is)
	default:
		is.grew = !w.core.Facts.leads && w.remote.stored.Compare(head.Position) < 0
		if is.grew && w.core.Facts.guest {
			w.options.Log.Info().Msg("backups: another member makes them again")
		}
		w.take(ctx, chainFound, is)
	}
}

// surpassed tells whether the chain has all rows of a closed etcd, and another member has gone on with it, which then has to see to
// what is beside the rows: that member's leases and users are newer.
func (w *Writer) surpassed(head archive.Head) bool {
	by := head.Revision() - w.options.Etcd.Revision()
	return w.options.Reconciled && (by > 0 || by == 0 && head.Newest().Member != w.options.Etcd.Identity().MemberID) || w.options.SegmentsOnly && by >= 0
}

// lags tells whether the chain has revisions that this member has not. A follower may be slow. A leader that stays so, or a member that
// is alone, runs on data that are older than its backups: another copy of them has written these.
func (w *Writer) lags(ctx context.Context, head archive.Head) bool {
	if w.relation(head, relation.NotCompared) != relation.Behind {
		w.remote.ahead = time.Time{}
		return false
	}
	if w.remote.ahead.IsZero() {
		w.remote.ahead = time.Now()
	}
	if !w.core.Facts.leads || time.Since(w.remote.ahead) <= w.pace.ahead && w.options.Etcd.Members() > 1 {
		w.take(ctx, storeAhead, payload{head: head})
		return true
	}
	w.take(ctx, succeeded, payload{err: w.otherCopy(head, fmt.Sprintf("etcd's data end at revision %d", w.revision))})
	return true
}

// heed notes who wrote the end of the chain.
func (w *Writer) heed(head archive.Head) {
	if term := head.Newest().Term; term > w.remote.fence.term {
		w.remote.fence = fence{term: term, since: time.Now()}
	}
	w.remote.fence.revision = head.Revision()
}

// deposed tells whether a later leader than this one has written to the chain. A member that was paused believes for a moment that it
// leads still, until it hears from the others. One that hears of nobody runs on data that were rolled back.
func (w *Writer) deposed() bool {
	fence := w.remote.fence
	return w.options.Etcd.Identity().Term < fence.term && w.options.Etcd.Revision() <= fence.revision && time.Since(fence.since) < w.pace.ahead
}

// goOn goes on from the end that was found.
func (w *Writer) goOn(is payload) {
	if !w.core.Facts.leads {
		w.watchGrowth(is.head, is.grew)
		w.remote.looked.head = is.head
	}
	w.remember(is.head)
	w.remote.beyond = format.Position{}
	w.statistic.Broken = nil
	w.align(is.head)
	w.replace(is.head.Newer)
	w.closeHole(is.head)
}

// watchGrowth counts how often the chain has not grown though this member has something to add.
func (w *Writer) watchGrowth(head archive.Head, grew bool) {
	seen := &w.remote.looked
	lacks := head.Revision() < w.revision
	if grew || !lacks || !seen.behind {
		seen.times = 0
	} else {
		seen.times++
	}
	seen.behind = lacks
	w.silence(stalls)
}

// countSilence counts how often nobody had begun a chain.
func (w *Writer) countSilence() {
	seen := &w.remote.looked
	if time.Since(seen.counted) >= w.watchInterval() {
		seen.times++
		seen.counted = time.Now()
	}
	w.silence(stallsAtFirst)
}

func (w *Writer) silence(patience int) {
	if is := w.core.Facts; !is.guest && !is.leads && w.remote.looked.times >= patience && (w.core.State == watching || w.core.State == unknown) {
		w.post(stalled, payload{})
	}
}

// tellRefused tells once why nothing may be written.
func (w *Writer) tellRefused(why error) *trouble {
	t := w.trouble(aboutLook)
	if t.Message != why.Error() {
		w.options.Log.Error().Msg("backups: " + why.Error())
	}
	t.Message = why.Error()
	return t
}

func (w *Writer) takeOver() {
	w.chain.tail, w.remote.after = nil, time.Time{}
	w.options.Log.Warn().Time("since", w.remote.looked.at).Msg("backups: those of the leader have not grown for a while, so this member writes them")
}

// remember keeps when the chain was last extended, and when the next full snapshot is due.
func (w *Writer) remember(head archive.Head) {
	is := &w.remote
	if head.Position != is.stored {
		w.fulls.behind = format.Position{}
	}
	is.stored, is.storedAt, is.newest, is.last = head.Position, time.Now(), "", format.Position{}
	if head.Segment != nil {
		is.last = head.Segment.Position
		w.chain.lastTime = archive.Later(w.chain.lastTime, head.Segment.To)
	}
	if head.Full != nil {
		is.newest, is.checked = head.Full.Name(), is.storedAt
		w.chain.lastTime = archive.Later(w.chain.lastTime, head.Full.Time)
		w.plan(head.Full.Time)
	}
}

// clearChain is for a store that has no chain: what waits goes on from a full snapshot that is not there.
func (w *Writer) clearChain() {
	w.remember(archive.Head{})
	if w.remote.link = nil; w.remote.generation.Number > 1 {
		next := archive.Head{}.Next(w.remote.generation)
		w.remote.link = &next
	}
	w.discard()
	w.chain.lastTime = time.Time{} // that of another history, whose clock may have been ahead
}

// forgetStore is for a store that had a chain and has none. Its cluster manifest went with it: it must be written again, or a member
// that loses its volume would take the store for one that was never used.
func (w *Writer) forgetStore() {
	w.options.Log.Warn().Msg("backups: the store was emptied, so they begin anew")
	is := &w.remote
	is.beyond = is.stored // what was stored before that was noticed is left alone
	is.generation, is.stored, is.last, is.newest = archive.Generation{}, format.Position{}, format.Position{}, ""
	w.reserving.revision = 0 // it went as well
}

// refuse says why nothing may be written to the store. That is looked at again once in a while.
func (w *Writer) refuse(why error) {
	w.tellRefused(why).NextRetry = w.options.Now().Add(w.pace.foreign)
	w.remote.generation = archive.Generation{}
	w.askAgainIn(w.pace.foreign)
}

// abandonEnd leaves a chain alone whose end is damaged: a full snapshot begins another one behind it.
func (w *Writer) abandonEnd(is payload) {
	w.remote.storedAt = time.Now()
	if w.remote.beyond != is.head.PastEnd {
		w.options.Log.Error().Err(is.err).Msg("backups: the end of the chain is damaged, and stays as it is; a full begins another chain")
	}
	next := is.head.Next(w.remote.generation)
	w.remote.beyond, w.remote.link = is.head.PastEnd, &next
	w.discard()
	w.openChain("damaged: " + is.err.Error())
}

// findSuccessor checks once in a while whether the generation has ended at its next position: a member that writes nothing meets the end nowhere
// else. A generation.json that follows proves nothing.
func (w *Writer) findSuccessor(ctx context.Context) {
	number, next := w.remote.generation.Number, w.remote.stored
	if link := w.remote.link; link != nil {
		next = link.Position
	}
	if number == 0 || next.IsZero() || time.Since(w.remote.heard) < w.pace.successor {
		return
	}
	w.remote.heard = time.Now()
	w.job(ctx, successorPatience, func(patient context.Context) func() {
		there, err := w.options.Archive.Manifest(patient, number, next)
		if err != nil || there.Ends == nil || there.Cluster != w.identity.Cluster {
			return func() {} // nothing is there, or what the next upload meets
		}
		return func() { w.take(ctx, succeeded, payload{err: w.successor(there.Ends.Successor)}) }
	})
}

// successorPatience is how long that question may take.
const successorPatience = 30 * time.Second

// successor says who goes on.
func (w *Writer) successor(number int) error {
	return fmt.Errorf("%w: generation %d in %s goes on from generation %d of cluster %s; this member has revision %d, and the store had revision %d of it; "+
		"what is only here can be exported from the data directory; to go on with it, point --backup-store at another place",
		ErrSucceeded, number, w.options.Archive, w.identity.Generation, w.identity.Cluster, w.options.Etcd.Revision(), max(0, w.remote.stored.Revision-1))
}

// endHere gives up what is under way, and has etcd closed.
func (w *Writer) endHere(why error) {
	w.tellRefused(why)
	for _, asked := range w.fulls.due {
		asked.tell(fullResult{err: why})
	}
	if w.fulls.due = nil; w.fulls.making != nil {
		w.endFull(fullResult{err: why})
	}
	w.result = why
	w.superseded <- why
}

// finish notes how it ended for a closed etcd.
func (w *Writer) finish(err error) {
	w.result = ErrNoChain
	if errors.Is(err, ErrRowsOnly) {
		w.result = err
	}
}

// found is what a look at the store showed.
type found struct {
	Options    // the writer's
	abilities  store.Capabilities
	generation archive.Generation
	newest     int // generation of the store, if that is a later one
	head       archive.Head

	own    archive.Identity // of etcd's data
	begins bool             // this is the member to begin the history of a store that has none
	known  archive.Head     // that the chain has gone on from, if it has at all; empty if that is not known
	wanted int64            // the revision that it must reach if it has not
	vet    bool             // whether the generation is to be looked at, too
	last   format.Position  // the newest segment that is known; zero if none is
	full   string           // the newest full snapshot that is known; empty if none is

	checkpoint format.Position // a segment that must still be there; zero if there is none
	lost       format.Position // that segment, if it is gone
}

// find asks the store for what is not known yet, and for the head in any case.
func (f found) find(ctx context.Context) (_ found, err error) {
	if f.vet && f.generation.Number != 0 {
		err = f.ours(ctx)
		if errors.Is(err, store.ErrNotFound) {
			f.generation, err = archive.Generation{}, nil // to be begun anew
		}
	}
	if err == nil && f.generation.Number == 0 {
		err = f.identify(ctx)
	}
	if err != nil {
		return f, err
	}
	f.head, err = f.findHead(ctx)
	if archive.NotVerified(err) { // no full snapshot can be verified
		past, failed := f.Archive.PastAll(ctx, f.generation.Number, f.Etcd.Revision())
		if failed != nil {
			return f, failed
		}
		f.head.PastEnd = past
	}
	if !f.head.Empty() && f.head.Cluster != f.generation.Cluster {
		err, f.head = fmt.Errorf("%s is %w: it has backups of cluster %s, and this is %s", f.Archive, archive.ErrForeign, f.head.Cluster, f.generation.Cluster), archive.Head{}
	}
	if err == nil {
		err = f.head.Damaged
	}
	if err == nil {
		err = f.believe(ctx)
	}
	if err == nil && !f.checkpoint.IsZero() {
		if _, err = f.Archive.Manifest(ctx, f.generation.Number, f.checkpoint); archive.Unusable(err) {
			f.lost, err = f.checkpoint, nil
		}
	}
	if err == nil && f.begins && f.head.Unlinked != nil { // its writer has ended in between
		err = f.Archive.Open(ctx, f.generation, *f.head.Full, f.Session)
		if errors.Is(err, archive.ErrMoved) || errors.Is(err, archive.ErrEnded) {
			err = &store.Unavailable{Cause: err} // to be looked at again
		}
	}
	return f, err
}

// findHead lists what there is only where the names of the next segments do not show it: a listing costs a dozen times as much.
func (f *found) findHead(ctx context.Context) (archive.Head, error) {
	if !f.known.Empty() {
		head, err := f.Archive.Advance(ctx, f.known)
		if err == nil && (head.Position != f.known.Position || head.Revision() >= f.wanted) {
			return head, nil
		}
	}
	return f.Archive.Head(ctx, f.generation.Number)
}

func (f *found) identify(ctx context.Context) (err error) {
	if f.generation, err = f.begun(ctx); err == nil {
		err = f.ours(ctx)
	}
	if err != nil {
		f.generation = archive.Generation{}
		return err
	}
	f.abilities, err = store.Probe(ctx, f.Archive.Store())
	return err
}

// begun is the generation that etcd's data are of. Where nobody has founded the store, it is founded if begins is set; otherwise
// store.ErrNotFound says so, as it does in the instant between the cluster manifest and the first generation.
func (f *found) begun(ctx context.Context) (is archive.Generation, err error) {
	there, err := f.Archive.Cluster(ctx)
	if errors.Is(err, store.ErrNotFound) && f.begins {
		there, err = f.found(ctx)
	}
	switch {
	case err != nil:
		return is, err
	case !f.own.Known(), f.own.Cluster != there.Cluster:
		return is, fmt.Errorf("%w: %s", archive.ErrForeign, f.sentence(relation.Store{Cluster: there}))
	}
	is, err = f.Archive.Generation(ctx, f.own.Generation)
	if errors.Is(err, store.ErrNotFound) && f.begins {
		if _, err = f.Archive.Found(ctx, f.manifest(there.Cluster, there.Owner), f.own.Generation); err == nil {
			is, err = f.Archive.Generation(ctx, f.own.Generation)
		}
	}
	if !errors.Is(err, store.ErrNotFound) {
		return is, err
	}
	lineage, err := f.Archive.Lineage(ctx)
	kept := relation.Store{Cluster: there, Generations: lineage.Generations}
	switch {
	case err != nil:
		return is, err
	case len(kept.Generations) == 0:
		return is, fmt.Errorf("%w: the first generation of cluster %s", store.ErrNotFound, there.Cluster)
	case f.judge(kept).Relation == relation.Succeeded:
		f.newest = kept.Newest().Number
		return is, ErrSucceeded
	}
	return is, errors.New(f.sentence(kept) + "; " + relation.Unnumbered.WayOut())
}

// judge answers how the data relate to a store of which the backups themselves were not read.
func (f *found) judge(kept relation.Store) relation.Judgment {
	return relation.Judge(f.data(), kept, false)
}

func (f *found) data() relation.Data {
	return relation.Data{State: relation.Valid, Identity: f.own, Owner: f.Owner, Revision: f.Etcd.Revision()}
}

func (f *found) sentence(kept relation.Store) string {
	return f.judge(kept).Sentence(f.data(), kept, f.Archive.String())
}

// found founds the store. The volume is told first: whatever happens in between, the next start founds it with the same id.
func (f *found) found(ctx context.Context) (archive.Cluster, error) {
	if !f.own.Known() {
		all, err := f.Archive.Generations(ctx)
		if err != nil {
			return archive.Cluster{}, err
		}
		if len(all) > 0 {
			return archive.Cluster{Cluster: all[0].Cluster}, nil
		}
		f.own = archive.Identity{Cluster: archive.NewID(), Generation: 1}
		if err := f.own.Write(f.DataDir); err != nil {
			return archive.Cluster{}, err
		}
	}
	return f.Archive.FoundCluster(ctx, f.manifest(f.own.Cluster, f.Owner))
}

// manifest is that of a cluster, in whose place others may have founded it.
func (f *found) manifest(cluster, owner string) archive.Cluster {
	return archive.Cluster{Cluster: cluster, Owner: owner, Etcd: f.Etcd.Identity().ClusterID, Created: f.Now()}
}

// ours makes sure that the generation is there and this cluster's, and that this process may add to it.
func (f *found) ours(ctx context.Context) error {
	if err := f.Archive.Still(ctx, f.generation); err != nil {
		return err
	}
	return f.Archive.MayAdd(f.generation)
}

// believe makes sure that nothing is missing that is known to be there: stores may list late, or lose a page. No chain begins anew, or
// goes on from an older place, because of that. What is another cluster's by now is gone.
func (f *found) believe(ctx context.Context) error {
	head := f.head
	there := func(cluster string, err error) error {
		if err == nil && cluster != f.generation.Cluster {
			return archive.ErrForeign
		}
		return err
	}
	err, what := error(store.ErrNotFound), ""
	if f.full != "" && (head.Empty() || head.Full.Name() < f.full) {
		full, failed := f.Archive.Full(ctx, f.generation.Number, f.full)
		err, what = there(full.Cluster, failed), "full "+f.full
		if head.Empty() && errors.Is(err, store.ErrNotFound) {
			return nil // whatever was stored since leads nowhere
		}
	}
	if archive.Unusable(err) && head.Position.Compare(f.last) <= 0 {
		segment, failed := f.Archive.Manifest(ctx, f.generation.Number, f.last)
		err, what = there(segment.Cluster, failed), "segment "+f.last.String()
	}
	switch {
	case err == nil:
		return &store.Unavailable{Cause: fmt.Errorf("its listing ends at revision %d, although %s is there", max(0, head.Revision()), what)}
	case archive.Unusable(err):
		return nil
	default:
		return err
	}
}
