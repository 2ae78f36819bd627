package writer

import (
	"errors"
	"time"

	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/writer/capture"
)

const (
	// chunk is how many bytes of rows one read transaction copies: it is open for about a millisecond.
	chunk = 1 << 20
	// most is how many bytes of records make a segment at most, and one revision more.
	most = 8 << 20
	// slower is how many intervals lie between captures while the store is away: they have time, and every segment costs a
	// request later.
	slower = 10
	// mostMarkers bounds the markers that wait for a capture.
	mostMarkers = 1024
)

// observe looks at etcd, which costs microseconds.
func (s *Shipper) observe() {
	s.lead(s.options.Etcd.IsLeader() && !s.deposed())
	revision := s.options.Etcd.Revision()
	if revision > s.revision && s.tail != nil && s.writes() && len(s.markers) < mostMarkers {
		s.markers = append(s.markers, marker{segment.Marker{Revision: revision, Time: s.time()}, time.Now()})
	}
	s.revision = revision
}

// capture makes a segment of what is new, if it is time for one, and tells whether there is more to capture at once.
func (s *Shipper) capture() (again bool) {
	if !s.hurry && s.unchanged() {
		return false
	}
	if !s.writes() || s.tail == nil || s.held != nil || !s.timeToCapture() {
		return false
	}
	again, err := s.captureUpTo(s.revision, true)
	var gap *capture.GapError
	switch {
	case errors.As(err, &gap):
		s.gapped(gap)
	case err != nil:
		s.captured = time.Now() // to be tried again an interval later
		s.stuck(err)
	default:
		s.hurry, s.local, s.gap = s.hurry && again, nil, noGap
	}
	return again && err == nil
}

// unchanged tells whether the segments so far have all of the database.
func (s *Shipper) unchanged() bool {
	applied := s.options.Etcd.AppliedIndex()
	return s.tail != nil && s.tail.Position.Revision > s.revision && (s.applied == applied || s.outdated(applied))
}

func (s *Shipper) timeToCapture() bool {
	return s.hurry || time.Since(s.captured) >= s.interval()
}

// interval is what lies between two captures.
func (s *Shipper) interval() time.Duration {
	if s.away() {
		return slower * s.options.Interval
	}
	return s.options.Interval
}

// captureUpTo makes a segment of the rows up to a revision, and beyond it if that is wanted, and tells whether it left some.
func (s *Shipper) captureUpTo(revision int64, beyond bool) (again bool, err error) {
	applied := s.options.Etcd.AppliedIndex() // before the transaction begins: what comes between is looked at again
	drawn, err := s.draw(revision, beyond, s.bucketsDue(applied))
	if err != nil {
		return false, err
	}
	changed := s.changed(drawn.small)
	s.examined = time.Now()
	if drawn.Rows() > 0 || len(changed) > 0 {
		s.captured = s.examined
		if err := s.keep(drawn, changed); err != nil {
			return false, err
		}
	}
	if drawn.small != nil {
		s.applied = applied
		for _, bucket := range changed {
			s.buckets[bucket.Name] = capture.Digest(bucket)
		}
	}
	return drawn.more, nil
}

// drawn is a segment in the making.
type drawn struct {
	*segment.Builder
	upTo      int64
	markers   []marker // that are not added yet
	compacted int64
	small     []*segment.Bucket // all of them; nil if they were not looked at
	applied   uint64            // raft's index once they were; 0 if they were not
	more      bool
}

