package archive

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// Grace is how long a merged object must have been there before what it was made of is deleted, and how old what a writer knows
// of the head may be when it writes: after a longer pause it asks for Head first, since its next position may be merged.
const Grace = 5 * time.Minute

// PutStored stores a segment under the name of its position: everything that its object holds.
func (w *Writer) PutStored(ctx context.Context, generation int, position format.Position, object io.Reader) error {
	begun, name := time.Now(), SegmentName(generation, position)
	begin, err := io.ReadAll(io.LimitReader(object, mostOfOne+1))
	if err != nil {
		return fmt.Errorf("cannot read what to store as %s: %w", name, err)
	}
	if _, err := store.PutOnce(ctx, w.reader.store, name, io.MultiReader(bytes.NewReader(begin), object)); err != nil {
		return err
	}
	if len(begin) <= mostOfOne {
		w.written.keep(name, begin)
	}
	if time.Since(begun) < Grace/2 {
		return nil
	}
	return w.late(ctx, generation, position, name)
}

// late looks at a segment whose writer was stopped while it put it: another one may have been there in its place, and be merged and
// deleted by now. Then this one goes again.
func (w *Writer) late(ctx context.Context, generation int, position format.Position, name string) error {
	held, err := w.reader.held(ctx, generation, position)
	if err == nil && held {
		_ = w.reader.store.Delete(ctx, name) // readers overlook it, too
		err = w.reader.named(name, fmt.Errorf("another was there and is merged: %w", store.ErrExists))
	}
	return err
}

// held tells whether a merged object that can be believed holds what begins at a position.
func (r *Reader) held(ctx context.Context, generation int, position format.Position) (bool, error) {
	x, err := r.list(ctx, generation, position, format.Position{})
	if err != nil {
		return false, err
	}
	for _, object := range x.merged {
		if !object.covers(position) {
			continue
		}
		if _, err := r.Examine(ctx, object); err == nil || !Unusable(err) {
			return err == nil, err
		}
	}
	return false, nil
}

// Manifest returns that of the segment at a position. store.ErrNotFound says that there is none, or that it was merged.
func (r *Reader) Manifest(ctx context.Context, generation int, position format.Position) (format.Manifest, error) {
	return r.firstManifest(ctx, Object{Level: Segment, Generation: generation, Start: position})
}

// Merged is an object that holds the segments of others, and what these segments are.
type Merged struct {
	Object
	Segments []format.Manifest
}

// Merge writes the segments of sources, one after the other, into one object of a level. The sources must follow one another,
// and span an hour at most. Each is read to its end and checked on the way as far as that needs no identity. It may be repeated. The
// sources stay until somebody deletes them, who must have seen that the merged object holds them: Merge's caller has, and whoever
// compares what Examine returns of both.
//
// ErrHole says that the sources don't follow one another, that one of them cannot be believed, or that another segment begins within
// them: they stay as they are.
func (w *Writer) Merge(ctx context.Context, level Level, sources []Object) (Merged, error) {
	if level == Segment || len(sources) == 0 {
		return Merged{}, fmt.Errorf("cannot merge %d objects to a %s", len(sources), level)
	}
	first, last := sources[0], sources[len(sources)-1]
	merged := Merged{Object: Object{Level: level, Generation: first.Generation, Start: first.Start, Next: last.Next}}
	if last.Level == Segment {
		manifest, err := w.manifest(ctx, last)
		if err != nil {
			return Merged{}, unmergeable(err)
		}
		merged.Next = manifest.Next()
	}
	if err := w.oneChain(ctx, merged.Object, sources); err != nil {
		return Merged{}, err
	}
	body, err := w.putFilled(ctx, merged.Name(), func(into io.Writer) (err error) {
		merged.Segments, err = w.concatenate(ctx, into, merged.Object, sources)
		return err
	})
	merged.Size = body.Bytes
	return merged, err
}

// manifest is that of a segment that is to be merged.
func (w *Writer) manifest(ctx context.Context, object Object) (format.Manifest, error) {
	if content := w.written.get(object); content != nil {
		return format.NewSegmentReader(bytes.NewReader(content), w.reader.keys).Next()
	}
	return w.reader.firstManifest(ctx, object)
}

// source is what is in an object that is to be merged: this process's own need not be fetched.
func (w *Writer) source(ctx context.Context, object Object) (io.ReadCloser, error) {
	if content := w.written.get(object); content != nil {
		return io.NopCloser(bytes.NewReader(content)), nil
	}
	return w.reader.fetch(ctx, object.Name(), 0, nil)
}

// oneChain is an ErrHole if another segment begins within one that is to be made of segments: it would count as held, and may be of
// another chain.
func (w *Writer) oneChain(ctx context.Context, merged Object, sources []Object) error {
	if merged.Level != Minute {
		return nil // of what was merged before
	}
	segments, err := w.reader.Objects(ctx, merged.Generation, Segment, merged.Start)
	for _, other := range segments {
		of := func(source Object) bool { return source.Start == other.Start }
		if merged.covers(other.Start) && !slices.ContainsFunc(sources, of) {
			return fmt.Errorf("%w: %s begins within %s", ErrHole, other.Name(), merged.Name())
		}
	}
	return err
}

