package archive

import (
	"context"
	"io"
	"time"

	"etcd-wrapper/bootstrap/backup/segment"
)

// Grace is how long a merged object must have been there before what it was made of is deleted, and how old what a writer knows
// of the head may be when it writes: after a longer pause it asks for Head first, since its next position may be merged.
const Grace = 5 * time.Minute

// Head is where a generation ends: what the next segment goes on from.
type Head struct {
	segment.Start
	Full    *Full             // the newest one; nil if there is none
	Segment *segment.Manifest // the newest one behind that full; nil if there is none
}

// Empty tells whether there is nothing to go on from: a full must come first.
func (h Head) Empty() bool { return h.Full == nil }

// Revision is the last one that is kept.
func (h Head) Revision() int64 { return h.Position.Revision - 1 }

// PutSegment stores a segment under the name of its position. store.ErrExists says that another writer was first: go on from
// the Manifest of that position. It may be repeated until it succeeds.
func (a *Archive) PutSegment(ctx context.Context, object segment.Object) error { return errUnfinished }

// PutStored is PutSegment for a segment that waited in a spool: everything that its object holds.
func (a *Archive) PutStored(ctx context.Context, generation int, position segment.Position, object io.Reader) error {
	return errUnfinished
}

// Manifest returns that of the segment at a position. store.ErrNotFound says that there is none, or that it was merged.
func (a *Archive) Manifest(ctx context.Context, generation int, position segment.Position) (segment.Manifest, error) {
	return segment.Manifest{}, errUnfinished
}

// Head finds where a generation ends.
func (a *Archive) Head(ctx context.Context, generation int) (Head, error) {
	return Head{}, errUnfinished
}

// Object is one that holds segments.
type Object struct {
	Level      Level
	Generation int
	Start      segment.Position
	Next       segment.Position // where the object behind it begins; zero for a Segment, whose manifest knows
	Size       int64            // bytes
	Modified   time.Time        // when it was created, by the store's clock
}

// Name is that of the object.
func (o Object) Name() string {
	if o.Level == Segment {
		return SegmentName(o.Generation, o.Start)
	}
	return MergedName(o.Generation, o.Level, o.Start, o.Next)
}

// Objects lists those of a level whose first position is not before from, in order.
func (a *Archive) Objects(ctx context.Context, generation int, level Level, from segment.Position) ([]Object, error) {
	return nil, errUnfinished
}

// Merge writes the segments of sources, one after the other, into one object of a level. The sources must follow one another.
// Each is checked on the way as far as that needs no identity. It may be repeated. The sources stay; whoever deletes them waits for Grace,
// and keeps the newest segment of a generation, so that Head finds it at once.
func (a *Archive) Merge(ctx context.Context, level Level, sources []Object) (Object, error) {
	return Object{}, errUnfinished
}
