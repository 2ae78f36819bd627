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

// step is how objects of one level become those of the next.
type step struct {
	from, to archive.Level
	span     time.Duration // what was created within one such span becomes one object
	age      time.Duration // how long the span must be over
}

var steps = []step{
	{from: archive.Segment, to: archive.Minute, span: time.Minute, age: time.Minute},
	{from: archive.Minute, to: archive.Hour, span: time.Hour, age: 5 * time.Minute},
}

// Merger merges what is in an archive. One goroutine uses it; if two members do so at once, they only do the same work twice.
type Merger struct {
	archive *archive.Archive
	now     func() time.Time         // the wall clock
	clock   func() time.Time         // one that doesn't jump
	known   map[string]*object       // of the objects that are there, by name, those of which anything is known
	gaps    map[format.Position]bool // where one ends and nothing begins
}

// object is what a merger knows of an object.
type object struct {
	since time.Time // of a merged one: since when it has been known to be there, by the monotonic clock
	holds *contents // of a merged one: what it holds; nil if it was neither made nor read
	hole  bool      // the one behind does not follow it
}

// NewMerger returns a merger; now is the clock that the ages of objects are reckoned by.
func NewMerger(a *archive.Archive, now func() time.Time) *Merger {
	return &Merger{archive: a, now: now, clock: time.Now, known: map[string]*object{}, gaps: map[format.Position]bool{}}
}

// Merged is what a merger did.
type Merged struct {
	Merged  int  // objects that were made
	Deleted int  // objects that they were made of
	Left    bool // there is something to do later, though nothing new may come
	Holes   int  // places that were not known yet where something is missing, or where a chain ended and another one began
}

// Run merges what is old enough, and deletes what was merged long enough ago. What is locked is left for later. It may be
// cut off at any time. Where nothing may be deleted, it merges all the same, and says so.
func (m *Merger) Run(ctx context.Context, generation int) (Merged, error) {
	r := &round{Merger: m, levels: map[archive.Level][]archive.Object{}}
	for _, level := range []archive.Level{archive.Segment, archive.Minute, archive.Hour} {
		objects, err := m.archive.Objects(ctx, generation, level, format.Position{})
		if err != nil {
			return r.done, fmt.Errorf("cannot merge: %w", err)
		}
		r.levels[level] = objects
	}
	m.forget(r.levels)
	for _, step := range steps {
		if err := r.merge(ctx, step); err != nil {
			return r.done, err
		}
		if err := r.clear(ctx, step); err != nil {
			return r.done, err
		}
	}
	r.done.Holes += m.newGaps(r.levels)
	return r.done, r.denied
}

// round is one run of a merger.
type round struct {
	*Merger
	levels  map[archive.Level][]archive.Object // that are there
	done    Merged
	refused int   // objects that are locked
	denied  error // nothing may be deleted at all
}