// concatenate writes the segments of sources, which must be those of merged, and of the generation's cluster: what another one has left
// there would seem to hold what comes in its place later.
func (w *Writer) concatenate(ctx context.Context, into io.Writer, merged Object, sources []Object) (all []format.Manifest, err error) {
	generation, err := w.reader.Generation(ctx, merged.Generation)
	if err != nil {
		return nil, err
	}
	next := merged.Start
	for _, source := range sources {
		if source.Generation != merged.Generation || source.Start != next {
			return nil, fmt.Errorf("%w: %s is not at %s", ErrHole, source.Name(), next)
		}
		content, err := w.source(ctx, source)
		if err == nil {
			all, err = w.reader.append(all, io.TeeReader(content, into), source, generation)
			_ = content.Close() // it was only read
		}
		if err != nil {
			return nil, unmergeable(err)
		}
		next = all[len(all)-1].Next()
	}
	if next != merged.Next {
		return nil, fmt.Errorf("%w: %s would end at %s", ErrHole, merged.Name(), next)
	}
	return all, nil
}

// unmergeable makes a hole of what cannot be believed: it stays as it is, and keeps nothing else from being merged.
func unmergeable(err error) error {
	if NotVerified(err) {
		return fmt.Errorf("%w: %w", ErrHole, err)
	}
	return err
}

// Examine reads an object to its end and returns the manifests of the segments that it holds: they follow one another from where
// its name says that it begins to where it says that it ends, and their bodies are what they state. What is not so is an error for
// which NotVerified holds, or ErrHole.
func (r *Reader) Examine(ctx context.Context, object Object) ([]format.Manifest, error) {
	generation, err := r.Generation(ctx, object.Generation)
	if err != nil {
		return nil, err
	}
	content, err := r.fetch(ctx, object.Name(), 0, nil)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return r.append(nil, content, object, generation)
}

// append adds the manifests of an object's segments, which is read to its end, to those before it.
func (r *Reader) append(all []format.Manifest, content io.Reader, object Object, of Generation) ([]format.Manifest, error) {
	for manifest, err := range r.within(format.NewSegmentReader(content, r.keys), object, of) {
		if err == nil && len(all) > 0 && manifest.Before != all[len(all)-1].After {
			err = r.apart(object, manifest)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, manifest)
	}
	return all, nil
}

// within yields the manifests of the segments that a reader has of an object: they are of the generation, and follow one another by their
// positions from where the object's name says that it begins to where it says that it ends. After each of them its records may be read.
func (r *Reader) within(reader *format.SegmentReader, object Object, of Generation) iter.Seq2[format.Manifest, error] {
	return func(yield func(format.Manifest, error) bool) {
		next := object.Start
		for {
			manifest, err := reader.Next()
			switch {
			case format.Ended(err):
				if object.Level == Segment && next == object.Start || object.Level != Segment && next != object.Next {
					yield(manifest, r.damaged(object.Name()))
				}
				return
			case err != nil:
			case manifest.Cluster != of.Cluster:
				err = fmt.Errorf("it is %w: of cluster %s instead of %s", ErrForeign, manifest.Cluster, of.Cluster)
			case manifest.Generation != of.Number || manifest.Position != next:
				err = fmt.Errorf("%w: segment %s of generation %d stands where %s of generation %d should",
					format.ErrDamaged, manifest.Position, manifest.Generation, next, of.Number)
			}
			if !yield(manifest, r.named(object.Name(), err)) || err != nil {
				return
			}
			next = manifest.Next()
		}
	}
}

// apart says that a segment in an object does not go on from what is before it.
func (r *Reader) apart(object Object, manifest format.Manifest) error {
	return r.named(object.Name(), fmt.Errorf("%w: segment %s: it doesn't go on from what is before it", ErrHole, manifest.Position))
}

// written is what this process has put lately. Requests are what merging costs: a cluster that is written to all the time has a segment a
// second.
type written struct {
	mu      sync.Mutex
	objects []content // oldest first; one that was put again is there again
	size    int       // of all of them
}

type content struct {
	name  string
	bytes []byte
}

// mostWritten bounds the bytes that are kept, and mostOfOne those of an object. What is beyond is fetched, fewer requests for more bytes.
const (
	mostWritten = 8 << 20
	mostOfOne   = mostWritten / 16
)

func (k *written) keep(name string, bytes []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.objects, k.size = append(k.objects, content{name, bytes}), k.size+len(bytes)
	for k.size > mostWritten {
		k.size -= len(k.objects[0].bytes)
		k.objects = slices.Delete(k.objects, 0, 1)
	}
}

// get returns nil if an object is not kept, or if the store has one of another size under its name.
func (k *written) get(object Object) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := object.Name()
	for _, c := range slices.Backward(k.objects) { // what was put again counts
		if c.name == name && int64(len(c.bytes)) == object.Size {
			return c.bytes
		}
	}
	return nil
}
