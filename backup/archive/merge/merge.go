// Package merge makes few large objects of many small ones: a restore then fetches tens of objects and not thousands, and a
// day's listing stays short. Segments become minutes, and minutes hours. What was merged is deleted once no reader can be
// on its way to it any more.
package merge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	seen    map[string]time.Time     // since when a merged object has been known to be there, by the monotonic clock
	read    map[string]*contents     // what merged objects hold, of those that were made or read
	holes   map[string]bool          // objects that the one behind does not follow
	gaps    map[format.Position]bool // where one ends and nothing begins
}

// New returns a merger; now is the clock that the ages of objects are reckoned by.
func New(a *archive.Archive, now func() time.Time) *Merger {
	return &Merger{archive: a, now: now, clock: time.Now, seen: map[string]time.Time{}, read: map[string]*contents{}, holes: map[string]bool{}, gaps: map[format.Position]bool{}}
}

// Done is what was done.
type Done struct {
	Merged  int  // objects that were made
	Deleted int  // objects that they were made of
	Left    bool // there is something to do later, though nothing new may come
	Holes   int  // places that were not known yet where something is missing, or where a chain ended and another one began
}

// Run merges what is old enough, and deletes what was merged long enough ago. What is locked is left for later. It may be
// cut off at any time. Where nothing may be deleted, it merges all the same, and says so.
func (m *Merger) Run(ctx context.Context, generation int) (Done, error) {
	var done Done
	var denied error
	levels := map[archive.Level][]archive.Object{}
	for _, level := range []archive.Level{archive.Segment, archive.Minute, archive.Hour} {
		objects, err := m.archive.Objects(ctx, generation, level, format.Position{})
		if err != nil {
			return done, fmt.Errorf("cannot merge: %w", err)
		}
		levels[level] = objects
	}
	for _, step := range steps {
		if err := m.merge(ctx, step, levels, &done); err != nil {
			return done, err
		}
		err := m.clear(ctx, step, levels, &done)
		if denied = cmp.Or(denied, err); err != nil && !errors.Is(err, store.ErrDenied) {
			return done, err
		}
	}
	done.Holes += m.newGaps(levels)
	return done, denied
}

// merge makes the objects of a step.
func (m *Merger) merge(ctx context.Context, step step, levels map[archive.Level][]archive.Object, done *Done) error {
	fresh, err := m.notMerged(ctx, levels[step.from], levels[step.to])
	if err != nil {
		return fmt.Errorf("cannot merge: %w", err)
	}
	groups, left := Groups(fresh, step.span, m.now().Add(-step.age))
	done.Left = done.Left || left
	for _, group := range groups {
		if m.holes[group[0].Name()] {
			continue
		}
		made, err := m.archive.Merge(ctx, step.to, group)
		if archive.Unusable(err) || errors.Is(err, store.ErrExists) {
			m.holes[group[0].Name()] = true // a chain ended there, or somebody deleted it or put something in its place: it stays as it is
			if step.from == archive.Segment && !errors.Is(err, store.ErrExists) {
				done.Holes++
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot merge: %w", err)
		}
		made.Modified = m.now() // about what the next listing says
		m.read[made.Name()] = newContents(made.Size, made.Segments, group...)
		levels[step.to] = append(levels[step.to], made.Object)
		done.Merged++
	}
	return nil
}

// mostRefused is how many objects are asked for in vain in a round. A lock mostly is on all of them, and there may be a month's.
const mostRefused = 16

// clear deletes what objects of a step were made of, the oldest first.
func (m *Merger) clear(ctx context.Context, step step, levels map[archive.Level][]archive.Object, done *Done) error {
	c := clearing{store: m.archive.Store(), done: done}
	for _, merged := range levels[step.to] {
		due := m.clock().Sub(m.since(merged)) >= archive.Grace
		for _, source := range Covered(levels[step.from], merged) {
			if last(source, levels[step.from]) {
				continue
			}
			if !due {
				done.Left = true
				continue
			}
			held, err := m.holds(ctx, merged, source)
			if err != nil {
				return fmt.Errorf("cannot see whether %s was merged: %w", source.Name(), err)
			}
			if held {
				err = c.delete(ctx, source)
			}
			if err != nil {
				return err
			}
		}
	}
	m.forget(levels)
	return c.denied
}

// since is when a merged object was first known to be there.
func (m *Merger) since(merged archive.Object) time.Time {
	if _, known := m.seen[merged.Name()]; !known {
		m.seen[merged.Name()] = m.clock()
	}
	return m.seen[merged.Name()]
}

// clearing is a round of deleting.
type clearing struct {
	store   store.Store
	done    *Done
	refused int
	denied  error // nothing may be deleted at all
}

func (c *clearing) delete(ctx context.Context, object archive.Object) error {
	if c.refused >= mostRefused || c.denied != nil {
		c.done.Left = true
		return nil
	}
	err := c.store.Delete(ctx, object.Name())
	switch {
	case err == nil:
		c.done.Deleted++
		return nil
	case errors.Is(err, store.ErrLocked):
		c.done.Left = true
		c.refused++
		return nil
	}
	err = fmt.Errorf("cannot delete what was merged: %w", err)
	if !errors.Is(err, store.ErrDenied) {
		return err
	}
	c.done.Left, c.denied = true, err
	return nil
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
	for name := range m.seen {
		if !there[name] {
			delete(m.seen, name)
		}
	}
	for name := range m.read {
		if !there[name] {
			delete(m.read, name)
		}
	}
	for name := range m.holes {
		if !there[name] {
			delete(m.holes, name)
		}
	}
}
