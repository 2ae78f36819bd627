package retention

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// A step merges objects of one level into objects of the next level.
type step struct {
	from, to archive.Level
	span     time.Duration // objects that were created within one span are merged into one object
	age      time.Duration // delay between the end of a span and the merge
}

var steps = []step{
	{from: archive.Segment, to: archive.Minute, span: time.Minute, age: time.Minute},
	{from: archive.Minute, to: archive.Hour, span: time.Hour, age: 5 * time.Minute},
}

// A Merger merges the objects of an archive. A Merger is not safe for concurrent use. Two members can safely merge
// at the same time, but the work is done twice.
type Merger struct {
	archive *archive.Archive
	now     func() time.Time   // the wall clock
	clock   func() time.Time   // the monotonic clock
	known   map[string]*object // cached facts about existing objects, by name
}

// object caches facts about a stored object.
type object struct {
	hole  bool      // a group that starts with this object cannot be merged
	since time.Time // when a merged object was first seen, according to the monotonic clock

	// Content of the object, known once the object has been merged or read completely.
	size     int64
	segments map[format.Position]format.Manifest // nil if unknown, empty if the object cannot be verified
}

// NewMerger returns a merger that computes the ages of objects using now as the clock.
func NewMerger(a *archive.Archive, now func() time.Time) *Merger {
	return &Merger{archive: a, now: now, clock: time.Now, known: map[string]*object{}}
}

// Merged is the result of Run.
type Merged struct {
	Merged  int  // objects created
	Deleted int  // number of deleted source objects
	Left    bool // Run must be called again even if no objects are added
	Holes   int  // number of new groups that cannot be merged because a segment is missing or another chain starts
}

// Run merges objects that are old enough. It also deletes sources that were merged long enough ago, unless they are
// locked. Run can be interrupted at any time. If deletions are denied, Run finishes merging before returning the
// error.
func (m *Merger) Run(ctx context.Context, generation int) (Merged, error) {
	r, exist := &round{Merger: m, levels: map[archive.Level][]archive.Object{}, deleted: map[string]bool{}}, map[string]bool{}
	objects, err := m.archive.Objects(ctx, generation)
	if err != nil {
		return r.done, fmt.Errorf("cannot merge: %w", err)
	}
	for _, object := range objects {
		exist[object.Name()], r.levels[object.Level] = true, append(r.levels[object.Level], object)
	}
	maps.DeleteFunc(m.known, func(name string, _ *object) bool { return !exist[name] })
	for _, step := range steps {
		if err := r.merge(ctx, step); err != nil {
			return r.done, err
		}
		if err := r.clear(ctx, step); err != nil {
			return r.done, err
		}
	}
	return r.done, r.denied
}

// round holds the state of one call to Run.
type round struct {
	*Merger
	levels  map[archive.Level][]archive.Object // existing objects by level
	deleted map[string]bool                    // deleted sources by name
	done    Merged
	refused int   // number of locked objects in the current step
	denied  error // set if deletions are denied
}

// mergedObjects returns the existing objects of the levels into which objects of a level are merged.
func (r *round) mergedObjects(level archive.Level) []archive.Object {
	if level == archive.Segment {
		return slices.Concat(r.levels[archive.Minute], r.levels[archive.Hour])
	}
	return r.levels[archive.Hour]
}

