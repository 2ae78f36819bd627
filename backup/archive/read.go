package archive

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store"
)

// Reading is what was read on a path.
type Reading struct {
	Revision  int64                    // of the last row, or the full's
	Chain     segment.Digest           // at the end of the last segment
	Buckets   []*segment.Bucket        // that changed since the full, as of the last segment that ends at or before the path's revision
	Later     []*segment.Bucket        // that had changed by the end of the segment that the path's revision lies within
	Compacted int64                    // etcd's scheduled compaction there; the full's if there was no segment
	Hashes    []segment.CompactionHash // of compactions, oldest first
	Rows      int64
	Bytes     int64 // of the objects
}

// Read reads the rows behind a path's full, in order, up to its revision, and gives each to row, which must not keep it. It
// checks that they are what was written, all of it, and nothing else; what was read before an error counts for nothing.
// What is missing, damaged or not to be believed is a Fault; an error of row comes through. Memory is bounded, but for the small
// buckets.
func (a *Archive) Read(ctx context.Context, path Path, row func(segment.Row) error) (Reading, error) {
	w := &walk{
		archive: a, ctx: ctx, path: path, row: row, position: path.Full.Next, digest: path.Full.Chain,
		buckets: map[string]*segment.Bucket{}, index: path.index,
	}
	w.reading = Reading{Revision: path.Full.Revision, Chain: path.Full.Chain, Compacted: path.Full.Compacted}
	if err := w.all(); err != nil {
		return Reading{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(w.buckets)) {
		w.reading.Buckets = append(w.reading.Buckets, w.buckets[name])
	}
	return w.reading, nil
}

// walk is a reading on its way.
type walk struct {
	archive *Archive
	ctx     context.Context
	path    Path
	row     func(segment.Row) error

	index    *index
	position segment.Position // what comes next
	digest   segment.Digest   // there
	buckets  map[string]*segment.Bucket
	reading  Reading
	done     bool
}

// all reads object after object. Which one is next is known when the one before was read: the name of a segment can be computed, so it
// is read even where a listing lacks it.
func (w *walk) all() error {
	for listed := false; !w.done; {
		object, found := w.index.at(w.position)
		if !found {
			if w.complete() {
				return nil
			}
			object = Object{Level: Segment, Generation: w.path.Generation.Number, Start: w.position}
		}
		opened, err := w.open(object)
		switch {
		case opened && err == nil:
			listed = false
		case opened || !errors.Is(err, store.ErrNotFound):
			return faulty(err, object.Name(), w.position)
		case listed && !found:
			return faulty(fmt.Errorf("%w: nothing in %s begins at %s", ErrHole, w.archive.store, w.position), "", w.position)
		case listed:
			return faulty(err, object.Name(), w.position)
		default: // it was merged since the path was found
			if err := w.list(); err != nil {
				return err
			}
			listed = true
		}
	}
	return nil
}

// complete tells whether all rows were read. Segments without rows may follow.
func (w *walk) complete() bool { return w.position.Revision > w.path.Revision }

func (w *walk) list() error {
	x, err := w.archive.indexed(w.ctx, w.path.Generation.Number)
	if err != nil {
		return err
	}
	w.index = x.before(w.path.bound).without(func(o Object) bool { return w.path.end.IsZero() && w.path.faults.of(o.Name()) != nil })
	return nil
}

// open reads an object if it is there.
func (w *walk) open(object Object) (opened bool, err error) {
	content, err := w.archive.fetch(w.ctx, object.Name(), 0, w.fetched)
	if err != nil {
		return false, err
	}
	defer content.Close()
	reader := segment.NewReader(content, w.archive.keys)
	for next := object.Start; !w.done; {
		manifest, err := reader.Next()
		if seal.Ended(err) {
			return true, w.ended(object, next)
		}
		if err == nil {
			err = w.belongs(manifest, next)
		}
		if err != nil {
			return true, w.archive.named(object.Name(), err)
		}
		if err := w.enter(object, reader, manifest); err != nil {
			return true, err
		}
		next = manifest.Next()
	}
	return true, nil
}

func (w *walk) fetched(bytes int) {
	w.reading.Bytes += int64(bytes)
	if w.path.Fetched != nil {
		w.path.Fetched(bytes)
	}
}

// ended checks that an object ends where its name says.
func (w *walk) ended(object Object, next segment.Position) error {
	if object.Level == Segment && next != object.Start || object.Level != Segment && next == object.Next {
		return nil
	}
	return w.archive.damaged(object.Name())
}

// belongs checks what doesn't depend on the segments before.
func (w *walk) belongs(manifest segment.Manifest, at segment.Position) error {
	generation := w.path.Generation
	if manifest.Cluster != generation.Cluster || manifest.Generation != generation.Number {
		return fmt.Errorf("it is %w: of cluster %s and generation %d instead of %s and %d",
			ErrForeign, manifest.Cluster, manifest.Generation, generation.Cluster, generation.Number)
	}
	if manifest.Position != at {
		return fmt.Errorf("%w: segment %s stands where %s should", seal.ErrDamaged, manifest.Position, at)
	}
	return nil
}

// enter reads a segment, unless it lies before the position or behind the end.
func (w *walk) enter(object Object, reader *segment.Reader, manifest segment.Manifest) error {
	if manifest.Next().Compare(w.position) <= 0 {
		return nil // of a merged object that begins before the full
	}
	later := !w.path.until.IsZero() && manifest.From.After(w.path.until)
	if w.complete() && (manifest.Rows > 0 || later) {
		w.done = true
		return nil
	}
	if manifest.Position != w.position || manifest.Before != w.digest {
		return w.archive.named(object.Name(), fmt.Errorf("%w: segment %s: %w", ErrHole, manifest.Position, errJoint))
	}
	for {
		record, err := reader.Record()
		if seal.Ended(err) {
			w.leave(manifest)
			return nil
		}
		if err != nil {
			return w.archive.named(object.Name(), err)
		}
		if err := w.take(record, manifest); err != nil {
			return err
		}
	}
}

func (w *walk) take(record segment.Record, manifest segment.Manifest) error {
	switch record := record.(type) {
	case *segment.Row:
		revision, err := record.Revision()
		if err != nil || revision > w.path.Revision {
			return err
		}
		w.reading.Revision = revision
		w.reading.Rows++
		return w.row(*record)
	case *segment.CompactionHash:
		if record.Revision <= w.path.Revision {
			w.reading.Hashes = append(w.reading.Hashes, *record)
		}
	case *segment.Bucket:
		if manifest.End <= w.path.Revision {
			w.buckets[record.Name] = record
		} else {
			w.reading.Later = append(w.reading.Later, record)
		}
	}
	return nil
}

// leave ends a segment that was as its manifest says.
func (w *walk) leave(manifest segment.Manifest) {
	w.position, w.digest, w.reading.Chain = manifest.Next(), manifest.After, manifest.After
	if manifest.End <= w.path.Revision {
		w.reading.Compacted = manifest.Compacted
	}
	w.done = manifest.End > w.path.Revision || w.position == w.path.end
}
