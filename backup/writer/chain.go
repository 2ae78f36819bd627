package writer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/backup/writer/capture"
)

// chain captures etcd's changes and queues them in the spool as segments. The queued segments are contiguous and end
// at the tail.
type chain struct {
	*driver
	health   *health
	spool    *Spool
	reader   *capture.Reader
	revision int64 // last observed revision of etcd
	unstored lag

	tail      *format.Start   // start of the next segment; nil if unknown
	epoch     int             // incremented when the tail is replaced, because positions from different epochs cannot be compared
	last      format.Position // position of the last segment with changes, from this process or another member
	markers   []format.Marker // time markers recorded since the last capture
	lastTime  time.Time       // latest time written in this generation
	small     bucketState
	released  format.Position // position after the release object of a clean shutdown; zero if there is none
	complete  complete        // last capture that contained all of etcd's changes
	compacted int64           // revision of etcd's scheduled compaction at the last capture by this process

	captured time.Time // time of the last capture
	examined time.Time // time of the last check for changes; a flush waits for a check that starts after its call
	urgent   bool      // the next capture does not wait for the interval
	gapSince time.Time // time when etcd was found to be compacted beyond the tail; zero if it is not
	lagSince time.Time // time when this member's leases and users were found outdated; zero if they are not
}

// complete describes a capture of all of etcd's changes, including changes without a revision.
type complete struct {
	request uint64          // number of Options.Ack requests whose changes the capture contains
	end     format.Position // end of the capture; the requests are answered once the store reaches it
}

// bucketState describes the small buckets and the compaction hashes in the chain. The zero value makes the next
// capture read all of them.
type bucketState struct {
	digests  map[string]format.Digest
	hashes   map[format.Hash]bool
	applied  uint64    // etcd's applied index when the buckets were last read
	notUntil time.Time // earliest time of the next read
}

const (
	// chunk is the size in bytes of the rows copied in one read transaction. Copying them takes about a millisecond.
	chunk = 1 << 20
	// maxSegment is the size in bytes at which a segment ends. A segment may exceed maxSegment by one revision.
	maxSegment = 8 << 20
	// unreachableFactor extends the interval between captures while the store is unreachable. Captures are not urgent
	// then, and each queued segment costs a request once the store is reachable again.
	unreachableFactor = 10
	// maxMarkers is the maximum number of time markers between captures.
	maxMarkers = 1024
)

// observe reads etcd's revision and records when each revision was first observed.
func (c *chain) observe() {
	before := c.revision
	if c.revision = c.options.Etcd.Revision(); c.revision <= before {
		return
	}
	c.unstored.add(c.revision, time.Now())
	if c.tail != nil && c.isWriter() && len(c.markers) < maxMarkers {
		c.markers = append(c.markers, format.Marker{Revision: c.revision, Time: c.time()})
	}
}

// time returns the current time in milliseconds. If the clock was set back, time returns the latest time written in
// this generation.
func (c *chain) time() time.Time {
	c.lastTime = archive.MaxTime(c.lastTime, c.options.Now().UTC().Truncate(time.Millisecond))
	return c.lastTime
}

// capture queues a segment with the latest changes if a capture is due. If heartbeat is set, capture queues a segment
// even if there are no changes. capture returns capture.ErrCompacted if the chain cannot be extended.
func (c *chain) capture(heartbeat bool) error {
	switch {
	case !c.isWriter(), c.tail == nil, c.spool.hasInMemory(), !c.released.IsZero():
		return nil
	case !c.urgent && (!heartbeat && !c.isAsked() && c.isUnchanged() || time.Since(c.captured) < c.interval()):
		return nil
	case !c.urgent && c.options.Ack != nil && len(c.spool.Entries()) > 0:
		return nil // changes made during an upload go into the next segment
	}
	more, err := c.captureUpTo(c.revision, true, heartbeat)
	switch {
	case errors.Is(err, capture.ErrCompacted):
		return err
	case err != nil:
		c.captured = time.Now() // delays the retry by an interval
		c.captureFailed(err)
	default:
		c.again = more
		c.urgent, c.gapSince, c.health.problems[opCapture] = c.urgent && more, time.Time{}, nil
	}
	return nil
}

