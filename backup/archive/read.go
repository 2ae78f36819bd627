package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// A Reading is the result of reading a path.
type Reading struct {
	Revision  int64            // revision of the last row, or of the full snapshot if there are no rows
	Chain     format.Digest    // digest at the end of the last segment
	Buckets   []*format.Bucket // buckets that changed since the full snapshot, up to the last segment that ends at or before Path.Revision
	Compacted int64            // revision of etcd's scheduled compaction at that point; 0 if none
	Hashes    []format.Hash    // hashes of compactions, oldest first
	Rows      int64
	Bytes     int64 // total size of the objects
}

// Read reads the rows after a path's full snapshot up to the path's revision, in order, and calls row for each of
// them. The callback must not retain its argument. Read verifies that the rows are exactly those that were written.
// After an error, everything that was read must be discarded. Read reports a missing or unverifiable object as a
// Fault, and returns errors from row unchanged. Memory usage is bounded, except for small buckets.
func (r *Reader) Read(ctx context.Context, path Path, row func(format.Row) error) (Reading, error) {
	w := &readingWalk{
		reader: r, ctx: ctx, path: path, row: row, position: path.Full.Next,
		buckets: map[string]*format.Bucket{}, index: r.index(slices.Clone(path.Objects), nil),
	}
	w.reading = Reading{Revision: path.Full.Revision, Chain: path.Full.Chain, Compacted: path.Full.Compacted}
	if err := w.run(); err != nil {
		return Reading{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(w.buckets)) {
		w.reading.Buckets = append(w.reading.Buckets, w.buckets[name])
	}
	return w.reading, nil
}

// A readingWalk holds the state of one call to Read.
type readingWalk struct {
	reader *Reader
	ctx    context.Context
	path   Path
	row    func(format.Row) error

	index    index
	position format.Position // position of the next segment
	buckets  map[string]*format.Bucket
	reading  Reading
	done     bool
}

// run reads one object after another. Each object contains the position of the next object, so run also finds objects
// that are missing from the listing.
func (w *readingWalk) run() error {
	for listed := false; !w.done; {
		object, found := w.index.find(w.position)
		if !found {
			if w.isComplete() {
				return nil
			}
			object = Object{Level: Segment, Generation: w.path.Generation.Number, Start: w.position}
		}
		opened, err := w.readObject(object)
		switch {
		case opened && err == nil:
			listed = false
		case errors.Is(err, ErrHole) && w.position == w.path.Full.Next:
			// The full snapshot is at fault, because the segments do not continue from it.
			return asFault(err, DataName(w.path.Full.Generation, w.path.Full.Name()), w.position)
		case opened || !errors.Is(err, store.ErrNotFound):
			return asFault(err, object.Name(), w.position)
		case listed && !found:
			return asFault(fmt.Errorf("%w: segment %s is missing from %s", ErrHole, w.position, w.reader.store), "", w.position)
		case listed:
			return asFault(err, object.Name(), w.position)
		default: // the object was merged after the path was found
			if err := w.relist(); err != nil {
				return err
			}
			listed = true
		}
	}
	return nil
}

// isComplete reports whether all rows have been read. Segments without rows may remain.
func (w *readingWalk) isComplete() bool { return w.position.Revision > w.path.Revision }

func (w *readingWalk) relist() error {
	objects, err := w.reader.Objects(w.ctx, w.path.Generation.Number)
	w.index = w.reader.index(slices.DeleteFunc(objects, func(o Object) bool { return w.path.end.IsZero() && w.path.faults.errorOf(o.Name()) != nil }), nil)
	return err
}

// readObject reads the segments of an object. opened is false if the object does not exist or cannot be opened.
func (w *readingWalk) readObject(object Object) (opened bool, err error) {
	content, err := Fetch(w.ctx, w.reader.store, object.Name())
	if err != nil {
		return false, err
	}
	defer content.Close()
	reader := format.NewSegmentReader(io.TeeReader(content, w), w.reader.keys)
	for manifest, err := range w.reader.segmentsIn(reader, object, w.path.Generation) {
		if err == nil {
			err = w.readSegment(object, reader, manifest)
		}
		if err != nil || w.done {
			return true, err
		}
	}
	return true, nil
}

// Write counts the fetched bytes.
func (w *readingWalk) Write(fetched []byte) (int, error) {
	w.reading.Bytes += int64(len(fetched))
	if w.path.Fetched != nil {
		w.path.Fetched(len(fetched))
	}
	return len(fetched), nil
}

// readSegment reads a segment, unless the segment ends before the current position or starts after the end of the
// path.
func (w *readingWalk) readSegment(object Object, reader *format.SegmentReader, manifest format.Manifest) error {
	if manifest.Next().Compare(w.position) <= 0 {
		return nil // part of a merged object that starts before the full snapshot
	}
	// later reports whether the buckets of the segment may be newer than the target.
	later := !w.path.target.Time.IsZero() && manifest.From.After(w.path.target.Time)
	// After the last row, reading stops at new rows, at newer buckets, and at the start of another chain.
	if w.isComplete() && (manifest.Rows > 0 || later || manifest.Before != w.reading.Chain) {
		w.done = true
		return nil
	}
	if manifest.Position != w.position || manifest.Before != w.reading.Chain {
		return w.reader.sequenceError(object, manifest)
	}
	for {
		record, err := reader.Record()
		if format.Ended(err) {
			w.endSegment(manifest)
			return nil
		}
		if err != nil {
			return w.reader.wrapName(object.Name(), err)
		}
		if err := w.addRecord(record, manifest); err != nil {
			return err
		}
	}
}

func (w *readingWalk) addRecord(record format.Record, manifest format.Manifest) error {
	switch record := record.(type) {
	case *format.Row:
		revision, err := record.Revision()
		if err != nil || revision > w.path.Revision {
			return err
		}
		w.reading.Revision = revision
		w.reading.Rows++
		return w.row(*record)
	case *format.Hash:
		if record.Revision <= w.path.Revision {
			w.reading.Hashes = append(w.reading.Hashes, *record)
		}
	case *format.Bucket:
		if manifest.End <= w.path.Revision {
			w.buckets[record.Name] = record
		}
	}
	return nil
}

// endSegment advances past a segment that was verified against its manifest.
func (w *readingWalk) endSegment(manifest format.Manifest) {
	w.position, w.reading.Chain = manifest.Next(), manifest.After
	if manifest.End <= w.path.Revision {
		w.reading.Compacted = manifest.Compacted
	}
	w.done = manifest.End > w.path.Revision || w.position == w.path.end
}

// maxLookahead limits how many segments Recorded searches for a bucket. Buckets are captured every few seconds.
const maxLookahead = 600

// Recorded returns the content of a small bucket shortly after a path's revision, from the next segment that contains
// the bucket. If the next segments do not contain the bucket or cannot be read, Recorded returns nil.
func (r *Reader) Recorded(ctx context.Context, path Path, name string) (*format.Bucket, error) {
	target := Target{Generation: path.Generation.Number, Revision: path.Revision}
	current, err := r.find(ctx, target, path.faults) // find the path again, because its objects may have been merged
	if errors.Is(err, ErrNotKept) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	left := maxLookahead
	for _, object := range current.chain {
		if object.Next.Revision <= path.Revision {
			continue // the object ends before the revision
		}
		var stated *format.Bucket
		for found, err := range r.records(ctx, object, path.Generation) {
			bucket, ok := found.Record.(*format.Bucket)
			switch {
			case Unusable(err):
				return nil, nil
			case err != nil:
				return nil, err
			case ok && bucket.Name == name && max(found.End, found.Position.Revision) > path.Revision:
				stated = bucket
			case found.Record == nil:
				if left--; stated != nil || left == 0 {
					return stated, nil
				}
			}
		}
	}
	return nil, nil
}

const (
	// Grace is the minimum time before the sources of a merged object are deleted. A segment that is uploaded in
	// less than half of Grace is stored before another segment at the same position can be merged and deleted.
	// PutStored checks slower uploads.
	Grace = 5 * time.Minute
	// HeadValid is the maximum age of a writer's head. A writer whose head is older must call Head before it writes,
	// because another segment at the next position may have been merged and deleted.
	HeadValid = time.Minute
)

// PutStored stores a segment under the name for its position.
func (a *Archive) PutStored(ctx context.Context, generation int, position format.Position, object io.Reader) error {
	started, name := time.Now(), SegmentName(generation, position)
	if _, err := store.PutOnce(ctx, a.store, name, object); err != nil || time.Since(started) < Grace/2 {
		return err
	}
	return a.checkDelayed(ctx, generation, position, name)
}

// checkDelayed checks a segment that took a long time to store. If a different segment was stored at the position,
// merged and deleted in the meantime, checkDelayed deletes the late segment.
func (a *Archive) checkDelayed(ctx context.Context, generation int, position format.Position, name string) error {
	objects, err := a.Objects(ctx, generation, Minute, Hour)
	if err != nil {
		return err
	}
	next := format.Position{Revision: position.Revision, Part: position.Part + 1}
	merged, err := a.verifiedOverlaps(ctx, objects, Object{Start: position, Next: next})
	if err == nil && len(merged) > 0 {
		_ = a.store.Delete(ctx, name) // readers ignore the late segment anyway
		err = a.wrapName(name, fmt.Errorf("another segment at this position was already merged: %w", store.ErrExists))
	}
	return err
}

// verifiedOverlaps returns the merged objects that overlap a given object and can be verified completely.
func (r *objectStore) verifiedOverlaps(ctx context.Context, objects []Object, part Object) (all []Merged, err error) {
	for _, object := range objects {
		if object.Level == Segment || !object.contains(part.Start) && !part.contains(object.Start) {
			continue
		}
		_, err := r.lastManifest(ctx, object) // cached, so that an unverifiable object is not read again each time
		merged := Merged{Object: object}
		if err == nil {
			merged.Segments, err = r.VerifyObject(ctx, object)
		}
		switch {
		case err == nil:
			all = append(all, merged)
		case !Unusable(err):
			return nil, err
		}
	}
	return all, nil
}

// A Merged is a merged object with the manifests of its segments.
type Merged struct {
	Object
	Segments []format.Manifest
}

// Merge writes the segments of sources into one object of a level. The sources must be contiguous and span at most an
// hour. Merge reads each source to the end and verifies everything that does not require a decryption key. Calls may
// be repeated. Merge does not delete the sources. Callers may delete the sources after comparing them with the merged
// object, using VerifyObject.
//
// Merge returns ErrHole if the sources are not contiguous, if a source cannot be verified, if another segment starts
// within the sources, or if another merged object has a different segment at one of the positions.
func (a *Archive) Merge(ctx context.Context, level Level, sources []Object) (Merged, error) {
	if level == Segment || len(sources) == 0 {
		return Merged{}, fmt.Errorf("cannot merge %d objects into one of level %q", len(sources), level)
	}
	first, last := sources[0], sources[len(sources)-1]
	merged := Merged{Object: Object{Level: level, Generation: first.Generation, Start: first.Start, Next: last.Next}}
	if last.Level == Segment {
		manifest, err := a.lastManifest(ctx, last)
		if err != nil {
			return Merged{}, asSequenceError(err)
		}
		merged.Next = manifest.Next()
	}
	body, err := a.putStream(ctx, merged.Name(), func(into io.Writer) (err error) {
		if merged.Segments, err = a.copySegments(ctx, into, merged.Object, sources); err != nil {
			return err
		}
		return a.checkOverlaps(ctx, merged, sources)
	})
	merged.Size = body.Bytes
	return merged, err
}

// checkOverlaps returns ErrHole if a different segment starts within the segments to be merged, or if another
// merged object contains different segments for the same positions. Segments that start within a merged object are
// treated as merged. A late writer may store a segment at a position that was already merged and deleted. The late
// segment must never become part of a merged object, because readers could not tell which merged object is right.
// The late segment is created long after the first merged object and is read before merged objects are listed, so
// even an outdated listing includes the first merged object.
func (a *Archive) checkOverlaps(ctx context.Context, merged Merged, sources []Object) error {
	others, err := a.Objects(ctx, merged.Generation)
	if err != nil {
		return err
	}
	own := func(o Object) bool {
		return o.hasNameOf(merged.Object) || slices.ContainsFunc(sources, o.hasNameOf)
	}
	others = slices.DeleteFunc(others, own)
	for _, other := range others { // for a merged hour, the segments were checked when its minutes were merged
		if other.Level == Segment && merged.Level == Minute && merged.contains(other.Start) && len(merged.SegmentsIn(other)) == 0 {
			return differenceError(merged, other)
		}
	}
	overlaps, err := a.verifiedOverlaps(ctx, others, merged.Object)
	for _, other := range overlaps {
		if !slices.EqualFunc(merged.SegmentsIn(other.Object), other.SegmentsIn(merged.Object), SameSegment) {
			return differenceError(merged, other.Object)
		}
	}
	return err
}

func differenceError(merged Merged, other Object) error {
	return fmt.Errorf("%w: %s and %s contain different segments", ErrHole, other.Name(), merged.Name())
}

// SegmentsIn returns the segments that start within an object.
func (m Merged) SegmentsIn(object Object) []format.Manifest {
	return slices.DeleteFunc(slices.Clone(m.Segments), func(s format.Manifest) bool {
		return s.Position != object.Start && !object.contains(s.Position)
	})
}

// SameSegment reports whether two segments have the same position, rows and body.
func SameSegment(a, b format.Manifest) bool {
	return a.Position == b.Position && a.After == b.After && a.Body == b.Body
}

// copySegments copies the segments of sources. The segments must exactly cover the range of merged and belong to the
// cluster of the generation.
func (a *Archive) copySegments(ctx context.Context, into io.Writer, merged Object, sources []Object) (all []format.Manifest, err error) {
	generation, err := a.Generation(ctx, merged.Generation)
	if err != nil {
		return nil, err
	}
	next := merged.Start
	for _, source := range sources {
		if source.Generation != merged.Generation || source.Start != next {
			return nil, fmt.Errorf("%w: %s does not start at %s", ErrHole, source.Name(), next)
		}
		content, err := Fetch(ctx, a.store, source.Name())
		if err == nil {
			all, err = a.appendManifests(all, io.TeeReader(content, into), source, generation)
			_ = content.Close() // the object was only read, so a close error is harmless
		}
		if err != nil {
			return nil, asSequenceError(err)
		}
		next = all[len(all)-1].Next()
	}
	if next != merged.Next {
		return nil, fmt.Errorf("%w: the sources of %s end at %s, not at %s", ErrHole, merged.Name(), next, merged.Next)
	}
	return all, nil
}

// asSequenceError converts a verification error to ErrHole, which causes the merger to keep the object and continue
// with other merges.
func asSequenceError(err error) error {
	if NotVerified(err) {
		return fmt.Errorf("%w: %w", ErrHole, err)
	}
	return err
}
