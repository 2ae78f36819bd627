package writer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/backup/store"
)

// stallLimit is the number of inspections without progress after which a follower takes over from the leader.
// emptyStallLimit applies to a store without a chain: the leader has to make a full snapshot first, which takes
// longer.
const (
	stallLimit      = 2
	emptyStallLimit = 5
)

// inspectStore finds the end of the chain if an inspection is due.
func (w *Writer) inspectStore() {
	if !w.health.canRequest() || w.isIn(watching, writing) && time.Since(w.inspectedAt) < w.watchInterval() {
		return
	}
	w.health.requestedAt = time.Now()
	inspection := inspection{
		Options: w.options, storeView: w.remote.storeView, verifyOwner: w.remote.needsVerification(),
		canCreate: (w.core.Facts.leads || w.core.Facts.tookOver) && !w.options.SegmentsOnly,
	}
	if time.Since(w.remote.checkpointAt) >= archive.Grace { // the segment may have been merged and deleted since then
		inspection.checkpoint = format.Position{}
	}
	if queued := w.spool.Entries(); len(queued) > 0 {
		inspection.queued = queued[0].Position
	}
	inspection.advances = w.isIn(watching) && time.Since(w.remote.storedAt) < archive.Grace && !inspection.verifyOwner && !inspection.head.Empty()
	w.job(requestTimeout, func(ctx context.Context) func() {
		result, err := inspection.run(ctx)
		return func() { w.handleResult(result, err) }
	})
}

// inspectNow makes the next inspection due immediately after a leadership change, unless the store has a problem, and
// restarts the time without progress by the leader.
func (w *Writer) inspectNow() {
	w.stalledSince = time.Time{}
	if w.health.isHealthy() {
		w.health.notBefore = time.Time{}
	}
}

// watchInterval returns the time between inspections by a follower.
func (w *Writer) watchInterval() time.Duration {
	return max(10*w.options.Interval, w.pace.watch)
}

// handleResult turns the result of an inspection into an event.
func (w *Writer) handleResult(result inspection, err error) {
	if (err == nil || result.isEndCorrupt(err)) && time.Since(w.health.requestedAt) > requestTimeout {
		err = errors.New("the response is out of date because the process was suspended")
	}
	w.health.requestedAt, w.inspectedAt = time.Time{}, time.Now()
	if err == nil && result.head.Ending() != nil {
		result.event, result.successor = superseded, result.head.Ending().Successor
	}
	switch {
	case result.event == superseded:
		w.take(superseded, payload{err: w.remote.succeededBy(result.successor)})
	case result.event != "":
		w.take(result.event, payload{err: err})
	case errors.Is(err, store.ErrNotFound) && (w.options.SegmentsOnly || !w.core.Facts.leads && result.generation.Number == 0):
		w.health.delayRequests(w.pace.emptyStore)
		w.take(storeUnused, payload{err: ErrNoChain})
	case err != nil && !result.isEndCorrupt(err):
		w.health.failed(opInspect, "cannot read the backup store", err)
	case w.isIn(starting):
		// Ignore the result, because the inspection started before the chain that is being started.
	default:
		w.update(result)
		if event, outcome := w.evaluate(result.head, err); event != "" {
			w.take(event, outcome)
		}
	}
}

// update adopts what an inspection has read about the store, except for the end of the chain.
func (w *Writer) update(result inspection) {
	if w.remote.generation.Number == 0 {
		w.options.Log.Info().Stringer("store", w.options.Archive).Str("cluster", result.generation.Cluster).Str("owner", result.generation.Owner).
			Int("generation", result.generation.Number).Msg("backups: " + result.capabilities.String())
	}
	if result.verifyOwner {
		w.remote.ownerVerified = time.Now()
	}
	w.remote.identity, w.remote.capabilities, w.remote.generation = result.identity, result.capabilities, result.generation
	w.remote.lost = cmp.Or(result.lost, w.remote.lost)
	w.remote.observeLeader()
	w.chain.observe()
}

