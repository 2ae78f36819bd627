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

// Reading is what was read on a path.
type Reading struct {
	Revision  int64                   // of the last row, or the full's
	Chain     format.Digest           // at the end of the last segment
	Buckets   []*format.Bucket        // that changed since the full, as of the last segment that ends at or before the path's revision
	Later     []*format.Bucket        // that had changed by the end of the segment that the path's revision lies within
	Compacted int64                   // etcd's scheduled compaction there; the full's if there was no segment
	Hashes    []format.CompactionHash // of compactions, oldest first
	Rows      int64
	Bytes     int64 // of the objects
}

// Read reads the rows behind a path's full, in order, up to its revision, and gives each to row, which must not keep it. It
// checks that they are what was written, all of it, and nothing else; what was read before an error counts for nothing.
// What is missing, damaged or not to be believed is a Fault; an error of row comes through. Memory is bounded, but for the small
// buckets.
func (r *Reader) Read(ctx context.Context, path Path, row func(format.Row) error) (Reading, error) {
	w := &walk{
		reader: r, ctx: ctx, path: path, row: row, position: path.Full.Next,
		buckets: map[string]*format.Bucket{}, index: path.index,
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
	reader *Reader
	ctx    context.Context
	path   Path
	row    func(format.Row) error

	index    *index
	position format.Position // what comes next
	buckets  map[string]*format.Bucket
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
			return faulty(fmt.Errorf("%w: nothing in %s begins at %s", ErrHole, w.reader.store, w.position), "", w.position)
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
	x, err := w.reader.indexed(w.ctx, w.path.Generation.Number)
	if err != nil {
		return err
	}
	w.index = x.before(w.path.bound).without(func(o Object) bool { return w.path.end.IsZero() && w.path.faults.of(o.Name()) != nil })
	return nil
}

// open reads an object if it is there.
func (w *walk) open(object Object) (opened bool, err error) {
	content, err := w.reader.fetch(w.ctx, object.Name(), 0, w.fetched)
	if err != nil {
		return false, err
	}
	defer content.Close()
	reader := format.NewSegmentReader(content, w.reader.keys)
	for manifest, err := range w.reader.within(reader, object, w.path.Generation) {
		if err == nil {
			err = w.enter(object, reader, manifest)
		}
		if err != nil || w.done {
			return true, err
		}
	}
	return true, nil
}

func (w *walk) fetched(bytes int) {
	w.reading.Bytes += int64(bytes)
	if w.path.Fetched != nil {
		w.path.Fetched(bytes)
	}
}

// enter reads a segment, unless it lies before the position or behind the end.
func (w *walk) enter(object Object, reader *format.SegmentReader, manifest format.Manifest) error {
	if manifest.Next().Compare(w.position) <= 0 {
		return nil // of a merged object that begins before the full
	}
	later := !w.path.target.Time.IsZero() && manifest.From.After(w.path.target.Time) // a bucket may have changed since
	if w.complete() && (manifest.Rows > 0 || later) {
		w.done = true
		return nil
	}
	if manifest.Position != w.position || manifest.Before != w.reading.Chain {
		return w.reader.apart(object, manifest)
	}
	for {
		record, err := reader.Record()
		if format.Ended(err) {
			w.leave(manifest)
			return nil
		}
		if err != nil {
			return w.reader.named(object.Name(), err)
		}
		if err := w.take(record, manifest); err != nil {
			return err
		}
	}
}

func (w *walk) take(record format.Record, manifest format.Manifest) error {
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
		} else {
			w.reading.Later = append(w.reading.Later, record)
		}
	}
	return nil
}

// leave ends a segment that was as its manifest says.
func (w *walk) leave(manifest format.Manifest) {
	w.position, w.reading.Chain = manifest.Next(), manifest.After
	if manifest.End <= w.path.Revision {
		w.reading.Compacted = manifest.Compacted
	}
	w.done = manifest.End > w.path.Revision || w.position == w.path.end
}

// ahead is how many segments are looked at for the next statement of a bucket. Buckets are looked at every few seconds at the least.
const ahead = 600