// merge creates the merged objects of a step.
func (r *round) merge(ctx context.Context, step step) error {
	fresh, err := r.notMerged(ctx, r.levels[step.from], r.mergedObjects(step.from))
	if err != nil {
		return fmt.Errorf("cannot merge: %w", err)
	}
	groups, left := Groups(fresh, step.span, r.now().Add(-step.age))
	r.done.Left = r.done.Left || left
	for _, group := range groups {
		first := r.lookup(group[0])
		if first.hole {
			continue
		}
		made, err := r.archive.Merge(ctx, step.to, group)
		if archive.Unusable(err) || errors.Is(err, store.ErrExists) {
			first.hole = true // the chain ends here, or an object was deleted or replaced, so the group cannot be merged
			if step.from == archive.Segment && !errors.Is(err, store.ErrExists) {
				r.done.Holes++
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot merge: %w", err)
		}
		made.Modified = r.now() // approximately the creation time that the next listing will show
		for _, object := range append(group, made.Object) {
			r.lookup(object).record(object.Size, made.SegmentsIn(object))
		}
		r.levels[step.to] = append(r.levels[step.to], made.Object)
		r.done.Merged++
	}
	slices.SortStableFunc(r.levels[step.to], func(a, b archive.Object) int { return a.Start.Compare(b.Start) })
	return nil
}

// clear deletes the sources of merged objects, oldest first. Sources are kept until the merged object has been known
// for archive.Grace, because readers and writers may still use them.
func (r *round) clear(ctx context.Context, step step) error {
	r.refused = 0 // count each step separately: segments may be locked even if the older minutes are not
	for _, merged := range r.mergedObjects(step.from) {
		to := r.lookup(merged)
		if to.since.IsZero() {
			to.since = r.clock()
		}
		due := r.clock().Sub(to.since) >= archive.Grace
		level := r.levels[step.from]
		for _, source := range Covered(level, merged) {
			if source.Start == level[len(level)-1].Start || r.deleted[source.Name()] { // the newest object, which Head reads first
				continue
			}
			if !due {
				r.done.Left = true
				continue
			}
			held, err := r.contains(ctx, merged, source)
			if err != nil {
				return fmt.Errorf("cannot check whether %s was merged: %w", source.Name(), err)
			}
			if held {
				err = r.delete(ctx, source)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// maxRefused limits the number of failed deletions per step in a round. If one object is locked, the others usually
// are too, possibly for a month.
const maxRefused = 16

func (r *round) delete(ctx context.Context, object archive.Object) error {
	if r.refused >= maxRefused || r.denied != nil {
		r.done.Left = true
		return nil
	}
	err := r.archive.Store().Delete(ctx, object.Name())
	if err == nil {
		r.done.Deleted++
		r.deleted[object.Name()] = true
		return nil
	}
	err = fmt.Errorf("cannot delete merged objects: %w", err)
	switch {
	case errors.Is(err, store.ErrLocked):
		r.refused++
	case errors.Is(err, store.ErrDenied):
		r.denied = err
	default:
		return err
	}
	r.done.Left = true
	return nil
}

// lookup returns the cached facts about an object.
func (m *Merger) lookup(one archive.Object) *object {
	name := one.Name()
	if m.known[name] == nil {
		m.known[name] = &object{}
	}
	return m.known[name]
}

// Covered returns the objects that a merged object covers completely. Objects that are only partly covered are left
// out, because another merger may have grouped the objects differently. objects must be sorted by position. Segments
// are covered if they start within the merged object, because a merged object always ends at the end of a segment.
func Covered(objects []archive.Object, merged archive.Object) []archive.Object {
	from := func(start format.Position) int { // binary search: a locked store may have 100,000s of objects
		index, _ := slices.BinarySearchFunc(objects, start, func(o archive.Object, at format.Position) int { return o.Start.Compare(at) })
		return index
	}
	within := slices.Clone(objects[from(merged.Start):from(merged.Next)])
	return slices.DeleteFunc(within, func(o archive.Object) bool { return o.Next.Compare(merged.Next) > 0 })
}

// minGroup is the minimum number of objects in a group, unless too few objects were created within maxSpan. Larger
// groups need fewer PUT requests.
const (
	minGroup = 60
	maxSpan  = 30 * time.Minute
)

// Groups returns the groups of objects to merge. A group consists of neighboring objects that were created within
// the same span, if the span ended before the given time. A group that is too small also takes objects from the
// following spans, up to maxSpan. A group may consist of a single object, which ensures that every older object is
// merged into the next level. left reports whether any object is not yet in a returned group.
func Groups(objects []archive.Object, span time.Duration, before time.Time) (groups [][]archive.Object, left bool) {
	for i, object := range objects {
		if last := len(groups) - 1; last >= 0 && fitsGroup(object, groups[last], span) {
			groups[last] = append(groups[last], object)
			continue
		}
		groups = append(groups, objects[i:i+1:i+1])
	}
	closed := groups[:0]
	for i, group := range groups {
		grows := i == len(groups)-1 && len(group) < minGroup
		if newest := group[len(group)-1].Modified; isOver(newest, span, before) && (!grows || isOver(newest, max(span, maxSpan), before)) {
			closed = append(closed, group)
		}
	}
	return closed, len(closed) < len(groups)
}

// fitsGroup reports whether an object belongs to the group of the preceding objects.
func fitsGroup(object archive.Object, group []archive.Object, span time.Duration) bool {
	if len(group) < minGroup {
		span = max(span, maxSpan)
	}
	return group[len(group)-1].Modified.Truncate(span).Equal(object.Modified.Truncate(span))
}

// isOver reports whether the span in which an object was created ended before the given time.
func isOver(created time.Time, span time.Duration, before time.Time) bool {
	return !created.Truncate(span).Add(span).After(before)
}

// record stores the segments of an object in the cache.
func (o *object) record(size int64, segments []format.Manifest) {
	o.size, o.segments = size, map[format.Position]format.Manifest{}
	for _, manifest := range segments {
		o.segments[manifest.Position] = manifest
	}
}

// contents returns the segments of an object. The object is read unless this process has already merged or read it.
func (m *Merger) contents(ctx context.Context, one archive.Object) (known *object, err error) {
	if known = m.lookup(one); known.segments == nil || known.size != one.Size {
		segments, err := m.archive.VerifyObject(ctx, one)
		if err != nil && !archive.Unusable(err) {
			return known, err
		}
		known.record(one.Size, segments)
	}
	return known, nil
}

// contains reports whether a merged object contains all segments of another object. Both objects are read completely
// and verified.
func (m *Merger) contains(ctx context.Context, merged, source archive.Object) (bool, error) {
	outer, err := m.contents(ctx, merged)
	if _, starts := outer.segments[source.Start]; err != nil || !starts {
		return false, err
	}
	inner, err := m.contents(ctx, source)
	if err != nil {
		return false, err
	}
	for position, segment := range inner.segments {
		if !archive.SameSegment(outer.segments[position], segment) {
			return false, nil
		}
	}
	return len(inner.segments) > 0, nil
}

// notMerged returns the objects of a level that are not contained in a verified object of a higher level.
func (m *Merger) notMerged(ctx context.Context, objects, merged []archive.Object) ([]archive.Object, error) {
	held := map[string]bool{}
	for _, one := range merged {
		covered := Covered(objects, one)
		if len(covered) == 0 {
			continue
		}
		c, err := m.contents(ctx, one)
		if err != nil {
			return nil, err
		}
		for _, object := range covered {
			_, begins := c.segments[object.Start]
			held[object.Name()] = held[object.Name()] || begins
		}
	}
	return slices.DeleteFunc(slices.Clone(objects), func(o archive.Object) bool { return held[o.Name()] }), nil
}
