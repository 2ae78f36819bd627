package writer

import (
	"errors"
	"fmt"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/writer/capture"
)

const (
	// chunk is how many bytes of rows one read transaction copies: it is open for about a millisecond.
	chunk = 1 << 20
	// most is how many bytes of records make a segment at most, and one revision more.
	maxSegment = 8 << 20
	// slower is how many intervals lie between captures while the store is away: they have time, and every segment costs a
	// request later.
	unreachableFactor = 10
	// mostMarkers bounds the markers that wait for a capture.
	maxMarkers = 1024
)

// mark notes when a revision was first seen.
func (w *Writer) mark() {
	if c := &w.chain; c.tail != nil && w.isWriter() && len(c.markers) < maxMarkers {
		c.markers = append(c.markers, format.Marker{Revision: w.revision, Time: w.time()})
	}
}

// capture makes a segment of what is new, if it is time for one, and notes whether there is more to capture at once.
func (w *Writer) capture() {
	c, beats := &w.chain, w.heartbeatDue()
	if !c.captureNow && !beats && w.isUnchanged() || !w.isWriter() || c.tail == nil || w.spool.holdsInMemory() || !c.released.IsZero() || !c.captureNow && time.Since(c.captured) < w.interval() {
		return
	}
	again, err := w.captureUpTo(w.revision, true, beats)
	var gap *capture.GapError
	switch {
	case errors.As(err, &gap):
		w.handleGap(gap)
	case err != nil:
		c.captured = time.Now() // to be tried again an interval later
		w.captureFailed(err)
	default:
		w.again = again
		c.captureNow, c.gapSince, w.problems[opCapture] = c.captureNow && again, time.Time{}, nil
	}
}

// beats tells whether it is time to show that this cluster lives though nothing changes: nobody takes the place of one that does.
func (w *Writer) heartbeatDue() bool {
	return w.core.State == writing && len(w.spool.Entries()) == 0 && !w.options.Release && !w.options.SegmentsOnly &&
		time.Since(w.remote.storedAt) >= w.pace.heartbeat
}

// unchanged tells whether the segments so far have all of the database.
func (w *Writer) isUnchanged() bool {
	applied := w.options.Etcd.AppliedIndex()
	return w.chain.tail != nil && w.chain.tail.Position.Revision > w.revision && (w.chain.applied == applied || w.isOutdated(applied))
}

// interval is what lies between two captures.
func (w *Writer) interval() time.Duration {
	if w.isUnreachable() {
		return unreachableFactor * w.options.Interval
	}
	return w.options.Interval
}

// captureUpTo makes a segment of the rows up to a revision, and beyond it if that is wanted, and tells whether it left some. Where there is
// nothing, it makes none, unless an empty one is wanted.
func (w *Writer) captureUpTo(revision int64, beyond, empty bool) (again bool, err error) {
	applied := w.options.Etcd.AppliedIndex() // before the transaction begins: what comes between is looked at again
	draft, err := w.buildSegment(revision, beyond, w.bucketsDue(applied))
	if err != nil {
		return false, err
	}
	changed := w.changedBuckets(draft.small)
	w.chain.examined = time.Now()
	if draft.Rows() > 0 || len(changed) > 0 {
		w.chain.last = w.chain.tail.Position
	}
	if draft.Rows() > 0 || len(changed) > 0 || empty {
		w.chain.captured = w.chain.examined
		if err := w.spoolSegment(draft, changed); err != nil {
			return false, err
		}
	}
	if draft.small != nil {
		w.chain.applied = applied
		for _, bucket := range changed {
			w.chain.buckets[bucket.Name] = capture.Digest(bucket)
		}
	}
	return draft.more, nil
}

// drawn is a segment in the making.
type segmentDraft struct {
	*format.SegmentBuilder
	upTo      int64
	markers   []format.Marker // that are not added yet
	compacted int64
	small     []*format.Bucket // all of them; nil if they were not looked at
	applied   uint64           // raft's index once they were; 0 if they were not
	more      bool
}

// draw reads rows chunk by chunk, each in a transaction of its own, and encodes them in between. What was drawn before a gap
// is a segment all the same.
func (w *Writer) buildSegment(upTo int64, beyond, buckets bool) (*segmentDraft, error) {
	builder, err := format.NewSegmentBuilder(w.options.Archive.Keys(), *w.chain.tail)
	if err != nil {
		return nil, err
	}
	d := &segmentDraft{SegmentBuilder: builder, upTo: upTo, markers: w.chain.markers, more: true}
	for d.more && d.RawBytes() < maxSegment {
		request := capture.Request{From: d.End() + 1, UpTo: upTo, Beyond: beyond, Limit: chunk, Buckets: buckets}
		rows, err := w.reader.Since(request)
		if err != nil && d.Rows() == 0 {
			return nil, err
		}
		if err != nil {
			break
		}
		if err := d.add(rows); err != nil {
			return nil, err
		}
		if rows.Buckets != nil {
			w.chain.bucketsAfter = time.Now().Add(100 * rows.Held)
		}
	}
	if d.small != nil {
		d.applied = w.options.Etcd.AppliedIndex()
	}
	return d, nil
}

