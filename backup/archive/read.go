package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// A Reading is the result of reading a path.
type Reading struct {
	Revision  int64                   // of the last row, or of the full snapshot
	Chain     format.Digest           // digest at the end of the last segment
	Buckets   []*format.Bucket        // that changed since the full snapshot, as of the last segment that ends at or before the path's revision
	Compacted int64                   // etcd's scheduled compaction there
	Hashes    []format.CompactionHash // of compactions, oldest first
	Rows      int64
	Bytes     int64 // of the objects
}

// Read reads the rows after a path's full snapshot up to its revision, in order, and calls row for each, which must
// not keep it. It verifies that they are exactly what was written; after an error nothing that was read may be used.
// A missing object, or one that cannot be verified, is a Fault; an error of row is returned unchanged. Memory is
// bounded, except for the small buckets.
func (r *Reader) Read(ctx context.Context, path Path, row func(format.Row) error) (Reading, error) {
	w := &readingWalk{
		reader: r, ctx: ctx, path: path, row: row, position: path.Full.Next,
		buckets: map[string]*format.Bucket{}, index: newIndex(slices.Clone(path.Objects), nil),
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
	position format.Position // of the next segment
	buckets  map[string]*format.Bucket
	reading  Reading
	done     bool
}

// run reads object after object. The end of one gives the position, and so the name, of the next, so it is read even
// if no listing has it.
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
		case opened || !errors.Is(err, store.ErrNotFound):
			return asFault(err, object.Name(), w.position)
		case listed && !found:
			return asFault(fmt.Errorf("%w: nothing starts at %s in %s", ErrHole, w.position, w.reader.store), "", w.position)
		case listed:
			return asFault(err, object.Name(), w.position)
		default: // it was merged since the path was found
			if err := w.relist(); err != nil {
				return err
			}
			listed = true
		}
	}
	return nil
}

// isComplete reports whether all rows were read. Segments without rows may follow.
func (w *readingWalk) isComplete() bool { return w.position.Revision > w.path.Revision }

func (w *readingWalk) relist() error {
	objects, err := w.reader.list(w.ctx, w.path.Generation.Number)
	w.index = newIndex(slices.DeleteFunc(objects, func(o Object) bool { return w.path.end.IsZero() && w.path.faults.about(o.Name()) != nil }), nil)
	return err
}