// evaluate returns the event for the end of the chain, or no event if the inspection must be repeated.
func (w *Writer) evaluate(head archive.Head, damaged error) (Event, payload) {
	outcome := payload{head: head, refusesOverwrite: w.remote.capabilities.CreateIfAbsent, err: damaged}
	if head.Empty() && damaged == nil && !w.remote.head.Position.IsZero() {
		return emptied, outcome
	}
	if damaged == nil {
		w.remote.seen = head
		w.remote.observeLeader()
	}
	extends := w.core.Facts.Learn(chainFound, outcome).isWriter()
	switch {
	case damaged != nil && (!extends || head.PastEnd.Revision > w.chain.revision+1):
		w.health.failed(opInspect, "cannot continue the existing backups", damaged)
		if extends {
			return "", outcome
		}
		return endDamaged, outcome
	case damaged == nil && !head.Empty() && w.isFullyStored(head):
		return fullyStored, payload{err: ErrRowsOnly}
	}
	if event, refusal := w.compare(head); event != "" || refusal != nil {
		return event, payload{head: head, err: refusal}
	}
	w.health.succeeded(opInspect)
	switch {
	case damaged != nil:
		return endDamaged, outcome
	case head.Empty():
		outcome.err = errors.New("there is no full snapshot yet")
		return noChain, outcome
	}
	outcome.grew = !w.core.Facts.leads && w.remote.head.Position.Compare(head.Position) < 0
	if outcome.grew && w.core.Facts.tookOver {
		w.options.Log.Info().Msg("backups: another member has resumed making backups")
	}
	return chainFound, outcome
}

// isFullyStored reports whether the chain contains all rows of a closed etcd and another member has extended it. The
// other member has newer leases and users, and must upload them.
func (w *Writer) isFullyStored(head archive.Head) bool {
	ahead := head.Revision() - w.options.Etcd.Revision()
	extended := ahead > 0 || ahead == 0 && head.Newest().Member != w.options.Etcd.Identity().MemberID
	return w.options.Reconciled && extended || w.options.SegmentsOnly && ahead >= 0
}

// compare compares etcd's data with the end of the chain. If the data cannot continue at the end of the chain,
// compare returns an event and the reason. If the inspection must be repeated, compare returns an error without an
// event.
//
// Members of a cluster have the same rows. Data with the same identity but different rows comes from a copied volume
// or cluster that was written to independently. The copy that uploads first continues the backups. If etcd has
// compacted the rows, for example after a long outage of the store, only the identity is compared.
func (w *Writer) compare(head archive.Head) (Event, error) {
	data, err := relationData(w.options, w.remote.identity, relation.NotCompared), error(nil)
	stored := !head.Empty() || !head.PastEnd.IsZero()
	if stored && head.Revision() <= data.Revision {
		data.Rows, err = w.chain.compareHead(head)
	}
	if err != nil {
		w.health.failed(opInspect, "cannot compare etcd's data with the backups", err)
		return "", err
	}
	kept := w.remote.relationStore(head, w.remote.generation)
	result := relation.Compare(data, kept, false)
	waited := elapsed(&w.remote.aheadSince, result.Relation == relation.Behind)
	switch {
	case result.Relation == relation.Behind && (!w.core.Facts.leads || waited <= w.pace.ahead && w.options.Etcd.Members() > 1):
		return storeAhead, nil // a follower may be slow, and a leader may not have applied all acknowledged writes yet
	case result.Relation == relation.Behind, result.Relation == relation.Diverged:
		result.Relation = relation.Diverged // data that does not catch up is an old copy, not a member that lags behind
		return superseded, result.Refusal(data, kept, w.options.Archive.String())
	}
	if stored {
		w.remote.recordIdentity()
	}
	return "", nil
}

// continueChain continues at the end of the chain: the writer's next segment starts there, and other members record
// it.
func (w *Writer) continueChain(found payload) {
	head := found.head
	if !w.core.Facts.leads {
		w.watchProgress(!found.grew && head.Revision() < w.chain.revision, stallLimit)
	}
	w.setHead(head)
	w.remote.damagedEnd, w.snapshots.brokenSince = format.Position{}, time.Time{}
	if w.chain.align(head) {
		if making := w.snapshots.making; making != nil && !making.storing && making.Next != head.Position {
			making.orphaned = true
		}
	}
	w.snapshots.replaceCorrupt(head.Newer)
	w.handleLostSegments(head)
}

// watchProgress makes this member take over once the leader has made no progress (stalls) for as long as a number of
// inspections take.
func (w *Writer) watchProgress(stalls bool, limit time.Duration) {
	lasted := elapsed(&w.stalledSince, stalls)
	if state := w.core.Facts; stalls && lasted >= limit*w.watchInterval() && !state.tookOver && !state.leads && w.isIn(watching, unknown) {
		w.post(stalled, payload{})
	}
}

func (w *Writer) takeOver() {
	w.chain.reset()
	w.health.notBefore = time.Time{}
	w.options.Log.Warn().Time("since", w.stalledSince).Msg("backups: the leader is not uploading backups; taking over")
}

