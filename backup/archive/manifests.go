package archive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/clock"
)

// Manifest returns the manifest of the segment at a position, or store.ErrNotFound if the segment does not exist or
// was merged.
func (r *objectStore) Manifest(ctx context.Context, generation int, position format.Position) (format.Manifest, error) {
	return r.firstManifest(ctx, Object{Level: Segment, Generation: generation, Start: position})
}

// VerifyObject reads an object to the end and returns the manifests of its segments. If the segments do not exactly
// cover the range in the object name, or a body does not match its manifest, VerifyObject returns ErrHole or an error
// for which NotVerified returns true.
func (r *objectStore) VerifyObject(ctx context.Context, object Object) ([]format.Manifest, error) {
	generation, err := r.Generation(ctx, object.Generation)
	if err != nil {
		return nil, err
	}
	content, err := Fetch(ctx, r.store, object.Name())
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return r.appendManifests(nil, content, object, generation)
}

// appendManifests reads an object to the end and appends the manifests of its segments.
func (r *objectStore) appendManifests(all []format.Manifest, content io.Reader, object Object, of Generation) ([]format.Manifest, error) {
	for manifest, err := range r.segmentsIn(format.NewSegmentReader(content, r.keys), object, of) {
		if err == nil && len(all) > 0 && manifest.Before != all[len(all)-1].After {
			err = r.sequenceError(object, manifest)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, manifest)
	}
	return all, nil
}

// segmentsIn yields the manifests of an object's segments and verifies that the segments belong to the generation
// and exactly cover the range in the object name. After each manifest, the caller may read that segment's records.
func (r *objectStore) segmentsIn(reader *format.SegmentReader, object Object, of Generation) iter.Seq2[format.Manifest, error] {
	return func(yield func(format.Manifest, error) bool) {
		next := object.Start
		for {
			manifest, err := reader.Next()
			switch {
			case format.Ended(err):
				if object.Level == Segment && next == object.Start || object.Level != Segment && next != object.Next {
					yield(manifest, r.mismatchError(object.Name()))
				}
				return
			case err != nil:
			case manifest.Cluster != of.Cluster:
				err = fmt.Errorf("%w: found %s, expected %s", ErrForeign, manifest.Cluster, of.Cluster)
			case manifest.Generation != of.Number || manifest.Position != next:
				err = fmt.Errorf("%w: found segment %s of generation %d, expected %s of generation %d",
					format.ErrDamaged, manifest.Position, manifest.Generation, next, of.Number)
			}
			if !yield(manifest, r.wrapName(object.Name(), err)) || err != nil {
				return
			}
			next = manifest.Next()
		}
	}
}

// sequenceError returns the error for a segment that does not continue the previous segment.
func (r *objectStore) sequenceError(object Object, manifest format.Manifest) error {
	return r.wrapName(object.Name(), fmt.Errorf("%w: segment %s does not follow the previous segment", ErrHole, manifest.Position))
}

// A recordAt is a record with the manifest of its segment. A recordAt without a record marks the end of the segment
// and means that all records of the segment have been verified.
type recordAt struct {
	format.Manifest
	format.Record
}

// records yields the records of an object. Each record is valid until the next iteration.
func (r *objectStore) records(ctx context.Context, object Object, of Generation) iter.Seq2[recordAt, error] {
	return func(yield func(recordAt, error) bool) {
		content, err := Fetch(ctx, r.store, object.Name())
		if err != nil {
			yield(recordAt{}, err)
			return
		}
		defer content.Close()
		reader := format.NewSegmentReader(content, r.keys)
		for manifest, err := range r.segmentsIn(reader, object, of) {
			for err == nil {
				var record format.Record
				if record, err = reader.Record(); err == nil && !yield(recordAt{manifest, record}, nil) {
					return
				}
			}
			if format.Ended(err) {
				err = nil
			}
			if !yield(recordAt{Manifest: manifest}, err) || err != nil {
				return
			}
		}
	}
}

// Read sizes in bytes when searching for manifests. A manifest is about 1,000 bytes long.
const (
	segmentPart = 16 << 10
	mergedPart  = 256 << 10
)