// isAsked reports whether a reply to a request without a revision is waiting for a capture.
func (c *chain) isAsked() bool { return c.options.Ack.Requests() > c.complete.request }

// captureFailed records a failed capture. The capture can be retried, because etcd keeps the rows until it is
// compacted.
func (c *chain) captureFailed(err error) {
	c.health.record(opCapture, "cannot capture changes, so the next compaction will leave a gap in the backups: "+err.Error(), true)
}

// captureNow captures all changes and stops at the first error.
func (c *chain) captureNow() {
	c.revision = c.options.Etcd.Revision()
	c.urgent = true
	for c.again = true; c.again; {
		c.again = false
		_ = c.capture(false)
	}
}

// isUnchanged reports whether all changes have been captured, except for leases and users that are too old to be
// captured (isStale).
func (c *chain) isUnchanged() bool {
	applied := c.options.Etcd.AppliedIndex()
	return c.tail != nil && c.tail.Position.Revision > c.revision && (c.small.applied == applied || c.isStale(applied))
}

// interval returns the time between captures.
func (c *chain) interval() time.Duration {
	if c.health.isUnreachable() {
		return unreachableFactor * c.options.Interval
	}
	return c.options.Interval
}

// captureUpTo queues a segment with rows up to a revision, or with all rows if beyond is set. more reports whether
// rows remain. If there are no changes, captureUpTo queues a segment only if empty is set.
func (c *chain) captureUpTo(revision int64, beyond, empty bool) (more bool, err error) {
	applied := c.options.Etcd.AppliedIndex() // read before the transaction, so that later changes are read again
	request := c.options.Ack.Requests()      // also read before the transaction, so that the transaction contains everything that the replies depend on
	draft, err := c.buildSegment(revision, beyond, c.shouldReadBuckets(applied))
	if err != nil {
		return false, err
	}
	changed := c.changedBuckets(draft.small)
	// Even an empty segment is needed: a client waits for its compaction.
	empty = empty || c.options.Ack != nil && draft.compacted != c.compacted
	c.examined = time.Now()
	if draft.Rows() > 0 || len(changed) > 0 {
		c.last = c.tail.Position
	}
	if draft.Rows() > 0 || len(changed) > 0 || empty {
		c.captured = c.examined
		if err := c.finishSegment(draft, changed); err != nil {
			return false, err
		}
	}
	if draft.small != nil {
		c.small.applied = applied
		for _, bucket := range changed {
			c.small.digests[bucket.Name] = capture.Digest(bucket)
		}
		c.complete = complete{request, c.tail.Position} // the small buckets are read together with the last rows
	}
	return draft.more, nil
}

// captureThrough captures changes up to the revision of an open snapshot.
func (c *chain) captureThrough(revision int64) error {
	for c.tail.Position.Revision <= revision {
		if c.spool.hasInMemory() {
			return errors.New("a segment that could not be spooled is still held in memory")
		}
		if _, err := c.captureUpTo(revision, false, false); err != nil {
			return err
		}
	}
	if c.tail.Position.Revision != revision+1 {
		return fmt.Errorf("the chain ends at revision %d, but the database is at revision %d", c.tail.Position.Revision-1, revision)
	}
	return nil
}

// segmentBuilder collects the contents of a segment, and what the chain needs to know once the segment is queued.
type segmentBuilder struct {
	*format.SegmentBuilder
	upTo      int64
	markers   []format.Marker // markers yet to be added
	compacted int64
	small     []*format.Bucket // all small buckets; nil if not read
	applied   uint64           // applied index after reading the small buckets; 0 if not read
	more      bool
}

// buildSegment reads rows in chunks, each in its own transaction, and encodes them after closing the transaction. If
// there is a gap, the segment contains the rows before the gap.
func (c *chain) buildSegment(upTo int64, beyond, buckets bool) (*segmentBuilder, error) {
	builder, err := format.NewSegmentBuilder(c.options.Archive.Keys(), *c.tail)
	if err != nil {
		return nil, err
	}
	d := &segmentBuilder{SegmentBuilder: builder, upTo: upTo, markers: c.markers, more: true}
	for d.more && d.RawBytes() < maxSegment {
		rows, err := c.reader.ReadRows(capture.Request{From: d.End() + 1, UpTo: upTo, Beyond: beyond, Limit: chunk, Buckets: buckets})
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
			c.small.notUntil = time.Now().Add(100 * rows.Held)
		}
	}
	if d.small != nil {
		d.applied = c.options.Etcd.AppliedIndex()
	}
	return d, nil
}