// setHead records the end of the chain and schedules the next full snapshot.
func (w *Writer) setHead(head archive.Head) {
	if head.Position != w.remote.head.Position && head.Position.Compare(w.chain.last) > 0 {
		w.chain.last = head.Position // another member has extended the chain
	}
	w.remote.setHead(head)
	if head.Segment != nil {
		w.chain.lastTime = archive.MaxTime(w.chain.lastTime, head.Segment.To)
	}
	if head.Full != nil {
		w.chain.lastTime = archive.MaxTime(w.chain.lastTime, head.Full.Time)
		w.snapshots.scheduleNext(head.Full.Time)
	}
}

// handleLostSegments starts a new chain if a segment between the newest full snapshot and the end of the chain is
// missing, because revisions after a missing segment cannot be restored. If the end itself is missing, its rows are
// captured again.
func (w *Writer) handleLostSegments(head archive.Head) {
	lost := w.remote.lost
	w.remote.checkpoint, w.remote.checkpointAt = w.remote.lastStored(), time.Now()
	if lost.IsZero() || lost.Compare(head.Full.Next) < 0 || lost.Compare(head.Position) >= 0 {
		w.remote.lost = format.Position{}
		return
	}
	if !w.isIn(writing) {
		return
	}
	w.options.Log.Error().Str("segment", lost.String()).Msg("backups: segments are missing from the store; starting a new chain with a full snapshot")
	w.chain.drop()
	w.remote.link = new(head.Next(w.remote.generation))
	w.post(chainBroken, payload{err: fmt.Errorf("segment %s is missing from the store", lost)})
}

// clearChain discards queued segments because the store has no full snapshot that precedes them.
func (w *Writer) clearChain() {
	w.setHead(archive.Head{})
	if w.remote.link = nil; w.remote.generation.Number > 1 {
		w.remote.link = new(archive.Head{}.Next(w.remote.generation))
	}
	w.chain.drop()
	w.chain.lastTime = time.Time{} // the time belongs to another history, whose clock may have been ahead
}

// forgetStore resets the known state of a store that was emptied.
func (w *Writer) forgetStore() {
	w.options.Log.Warn().Msg("backups: the store is now empty; starting over")
	w.remote.reset()
}

// startAfterCorruption starts a new chain with a full snapshot, without modifying the damaged end of the previous
// chain.
func (w *Writer) startAfterCorruption(found payload) {
	w.remote.storedAt = time.Now()
	if w.remote.damagedEnd != found.head.PastEnd {
		w.options.Log.Error().Err(found.err).Msg("backups: the end of the chain is unusable; leaving it in place and starting a new chain with a full snapshot")
	}
	w.remote.damagedEnd = found.head.PastEnd
	w.remote.link = new(found.head.Next(w.remote.generation))
	w.chain.drop()
	w.snapshots.openChain("the newest backups are unusable: " + found.err.Error())
}

// dropSpool discards the spool. The discarded changes are captured again from the end of the chain.
func (w *Writer) dropSpool(err error) {
	w.options.Log.Debug().Err(err).Msg("backups: discarded the spool")
	w.chain.reset()
	w.chain.drop()
}

// reject records why this member must not write to the store and schedules the next inspection.
func (w *Writer) reject(why error) {
	w.health.record(opInspect, why.Error(), false).NextRetry = w.options.Now().Add(w.pace.foreignStore)
	w.remote.generation = archive.Generation{}
	w.health.delayRequests(w.pace.foreignStore)
}

// endGeneration cancels the current full snapshot and requests that etcd be closed.
func (w *Writer) endGeneration(why error) {
	w.health.record(opInspect, why.Error(), false)
	if w.snapshots.rejectRequests(why); w.snapshots.making != nil {
		resolve(w.snapshots.forget().requests, fullResult{err: why})
	}
	w.queue.result = why
	if w.options.Superseded != nil {
		w.options.Superseded(why)
	}
}

// finish records the error that Flush returns for a closed etcd that this member must not upload.
func (w *Writer) finish(why error) {
	w.queue.result = ErrNoChain
	if errors.Is(why, ErrRowsOnly) {
		w.queue.result = why
	}
}

// An inspection reads the store in a job. The fields are the parameters and results of the inspection.
type inspection struct {
	Options
	storeView                   // state known before the inspection, updated with its results
	canCreate   bool            // initialize an unused store, and link a full snapshot that was left without a link
	verifyOwner bool            // also check that the generation still exists and belongs to this cluster
	advances    bool            // list the store only if the known head cannot be advanced to etcd's revision
	queued      format.Position // position of the oldest queued segment, which may already be stored; zero if there is none

	event     Event // event that does not depend on the head, with the error returned by run as its reason; may be empty
	successor int   // number of the generation that superseded this one; only set for the event succeeded
}

