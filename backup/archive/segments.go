package archive

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// Grace bounds how soon the sources of a merged object are deleted. HeadValid bounds how old a writer's knowledge
// of the head may be when it writes: after a longer pause it calls Head first, as its next position may be merged.
// An upload that takes half of Grace is checked. A faster one has ended before another segment at its position can
// be deleted.
const (
	Grace     = 5 * time.Minute
	HeadValid = time.Minute
)

// PutStored stores the content of a segment object under the name of its position.
func (a *Archive) PutStored(ctx context.Context, generation int, position format.Position, object io.Reader) error {
	begun, name := time.Now(), SegmentName(generation, position)
	if _, err := store.PutOnce(ctx, a.store, name, object); err != nil || time.Since(begun) < Grace/2 {
		return err
	}
	return a.checkDelayed(ctx, generation, position, name)
}

// checkDelayed checks a segment whose writer was suspended while it stored the segment: a different segment may
// have been stored at the position, merged and deleted in the meantime. In this case, the late segment is deleted.
func (a *Archive) checkDelayed(ctx context.Context, generation int, position format.Position, name string) error {
	objects, err := a.Objects(ctx, generation, Minute, Hour)
	if err != nil {
		return err
	}
	next := format.Position{Revision: position.Revision, Part: position.Part + 1}
	merged, err := a.verifiedOverlaps(ctx, objects, Object{Start: position, Next: next})
	if err == nil && len(merged) > 0 {
		_ = a.store.Delete(ctx, name) // readers skip it anyway
		err = a.wrapName(name, fmt.Errorf("another segment was stored there and merged: %w", store.ErrExists))
	}
	return err
}

// verifiedOverlaps returns the merged objects that overlap a range and can be verified to their ends.
func (r *objectStore) verifiedOverlaps(ctx context.Context, objects []Object, part Object) (all []Merged, err error) {
	for _, object := range objects {
		if object.Level == Segment || !object.contains(part.Start) && !part.contains(object.Start) {
			continue
		}
		_, err := r.lastManifest(ctx, object) // caches an object of which only the name is known
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

// A Merged is an object that contains the segments of others, with their manifests.
type Merged struct {
	Object
	Segments []format.Manifest
}

// Merge writes the segments of sources into one object of a level. The sources must follow one another and span an
// hour at most. Each is read to its end and verified as far as that needs no decryption key. It may be repeated. The
// sources stay until someone deletes them who has compared both with VerifyObject.
//
// ErrHole reports that the sources do not follow one another, that one of them cannot be verified, that another segment
// starts within them, or that a merged object has another segment at one of their positions. They stay as they are.
func (a *Archive) Merge(ctx context.Context, level Level, sources []Object) (Merged, error) {
	if level == Segment || len(sources) == 0 {
		return Merged{}, fmt.Errorf("cannot merge %d objects into a %s", len(sources), level)
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
// merged object contains different segments there. A segment that starts within a merged object counts as merged. A
// segment at a position that was already merged and deleted comes from a late writer. It must never become part of
// a merged object, because readers could not tell which of two such objects is right. It was created long after the
// first merged object, and is read before the merged objects are listed, so even a lagging listing includes that
// object.
func (a *Archive) checkOverlaps(ctx context.Context, merged Merged, sources []Object) error {
	others, err := a.Objects(ctx, merged.Generation)
	if err != nil {
		return err
	}
	own := func(o Object) bool {
		return o.hasNameOf(merged.Object) || slices.ContainsFunc(sources, o.hasNameOf)
	}
	others = slices.DeleteFunc(others, own)
	for _, other := range others { // the minutes of an hour were already checked when they were made
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
	return fmt.Errorf("%w: %s and %s have different segments", ErrHole, other.Name(), merged.Name())
}

// SegmentsIn returns the segments whose positions are covered by an object.
func (m Merged) SegmentsIn(object Object) []format.Manifest {
	return slices.DeleteFunc(slices.Clone(m.Segments), func(s format.Manifest) bool {
		return s.Position != object.Start && !object.contains(s.Position)
	})
}

// SameSegment reports whether two segments have the same position, the same rows up to their ends, and the same
// body.
func SameSegment(a, b format.Manifest) bool {
	return a.Position == b.Position && a.After == b.After && a.Body == b.Body
}

// copySegments writes the segments of sources. They must cover merged exactly and belong to the generation's
// cluster, because a segment of another cluster would seem to cover segments that are stored there later.
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
			_ = content.Close() // the object was only read
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

// asSequenceError turns the error of an unverifiable object into ErrHole: the object is kept and does not stop
// other merges.
func asSequenceError(err error) error {
	if NotVerified(err) {
		return fmt.Errorf("%w: %w", ErrHole, err)
	}
	return err
}
