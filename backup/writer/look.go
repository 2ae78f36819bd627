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
	// inspectTimeout bounds one inspection of the store.
	inspectTimeout = 2 * time.Minute
	// stallLimit is the number of consecutive inspections without growth of the chain after which a member that does
	// not lead, but has something to add, takes over. emptyStallLimit is the same without a chain: starting one takes
	// a full snapshot.
	stallLimit      = 2
	emptyStallLimit = 6
)

// inspectStore finds the end of the chain, if it is time.
func (w *Writer) inspectStore(ctx context.Context) {
	if !w.canRequest() || (w.core.State == watching || w.core.State == writing) && time.Since(w.remote.watched.at) < w.watchInterval() {
		return
	}
	w.remote.requestedAt = time.Now()
	inspection := inspection{
		Options: w.options, canCreate: (w.core.Facts.leads || w.core.Facts.guest) && !w.options.SegmentsOnly,
		capabilities: w.remote.capabilities, generation: w.remote.generation, identity: w.identity,
		verifyOwner: time.Since(w.remote.ownerVerified) >= w.pace.verifyOwner, lastSegment: w.remote.last, newestFull: w.remote.newestFull,
	}
	if time.Since(w.remote.checkpointAt) < archive.Grace { // later it may have been merged and deleted
		inspection.checkpoint = w.remote.checkpoint
	}
	if w.core.State == watching && !inspection.verifyOwner && time.Since(w.remote.watched.at) < w.pace.headValid {
		inspection.previousHead, inspection.minRevision = w.remote.watched.head, w.revision
	}
	w.job(ctx, inspectTimeout, func(patient context.Context) func() {
		result, err := inspection.run(patient)
		return func() { w.handleInspection(ctx, result, err) }
	})
}

// canRequest reports whether a request about the chain may start now.
func (w *Writer) canRequest() bool {
	return w.remote.requestedAt.IsZero() && !time.Now().Before(w.remote.notBefore)
}

func (w *Writer) delayRequests(wait time.Duration) { w.remote.notBefore = time.Now().Add(wait) }

// inspectSoon resets the stall count after a change of leadership, and schedules an inspection now unless the store
// has a problem.
func (w *Writer) inspectSoon() {
	w.remote.watched.stalled = 0
	if w.isHealthy() {
		w.remote.notBefore = time.Time{}
	}
}

// watchInterval returns the time between two inspections by a member that does not lead.
func (w *Writer) watchInterval() time.Duration {
	return max(10*w.options.Interval, w.pace.watch)
}

// isEndKnown reports whether the end of the chain was seen recently enough to extend it.
func (w *Writer) isEndKnown() bool {
	return slices.Contains(endKnown, w.core.State) && time.Since(w.remote.storedAt) < w.pace.headValid
}