// run reads the head of the chain. If the cluster and generation are unknown, run reads them first.
func (i inspection) run(ctx context.Context) (_ inspection, err error) {
	err = i.read(ctx)
	switch {
	case i.event != "" || i.isEndCorrupt(err):
	case errors.Is(err, archive.ErrForeign):
		i.event, err = refused, fmt.Errorf("%w; %s", err, relation.OtherCluster.WayOut())
	case errors.Is(err, archive.ErrUnsigned):
		i.event, err = refused, fmt.Errorf("%w; set it, or point --backup-store at another location", err)
	}
	return i, err
}

// isEndCorrupt reports whether err means that the end of the chain is damaged but its position is known, so that a new
// chain can start after it.
func (i *inspection) isEndCorrupt(err error) bool {
	return archive.NotVerified(err) && !i.head.PastEnd.IsZero()
}

func (i *inspection) read(ctx context.Context) (err error) {
	known := i.storeView
	i.head = archive.Head{}
	if i.verifyOwner && i.generation.Number != 0 {
		err = i.checkOwner(ctx, i.Archive)
		if errors.Is(err, store.ErrNotFound) {
			i.generation, err = archive.Generation{}, nil // the generation must be recreated
		}
	}
	if err == nil && i.generation.Number == 0 {
		err = i.resolveGeneration(ctx)
	}
	if err != nil {
		return err
	}
	i.head, err = i.findHead(ctx, known.head)
	if archive.NotVerified(err) { // no full snapshot can be verified, so a new chain must start after all objects
		past, failed := i.Archive.PastAll(ctx, i.generation.Number, i.Etcd.Revision())
		if failed != nil {
			return failed
		}
		i.head.PastEnd = past
	}
	if !i.head.Empty() && i.head.Cluster != i.generation.Cluster {
		foreign := i.head.Cluster
		i.head = archive.Head{}
		return fmt.Errorf("%s: %w: the store contains backups of cluster %s, but this is cluster %s", i.Archive, archive.ErrForeign, foreign, i.generation.Cluster)
	}
	if err == nil {
		err = i.head.Damaged
	}
	if err == nil {
		err = i.verifyList(ctx, &known)
	}
	if err == nil && !i.checkpoint.IsZero() {
		if _, err = i.Archive.Manifest(ctx, i.generation.Number, i.checkpoint); archive.Unusable(err) {
			i.lost, err = i.checkpoint, nil
		}
	}
	if err == nil && i.canCreate && i.head.Unlinked != nil { // the process that stored the full snapshot exited before storing the link
		err = i.Archive.Open(ctx, i.generation, *i.head.Full, i.Session)
		if errors.Is(err, archive.ErrMoved) || errors.Is(err, archive.ErrEnded) {
			err = &store.Unavailable{Cause: err} // retryable: the caller inspects the store again
		}
	}
	return err
}

// findHead finds the end of the chain. If advances is set, findHead first tries to read the segments that follow the
// known head, because a listing of the store costs about twelve times as much as a read.
func (i *inspection) findHead(ctx context.Context, known archive.Head) (archive.Head, error) {
	if i.advances {
		head, err := i.Archive.Advance(ctx, known)
		if err == nil && (head.Position != known.Position || head.Revision() >= i.Etcd.Revision()) {
			return head, nil
		}
	}
	return i.Archive.Head(ctx, i.generation.Number)
}

func (i *inspection) resolveGeneration(ctx context.Context) (err error) {
	if i.generation, err = i.findGeneration(ctx); err == nil {
		err = i.checkOwner(ctx, i.Archive)
	}
	if err != nil {
		i.generation = archive.Generation{}
		return err
	}
	i.capabilities, err = store.Probe(ctx, i.Archive.Store())
	return err
}