// draw reads rows chunk by chunk, each in a transaction of its own, and encodes them in between. What was drawn before a gap
// is a segment all the same.
func (s *Shipper) draw(upTo int64, beyond, buckets bool) (*drawn, error) {
	builder, err := segment.NewBuilder(s.options.Keys, *s.tail)
	if err != nil {
		return nil, err
	}
	d := &drawn{Builder: builder, upTo: upTo, markers: s.markers, more: true}
	for d.more && d.RawBytes() < most {
		request := capture.Request{From: d.End() + 1, UpTo: upTo, Beyond: beyond, Limit: chunk, Buckets: buckets}
		rows, err := s.reader.Since(request)
		if err != nil && d.Rows() == 0 {
			return nil, err
		}
		if err != nil {
			break
		}
		if err := d.add(rows); err != nil {
			return nil, err
		}
		s.spare(rows)
	}
	if d.small != nil {
		d.applied = s.options.Etcd.AppliedIndex()
	}
	return d, nil
}

func (d *drawn) add(rows capture.Rows) error {
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
func (d *drawn) mark(revision int64) error {
	for len(d.markers) > 0 && d.markers[0].Revision <= revision {
		if err := d.Marker(d.markers[0].Marker); err != nil {
			return err
		}
		d.markers = d.markers[1:]
	}
	return nil
}

// bucketsDue tells whether the small buckets are to be read. Reading them keeps etcd's readers waiting, so it may take a
// hundredth of the time at most: a member with a million leases has them looked at every few seconds. For somebody who waits
// they are read in any case: etcd answers a client before it says that it has applied the request.
func (s *Shipper) bucketsDue(applied uint64) bool {
	return !s.outdated(applied) && (s.hurry || s.applied != applied && time.Now().After(s.bucketsAfter))
}

func (s *Shipper) spare(rows capture.Rows) {
	if rows.Buckets != nil {
		s.bucketsAfter = time.Now().Add(100 * rows.Held)
	}
}

// changed are the small buckets that the chain has otherwise, or not at all.
func (s *Shipper) changed(small []*segment.Bucket) (changed []*segment.Bucket) {
	if s.buckets == nil {
		s.buckets = map[string]segment.Digest{}
	}
	for _, bucket := range small {
		if known, ok := s.buckets[bucket.Name]; !ok || known != capture.Digest(bucket) {
			changed = append(changed, bucket)
		}
	}
	return changed
}

// keep ends a segment and puts it into the spool.
func (s *Shipper) keep(d *drawn, changed []*segment.Bucket) error {
	if err := s.end(d, changed); err != nil {
		return err
	}
	etcd := s.options.Etcd
	object, err := d.Finish(segment.Source{Compacted: d.compacted, Term: etcd.Term(), Member: etcd.MemberID(), Applied: d.applied})
	if err != nil {
		return err
	}
	if err := s.spool.Put(object, s.away()); err != nil {
		if len(s.waiting) > 0 {
			return err // it stays in the database until there is room
		}
		s.options.Log.Warn().Err(err).Msg("backups: a segment waits in memory")
		s.held = &object
	}
	s.waiting = append(s.waiting, waiting{position: object.Position, next: object.Next(), before: object.Before, size: object.Size(), since: s.changedAt()})
	tail := object.Start()
	s.tail, s.markers = &tail, d.markers
	return nil
}

// changedAt is when the first change was seen that is not captured.
func (s *Shipper) changedAt() time.Time {
	if len(s.markers) == 0 {
		return time.Now()
	}
	return s.markers[0].seen
}

// end adds what comes behind the rows.
func (s *Shipper) end(d *drawn, changed []*segment.Bucket) error {
	err := d.mark(d.End())
	if !d.more && err == nil {
		if err = d.mark(d.upTo); err == nil {
			err = d.Marker(segment.Marker{Revision: max(d.upTo, d.End()), Time: s.time()})
		}
	}
	told := map[segment.CompactionHash]bool{}
	for _, hash := range s.options.Etcd.Hashes() {
		if err == nil && !s.hashes[hash] && hash.Revision <= d.End() {
			err = d.CompactionHash(hash)
		}
		told[hash] = hash.Revision <= d.End()
	}
	s.hashes = told
	for _, bucket := range changed {
		if err == nil {
			err = d.Bucket(bucket)
		}
	}
	return err
}
