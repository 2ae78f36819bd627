package archive

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// Grace bounds how soon the sources of a merged object are deleted, and how old a writer's knowledge of the head may
// be when it writes: after a longer pause it calls Head first, as its next position may be merged.
const Grace = 5 * time.Minute

// PutStored stores the content of a segment object under the name of its position.
func (w *Writer) PutStored(ctx context.Context, generation int, position format.Position, object io.Reader) error {
	begun, name := time.Now(), SegmentName(generation, position)
	begin, err := io.ReadAll(io.LimitReader(object, maxRecentSize+1))
	if err != nil {
		return fmt.Errorf("cannot read what to store as %s: %w", name, err)
	}
	if _, err := store.PutOnce(ctx, w.reader.store, name, io.MultiReader(bytes.NewReader(begin), object)); err != nil {
		return err
	}
	if len(begin) <= maxRecentSize {
		w.recent.Add(name, begin)
	}
	if time.Since(begun) < Grace/2 {
		return nil
	}
	return w.checkDelayed(ctx, generation, position, name)
}

// checkDelayed checks a segment whose writer was suspended while it stored it: another segment may have had the
// position, and be merged and deleted by now. Then this one is deleted again.
func (w *Writer) checkDelayed(ctx context.Context, generation int, position format.Position, name string) error {
	held, err := w.reader.isMerged(ctx, generation, position)
	if err == nil && held {
		_ = w.reader.store.Delete(ctx, name) // readers skip it in any case
		err = w.reader.wrapName(name, fmt.Errorf("another was there and is merged: %w", store.ErrExists))
	}
	return err
}

// isMerged reports whether a merged object that can be verified covers a position.
func (r *objectStore) isMerged(ctx context.Context, generation int, position format.Position) (bool, error) {
	for _, level := range []Level{Minute, Hour} {
		objects, err := r.Objects(ctx, generation, level)
		if err != nil {
			return false, err
		}
		for _, object := range objects {
			if !object.contains(position) {
				continue
			}
			if _, err := r.VerifyObject(ctx, object); err == nil || !Unusable(err) {
				return err == nil, err
			}
		}
	}
	return false, nil
}

// A Merged is an object that holds the segments of others, with their manifests.
type Merged struct {
	Object
	Segments []format.Manifest
}

// Merge writes the segments of sources into one object of a level. The sources must follow one another and span an
// hour at most. Each is read to its end and verified as far as that needs no decryption key. It may be repeated. The
// sources stay until someone deletes them who has compared both with VerifyObject.
//
// ErrHole reports that the sources do not follow one another, that one of them cannot be verified, or that another
// segment starts within them. They stay as they are.
func (w *Writer) Merge(ctx context.Context, level Level, sources []Object) (Merged, error) {
	if level == Segment || len(sources) == 0 {
		return Merged{}, fmt.Errorf("cannot merge %d objects to a %s", len(sources), level)
	}
	first, last := sources[0], sources[len(sources)-1]
	merged := Merged{Object: Object{Level: level, Generation: first.Generation, Start: first.Start, Next: last.Next}}
	if last.Level == Segment {
		manifest, err := w.manifest(ctx, last)
		if err != nil {
			return Merged{}, asSequenceError(err)
		}
		merged.Next = manifest.Next()
	}
	if err := w.checkOneChain(ctx, merged.Object, sources); err != nil {
		return Merged{}, err
	}
	body, err := w.putStream(ctx, merged.Name(), func(into io.Writer) (err error) {
		merged.Segments, err = w.copySegments(ctx, into, merged.Object, sources)
		return err
	})
	merged.Size = body.Bytes
	return merged, err
}

// manifest returns the manifest of a segment that is to be merged.
func (w *Writer) manifest(ctx context.Context, object Object) (format.Manifest, error) {
	content, err := w.source(ctx, object)
	if err != nil {
		return format.Manifest{}, err
	}
	defer content.Close()
	manifest, err := format.NewSegmentReader(content, w.reader.keys).Next()
	return manifest, w.reader.wrapName(object.Name(), err)
}

// source opens an object that is to be merged. Recent ones of this process need no request.
func (w *Writer) source(ctx context.Context, object Object) (io.ReadCloser, error) {
	if content, cached := w.recent.Get(object.Name()); cached && int64(len(content)) == object.Size {
		return io.NopCloser(bytes.NewReader(content)), nil
	}
	return Fetch(ctx, w.reader.store, object.Name())
}

// checkOneChain returns an ErrHole if another segment starts within the ones to be merged: it would count as merged,
// and may belong to another chain.
func (w *Writer) checkOneChain(ctx context.Context, merged Object, sources []Object) error {
	if merged.Level != Minute {
		return nil // checked when the sources were merged
	}
	segments, err := w.reader.Objects(ctx, merged.Generation, Segment)
	for _, other := range segments {
		of := func(source Object) bool { return source.Start == other.Start }
		if merged.contains(other.Start) && !slices.ContainsFunc(sources, of) {
			return fmt.Errorf("%w: %s starts within %s", ErrHole, other.Name(), merged.Name())
		}
	}
	return err
}

// copySegments writes the segments of sources. They must cover merged exactly and belong to the generation's cluster:
// another one would seem to cover what is stored there later.
func (w *Writer) copySegments(ctx context.Context, into io.Writer, merged Object, sources []Object) (all []format.Manifest, err error) {
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
			all, err = w.reader.appendManifests(all, io.TeeReader(content, into), source, generation)
			_ = content.Close() // it was only read
		}
		if err != nil {
			return nil, asSequenceError(err)
		}
		next = all[len(all)-1].Next()
	}
	if next != merged.Next {
		return nil, fmt.Errorf("%w: %s would end at %s", ErrHole, merged.Name(), next)
	}
	return all, nil
}

// asSequenceError turns an error about an object that cannot be verified into an ErrHole: it stays as it is, and does not stop
// other merges.
func asSequenceError(err error) error {
	if NotVerified(err) {
		return fmt.Errorf("%w: %w", ErrHole, err)
	}
	return err
}