// handleInspection turns the result of an inspection into an event.
func (w *Writer) handleInspection(ctx context.Context, result inspection, err error) {
	w.remote.requestedAt = time.Time{}
	w.remote.watched.at, w.remote.watched.head = time.Now(), archive.Head{}
	nothing := errors.Is(err, store.ErrNotFound)
	damaged := archive.NotVerified(err) && !result.head.PastEnd.IsZero() // the end is damaged, not the whole store
	switch {
	case errors.Is(err, archive.ErrForeign) && !damaged:
		wayOut := relation.OtherCluster.WayOut()
		if !result.identity.Known() {
			wayOut = "start the member again now that the store answers; or, " + relation.Unclaimed.WayOut()
		}
		w.take(ctx, refused, payload{err: fmt.Errorf("%w; %s", err, wayOut)})
	case errors.Is(err, archive.ErrUnsigned):
		w.take(ctx, refused, payload{err: fmt.Errorf("%w; give it, or point --backup-store at another place", err)})
	case errors.Is(err, ErrSucceeded):
		w.take(ctx, succeeded, payload{err: w.successor(result.newestGeneration)})
	case err == nil && result.head.Ending() != nil:
		w.take(ctx, succeeded, payload{err: w.successor(result.head.Ending().Successor)})
	case nothing && (w.options.SegmentsOnly || !w.core.Facts.leads && result.generation.Number == 0):
		w.delayRequests(w.pace.emptyStore)
		w.take(ctx, nothingBegun, payload{err: ErrNoChain})
	case err != nil && !damaged:
		w.failed(opInspect, "cannot inspect the store", err)
	case w.core.State == beginning:
		// The inspection started before the chain that is about to be stored.
	default:
		if w.remote.generation.Number == 0 {
			w.options.Log.Info().Stringer("store", w.options.Archive).Str("cluster", result.generation.Cluster).Str("owner", result.generation.Owner).
				Int("generation", result.generation.Number).Msg("backups: " + result.capabilities.String())
		}
		if result.verifyOwner {
			w.remote.ownerVerified = time.Now()
		}
		w.identity, w.remote.capabilities, w.remote.generation = result.identity, result.capabilities, result.generation
		if !result.lost.IsZero() {
			w.remote.lost = result.lost
		}
		w.observe(ctx)
		w.handleHead(ctx, result.head, err)
	}
}

// handleHead compares the end of the chain with this member's data.
func (w *Writer) handleHead(ctx context.Context, head archive.Head, damaged error) {
	outcome := payload{head: head, creates: w.remote.capabilities.CreateIfAbsent, err: damaged}
	if head.Empty() && damaged == nil && !w.remote.stored.IsZero() {
		w.take(ctx, emptied, outcome)
		return
	}
	if damaged == nil {
		w.observeTerm(head)
		w.observe(ctx)
	}
	extends := w.core.Facts.Learn(chainFound, outcome).isWriter()
	switch {
	case damaged != nil && (!extends || head.PastEnd.Revision > w.revision+1):
		w.failed(opInspect, "cannot continue from the end of the backups", damaged)
		if !extends {
			w.take(ctx, endDamaged, outcome)
		}
		return
	case damaged == nil && !head.Empty() && w.isFullyStored(head):
		w.take(ctx, surpassed, payload{err: ErrRowsOnly})
		return
	case damaged == nil && w.isBehindStore(ctx, head), !w.isRelated(ctx, head):
		return
	}
	w.succeeded(opInspect)
	switch {
	case damaged != nil:
		w.take(ctx, endDamaged, outcome)
	case head.Empty():
		outcome.err = errors.New("there was no full snapshot yet")
		w.take(ctx, noChain, outcome)
	default:
		outcome.grew = !w.core.Facts.leads && w.remote.stored.Compare(head.Position) < 0
		if outcome.grew && w.core.Facts.guest {
			w.options.Log.Info().Msg("backups: another member makes backups again")
		}
		w.take(ctx, chainFound, outcome)
	}
}

// isFullyStored reports whether the chain has all rows of a closed etcd and another member has extended it. That
// member has newer leases and users, and must upload them.
func (w *Writer) isFullyStored(head archive.Head) bool {
	by := head.Revision() - w.options.Etcd.Revision()
	return w.options.Reconciled && (by > 0 || by == 0 && head.Newest().Member != w.options.Etcd.Identity().MemberID) || w.options.SegmentsOnly && by >= 0
}

// isBehindStore reports whether the chain has revisions that this member lacks. A follower may be slow. If a leader
// stays behind, or a member that is alone is behind, its data is older than its backups: another copy of the data has
// written them.
func (w *Writer) isBehindStore(ctx context.Context, head archive.Head) bool {
	if w.relation(head, relation.NotCompared) != relation.Behind {
		w.remote.aheadSince = time.Time{}
		return false
	}
	if w.remote.aheadSince.IsZero() {
		w.remote.aheadSince = time.Now()
	}
	if !w.core.Facts.leads || time.Since(w.remote.aheadSince) <= w.pace.ahead && w.options.Etcd.Members() > 1 {
		w.take(ctx, storeAhead, payload{head: head})
		return true
	}
	w.take(ctx, succeeded, payload{err: w.copiedError(head, fmt.Sprintf("etcd's data end at revision %d", w.revision))})
	return true
}

