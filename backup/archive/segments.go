package archive

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store"
)

// Grace is how long a merged object must have been there before what it was made of is deleted, and how old what a writer knows
// of the head may be when it writes: after a longer pause it asks for Head first, since its next position may be merged.
const Grace = 5 * time.Minute

// PutSegment stores a segment under the name of its position. store.ErrExists says that another writer was first: go on from
// what is at that position, or from Head if that was merged. It may be repeated until it succeeds.
func (a *Archive) PutSegment(ctx context.Context, object segment.Object) error {
	return a.PutStored(ctx, object.Generation, object.Position, object.Reader())
}

// PutStored is PutSegment for a segment that waited in a spool: everything that its object holds.
func (a *Archive) PutStored(ctx context.Context, generation int, position segment.Position, object io.Reader) error {
	begun, name := time.Now(), SegmentName(generation, position)
	if _, err := store.PutOnce(ctx, a.store, name, object); err != nil {
		return err
	}
	if time.Since(begun) < Grace/2 {
		return nil
	}
	return a.late(ctx, generation, position, name)
}

// late looks at a segment whose writer was stopped while it put it: another one may have been there in its place, and be merged and
// deleted by now. Then this one goes again.
func (a *Archive) late(ctx context.Context, generation int, position segment.Position, name string) error {
	held, err := a.held(ctx, generation, position)
	if err == nil && held {
		_ = a.store.Delete(ctx, name) // readers overlook it, too
		err = a.named(name, fmt.Errorf("another was there and is merged: %w", store.ErrExists))
	}
	return err
}

// held tells whether a merged object that can be believed holds what begins at a position.
func (a *Archive) held(ctx context.Context, generation int, position segment.Position) (bool, error) {
	for _, level := range []Level{Minute, Hour} {
		merged, err := a.Objects(ctx, generation, level, segment.Position{})
		if err != nil {
			return false, err
		}
		for _, object := range merged {
			if !object.covers(position) {
				continue
			}
			if _, err := a.Examine(ctx, object); err == nil || !Unusable(err) {
				return err == nil, err
			}
		}
	}
	return false, nil
}

// Manifest returns that of the segment at a position. store.ErrNotFound says that there is none, or that it was merged.
func (a *Archive) Manifest(ctx context.Context, generation int, position segment.Position) (segment.Manifest, error) {
	return a.firstManifest(ctx, Object{Level: Segment, Generation: generation, Start: position})
}

// Object is one that holds segments.
type Object struct {
	Level      Level
	Generation int
	Start      segment.Position
	Next       segment.Position // where the object behind it begins; zero for a Segment, unless Examined has read it in its manifest
	Size       int64            // bytes
	Modified   time.Time        // when it was created, by the store's clock
}

// Name is that of the object.
func (o Object) Name() string {
	if o.Level == Segment {
		return SegmentName(o.Generation, o.Start)
	}
	return mergedName(o.Generation, o.Level, o.Start, o.Next)
}

// covers tells whether a merged object holds what begins at a position.
func (o Object) covers(position segment.Position) bool {
	return o.Start.Compare(position) <= 0 && o.Next.Compare(position) > 0
}

// Objects lists those of a level whose first position is not before from, in order.
func (a *Archive) Objects(ctx context.Context, generation int, level Level, from segment.Position) (all []Object, err error) {
	prefix := levelPrefix(generation, level)
	after := ""
	if from.Revision > 0 {
		after = prefix + fmt.Sprintf("%019d", from.Revision) // before all names that begin so
	}
	for listed, err := range a.store.List(ctx, prefix, after) {
		if err != nil {
			return nil, err
		}
		start, next, err := parseObject(level, strings.TrimPrefix(listed.Name, prefix))
		if err != nil || start.Compare(from) < 0 {
			continue // somebody else's, or before
		}
		all = append(all, Object{
			Level: level, Generation: generation, Start: start, Next: next, Size: listed.Size, Modified: listed.Modified,
		})
	}
	return all, nil
}
