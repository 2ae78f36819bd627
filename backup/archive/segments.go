package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// Grace is how long a merged object must have been there before what it was made of is deleted, and how old what a writer knows
// of the head may be when it writes: after a longer pause it asks for Head first, since its next position may be merged.
const Grace = 5 * time.Minute

// PutStored is PutSegment for a segment that waited in a spool: everything that its object holds.
func (w *Writer) PutStored(ctx context.Context, generation int, position format.Position, object io.Reader) error {
	begun, name := time.Now(), SegmentName(generation, position)
	var copied bounded
	if _, err := store.PutOnce(ctx, w.reader.store, name, io.TeeReader(object, &copied)); err != nil {
		return err
	}
	w.written.keep(name, copied)
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
	for _, level := range []Level{Minute, Hour} {
		merged, err := r.Objects(ctx, generation, level, format.Position{})
		if err != nil {
			return false, err
		}
		for _, object := range merged {
			if !object.covers(position) {
				continue
			}
			if _, err := r.Examine(ctx, object); err == nil || !Unusable(err) {
				return err == nil, err
			}
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
	if err == nil {
		w.written.drop(sources)
	}
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
func (w *Writer) concatenate(ctx context.Context, into io.Writer, merged Object, sources []Object) ([]format.Manifest, error) {
	generation, err := w.reader.generation(ctx, merged.Generation)
	if err != nil {
		return nil, err
	}
	joint := &joint{next: merged.Start, of: generation.Cluster}
	for _, source := range sources {
		if source.Generation != merged.Generation || source.Start != joint.next {
			return nil, fmt.Errorf("%w: %s is not at %s", ErrHole, source.Name(), joint.next)
		}
		content, err := w.source(ctx, source)
		if err == nil {
			err = w.reader.append(into, content, source, joint)
		}
		if err != nil {
			return nil, unmergeable(err)
		}
	}
	if joint.next != merged.Next {
		return nil, fmt.Errorf("%w: %s would end at %s", ErrHole, merged.Name(), joint.next)
	}
	return joint.segments, nil
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
	generation, err := r.generation(ctx, object.Generation)
	if err != nil {
		return nil, err
	}
	content, err := r.fetch(ctx, object.Name(), 0, nil)
	if err != nil {
		return nil, err
	}
	joint := &joint{next: object.Start, of: generation.Cluster}
	if err := r.append(io.Discard, content, object, joint); err != nil {
		return nil, err
	}
	if len(joint.segments) == 0 || object.Level != Segment && joint.next != object.Next {
		return nil, r.damaged(object.Name())
	}
	return joint.segments, nil
}

// append writes the segments of one object, whose content it closes.
func (r *Reader) append(w io.Writer, content io.ReadCloser, source Object, joint *joint) error {
	defer content.Close()
	reader := format.NewSegmentReader(io.TeeReader(content, w), r.keys)
	for {
		manifest, err := reader.Next()
		if format.Ended(err) {
			return nil
		}
		if err == nil {
			err = joint.follow(manifest)
		}
		if err != nil {
			return r.named(source.Name(), err)
		}
	}
}

// joint is where one segment ends and the next one must begin.
type joint struct {
	next     format.Position
	of       string // the cluster
	segments []format.Manifest
}

var errJoint = errors.New("it doesn't go on from what is before it")

func (j *joint) follow(manifest format.Manifest) error {
	joins := len(j.segments) == 0 || manifest.Before == j.segments[len(j.segments)-1].After
	if manifest.Position != j.next || manifest.Cluster != j.of || !joins {
		return fmt.Errorf("%w: segment %s: %w", ErrHole, manifest.Position, errJoint)
	}
	j.next, j.segments = manifest.Next(), append(j.segments, manifest)
	return nil
}

// written is what this process has put lately and not merged yet. Requests are what merging costs: a cluster that is written to all the
// time has a segment a second.
type written struct {
	mu      sync.Mutex
	objects map[string][]byte
	names   []string // of objects and of some that were dropped, oldest first
	size    int
}

// mostWritten bounds the bytes that are kept, and mostOfOne those of an object. What is beyond is fetched, fewer requests for more bytes.
const (
	mostWritten = 8 << 20
	mostOfOne   = mostWritten / 16
)

func (k *written) keep(name string, content bounded) {
	if content.beyond {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.objects == nil {
		k.objects = map[string][]byte{}
	}
	k.names = append(k.names, name)
	k.size += len(content.bytes) - len(k.objects[name])
	k.objects[name] = content.bytes
	for k.size > mostWritten {
		k.remove(k.names[0])
		k.names = k.names[1:]
	}
}

// get returns nil if an object is not kept, or if the store has one of another size under its name.
func (k *written) get(object Object) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	if content := k.objects[object.Name()]; int64(len(content)) == object.Size {
		return content
	}
	return nil
}

// drop forgets what was merged.
func (k *written) drop(objects []Object) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, object := range objects {
		k.remove(object.Name())
	}
	k.names = slices.DeleteFunc(k.names, func(name string) bool { return k.objects[name] == nil })
}

func (k *written) remove(name string) {
	k.size -= len(k.objects[name])
	delete(k.objects, name)
}

// bounded holds what is written to it, up to a size.
type bounded struct {
	bytes  []byte
	beyond bool // it was more
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.beyond = b.beyond || len(b.bytes)+len(p) > mostOfOne; b.beyond {
		b.bytes = nil
	} else {
		b.bytes = append(b.bytes, p...)
	}
	return len(p), nil
}