// observeTerm records the term and revision of the end of the chain.
func (w *Writer) observeTerm(head archive.Head) {
	if term := head.Newest().Term; term > w.remote.fence.term {
		w.remote.fence = fence{term: term, since: time.Now()}
	}
	w.remote.fence.revision = head.Revision()
}

// hasNewerLeader reports whether a later leader has written to the chain. A member that was paused considers itself
// the leader until it hears from the others. If it hears from none, its data was rolled back.
func (w *Writer) hasNewerLeader() bool {
	fence := w.remote.fence
	return w.options.Etcd.Identity().Term < fence.term && w.options.Etcd.Revision() <= fence.revision && time.Since(fence.since) < w.pace.ahead
}

// continueChain continues from the end of the chain.
func (w *Writer) continueChain(payload payload) {
	if !w.core.Facts.leads {
		w.checkGrowth(payload.head, payload.grew)
		w.remote.watched.head = payload.head
	}
	w.recordHead(payload.head)
	w.remote.damagedEnd = format.Position{}
	w.statistic.Broken = nil
	w.align(payload.head)
	w.replaceDamaged(payload.head.Newer)
	w.handleLostSegments(payload.head)
}

// checkGrowth counts inspections at which the chain had not grown although this member has something to add.
func (w *Writer) checkGrowth(head archive.Head, grew bool) {
	watched := &w.remote.watched
	lacks := head.Revision() < w.revision
	if grew || !lacks || !watched.lacking {
		watched.stalled = 0
	} else {
		watched.stalled++
	}
	watched.lacking = lacks
	w.checkStalled(stallLimit)
}

// countMissingChain counts inspections that found no chain.
func (w *Writer) countMissingChain() {
	watched := &w.remote.watched
	if time.Since(watched.counted) >= w.watchInterval() {
		watched.stalled++
		watched.counted = time.Now()
	}
	w.checkStalled(emptyStallLimit)
}

func (w *Writer) checkStalled(patience int) {
	if state := w.core.Facts; !state.guest && !state.leads && w.remote.watched.stalled >= patience && (w.core.State == watching || w.core.State == unknown) {
		w.post(stalled, payload{})
	}
}

// recordRefusal records why nothing may be written, and logs it once.
func (w *Writer) recordRefusal(why error) *problem {
	t := w.recordProblem(opInspect)
	if t.Message != why.Error() {
		w.options.Log.Error().Msg("backups: " + why.Error())
	}
	t.Message = why.Error()
	return t
}

func (w *Writer) takeOver() {
	w.chain.tail, w.remote.notBefore = nil, time.Time{}
	w.options.Log.Warn().Time("since", w.remote.watched.at).Msg("backups: the leader's backups have stopped growing; this member takes over")
}

// recordHead records the end of the chain, and schedules the next full snapshot.
func (w *Writer) recordHead(head archive.Head) {
	remote := &w.remote
	if head.Position != remote.stored {
		w.fulls.lastNext = format.Position{}
	}
	remote.stored, remote.storedAt, remote.newestFull, remote.last = head.Position, time.Now(), "", format.Position{}
	if head.Segment != nil {
		remote.last = head.Segment.Position
		w.chain.lastTime = archive.Later(w.chain.lastTime, head.Segment.To)
	}
	if head.Full != nil {
		remote.newestFull, remote.checked = head.Full.Name(), remote.storedAt
		w.chain.lastTime = archive.Later(w.chain.lastTime, head.Full.Time)
		w.scheduleNext(head.Full.Time)
	}
}