func (d *segmentBuilder) add(rows capture.Rows) error {
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

// mark adds all markers up to a revision.
func (d *segmentBuilder) mark(revision int64) error {
	for len(d.markers) > 0 && d.markers[0].Revision <= revision {
		if err := d.Add(&d.markers[0]); err != nil {
			return err
		}
		d.markers = d.markers[1:]
	}
	return nil
}

// shouldReadBuckets reports whether to read the small buckets. Reading the buckets blocks etcd's readers, so at most
// one percent of the time is spent on it: with a million leases, the buckets are read every few seconds. The buckets
// are always read if a caller is waiting, because etcd replies to a client before it reports the request as applied.
func (c *chain) shouldReadBuckets(applied uint64) bool {
	return !c.isStale(applied) && (c.urgent || c.isAsked() || c.small.applied != applied && time.Now().After(c.small.notUntil))
}

// changedBuckets returns the small buckets that differ from those in the chain.
func (c *chain) changedBuckets(small []*format.Bucket) (changed []*format.Bucket) {
	for _, bucket := range small {
		if digest, ok := c.small.digests[bucket.Name]; !ok || digest != capture.Digest(bucket) {
			changed = append(changed, bucket)
		}
	}
	return changed
}

// finishSegment adds the markers, hashes and buckets that follow the rows, and queues the segment.
func (c *chain) finishSegment(d *segmentBuilder, changed []*format.Bucket) error {
	end := d.End()
	if !d.more {
		end = max(end, d.upTo)
		d.markers = append(slices.Clip(d.markers), format.Marker{Revision: end, Time: c.time()})
	}
	err := d.mark(end)
	recorded := map[format.Hash]bool{}
	for _, hash := range c.options.Etcd.Hashes() {
		if recorded[hash] = hash.Revision <= d.End(); recorded[hash] && !c.small.hashes[hash] {
			err = errors.Join(err, d.Add(&hash))
		}
	}
	c.small.hashes = recorded
	for _, bucket := range changed {
		err = errors.Join(err, d.Add(bucket))
	}
	if err == nil {
		err = c.queueSegment(d.SegmentBuilder, format.Source{Compacted: d.compacted, Applied: d.applied})
	}
	if err == nil {
		c.markers, c.compacted = d.markers, d.compacted
	}
	return err
}

// queueSegment finishes a segment and adds it to the spool.
func (c *chain) queueSegment(builder *format.SegmentBuilder, source format.Source) error {
	identity := c.options.Etcd.Identity()
	source.Term, source.Member, source.Session = identity.Term, identity.MemberID, c.options.Session
	object, err := builder.Finish(source)
	if err != nil {
		return err
	}
	if err := c.spool.Put(object, c.health.isUnreachable()); err != nil {
		if len(c.spool.Entries()) > 0 {
			return err // the rows remain in the database until the spool has room
		}
		c.options.Log.Warn().Err(err).Msg("backups: cannot spool a segment; keeping it in memory")
		c.spool.keepInMemory(object)
	}
	queued := c.spool.Entries()
	queued[len(queued)-1].since = time.Now()
	c.tail = new(object.Start())
	return nil
}

// release queues the final object of a clean shutdown, at most once, and reports whether it did so.
func (c *chain) release() bool {
	if !c.options.Release || c.core.State != writing || !c.released.IsZero() {
		return false
	}
	builder, err := format.NewSegmentBuilder(c.options.Archive.Keys(), *c.tail)
	if err == nil {
		err = c.queueSegment(builder, format.Source{Released: true})
	}
	if err != nil {
		c.options.Log.Warn().Err(err).Msg("backups: cannot record the clean shutdown; a restore elsewhere will first wait to see whether this cluster is still active")
		return false
	}
	c.released, c.again = c.tail.Position, true
	return true
}

// isStale reports whether a member with the given applied index has older leases and users than the chain. A stale
// member does not capture leases or users until it has caught up. If a leader does not catch up soon, its data was
// rolled back, and its leases and users are captured.
func (c *chain) isStale(applied uint64) bool {
	outdated := c.tail != nil && applied < c.tail.Applied
	lag := elapsed(&c.lagSince, outdated)
	return outdated && (!c.core.Facts.leads || lag < c.pace.ahead)
}

// reset clears the tail. The database is then captured again from the new tail, and pending flushes wait for that
// capture.
func (c *chain) reset() {
	c.tail, c.markers, c.gapSince, c.examined = nil, nil, time.Time{}, time.Time{}
	c.compacted, c.complete = 0, complete{}
	c.epoch++
	c.urgent = c.urgent || c.health.flushing
}

// resetBuckets makes the next capture read the small buckets because their state in the chain is unknown.
func (c *chain) resetBuckets() { c.small = bucketState{digests: map[string]format.Digest{}} }

// branch makes the next capture include all small buckets that differ between a full snapshot and the segments before
// it. Buckets that have changed back are included as well, because a restore may start from this full snapshot or
// from an earlier one.
func (c *chain) branch(snapshot map[string]format.Digest) {
	maps.DeleteFunc(c.small.digests, func(name string, last format.Digest) bool { return snapshot[name] != last })
}

// drop discards all queued segments.
func (c *chain) drop() {
	if err := c.spool.Clear(); err != nil {
		c.options.Log.Warn().Err(err).Msg("backups: cannot clean up the spool")
	}
}

// extends reports whether the queued segments start at head. If no segments are queued, extends reports whether the
// tail is at head.
func (c *chain) extends(head archive.Head) bool {
	var start format.Start
	if queued := c.spool.Entries(); len(queued) > 0 {
		first := queued[0].Manifest
		start = format.Start{Cluster: first.Cluster, Generation: first.Generation, Position: first.Position, Before: first.Before}
	} else if c.tail != nil {
		start = *c.tail
	}
	return start.Cluster == head.Cluster && start.Generation == head.Generation && start.Position == head.Position && start.Before == head.Before
}

// align makes the next segment start at head. Queued segments are kept if they start at head; otherwise, align
// discards the spool so that the database is captured again. align reports whether the tail has changed.
func (c *chain) align(head archive.Head) bool {
	if c.tail != nil && c.extends(head) {
		return false
	}
	c.reset()
	err := c.spool.Rewind(head.Position)
	if queued := c.spool.Entries(); err == nil && len(queued) > 0 && c.extends(head) && !head.IsNewer(queued[0].Manifest) {
		c.adopt(queued)
		return true
	}
	c.drop()
	if c.isWriter() {
		c.tail = new(head.Start)
		c.resetBuckets()
	}
	return true
}

// adopt moves the tail to the end of the queued segments.
func (c *chain) adopt(queued []Spooled) {
	for i := range queued {
		if segment := &queued[i]; segment.since.IsZero() {
			segment.since = time.Now()
			if !segment.From.IsZero() {
				segment.since = segment.since.Add(-max(0, c.options.Now().Sub(segment.From)))
			}
			c.unstored.add(segment.End, segment.since)
		}
	}
	last := queued[len(queued)-1]
	c.tail, c.lastTime = new(last.Start()), archive.MaxTime(c.lastTime, last.To)
	c.resetBuckets()
}

// resume continues the segments that an earlier process left in the spool, if they match etcd's data, so that a
// compaction does not leave a gap even if the store is unreachable. Segments that belong to other data are preserved
// because they may be the only copy.
func (c *chain) resume(identity archive.Identity) error {
	queued := c.spool.Entries()
	if len(queued) == 0 {
		return nil
	}
	c.adopt(queued)
	rows, err := c.compare(*c.tail)
	belongs := c.tail.Cluster == identity.Cluster && c.tail.Generation == identity.Generation
	if err == nil && belongs && rows != relation.Different && c.tail.Position.Revision <= c.options.Etcd.Revision()+1 {
		return nil
	}
	c.tail = nil
	where, failed := c.spool.Preserve(func(Spooled) bool { return true })
	if failed == nil {
		c.options.Log.Warn().Err(err).Str("moved_to", where).Msg("backups: the segments in the spool do not match this member's data; preserved them")
	}
	return failed
}

// compareHead compares the rows at the end of the chain with etcd's: all rows of the newest segment, or the rows of
// the last revision if a full snapshot is newer.
func (c *chain) compareHead(head archive.Head) (relation.Rows, error) {
	rows, err := c.compare(head.Start)
	if err == nil && rows == relation.Equal && head.Segment != nil {
		return c.compareSegment(*head.Segment)
	}
	return rows, err
}

// compare compares the rows of a chain's last revision with etcd's. The result is NotCompared if the chain has no
// digest of the rows, or if the rows differ but etcd may have compacted some of them. A chain without rows equals data
// without rows, and cannot be compared with data that has rows, because every history starts without rows.
func (c *chain) compare(end format.Start) (relation.Rows, error) {
	if end.Last == (format.Digest{}) {
		if end.Position.Revision == format.After(1).Revision && c.options.Etcd.Revision() == 1 {
			return relation.Equal, nil
		}
		return relation.NotCompared, nil
	}
	own, complete, err := c.digest(end.Position.Revision - 1)
	switch {
	case err != nil:
		return relation.NotCompared, err
	case own == end.Last:
		return relation.Equal, nil
	case complete:
		return relation.Different, nil
	default:
		return relation.NotCompared, nil
	}
}

// compareSegment compares all rows of a segment with etcd's, because the last revision alone may be identical in two
// copies of the data that were written to independently. If etcd has compacted rows of the segment, the result is
// Equal.
func (c *chain) compareSegment(with format.Manifest) (relation.Rows, error) {
	digests := format.Continue(with.Before, with.Position)
	for more := true; more; {
		rows, err := c.addRows(digests, capture.Request{From: digests.Revision() + 1, UpTo: with.End, Limit: chunk})
		switch {
		case errors.Is(err, capture.ErrCompacted):
			return relation.Equal, nil
		case err != nil:
			return relation.NotCompared, err
		}
		more = rows.More
	}
	if own, _ := digests.End(); own != with.After {
		return relation.Different, nil
	}
	return relation.Equal, nil
}

// digest returns the digest of the remaining rows of a revision. complete is false if some rows of the revision may
// have been compacted.
func (c *chain) digest(revision int64) (own format.Digest, complete bool, err error) {
	digests := format.Continue(format.Digest{}, format.Position{Revision: revision})
	rows, err := c.addRows(digests, capture.Request{From: revision, UpTo: revision, Limit: chunk, Left: true})
	_, own = digests.End()
	return own, rows.Compacted < revision, err
}

// addRows reads rows and adds them to digests.
func (c *chain) addRows(digests *format.Chain, request capture.Request) (capture.Rows, error) {
	rows, err := c.reader.ReadRows(request)
	for _, row := range rows.Rows {
		err = cmp.Or(err, digests.Add(row))
	}
	return rows, err
}

// lag records when each unstored revision was first observed, in ascending order. Capturing a revision again does not
// change its time.
type lag []sample

type sample struct {
	revision int64     // last revision that was first observed at this time
	at       time.Time // monotonic time
}

// maxObservations is the maximum number of samples in a lag.
const maxObservations = 1024

func (l *lag) add(revision int64, at time.Time) {
	if len(*l) > 0 && revision <= (*l)[len(*l)-1].revision {
		return
	}
	if len(*l) == maxObservations { // halve the list by merging pairs, and keep the earlier time of each pair
		for i := range maxObservations / 2 {
			(*l)[i] = sample{(*l)[2*i+1].revision, (*l)[2*i].at}
		}
		*l = (*l)[:maxObservations/2]
	}
	*l = append(*l, sample{revision, at})
}

// drop removes all stored revisions.
func (l *lag) drop(stored int64) {
	*l = slices.DeleteFunc(*l, func(o sample) bool { return o.revision <= stored })
}
