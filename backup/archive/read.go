package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// A Reading is the result of reading a path.
type Reading struct {
	Revision  int64            // revision of the last row, or of the full snapshot
	Chain     format.Digest    // digest at the end of the last segment
	Buckets   []*format.Bucket // buckets that changed since the full snapshot, as of the last segment that ends at or before the path's revision
	Compacted int64            // etcd's scheduled compaction at that point
	Hashes    []format.Hash    // hashes of compactions, oldest first
	Rows      int64
	Bytes     int64 // total size of the objects
}

// Read reads the rows after a path's full snapshot up to the path's revision, in order, and passes each of them to
// row, which must not retain its argument. Read verifies that the rows are exactly those that were written. After an
// error, everything that was read must be discarded. Read reports a missing or unverifiable object as a Fault, and
// returns errors from row unchanged. Memory use is bounded, except for the small buckets.
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

// A readingWalk is the state of Read.
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

// run reads one object after another. The end of an object determines the name of the next object, so run also finds
// objects that have not been listed yet.
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
		case errors.Is(err, ErrHole) && w.position == w.path.Full.Next: // the segments continue past the full snapshot
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

// isComplete reports whether all rows have been read. Segments without rows may follow.
func (w *readingWalk) isComplete() bool { return w.position.Revision > w.path.Revision }

func (w *readingWalk) relist() error {
	objects, err := w.reader.Objects(w.ctx, w.path.Generation.Number)
	w.index = w.reader.index(slices.DeleteFunc(objects, func(o Object) bool { return w.path.end.IsZero() && w.path.faults.errorOf(o.Name()) != nil }), nil)
	return err
}

// readObject reads an object if the object exists.
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
	later := !w.path.target.Time.IsZero() && manifest.From.After(w.path.target.Time)          // a bucket may have changed since then
	if w.isComplete() && (manifest.Rows > 0 || later || manifest.Before != w.reading.Chain) { // another chain may start there
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

// Recorded returns a small bucket as it was shortly after a path's revision, from the next segment that contains the
// bucket. Recorded returns nil if the next segments do not contain the bucket or cannot be read.
func (r *Reader) Recorded(ctx context.Context, path Path, name string) (*format.Bucket, error) {
	target := Target{Generation: path.Generation.Number, Revision: path.Revision}
	current, err := r.find(ctx, target, path.faults) // the objects of the path may have been merged
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
			bucket, is := found.Record.(*format.Bucket)
			switch {
			case Unusable(err):
				return nil, nil
			case err != nil:
				return nil, err
			case is && bucket.Name == name && max(found.End, found.Position.Revision) > path.Revision:
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