// clearChain discards the queued segments if the store has no chain: they extend a full snapshot that does not exist.
func (w *Writer) clearChain() {
	w.recordHead(archive.Head{})
	if w.remote.link = nil; w.remote.generation.Number > 1 {
		next := archive.Head{}.Next(w.remote.generation)
		w.remote.link = &next
	}
	w.discard()
	w.chain.lastTime = time.Time{} // it belongs to another history, whose clock may have been ahead
}

// forgetStore resets what is known of a store that had a chain and has none. Its cluster manifest is gone as well and
// must be written again: otherwise a member that loses its volume would take the store for an unused one.
func (w *Writer) forgetStore() {
	w.options.Log.Warn().Msg("backups: the store was emptied; starting again")
	remote := &w.remote
	remote.damagedEnd = remote.stored // leave alone what was stored before this was noticed
	remote.generation, remote.stored, remote.last, remote.newestFull = archive.Generation{}, format.Position{}, format.Position{}, ""
	w.reserving.revision = 0 // the reservation is gone as well
}

// refuse records why nothing may be written to the store, and schedules another inspection.
func (w *Writer) refuse(why error) {
	w.recordRefusal(why).NextRetry = w.options.Now().Add(w.pace.foreignStore)
	w.remote.generation = archive.Generation{}
	w.delayRequests(w.pace.foreignStore)
}

// startAfterDamage starts another chain, with a full snapshot, after the damaged end of this one, which is left as it
// is.
func (w *Writer) startAfterDamage(payload payload) {
	w.remote.storedAt = time.Now()
	if w.remote.damagedEnd != payload.head.PastEnd {
		w.options.Log.Error().Err(payload.err).Msg("backups: the end of the chain is damaged and left as it is; a full snapshot starts another chain")
	}
	next := payload.head.Next(w.remote.generation)
	w.remote.damagedEnd, w.remote.link = payload.head.PastEnd, &next
	w.discard()
	w.openChain("damaged: " + payload.err.Error())
}

// findSuccessor checks periodically whether the generation has ended at its next position: a member that writes
// nothing does not find the end otherwise. A later generation.json alone proves nothing.
func (w *Writer) findSuccessor(ctx context.Context) {
	number, next := w.remote.generation.Number, w.remote.stored
	if link := w.remote.link; link != nil {
		next = link.Position
	}
	if number == 0 || next.IsZero() || time.Since(w.remote.successorChecked) < w.pace.successor {
		return
	}
	w.remote.successorChecked = time.Now()
	w.job(ctx, successorTimeout, func(patient context.Context) func() {
		manifest, err := w.options.Archive.Manifest(patient, number, next)
		if err != nil || manifest.Ends == nil || manifest.Cluster != w.identity.Cluster {
			return func() {} // no object yet, or one that the next upload will find
		}
		return func() { w.take(ctx, succeeded, payload{err: w.successor(manifest.Ends.Successor)}) }
	})
}

// successorTimeout bounds that check.
const successorTimeout = 30 * time.Second

// successor returns the error that names the generation which continues this one.
func (w *Writer) successor(number int) error {
	return fmt.Errorf("%w: generation %d in %s goes on from generation %d of cluster %s; this member has revision %d, and the store had revision %d of it; "+
		"what is only here can be exported from the data directory; to go on with it, point --backup-store at another place",
		ErrSucceeded, number, w.options.Archive, w.identity.Generation, w.identity.Cluster, w.options.Etcd.Revision(), max(0, w.remote.stored.Revision-1))
}

// endGeneration cancels what is in progress and makes the owner of etcd close it.
func (w *Writer) endGeneration(why error) {
	w.recordRefusal(why)
	for _, request := range w.fulls.due {
		request.answer(fullResult{err: why})
	}
	if w.fulls.due = nil; w.fulls.making != nil {
		w.endFull(fullResult{err: why})
	}
	w.result = why
	w.superseded <- why
}