// readObject reads an object if it exists.
func (w *readingWalk) readObject(object Object) (opened bool, err error) {
	content, err := w.reader.fetch(w.ctx, object.Name(), 0, w.countBytes)
	if err != nil {
		return false, err
	}
	defer content.Close()
	reader := format.NewSegmentReader(content, w.reader.keys)
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

func (w *readingWalk) countBytes(bytes int) {
	w.reading.Bytes += int64(bytes)
	if w.path.Fetched != nil {
		w.path.Fetched(bytes)
	}
}

// readSegment reads a segment, unless it lies before the position or after the end.
func (w *readingWalk) readSegment(object Object, reader *format.SegmentReader, manifest format.Manifest) error {
	if manifest.Next().Compare(w.position) <= 0 {
		return nil // in a merged object that starts before the full snapshot
	}
	later := !w.path.target.Time.IsZero() && manifest.From.After(w.path.target.Time)          // a bucket may have changed since
	if w.isComplete() && (manifest.Rows > 0 || later || manifest.Before != w.reading.Chain) { // or another chain starts there
		w.done = true
		return nil
	}
	if manifest.Position != w.position || manifest.Before != w.reading.Chain {
		return w.reader.holeError(object, manifest)
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
	case *format.CompactionHash:
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

// endSegment moves to the end of a segment that matched its manifest.
func (w *readingWalk) endSegment(manifest format.Manifest) {
	w.position, w.reading.Chain = manifest.Next(), manifest.After
	if manifest.End <= w.path.Revision {
		w.reading.Compacted = manifest.Compacted
	}
	w.done = manifest.End > w.path.Revision || w.position == w.path.end
}

// maxLookahead limits the segments that are searched for the next version of a bucket. Buckets are captured every few
// seconds.
const maxLookahead = 600

// Recorded returns a small bucket as it was shortly after a path's revision, from the next segment that has it. It
// returns nil if the next segments have none or cannot be read.
func (r *Reader) Recorded(ctx context.Context, path Path, bucket string) (*format.Bucket, error) {
	target := Target{Generation: path.Generation.Number, Revision: path.Revision}
	current, err := r.find(ctx, target, path.faults) // the path's objects may be merged by now
	if errors.Is(err, ErrNotKept) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	left := maxLookahead
	for _, object := range current.chain {
		if object.Next.Revision <= path.Revision {
			continue // it ends before the revision
		}
		for found, err := range r.manifests(ctx, object) {
			if left--; left < 0 || Unusable(err) {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			if max(found.End, found.Position.Revision) > path.Revision && slices.Contains(found.Buckets, bucket) {
				return r.bucketIn(ctx, object, found, bucket)
			}
		}
	}
	return nil, nil
}

// bucketIn reads a bucket from a segment; nil if that is damaged.
func (r *Reader) bucketIn(ctx context.Context, object Object, in manifestAt, name string) (found *format.Bucket, err error) {
	for record, err := range r.records(ctx, object, in) {
		if Unusable(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if bucket, is := record.(*format.Bucket); is && bucket.Name == name {
			found = bucket
		}
	}
	return found, nil
}

// records yields the records of a segment in an object, each valid until the next one. After an error nothing that
// was yielded may be used.
func (r *Reader) records(ctx context.Context, object Object, in manifestAt) iter.Seq2[format.Record, error] {
	return func(yield func(format.Record, error) bool) {
		content, err := r.fetch(ctx, object.Name(), in.offset, nil)
		if err != nil {
			yield(nil, err)
			return
		}
		defer content.Close()
		reader := format.NewSegmentReader(content, r.keys)
		_, err = reader.Next()
		for err == nil {
			var record format.Record
			if record, err = reader.Record(); err == nil && !yield(record, nil) {
				return
			}
		}
		if !format.Ended(err) {
			yield(nil, r.wrapName(object.Name(), err))
		}
	}
}

// Bytes of one read when looking for manifests, which have about 1,000.
const (
	firstPart = 16 << 10
	nextPart  = 256 << 10
)

// A manifestAt is a segment's manifest and its offset in the object, in bytes.
type manifestAt struct {
	format.Manifest
	offset int64
}

// manifests yields the manifests in an object and skips the bodies. It ends with an error if they do not match the
// object's name.
func (r *Reader) manifests(ctx context.Context, object Object) iter.Seq2[manifestAt, error] {
	return func(yield func(manifestAt, error) bool) {
		lines := &lineReader{reader: r, ctx: ctx, name: object.Name()}
		next := object.Start
		for offset := int64(0); offset == 0 || offset < object.Size; {
			manifest, length, err := lines.manifest(offset)
			if err == nil && (manifest.Generation != object.Generation || manifest.Position != next) {
				err = r.damagedError(lines.name)
			}
			if !yield(manifestAt{manifest, offset}, err) || err != nil {
				return
			}
			next, offset = manifest.Next(), offset+length+manifest.Body.Bytes
		}
		if object.Level != Segment && next != object.Next {
			yield(manifestAt{}, r.damagedError(lines.name))
		}
	}
}

func (r *Reader) firstManifest(ctx context.Context, object Object) (format.Manifest, error) {
	for found, err := range r.manifests(ctx, object) {
		return found.Manifest, err
	}
	return format.Manifest{}, r.damagedError(object.Name())
}

func (r *Reader) lastManifest(ctx context.Context, object Object) (last format.Manifest, err error) {
	for found, err := range r.manifests(ctx, object) {
		if err != nil {
			return format.Manifest{}, err
		}
		last = found.Manifest
	}
	return last, nil
}

// A lineReader reads single lines of an object.
type lineReader struct {
	reader *Reader
	ctx    context.Context
	name   string

	begin int64
	part  []byte // bytes of the object from begin on
}

// manifest reads the manifest at an offset and returns the length of its line.
func (l *lineReader) manifest(offset int64) (format.Manifest, int64, error) {
	line, err := l.line(offset)
	if err != nil {
		return format.Manifest{}, 0, err
	}
	manifest, err := format.ReadManifest(line, l.reader.keys)
	return manifest, int64(len(line)), l.reader.wrapName(l.name, err)
}

// line returns the line at an offset, from the buffer if possible.
func (l *lineReader) line(offset int64) ([]byte, error) {
	part := int64(firstPart)
	if offset > 0 {
		part = nextPart
	}
	for _, length := range []int64{0, part, format.MaxLine} {
		if length > 0 {
			content, err := l.reader.store.Get(l.ctx, l.name, offset, length)
			if err != nil {
				return nil, err
			}
			l.begin = offset
			l.part, err = io.ReadAll(content)
			_ = content.Close() // it was only read
			if err != nil {
				return nil, err
			}
		}
		rest := l.part[min(offset-l.begin, int64(len(l.part))):]
		if end := bytes.IndexByte(rest, '\n'); end >= 0 {
			return rest[:end+1], nil
		}
		if int64(len(l.part)) < length {
			break // the object ends
		}
	}
	return nil, l.reader.wrapName(l.name, fmt.Errorf("%w: no line begins at byte %d", format.ErrDamaged, offset))
}

const (
	maxFirstTries = 6                      // before the first byte
	maxTries      = 12                     // after the first byte, about two minutes: otherwise all of it would have to be fetched again
	firstPause    = 100 * time.Millisecond // doubles each time
	maxPause      = 30 * time.Second
)

// Fetch reads an object of any store, and resumes as the readers of an archive do.
func Fetch(ctx context.Context, from store.Store, name string) (io.ReadCloser, error) {
	return (&Reader{store: from}).fetch(ctx, name, 0, nil)
}

// fetch reads an object from an offset to its end, and resumes when the store was unavailable: objects do not change,
// and one lost connection should not cost an hour of reading.
func (r *Reader) fetch(ctx context.Context, name string, offset int64, read func(bytes int)) (io.ReadCloser, error) {
	f := &objectReader{ctx: ctx, store: r.store, name: name, offset: offset, read: read}
	return f, f.open()
}

type objectReader struct {
	ctx      context.Context
	store    store.Store
	name     string
	offset   int64
	read     func(bytes int) // may be nil
	failures int             // in a row
	received bool            // at least one byte

	content io.ReadCloser // nil while disconnected
}

// open asks until the answer is final.
func (f *objectReader) open() (err error) {
	for {
		f.content, err = f.store.Get(f.ctx, f.name, f.offset, -1)
		if err == nil || !f.retry(err) {
			return err
		}
	}
}

func (f *objectReader) Read(p []byte) (int, error) {
	for {
		if f.content == nil {
			if err := f.open(); err != nil {
				return 0, err
			}
		}
		n, err := f.content.Read(p)
		f.offset += int64(n)
		if n > 0 {
			f.failures, f.received = 0, true
			if f.read != nil {
				f.read(n)
			}
		}
		if err == nil || format.Ended(err) || !errors.Is(err, store.ErrUnavailable) {
			return n, err
		}
		_ = f.Close()
		if n > 0 {
			return n, nil
		}
		if !f.retry(err) {
			return 0, err
		}
	}
}

// retry waits before another attempt, and reports whether one makes sense.
func (f *objectReader) retry(err error) bool {
	if !errors.Is(err, store.ErrUnavailable) || f.failures >= maxFirstTries && !f.received || f.failures >= maxTries {
		return false
	}
	timer := time.NewTimer(max(min(firstPause<<f.failures, maxPause), store.RetryAfter(err)))
	defer timer.Stop()
	f.failures++
	select {
	case <-f.ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (f *objectReader) Close() error {
	if f.content == nil {
		return nil
	}
	content := f.content
	f.content = nil
	return content.Close()
}