// merge makes the objects of a step.
func (r *round) merge(ctx context.Context, step step) error {
	fresh, err := r.notMerged(ctx, r.levels[step.from], r.levels[step.to])
	if err != nil {
		return fmt.Errorf("cannot merge: %w", err)
	}
	groups, left := Groups(fresh, step.span, r.now().Add(-step.age))
	r.done.Left = r.done.Left || left
	for _, group := range groups {
		first := r.of(group[0])
		if first.hole {
			continue
		}
		made, err := r.archive.Merge(ctx, step.to, group)
		if archive.Unusable(err) || errors.Is(err, store.ErrExists) {
			first.hole = true // a chain ended there, or somebody deleted it or put something in its place: it stays as it is
			if step.from == archive.Segment && !errors.Is(err, store.ErrExists) {
				r.done.Holes++
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot merge: %w", err)
		}
		made.Modified = r.now() // about what the next listing says
		r.of(made.Object).holds = newContents(made.Size, made.Segments, group...)
		r.levels[step.to] = append(r.levels[step.to], made.Object)
		r.done.Merged++
	}
	return nil
}

// clear deletes what objects of a step were made of, the oldest first.
func (r *round) clear(ctx context.Context, step step) error {
	r.refused = 0 // younger segments may be locked where the minutes of an hour are not
	for _, merged := range r.levels[step.to] {
		to := r.of(merged)
		if to.since.IsZero() {
			to.since = r.clock()
		}
		due := r.clock().Sub(to.since) >= archive.Grace
		for _, source := range Covered(r.levels[step.from], merged) {
			if last(source, r.levels[step.from]) {
				continue
			}
			if !due {
				r.done.Left = true
				continue
			}
			held, err := r.holds(ctx, merged, source)
			if err != nil {
				return fmt.Errorf("cannot see whether %s was merged: %w", source.Name(), err)
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

// mostRefused is how many objects are asked for in vain in a round. A lock mostly is on all of them, and there may be a month's.
const mostRefused = 16

func (r *round) delete(ctx context.Context, object archive.Object) error {
	if r.refused >= mostRefused || r.denied != nil {
		r.done.Left = true
		return nil
	}
	err := r.archive.Store().Delete(ctx, object.Name())
	if err == nil {
		r.done.Deleted++
		return nil
	}
	err = fmt.Errorf("cannot delete what was merged: %w", err)
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

// of is what is known of an object.
func (m *Merger) of(one archive.Object) *object {
	name := one.Name()
	if m.known[name] == nil {
		m.known[name] = &object{}
	}
	return m.known[name]
}

// last tells whether an object is the newest of its level, which stays: whoever looks for the end of the chain finds it there.
func last(object archive.Object, level []archive.Object) bool {
	return object.Start == level[len(level)-1].Start
}

// forget keeps the memory of objects that are there only.
func (m *Merger) forget(levels map[archive.Level][]archive.Object) {
	there := map[string]bool{}
	for _, objects := range levels {
		for _, object := range objects {
			there[object.Name()] = true
		}
	}
	maps.DeleteFunc(m.known, func(name string, _ *object) bool { return !there[name] })
}

// Covered are the objects that a merged one holds to their end: two members that merge at once may cut differently. Where a
// segment ends only its manifest knows; merged objects end where segments do.
func Covered(objects []archive.Object, merged archive.Object) (held []archive.Object) {
	for _, object := range objects {
		ends := object.Next.IsZero() || object.Next.Compare(merged.Next) <= 0
		if ends && object.Start.Compare(merged.Start) >= 0 && object.Start.Compare(merged.Next) < 0 {
			held = append(held, object)
		}
	}
	return held
}

// few is how many objects a group has at least, where as many were created within a spell: every group costs a request that writes.
const (
	few   = 60
	spell = 30 * time.Minute
)

// Groups are the objects that become one each: neighbours that were created within the same span, which ended before a time, and
// where that are few, those of the next spans of the same spell. A single object is a group, too, so that each level has
// everything that is older. Left tells whether there are younger ones.
func Groups(objects []archive.Object, span time.Duration, before time.Time) (groups [][]archive.Object, left bool) {
	for i, object := range objects {
		if last := len(groups) - 1; last >= 0 && belongs(object, groups[last], span) {
			groups[last] = append(groups[last], object)
			continue
		}
		groups = append(groups, objects[i:i+1:i+1])
	}
	closed := groups[:0]
	for i, group := range groups {
		grows := i == len(groups)-1 && len(group) < few
		if newest := group[len(group)-1].Modified; isOver(newest, span, before) && (!grows || isOver(newest, max(span, spell), before)) {
			closed = append(closed, group)
		}
	}
	return closed, len(closed) < len(groups)
}

// belongs tells whether an object is of the same group as those before it.
func belongs(object archive.Object, group []archive.Object, span time.Duration) bool {
	if len(group) < few {
		span = max(span, spell)
	}
	return group[len(group)-1].Modified.Truncate(span).Equal(object.Modified.Truncate(span))
}

// isOver tells whether the span in which something was created ended before a time.
func isOver(created time.Time, span time.Duration, before time.Time) bool {
	return !created.Truncate(span).Add(span).After(before)
}

// newGaps counts the places, each once, where a merged object ends and nothing begins, though something lies behind. Within what
// becomes one object merging finds out.
func (m *Merger) newGaps(levels map[archive.Level][]archive.Object) (count int) {
	merged := slices.Concat(levels[archive.Minute], levels[archive.Hour])
	all := slices.Concat(levels[archive.Segment], merged)
	for _, object := range merged {
		end := object.Next
		goesOn := func(o archive.Object) bool {
			return o.Start == end || o.Start.Compare(end) < 0 && o.Next.Compare(end) > 0
		}
		behind := func(o archive.Object) bool { return o.Start.Compare(end) > 0 }
		if !m.gaps[end] && !slices.ContainsFunc(all, goesOn) && slices.ContainsFunc(all, behind) {
			m.gaps[end] = true
			count++
		}
	}
	return count
}

// contents are what a merged object was seen to hold when it was made, or read to its end. A name says nothing: whoever may put
// objects chooses it.
type contents struct {
	size     int64                               // bytes of the object
	segments map[format.Position]format.Manifest // none if the object is not to be believed
	compared map[string]bool                     // objects that were read, too, by name, and whether this one holds them
}

func newContents(size int64, segments []format.Manifest, of ...archive.Object) *contents {
	c := &contents{size: size, segments: map[format.Position]format.Manifest{}, compared: map[string]bool{}}
	for _, manifest := range segments {
		c.segments[manifest.Position] = manifest
	}
	for _, source := range of {
		c.compared[source.Name()] = true
	}
	return c
}

// has tells whether these are among the segments, with the same rows and the same of everything else.
func (c *contents) has(segments []format.Manifest) bool {
	for _, manifest := range segments {
		own, there := c.segments[manifest.Position]
		if !there || own.After != manifest.After || own.Body != manifest.Body {
			return false
		}
	}
	return true
}

// contents returns what a merged object holds, which is read unless this process has made or read it.
func (m *Merger) contents(ctx context.Context, merged archive.Object) (*contents, error) {
	known := m.of(merged)
	if known.holds != nil && known.holds.size == merged.Size {
		return known.holds, nil
	}
	segments, err := m.archive.Examine(ctx, merged)
	if err != nil && !archive.Unusable(err) {
		return nil, err
	}
	known.holds = newContents(merged.Size, segments)
	return known.holds, nil
}

// holds tells whether a merged object holds everything that another object does. Both were read to their ends then, and believed.
func (m *Merger) holds(ctx context.Context, merged, source archive.Object) (bool, error) {
	c, err := m.contents(ctx, merged)
	if err != nil {
		return false, err
	}
	held, known := c.compared[source.Name()]
	if _, begins := c.segments[source.Start]; known || !begins {
		return held, nil
	}
	segments, err := m.archive.Examine(ctx, source)
	if err != nil && !archive.Unusable(err) {
		return false, err
	}
	c.compared[source.Name()] = err == nil && c.has(segments)
	return c.compared[source.Name()], nil
}

// notMerged are the objects of a level that no object of the next one holds. What cannot be believed holds nothing.
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
