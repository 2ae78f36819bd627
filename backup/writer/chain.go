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
	// chunk is the number of bytes of rows that one read transaction copies, which takes about a millisecond.
	chunk = 1 << 20
	// maxSegment is the size in bytes of records at which a segment ends; it may exceed this by one revision.
	maxSegment = 8 << 20
	// unreachableFactor lengthens the interval between captures while the store is unreachable: captures are not
	// urgent then, and each segment costs a request later.
	unreachableFactor = 10
	// maxMarkers bounds the markers that are queued for a capture.
	maxMarkers = 1024
)

// mark records when a revision was first observed.
func (w *Writer) mark() {
	if c := &w.chain; c.tail != nil && w.isWriter() && len(c.markers) < maxMarkers {
		c.markers = append(c.markers, format.Marker{Revision: w.revision, Time: w.time()})
	}
}

// capture makes a segment of what has changed, if it is time, and sets again if there is more.
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
		c.captured = time.Now() // retry an interval later
		w.captureFailed(err)
	default:
		w.again = again
		c.captureNow, c.gapSince, w.problems[opCapture] = c.captureNow && again, time.Time{}, nil
	}
}

// heartbeatDue reports whether to store an empty segment, which shows that this cluster is active: a restore never
// replaces an active cluster.
func (w *Writer) heartbeatDue() bool {
	return w.core.State == writing && len(w.spool.Entries()) == 0 && !w.options.Release && !w.options.SegmentsOnly &&
		time.Since(w.remote.storedAt) >= w.pace.heartbeat
}

// isUnchanged reports whether the captured segments contain the whole database.
func (w *Writer) isUnchanged() bool {
	applied := w.options.Etcd.AppliedIndex()
	return w.chain.tail != nil && w.chain.tail.Position.Revision > w.revision && (w.chain.applied == applied || w.isOutdated(applied))
}

// interval returns the time between two captures.
func (w *Writer) interval() time.Duration {
	if w.isUnreachable() {
		return unreachableFactor * w.options.Interval
	}
	return w.options.Interval
}

// captureUpTo makes a segment of the rows up to a revision, and past it if beyond is set, and reports whether rows
// remain. Without changes it makes a segment only if empty is set.
func (w *Writer) captureUpTo(revision int64, beyond, empty bool) (again bool, err error) {
	applied := w.options.Etcd.AppliedIndex() // before the transaction, so that later changes are read again
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

// segmentDraft is a segment that is being built.
type segmentDraft struct {
	*format.SegmentBuilder
	upTo      int64
	markers   []format.Marker // not added yet
	compacted int64
	small     []*format.Bucket // all small buckets; nil if they were not read
	applied   uint64           // raft index after reading them; 0 if they were not read
	more      bool
}

// buildSegment reads rows in chunks, each in its own transaction, and encodes them in between. Rows read before a gap
// form a valid segment.
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
			err = d.Add(&row)
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
		if err := d.Add(&d.markers[0]); err != nil {
			return err
		}
		d.markers = d.markers[1:]
	}
	return nil
}

// bucketsDue reports whether to read the small buckets. Reading them blocks etcd's readers, so it may take at most a
// hundredth of the time: with a million leases they are read every few seconds. If a caller waits they are always
// read: etcd answers a client before it reports the request as applied.
func (w *Writer) bucketsDue(applied uint64) bool {
	return !w.isOutdated(applied) && (w.chain.captureNow || w.chain.applied != applied && time.Now().After(w.chain.bucketsAfter))
}

// changedBuckets returns the small buckets that differ from the chain's.
func (w *Writer) changedBuckets(small []*format.Bucket) (changed []*format.Bucket) {
	for _, bucket := range small {
		if digest, ok := w.chain.buckets[bucket.Name]; !ok || digest != capture.Digest(bucket) {
			changed = append(changed, bucket)
		}
	}
	return changed
}

// spoolSegment completes a segment and spools it.
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

// enqueue finishes a segment and queues it after the others.
func (w *Writer) enqueue(builder *format.SegmentBuilder, source format.Source) error {
	object, err := builder.Finish(source)
	if err != nil {
		return err
	}
	if err := w.spool.Put(object, w.isUnreachable()); err != nil {
		if len(w.spool.Entries()) > 0 {
			return err // the rows stay in the database until there is room
		}
		w.options.Log.Warn().Err(err).Msg("backups: a segment is held in memory")
		w.spool.holdInMemory(object)
	}
	queued := w.spool.Entries()
	queued[len(queued)-1].since = time.Now()
	tail := object.Start()
	w.chain.tail = &tail
	return nil
}

// addTrailer adds the markers, hashes and buckets that follow the rows.
func (w *Writer) addTrailer(d *segmentDraft, changed []*format.Bucket) error {
	err := d.mark(d.End())
	if !d.more && err == nil {
		if err = d.mark(d.upTo); err == nil {
			err = d.Add(&format.Marker{Revision: max(d.upTo, d.End()), Time: w.time()})
		}
	}
	recorded := map[format.CompactionHash]bool{}
	for _, hash := range w.options.Etcd.Hashes() {
		if err == nil && !w.chain.hashes[hash] && hash.Revision <= d.End() {
			err = d.Add(&hash)
		}
		recorded[hash] = hash.Revision <= d.End()
	}
	w.chain.hashes = recorded
	for _, bucket := range changed {
		if err == nil {
			err = d.Add(bucket)
		}
	}
	return err
}

// isOutdated reports whether the leases and users of a member with the given applied index are older than the
// chain's. Such a member captures none of them until it has caught up. A leader catches up soon; if it does not, its
// data was rolled back.
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

// handleGap records that rows after the tail may be missing. The chain ends unless another member extends it in time.
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
	w.options.Log.Warn().Msgf("backups: %s, so the chain cannot be extended; making a full snapshot", gap)
	w.remote.link = &archive.Link{Position: c.tail.Position, Before: c.tail.Before}
	w.post(broken, payload{err: fmt.Errorf("gap: %w", gap)})
}

// align adopts the queued segments if they extend the head; otherwise the database is captured again from the head.
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

// recaptureBuckets makes the next capture read the small buckets: their state in the chain is unknown.
func (w *Writer) recaptureBuckets() {
	w.chain.buckets, w.chain.hashes, w.chain.applied, w.chain.bucketsAfter = map[string]format.Digest{}, nil, 0, time.Time{}
}

// isAligned reports whether the queued segments, or else the tail, already extend the head.
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

// adoptSpool continues from the queued segments if they extend the head, and reports whether they do.
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

// queue moves the tail to the end of the queued segments.
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

// resume continues from the segments that an earlier process left in the spool if they match etcd's data, so that
// etcd's compactions leave no gap if the store is unreachable. Segments of other data are preserved: they may be the
// only copy.
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
		w.options.Log.Warn().Err(err).Str("moved_to", where).Msg("backups: the segments in the spool belong to other data and are preserved")
	}
	return failed
}
