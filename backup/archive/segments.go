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

// Grace is the minimum time before the sources of a merged object are deleted. HeadValid is the maximum age of a
// writer's head: after a longer pause, the writer calls Head first, because the next position may have been merged.
// Uploads that take longer than half of Grace are checked. Faster uploads end before another segment at the same
// position can be deleted.
const (
	Grace     = 5 * time.Minute
	HeadValid = time.Minute
)

// PutStored stores a segment under the name for its position.
func (a *Archive) PutStored(ctx context.Context, generation int, position format.Position, object io.Reader) error {
	begun, name := time.Now(), SegmentName(generation, position)
	if _, err := store.PutOnce(ctx, a.store, name, object); err != nil || time.Since(begun) < Grace/2 {
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

// verifiedOverlaps returns the merged objects that overlap a range and can be verified completely.
func (r *objectStore) verifiedOverlaps(ctx context.Context, objects []Object, part Object) (all []Merged, err error) {
	for _, object := range objects {
		if object.Level == Segment || !object.contains(part.Start) && !part.contains(object.Start) {
			continue
		}
		_, err := r.lastManifest(ctx, object) // adds the manifest to the cache
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
// be repeated. Merge keeps the sources; callers may delete them after comparing both with VerifyObject.
//
// Merge returns ErrHole if the sources are not contiguous, if a source cannot be verified, if another segment starts
// within the sources, or if a merged object has a different segment at one of their positions.
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

// checkOverlaps returns ErrHole if a different segment starts within the segments to be merged, or if another merged
// object contains different segments for the same positions. A segment that starts within a merged object counts as
// merged. A segment at a position that was already merged and deleted comes from a late writer and must never become
// part of a merged object, because readers could not tell which of the two merged objects is right. The late segment
// was created long after the first merged object and is read before merged objects are listed, so even a lagging
// listing includes the first merged object.
func (a *Archive) checkOverlaps(ctx context.Context, merged Merged, sources []Object) error {
	others, err := a.Objects(ctx, merged.Generation)
	if err != nil {
		return err
	}
	own := func(o Object) bool {
		return o.hasNameOf(merged.Object) || slices.ContainsFunc(sources, o.hasNameOf)
	}
	others = slices.DeleteFunc(others, own)
	for _, other := range others { // the segments of an hour were checked when the minutes were merged
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

// copySegments writes the segments of sources. The segments must cover merged exactly and belong to the generation's
// cluster, because a segment of another cluster would appear to cover segments that are stored later.
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
		return nil, fmt.Errorf("%w: the sources of %s end at %s", ErrHole, merged.Name(), next)
	}
	return all, nil
}

// asSequenceError converts an error about an unverifiable object to ErrHole, so that the object is kept and other
// merges continue.
func asSequenceError(err error) error {
	if NotVerified(err) {
		return fmt.Errorf("%w: %w", ErrHole, err)
	}
	return err
}