// Recorded is a small bucket as it was some time behind a path's revision: as the next segment has it that states it. It is nil if
// there is none among the next ones, or they cannot be read.
func (r *Reader) Recorded(ctx context.Context, path Path, bucket string) (*format.Bucket, error) {
	x, err := r.indexed(ctx, path.Generation.Number) // what the path lists may be merged by now
	if err != nil {
		return nil, err
	}
	left := ahead
	objects := x.before(path.bound).follow(path.Full.Next)
	for i, object := range objects {
		if i+1 < len(objects) && objects[i+1].Start.Revision <= path.Revision {
			continue // it ends before
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

// bucketIn reads a bucket that a segment has; nil if that is damaged.
func (r *Reader) bucketIn(ctx context.Context, object Object, in located, name string) (found *format.Bucket, err error) {
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

// records yields those of a segment in an object, each valid until the next one. What was read before an error counts for nothing.
func (r *Reader) records(ctx context.Context, object Object, in located) iter.Seq2[format.Record, error] {
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
			yield(nil, r.named(object.Name(), err))
		}
	}
}

// How much is read at once to find manifests, in bytes. One has about a thousand.
const (
	firstPart = 16 << 10
	nextPart  = 256 << 10
)

// located is a segment's manifest, and where it begins in its object, in bytes.
type located struct {
	format.Manifest
	offset int64
}

// manifests yields those in an object, and skips what lies between. It ends with an error if they are not what the object's
// name says.
func (r *Reader) manifests(ctx context.Context, object Object) iter.Seq2[located, error] {
	return func(yield func(located, error) bool) {
		lines := &lines{reader: r, ctx: ctx, name: object.Name()}
		next := object.Start
		for offset := int64(0); offset == 0 || offset < object.Size; {
			manifest, length, err := lines.manifest(offset)
			if err == nil && (manifest.Generation != object.Generation || manifest.Position != next) {
				err = r.damaged(lines.name)
			}
			if !yield(located{manifest, offset}, err) || err != nil {
				return
			}
			next, offset = manifest.Next(), offset+length+manifest.Body.Bytes
		}
		if object.Level != Segment && next != object.Next {
			yield(located{}, r.damaged(lines.name))
		}
	}
}

func (r *Reader) firstManifest(ctx context.Context, object Object) (format.Manifest, error) {
	for found, err := range r.manifests(ctx, object) {
		return found.Manifest, err
	}
	return format.Manifest{}, r.damaged(object.Name())
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

// lines reads lines of an object here and there.
type lines struct {
	reader *Reader
	ctx    context.Context
	name   string

	begin int64
	part  []byte // of the object, from begin on
}

// manifest reads the one at an offset, and says how long its line is.
func (l *lines) manifest(offset int64) (format.Manifest, int64, error) {
	line, err := l.line(offset)
	if err != nil {
		return format.Manifest{}, 0, err
	}
	manifest, err := format.ReadManifest(line, l.reader.keys)
	return manifest, int64(len(line)), l.reader.named(l.name, err)
}

// line is the one at an offset, which may have been read with the one before.
func (l *lines) line(offset int64) ([]byte, error) {
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
	}
	return nil, l.reader.named(l.name, fmt.Errorf("%w: no line begins at byte %d", format.ErrDamaged, offset))
}

const (
	tries      = 6                      // as long as nothing has come
	triesOn    = 12                     // behind what has come, two minutes or so: all of it would have to be fetched again
	firstTry   = 100 * time.Millisecond // then twice as long each time
	longestTry = 30 * time.Second
)

// fetch reads an object from a byte on, to its end, and goes on where it was cut off when the store was unavailable: objects
// don't change, and what takes an hour to read should not be read again because of one connection.
func (r *Reader) fetch(ctx context.Context, name string, offset int64, read func(bytes int)) (io.ReadCloser, error) {
	f := &fetching{ctx: ctx, store: r.store, name: name, offset: offset, read: read}
	return f, f.open()
}

type fetching struct {
	ctx    context.Context
	store  store.Store
	name   string
	offset int64
	read   func(bytes int) // may be nil
	failed int             // how often in a row
	came   bool            // something has

	content io.ReadCloser // nil when it was cut off
}

// open asks until there is an answer that another try would not better.
func (f *fetching) open() (err error) {
	for {
		f.content, err = f.store.Get(f.ctx, f.name, f.offset, -1)
		if err == nil || !f.again(err) {
			return err
		}
	}
}

func (f *fetching) Read(p []byte) (int, error) {
	for {
		if f.content == nil {
			if err := f.open(); err != nil {
				return 0, err
			}
		}
		n, err := f.content.Read(p)
		f.offset += int64(n)
		if n > 0 {
			f.failed, f.came = 0, true
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
		if !f.again(err) {
			return 0, err
		}
	}
}

// again waits before another try, and tells whether it makes sense.
func (f *fetching) again(err error) bool {
	if !errors.Is(err, store.ErrUnavailable) || f.failed >= tries && !f.came || f.failed >= triesOn {
		return false
	}
	timer := time.NewTimer(max(min(firstTry<<f.failed, longestTry), store.RetryAfter(err)))
	defer timer.Stop()
	f.failed++
	select {
	case <-f.ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (f *fetching) Close() error {
	if f.content == nil {
		return nil
	}
	content := f.content
	f.content = nil
	return content.Close()
}
