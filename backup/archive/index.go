package archive

import (
	"context"
	"slices"

	"etcd-wrapper/backup/format/segment"
)

// index finds the objects that hold segments by position.
type index struct {
	segments []Object // by position
	merged   []Object
	faults   faults
}

// indexed lists what holds segments in a generation.
func (a *Archive) indexed(ctx context.Context, generation int) (*index, error) {
	x := &index{}
	for _, level := range []Level{Segment, Minute, Hour} { // in the order in which they come and go: nothing is missed
		objects, err := a.Objects(ctx, generation, level, segment.Position{})
		if err != nil {
			return nil, err
		}
		if level == Segment {
			x.segments = objects
		} else {
			x.merged = append(x.merged, objects...)
		}
	}
	return x, nil
}

// all returns the objects by their first positions.
func (x *index) all() []Object {
	all := slices.Concat(x.segments, x.merged)
	slices.SortStableFunc(all, func(a, b Object) int { return a.Start.Compare(b.Start) })
	return all
}

// at is the object to read for what begins at a position: the one that reaches farthest.
func (x *index) at(position segment.Position) (best Object, found bool) {
	if x == nil { // of a path that is a full and nothing else
		return Object{}, false
	}
	for _, object := range x.merged {
		if ahead := object.Next.Compare(best.Next); object.covers(position) && (ahead > 0 || ahead == 0 && object.Start.Compare(best.Start) > 0) {
			best, found = object, true
		}
	}
	if found {
		return best, true
	}
	i, exact := slices.BinarySearchFunc(x.segments, position, func(o Object, p segment.Position) int { return o.Start.Compare(p) })
	if !exact {
		return Object{}, false
	}
	return x.segments[i], true
}

// after is the first position behind another that an object begins at; zero if there is none.
func (x *index) after(position segment.Position) (next segment.Position) {
	consider := func(p segment.Position) {
		if p.Compare(position) > 0 && (next.IsZero() || p.Compare(next) < 0) {
			next = p
		}
	}
	i, exact := slices.BinarySearchFunc(x.segments, position, func(o Object, p segment.Position) int { return o.Start.Compare(p) })
	if exact {
		i++
	}
	if i < len(x.segments) {
		consider(x.segments[i].Start)
	}
	for _, object := range x.merged {
		consider(object.Start)
	}
	return next
}

// lastBefore is the segment that begins last before a position.
func (x *index) lastBefore(position segment.Position) (Object, bool) {
	i, _ := slices.BinarySearchFunc(x.segments, position, func(o Object, p segment.Position) int { return o.Start.Compare(p) })
	if i == 0 {
		return Object{}, false
	}
	return x.segments[i-1], true
}

// before is the index without what begins at a position or behind it; all of it if that is zero.
func (x *index) before(bound segment.Position) *index {
	if bound.IsZero() {
		return x
	}
	return x.without(func(o Object) bool { return o.Start.Compare(bound) >= 0 })
}

// without is the index but for some objects.
func (x *index) without(these func(Object) bool) *index {
	return &index{
		segments: slices.DeleteFunc(slices.Clone(x.segments), these),
		merged:   slices.DeleteFunc(slices.Clone(x.merged), these),
		faults:   x.faults,
	}
}

// follow returns the objects to read from a position on, by their names: a segment's doesn't tell where it ends, so it is taken
// to end where the next object begins.
func (x *index) follow(position segment.Position) (objects []Object) {
	for {
		object, found := x.at(position)
		if !found {
			return objects
		}
		objects = append(objects, object)
		if position = object.Next; object.Level == Segment {
			if position = x.after(object.Start); x.faults.between(object.Start, position) {
				return objects
			}
		}
	}
}