// manifests yields the manifests in an object and skips the bodies. If the manifests do not match the object name,
// the last iteration yields an error.
func (r *objectStore) manifests(ctx context.Context, object Object) iter.Seq2[format.Manifest, error] {
	return func(yield func(format.Manifest, error) bool) {
		parts, size := &partReader{ctx: ctx, store: r.store, name: object.Name()}, mergedPart
		if object.Level == Segment {
			size = segmentPart
		}
		lines, next := bufio.NewReaderSize(parts, size), object.Start
		for first := true; first || parts.offset-int64(lines.Buffered()) < object.Size; first = false {
			var manifest format.Manifest
			line, err := format.ReadLine(lines)
			if format.Ended(err) {
				err = fmt.Errorf("%w: truncated before the last segment", format.ErrDamaged)
			}
			if err == nil {
				manifest, err = format.ReadManifest(line, r.keys)
			}
			if err == nil && (manifest.Generation != object.Generation || manifest.Position != next) {
				err = fmt.Errorf("%w: the content does not match the object name", format.ErrDamaged)
			}
			if NotVerified(err) {
				err = r.wrapName(parts.name, err)
			}
			if !yield(manifest, err) || err != nil {
				return
			}
			buffered, _ := lines.Discard(int(min(int64(lines.Buffered()), manifest.Body.Bytes))) // cannot fail
			next, parts.offset = manifest.Next(), parts.offset+manifest.Body.Bytes-int64(buffered)
		}
		if object.Level != Segment && next != object.Next {
			yield(format.Manifest{}, r.mismatchError(parts.name))
		}
	}
}

func (r *objectStore) firstManifest(ctx context.Context, object Object) (first format.Manifest, err error) {
	for first, err = range r.manifests(ctx, object) {
		break
	}
	return first, err
}

// lastManifest returns the manifest of the last segment of an object, from the cache if possible.
func (r *objectStore) lastManifest(ctx context.Context, object Object) (*format.Manifest, error) {
	key := fmt.Sprintf("%s %d %d", object.Name(), object.Size, object.Modified.UnixNano())
	if known, cached := r.cache.Get(key); cached {
		return known.manifest, known.err
	}
	var last lastRead
	for manifest, err := range r.manifests(ctx, object) {
		last = lastRead{&manifest, err}
	}
	if object.Size > 0 && (last.err == nil || NotVerified(last.err)) {
		r.cache.Add(key, last)
	}
	return last.manifest, last.err
}

// A partReader reads an object in parts. Callers can change offset to skip a part of the object.
type partReader struct {
	ctx    context.Context
	store  store.Store
	name   string
	offset int64
	ended  bool
}

func (p *partReader) Read(into []byte) (n int, err error) {
	if p.ended {
		return 0, io.EOF
	}
	content, err := p.store.Get(p.ctx, p.name, p.offset, int64(len(into)))
	if err != nil {
		return 0, err
	}
	defer content.Close()
	n, err = io.ReadFull(content, into)
	if p.offset += int64(n); errors.Is(err, io.ErrUnexpectedEOF) {
		p.ended, err = true, nil
	}
	return n, err
}

const (
	maxFirstTries = 6                      // consecutive retries before the first byte
	maxTries      = 12                     // consecutive retries after the first byte, within about two minutes
	firstPause    = 100 * time.Millisecond // doubles after each attempt
	maxPause      = 30 * time.Second
)

// Fetch reads an object and resumes if the store becomes unavailable. Resuming is safe because objects are immutable.
func Fetch(ctx context.Context, from store.Store, name string) (io.ReadCloser, error) {
	f := &objectReader{ctx: ctx, store: from, name: name}
	return f, f.connect()
}

type objectReader struct {
	ctx      context.Context
	store    store.Store
	name     string
	offset   int64
	failures int           // consecutive failures
	content  io.ReadCloser // nil while disconnected
}

// connect opens the object at the offset unless it is already open, and retries temporary errors.
func (f *objectReader) connect() error {
	for f.content == nil {
		content, err := f.store.Get(f.ctx, f.name, f.offset, -1)
		if err == nil {
			f.content = content
		} else if !f.retry(err) {
			return err
		}
	}
	return nil
}

func (f *objectReader) Read(p []byte) (int, error) {
	for {
		if err := f.connect(); err != nil {
			return 0, err
		}
		n, err := f.content.Read(p)
		if n > 0 {
			f.offset, f.failures = f.offset+int64(n), 0
		}
		if !errors.Is(err, store.ErrUnavailable) {
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

// retry waits before the next attempt. It returns false if the error is not temporary or the number of retries is
// exhausted.
func (f *objectReader) retry(err error) bool {
	tries := maxTries
	if f.offset == 0 {
		tries = maxFirstTries
	}
	if !errors.Is(err, store.ErrUnavailable) || f.failures >= tries {
		return false
	}
	pause := max(min(firstPause<<f.failures, maxPause), store.RetryAfter(err))
	f.failures++
	return clock.Sleep(f.ctx, pause) == nil
}

func (f *objectReader) Close() (err error) {
	if f.content != nil {
		err, f.content = f.content.Close(), nil
	}
	return err
}