func (d *segmentDraft) add(rows capture.Rows) error {
	d.more, d.compacted, d.small = rows.More, rows.Compacted, rows.Buckets
	for _, row := range rows.Rows {
		revision, err := row.Revision()
		if err == nil && revision > d.End() {
			err = d.mark(revision - 1)
		}
		if err == nil {
			err = d.Row(row)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mark adds the markers up to a revision.
func (d *segmentDraft) mark(revision int64) error {
	for len(d.markers) > 0 && d.markers[0].Revision <= revision {
		if err := d.Marker(d.markers[0]); err != nil {
			return err
		}
		d.markers = d.markers[1:]
	}
	return nil
}

// bucketsDue tells whether the small buckets are to be read. Reading them keeps etcd's readers waiting, so it may take a
// hundredth of the time at most: a member with a million leases has them looked at every few seconds. For somebody who waits
// they are read in any case: etcd answers a client before it says that it has applied the request.
func (w *Writer) bucketsDue(applied uint64) bool {
	return !w.isOutdated(applied) && (w.chain.captureNow || w.chain.applied != applied && time.Now().After(w.chain.bucketsAfter))
}

// changed are the small buckets that the chain has otherwise, or not at all.
func (w *Writer) changedBuckets(small []*format.Bucket) (changed []*format.Bucket) {
	for _, bucket := range small {
		if digest, ok := w.chain.buckets[bucket.Name]; !ok || digest != capture.Digest(bucket) {
			changed = append(changed, bucket)
		}
	}
	return changed
}

// keep ends a segment and puts it into the spool.
func (w *Writer) spoolSegment(d *segmentDraft, changed []*format.Bucket) error {
	if err := w.addTrailer(d, changed); err != nil {
		return err
	}
	identity := w.options.Etcd.Identity()
	source := format.Source{Compacted: d.compacted, Term: identity.Term, Member: identity.MemberID, Applied: d.applied, Session: w.options.Session}
	if err := w.enqueue(d.SegmentBuilder, source); err != nil {
		return err
	}
	w.chain.markers = d.markers
	return nil
}

// wait finishes a segment, and has it wait for the store behind the others.
func (w *Writer) enqueue(builder *format.SegmentBuilder, source format.Source) error {
	object, err := builder.Finish(source)
	if err != nil {
		return err
	}
	if err := w.spool.Put(object, w.isUnreachable()); err != nil {
		if len(w.spool.Entries()) > 0 {
			return err // it stays in the database until there is room
		}
		w.options.Log.Warn().Err(err).Msg("backups: a segment waits in memory")
		w.spool.holdInMemory(object)
	}
	queued := w.spool.Entries()
	queued[len(queued)-1].since = time.Now()
	tail := object.Start()
	w.chain.tail = &tail
	return nil
}

// end adds what comes behind the rows.
func (w *Writer) addTrailer(d *segmentDraft, changed []*format.Bucket) error {
	err := d.mark(d.End())
	if !d.more && err == nil {
		if err = d.mark(d.upTo); err == nil {
			err = d.Marker(format.Marker{Revision: max(d.upTo, d.End()), Time: w.time()})
		}
	}
	recorded := map[format.CompactionHash]bool{}
	for _, hash := range w.options.Etcd.Hashes() {
		if err == nil && !w.chain.hashes[hash] && hash.Revision <= d.End() {
			err = d.CompactionHash(hash)
		}
		recorded[hash] = hash.Revision <= d.End()
	}
	w.chain.hashes = recorded
	for _, bucket := range changed {
		if err == nil {
			err = d.Bucket(bucket)
		}
	}
	return err
}

// outdated tells whether the leases and users of a member that has applied raft's log up to an index are older than those that the chain
// has: it lags, and has nothing to tell of them until it does no longer. Whoever leads has soon applied all there is; if not, its data were
// put back.
func (w *Writer) isOutdated(applied uint64) bool {
	if w.chain.tail == nil || applied >= w.chain.tail.Applied {
		w.chain.lagSince = time.Time{}
		return false
	}
	if w.chain.lagSince.IsZero() {
		w.chain.lagSince = time.Now()
	}
	return !w.core.Facts.leads || time.Since(w.chain.lagSince) < w.pace.ahead
}

// gapped notes that rows behind the tail may be missing. Unless another member extends the chain meanwhile, it ends.
func (w *Writer) handleGap(gap *capture.GapError) {
	c := &w.chain
	if c.gapSince.IsZero() {
		c.gapSince = time.Now()
		w.post(expired, payload{})
		return
	}
	patience := w.pace.gap
	if w.core.Facts.guest {
		patience *= takeoverFactor // the leader may be about to store its own full snapshot
	}
	if w.core.State != writing || time.Since(c.gapSince) < patience || len(w.spool.Entries()) > 0 || time.Now().Before(w.fulls.gapAfter) {
		return
	}
	if !w.remote.storedAt.After(c.gapSince) || time.Since(w.remote.storedAt) > 2*w.pace.gap {
		w.post(expired, payload{})
		return
	}
	w.options.Log.Warn().Msgf("backups: %s, so what comes behind it cannot be added to the backups before; a full is made", gap)
	w.remote.link = &archive.Link{Position: c.tail.Position, Before: c.tail.Before}
	w.post(broken, payload{err: fmt.Errorf("gap: %w", gap)})
}

// align takes up what waits in the spool, if it goes on from the head; otherwise the database is captured again from there.
func (w *Writer) align(head archive.Head) {
	if w.isAligned(head) {
		return
	}
	w.chain.tail, w.chain.markers, w.chain.gapSince = nil, nil, time.Time{}
	w.resetFlushTargets()
	if f := w.fulls.making; f != nil && !f.storing && f.Next != head.Position {
		f.orphaned = true
	}
	if w.adoptSpool(head) {
		return
	}
	w.discard()
	if w.isWriter() {
		start := head.Start
		w.chain.tail = &start
		w.recaptureBuckets()
	}
}

// retake has the small buckets read again: nothing is known of what the chain has of them.
func (w *Writer) recaptureBuckets() {
	w.chain.buckets, w.chain.hashes, w.chain.applied, w.chain.bucketsAfter = map[string]format.Digest{}, nil, 0, time.Time{}
}

// aligned tells whether what waits, or else the tail, goes on from the head already.
func (w *Writer) isAligned(head archive.Head) bool {
	tail := w.chain.tail
	if tail == nil || tail.Generation != head.Generation || tail.Cluster != head.Cluster {
		return false
	}
	if queued := w.spool.Entries(); len(queued) > 0 {
		return queued[0].Position == head.Position && queued[0].Before == head.Before
	}
	return tail.Position == head.Position && tail.Before == head.Before
}

// takeUp goes on from the segments that wait in the spool, if they follow the head.
func (w *Writer) adoptSpool(head archive.Head) bool {
	if err := w.spool.Rewind(head.Position); err != nil {
		return false
	}
	queued := w.spool.Entries()
	if len(queued) == 0 || queued[0].Position != head.Position {
		return false
	}
	first := queued[0].Manifest
	if first.Before != head.Before || first.Cluster != head.Cluster || first.Generation != head.Generation || head.Outdates(first) {
		return false
	}
	w.queue(queued)
	return true
}

// queue goes on from the end of what waits.
func (w *Writer) queue(waits []Spooled) {
	for i := range waits {
		if segment := &waits[i]; segment.since.IsZero() {
			segment.since = time.Now()
			if !segment.From.IsZero() {
				segment.since = segment.since.Add(-max(0, w.options.Now().Sub(segment.From)))
			}
			w.unstored.add(segment.End, segment.since)
		}
	}
	last := waits[len(waits)-1]
	tail := last.Start()
	w.remote.last = waits[0].Position // the store may have it
	w.chain.tail, w.chain.lastTime = &tail, archive.Later(w.chain.lastTime, last.To)
	w.recaptureBuckets()
}

// resume goes on from what an earlier process left in the spool, as far as that fits etcd's data, so that etcd's compactions
// leave no gap should the store be away. What is of other data is preserved: nobody else may have it.
func (w *Writer) resume() error {
	queued := w.spool.Entries()
	if len(queued) == 0 {
		return nil
	}
	w.queue(queued)
	tail := *w.chain.tail
	compared, same, err := w.compare(tail)
	ours := tail.Cluster == w.identity.Cluster && tail.Generation == w.identity.Generation
	if err == nil && ours && (same || !compared) && tail.Position.Revision <= w.options.Etcd.Revision()+1 {
		return nil
	}
	w.chain.tail = nil
	where, failed := w.spool.Preserve(func(Spooled) bool { return true })
	if failed == nil {
		w.options.Log.Warn().Err(err).Str("moved_to", where).Msg("backups: what waited for the store belongs to other data, and is preserved")
	}
	return failed
}