// finish records the result of Flush for a closed etcd.
func (w *Writer) finish(err error) {
	w.result = ErrNoChain
	if errors.Is(err, ErrRowsOnly) {
		w.result = err
	}
}

// inspection is an inspection of the store: what to check, and what it found.
type inspection struct {
	Options          // of the writer
	capabilities     store.Capabilities
	generation       archive.Generation
	newestGeneration int // newest generation in the store, if it is a later one
	head             archive.Head

	identity     archive.Identity // of etcd's data
	canCreate    bool             // this member may initialize an unused store
	previousHead archive.Head     // head to advance from; empty if it is unknown
	minRevision  int64            // list the store if advancing does not reach it
	verifyOwner  bool             // verify the generation as well
	lastSegment  format.Position  // newest segment that is known; zero if there is none
	newestFull   string           // newest full snapshot that is known; empty if there is none

	checkpoint format.Position // a segment that must exist; zero if there is none
	lost       format.Position // the checkpoint, if it is gone
}

// run reads what is not known yet, and always the head of the chain.
func (f inspection) run(ctx context.Context) (_ inspection, err error) {
	if f.verifyOwner && f.generation.Number != 0 {
		err = f.checkOwner(ctx)
		if errors.Is(err, store.ErrNotFound) {
			f.generation, err = archive.Generation{}, nil // to be created again
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
		err = f.verifyListing(ctx)
	}
	if err == nil && !f.checkpoint.IsZero() {
		if _, err = f.Archive.Manifest(ctx, f.generation.Number, f.checkpoint); archive.Unusable(err) {
			f.lost, err = f.checkpoint, nil
		}
	}
	if err == nil && f.canCreate && f.head.Unlinked != nil { // the process that stored it ended before it linked it
		err = f.Archive.Open(ctx, f.generation, *f.head.Full, f.Session)
		if errors.Is(err, archive.ErrMoved) || errors.Is(err, archive.ErrEnded) {
			err = &store.Unavailable{Cause: err} // inspect again
		}
	}
	return f, err
}

// findHead lists the store only if the names of the next segments do not show the end: a listing costs a dozen times
// as much.
func (f *inspection) findHead(ctx context.Context) (archive.Head, error) {
	if !f.previousHead.Empty() {
		head, err := f.Archive.Advance(ctx, f.previousHead)
		if err == nil && (head.Position != f.previousHead.Position || head.Revision() >= f.minRevision) {
			return head, nil
		}
	}
	return f.Archive.Head(ctx, f.generation.Number)
}

func (f *inspection) identify(ctx context.Context) (err error) {
	if f.generation, err = f.findGeneration(ctx); err == nil {
		err = f.checkOwner(ctx)
	}
	if err != nil {
		f.generation = archive.Generation{}
		return err
	}
	f.capabilities, err = store.Probe(ctx, f.Archive.Store())
	return err
}

// findGeneration returns the generation that etcd's data belongs to. An unused store is initialized if canCreate is
// set; otherwise the result is store.ErrNotFound, as it is between the creation of the cluster manifest and the first
// generation.
func (f *inspection) findGeneration(ctx context.Context) (generation archive.Generation, err error) {
	cluster, err := f.Archive.Cluster(ctx)
	if errors.Is(err, store.ErrNotFound) && f.canCreate {
		cluster, err = f.createCluster(ctx)
	}
	switch {
	case err != nil:
		return generation, err
	case !f.identity.Known(), f.identity.Cluster != cluster.Cluster:
		return generation, fmt.Errorf("%w: %s", archive.ErrForeign, f.describe(relation.Store{Cluster: cluster}))
	}
	generation, err = f.Archive.Generation(ctx, f.identity.Generation)
	if errors.Is(err, store.ErrNotFound) && f.canCreate {
		if _, err = f.Archive.Found(ctx, f.manifest(cluster.Cluster, cluster.Owner), f.identity.Generation); err == nil {
			generation, err = f.Archive.Generation(ctx, f.identity.Generation)
		}
	}
	if !errors.Is(err, store.ErrNotFound) {
		return generation, err
	}
	lineage, err := f.Archive.Lineage(ctx)
	backups := relation.Store{Cluster: cluster, Lineage: lineage}
	switch {
	case err != nil:
		return generation, err
	case len(backups.Generations) == 0:
		return generation, fmt.Errorf("%w: the first generation of cluster %s", store.ErrNotFound, cluster.Cluster)
	case f.judge(backups).Relation == relation.Succeeded:
		f.newestGeneration = backups.Newest().Number
		return generation, ErrSucceeded
	}
	return generation, errors.New(f.describe(backups) + "; " + relation.Unnumbered.WayOut())
}

// judge relates the data to a store without reading its backups.
func (f *inspection) judge(kept relation.Store) relation.Judgment {
	return relation.Judge(f.data(), kept, false)
}

func (f *inspection) data() relation.Data {
	return relation.Data{State: relation.Valid, Identity: f.identity, Owner: f.Owner, Revision: f.Etcd.Revision()}
}

func (f *inspection) describe(kept relation.Store) string {
	return f.judge(kept).Sentence(f.data(), kept, f.Archive.String())
}

// createCluster initializes the store. The volume records the ID first: if the process is killed in between, the next
// start uses the same ID.
func (f *inspection) createCluster(ctx context.Context) (archive.Cluster, error) {
	if !f.identity.Known() {
		all, err := f.Archive.Generations(ctx)
		if err != nil {
			return archive.Cluster{}, err
		}
		if len(all) > 0 {
			return archive.Cluster{Cluster: all[0].Cluster}, nil
		}
		f.identity = archive.Identity{Cluster: archive.NewID(), Generation: 1}
		if err := f.identity.Write(f.DataDir); err != nil {
			return archive.Cluster{}, err
		}
	}
	return f.Archive.FoundCluster(ctx, f.manifest(f.identity.Cluster, f.Owner))
}

// manifest returns a cluster manifest. Another process may store its own first.
func (f *inspection) manifest(cluster, owner string) archive.Cluster {
	return archive.Cluster{Cluster: cluster, Owner: owner, Etcd: f.Etcd.Identity().ClusterID, Created: f.Now()}
}

// checkOwner verifies that the generation exists and belongs to this cluster, and that this process may add to it.
func (f *inspection) checkOwner(ctx context.Context) error {
	if err := f.Archive.Still(ctx, f.generation); err != nil {
		return err
	}
	return f.Archive.MayAdd(f.generation)
}

// verifyListing checks that known objects are not missing from the listing: stores may list late or lose a page, and
// must not cause a new chain or a chain that continues at an older position. Objects of another cluster count as
// gone.
func (f *inspection) verifyListing(ctx context.Context) error {
	head := f.head
	verify := func(cluster string, err error) error {
		if err == nil && cluster != f.generation.Cluster {
			return archive.ErrForeign
		}
		return err
	}
	err, object := error(store.ErrNotFound), ""
	if f.newestFull != "" && (head.Empty() || head.Full.Name() < f.newestFull) {
		full, failed := f.Archive.Full(ctx, f.generation.Number, f.newestFull)
		err, object = verify(full.Cluster, failed), "full "+f.newestFull
		if head.Empty() && errors.Is(err, store.ErrNotFound) {
			return nil // segments stored since lead nowhere
		}
	}
	if archive.Unusable(err) && head.Position.Compare(f.lastSegment) <= 0 {
		segment, failed := f.Archive.Manifest(ctx, f.generation.Number, f.lastSegment)
		err, object = verify(segment.Cluster, failed), "segment "+f.lastSegment.String()
	}
	switch {
	case err == nil:
		return &store.Unavailable{Cause: fmt.Errorf("its listing ends at revision %d, although %s is there", max(0, head.Revision()), object)}
	case archive.Unusable(err):
		return nil
	default:
		return err
	}
}