// findGeneration returns the generation that etcd's data belongs to. If canCreate is set, an unused store is
// initialized. If canCreate is not set, findGeneration returns store.ErrNotFound for a store that is unused or still
// being initialized.
func (i *inspection) findGeneration(ctx context.Context) (generation archive.Generation, err error) {
	cluster, err := i.Archive.Cluster(ctx)
	if errors.Is(err, store.ErrNotFound) && i.canCreate {
		cluster, err = i.createCluster(ctx)
	}
	if err == nil && cluster.Cluster != i.identity.Cluster {
		err = i.evaluate(relation.Store{Cluster: cluster})
	}
	if err != nil {
		return generation, err
	}
	generation, err = i.Archive.Generation(ctx, i.identity.Generation)
	if errors.Is(err, store.ErrNotFound) && i.canCreate {
		if _, err = i.Archive.Create(ctx, i.manifest(cluster.Cluster, cluster.Owner), i.identity.Generation); err == nil {
			generation, err = i.Archive.Generation(ctx, i.identity.Generation)
		}
	}
	if !errors.Is(err, store.ErrNotFound) {
		return generation, err
	}
	lineage, err := i.Archive.Lineage(ctx)
	switch {
	case err != nil:
		return generation, err
	case len(lineage.Generations) == 0:
		return generation, fmt.Errorf("%w: the first generation of cluster %s", store.ErrNotFound, cluster.Cluster)
	}
	return generation, i.evaluate(relation.Store{Cluster: cluster, Lineage: lineage})
}

// evaluate compares the data with a store that does not contain its generation, sets the event, and returns the
// reason for a refusal.
func (i *inspection) evaluate(kept relation.Store) error {
	data := relationData(i.Options, i.identity, relation.NotCompared)
	data.Etcd = "" // recovery decides whether data without an identity belongs to the cluster that created the store
	result := relation.Compare(data, kept, false)
	refusal := result.Refusal(data, kept, i.Archive.String())
	switch result.Relation { //nolint:exhaustive // after any other refusal, the inspection is repeated
	case relation.Superseded:
		i.event, i.successor = superseded, kept.Newest().Number
	case relation.OtherCluster:
		i.event, refusal = refused, fmt.Errorf("%w: %w", archive.ErrForeign, refusal)
	case relation.Unidentified:
		i.event, refusal = refused, fmt.Errorf("%w; the store is reachable now, so try restarting the member first", refusal)
	}
	return refusal
}

// createCluster initializes the store. The cluster ID is first recorded on the volume so that the next start uses the
// same ID if this process is killed.
func (i *inspection) createCluster(ctx context.Context) (archive.Cluster, error) {
	if !i.identity.Known() {
		all, err := i.Archive.Generations(ctx)
		if err != nil {
			return archive.Cluster{}, err
		}
		if len(all) > 0 {
			return archive.Cluster{Cluster: all[0].Cluster}, nil
		}
		i.identity = archive.Identity{Cluster: archive.NewID(), Generation: 1}
		if err := i.identity.Write(i.DataDir); err != nil {
			return archive.Cluster{}, err
		}
	}
	return i.Archive.CreateCluster(ctx, i.manifest(i.identity.Cluster, i.Owner))
}

// manifest returns a new manifest for the cluster. It is only used if no other process has stored one first.
func (i *inspection) manifest(cluster, owner string) archive.Cluster {
	return archive.Cluster{Cluster: cluster, Owner: owner, Etcd: i.Etcd.Identity().ClusterID, Created: i.Now()}
}

// verifyList returns an error if an object that is known to exist is missing from the listing, so that the store is
// inspected again. If a store lists an object late or loses a page of the listing, the writer must not start a new
// chain or move the chain back to an older position. Objects that belong to another cluster are treated as missing.
func (i *inspection) verifyList(ctx context.Context, known *storeView) error {
	head, last := i.head, cmp.Or(known.lastStored(), i.queued)
	err, object := error(store.ErrNotFound), ""
	if newest := known.head.Full; newest != nil && (head.Empty() || head.Full.Name() < newest.Name()) {
		full, failed := i.Archive.Full(ctx, i.generation.Number, newest.Name())
		err, object = i.verifyCluster(full.Cluster, failed), "full "+newest.Name()
		if head.Empty() && errors.Is(err, store.ErrNotFound) {
			return nil // segments stored after the missing full snapshot cannot be restored
		}
	}
	if archive.Unusable(err) && head.Position.Compare(last) <= 0 {
		segment, failed := i.Archive.Manifest(ctx, i.generation.Number, last)
		err, object = i.verifyCluster(segment.Cluster, failed), "segment "+last.String()
	}
	switch {
	case err == nil:
		return &store.Unavailable{Cause: fmt.Errorf("the listing ends at revision %d, but %s exists", max(0, head.Revision()), object)}
	case archive.Unusable(err):
		return nil
	default:
		return err
	}
}

// verifyCluster returns err, or ErrForeign if the object was read but belongs to another cluster.
func (i *inspection) verifyCluster(cluster string, err error) error {
	if err == nil && cluster != i.generation.Cluster {
		return archive.ErrForeign
	}
	return err
}
