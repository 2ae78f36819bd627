package archive

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"

	"etcd-wrapper/backup/format/segment"
)

// index finds the objects that hold segments by position.
type index struct {
	segments []Object // by position
	merged   []Object // by first position
	reach    []int    // for each of merged: which one, of those up to it, reaches farthest
	faults   faults
}

func newIndex(segments, merged []Object, known faults) *index {
	slices.SortStableFunc(merged, byStart)
	x := &index{segments: segments, merged: merged, reach: make([]int, len(merged)), faults: known}
	farthest := 0
	for i, object := range merged {
		if object.Next.Compare(merged[farthest].Next) >= 0 {
			farthest = i
		}
		x.reach[i] = farthest
	}
	return x
}

func byStart(a, b Object) int { return a.Start.Compare(b.Start) }

// indexed lists what holds segments in a generation.
func (a *Archive) indexed(ctx context.Context, generation int) (*index, error) {
	var segments, merged []Object
	for _, level := range []Level{Segment, Minute, Hour} { // in the order in which they come and go: nothing is missed
		objects, err := a.Objects(ctx, generation, level, segment.Position{})
		if err != nil {
			return nil, err
		}
		if level == Segment {
			segments = objects
			continue
		}
		if objects, err = a.withoutPretenders(ctx, objects); err != nil {
			return nil, err
		}
		merged = append(merged, objects...)
	}
	return newIndex(segments, merged, nil), nil
}

// withoutPretenders are the merged objects of a level but for those that are not what their names say. Members merge what nobody has merged
// before, so objects that overlap are looked into: whoever may put objects chooses names, and a name that spans everything would hide
// everything.
func (a *Archive) withoutPretenders(ctx context.Context, merged []Object) ([]Object, error) {
	slices.SortStableFunc(merged, byStart)
	doubtful := map[int]bool{}
	farthest := 0
	for i := 1; i < len(merged); i++ {
		if merged[i].Start.Compare(merged[farthest].Next) < 0 {
			doubtful[i], doubtful[farthest] = true, true
		}
		if merged[i].Next.Compare(merged[farthest].Next) > 0 {
			farthest = i
		}
	}
	pretences := make([]error, len(merged))
	looked := slices.Sorted(maps.Keys(doubtful))
	err := each(len(looked), func(i int) (err error) {
		pretences[looked[i]], err = a.pretence(ctx, merged[looked[i]])
		return err
	})
	var left []Object
	for i, object := range merged {
		if pretences[i] == nil {
			left = append(left, object)
		}
	}
	return left, err
}

// pretence is why a merged object is not what its name says, by the manifests in it; nil if it is. That is remembered. The error
// says that it could not be read.
func (a *Archive) pretence(ctx context.Context, object Object) (why, err error) {
	key := fmt.Sprintf("%s %d %d", object.Name(), object.Size, object.Modified.UnixNano())
	if known, is := a.pretences.Load(key); is {
		why, _ = known.(error)
		return why, nil
	}
	_, why = a.lastManifest(ctx, object)
	if why != nil && !Unusable(why) {
		return nil, why
	}
	a.pretences.Store(key, why)
	return why, nil
}

// all returns the objects by their first positions.
func (x *index) all() []Object {
	all := slices.Concat(x.segments, x.merged)
	slices.SortStableFunc(all, byStart)
	return all
}

// at is the object to read for what begins at a position: the one that reaches farthest.
func (x *index) at(position segment.Position) (best Object, found bool) {
	if x == nil { // of a path that is a full and nothing else
		return Object{}, false
	}
	if i := firstAfter(x.merged, position); i > 0 {
		if best = x.merged[x.reach[i-1]]; best.covers(position) {
			return best, true
		}
	}
	i, exact := slices.BinarySearchFunc(x.segments, position, func(o Object, p segment.Position) int { return o.Start.Compare(p) })
	if !exact {
		return Object{}, false
	}
	return x.segments[i], true
}

// firstAfter is the index of the first object that begins behind a position.
func firstAfter(objects []Object, position segment.Position) int {
	return sort.Search(len(objects), func(i int) bool { return objects[i].Start.Compare(position) > 0 })
}

// after is the first position behind another that an object begins at; zero if there is none.
func (x *index) after(position segment.Position) (next segment.Position) {
	for _, objects := range [][]Object{x.segments, x.merged} {
		if i := firstAfter(objects, position); i < len(objects) && (next.IsZero() || objects[i].Start.Compare(next) < 0) {
			next = objects[i].Start
		}
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

// with is the index and one more segment.
func (x *index) with(object Object) *index {
	segments := append(slices.Clone(x.segments), object)
	slices.SortStableFunc(segments, byStart)
	return newIndex(segments, x.merged, x.faults)
}

// upTo is the index with nothing to be read at a position, or behind it.
func (x *index) upTo(end segment.Position, why error) *index {
	return newIndex(x.segments, x.merged, append(slices.Clone(x.faults), &Fault{From: end, Err: why}))
}

// without is the index but for some objects.
func (x *index) without(these func(Object) bool) *index {
	return newIndex(slices.DeleteFunc(slices.Clone(x.segments), these), slices.DeleteFunc(slices.Clone(x.merged), these), x.faults)
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
