package retention

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// A mergerTest is a simulation with a merger. Each segment has one row.
type mergerTest struct {
	*simulation
	merger *Merger
	holes  int // sum of Merged.Holes of all runs
}

func newMergerTest(t *testing.T) *mergerTest {
	w := &mergerTest{simulation: newSimulation(t)}
	w.restart()
	return w
}

// restart replaces the merger, as after a restart of the process. The new merger has an empty cache.
func (w *mergerTest) restart() {
	w.merger = NewMerger(w.archive, w.now)
	w.merger.clock = w.now
}

// segments stores count segments with one row each.
func (w *mergerTest) segments(count int) {
	for range count {
		next := w.head.Position.Revision
		w.put(formattest.Build(w.t, w.archive.Keys(), w.head, formattest.Rows(next, next)))
	}
}

// last returns the highest revision.
func (w *mergerTest) last() int64 { return w.head.Position.Revision - 1 }

// writeAndMerge stores a segment every ten seconds and runs the merger after every interval segments.
func (w *mergerTest) writeAndMerge(duration time.Duration, interval int) {
	w.t.Helper()
	for i := range int(duration / (10 * time.Second)) {
		w.segments(1)
		w.advance(10 * time.Second)
		if (i+1)%interval == 0 {
			w.run()
		}
	}
}

func (w *mergerTest) run() Merged {
	w.t.Helper()
	done, err := w.merger.Run(context.Background(), 1)
	require.NoError(w.t, err)
	w.holes += done.Holes
	return done
}

// mergeAll waits until all segments are old enough to be merged and runs the merger.
func (w *mergerTest) mergeAll() Merged {
	w.t.Helper()
	w.advance(maxSpan + 2*time.Minute)
	return w.run()
}

func (w *mergerTest) objects(level archive.Level) []archive.Object {
	w.t.Helper()
	objects, err := w.archive.Objects(context.Background(), 1, level)
	require.NoError(w.t, err)
	return objects
}

// requireRestorable requires that the given revisions can be restored with all rows.
func (w *mergerTest) requireRestorable(revisions ...int64) {
	w.t.Helper()
	for _, revision := range revisions {
		path, reading, err := w.read(archive.Target{Revision: revision})
		require.NoError(w.t, err)
		require.Equal(w.t, revision, reading.Revision)
		require.Equal(w.t, revision-path.Full.Revision, reading.Rows)
	}
}

func TestRun_mergesToMinutesAndHours(t *testing.T) {
	w := newMergerTest(t)
	for range 5 {
		w.writeAndMerge(36*time.Minute, 6)
		w.restart()
	}
	last := w.last()
	assert.EqualValues(t, 1+3*360, last)
	assert.Less(t, len(w.objects(archive.Segment)), 100)
	assert.Less(t, len(w.objects(archive.Minute)), 80)
	assert.GreaterOrEqual(t, len(w.objects(archive.Hour)), 2)
	w.requireRestorable(2, 3, last/2, last-1, last)
	path, err := w.archive.Find(t.Context(), archive.Target{})
	require.NoError(t, err)
	count := map[archive.Level]int{}
	for _, object := range path.Objects {
		count[object.Level]++
	}
	assert.Less(t, len(path.Objects), 120, "%v", count)

	for range 20 { // without new segments, all but the newest are merged
		w.advance(time.Hour)
		w.run()
	}
	assert.False(t, w.run().Left)
	assert.Len(t, w.objects(archive.Segment), 1, "the newest segment is kept, so that Head finds the end quickly")
	assert.Len(t, w.objects(archive.Minute), 1)
	head, err := w.archive.Head(t.Context(), 1)
	require.NoError(t, err)
	assert.Equal(t, last, head.Revision())
	w.requireRestorable(last)
	assert.Zero(t, w.holes, "no segment is missing")
}

func TestRun_keepsSourcesForAWhile(t *testing.T) {
	w := newMergerTest(t)
	w.segments(3)
	assert.Equal(t, Merged{Merged: 1, Left: true}, w.mergeAll())
	assert.Len(t, w.objects(archive.Segment), 3)
	w.advance(archive.Grace - time.Second)
	assert.Zero(t, w.run().Deleted)

	w.store.Inject(memory.Fault{Op: memory.Delete, Err: memory.ErrLocked})
	w.advance(time.Second)
	assert.Equal(t, Merged{Left: true}, w.run())
	w.store.ClearFaults()
	assert.Equal(t, 2, w.run().Deleted)
	w.requireRestorable(4)
}

func TestRun_killedAtAnyRequest(t *testing.T) {
	for call := 1; ; call++ {
		w := newMergerTest(t)
		w.writeAndMerge(2*time.Minute, 6)
		last := w.last()
		w.advance(maxSpan + 2*time.Minute)
		before := len(w.store.Calls())
		if call > 1 {
			w.store.Inject(memory.Fault{Delay: 1, Times: call - 1}) // the requests before the denied one succeed
		}
		w.store.Inject(memory.Fault{Err: memory.ErrDenied})
		_, err := w.merger.Run(t.Context(), 1)
		failed := err != nil
		calls := len(w.store.Calls()) - before
		w.store.ClearFaults()
		w.requireRestorable(last)
		w.run()
		w.advance(2 * archive.Grace)
		w.run()
		w.requireRestorable(last)
		if !failed {
			require.Less(t, calls, call)
			return
		}
	}
}

func TestRun_reportsErrors(t *testing.T) {
	w := newMergerTest(t)
	w.store.Inject(memory.Fault{Op: memory.List, Err: memory.ErrDenied})
	_, err := w.merger.Run(t.Context(), 1)
	require.ErrorContains(t, err, "cannot merge: ")
}

// Covered must not return a segment that ends after the merged object, because that segment must not be deleted.
func TestCovered(t *testing.T) {
	at := func(revision int64) format.Position { return format.Position{Revision: revision} }
	long := archive.Object{Level: archive.Minute, Start: at(2), Next: at(9)}
	short := archive.Object{Level: archive.Minute, Start: at(2), Next: at(5)}
	hour := archive.Object{Level: archive.Hour, Start: at(2), Next: at(5)}
	assert.Equal(t, []archive.Object{short}, Covered([]archive.Object{long, short}, hour))
}

// In an idle cluster, which only stores heartbeats, the merger must create only two merged objects per hour.
func TestGroups(t *testing.T) {
	noon := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		every  time.Duration
		at     time.Duration // time of the call, after noon
		groups []int         // expected group sizes
		left   bool          // whether objects are left for a later group
	}{
		"every second": {time.Second, 3 * time.Minute, []int{60, 60, 60}, false},
		"every second, before the end of a minute": {time.Second, 3*time.Minute - time.Second, []int{60, 60}, true},
		"every 40 s, before the end of maxSpan":    {40 * time.Second, 29 * time.Minute, nil, true},
		"every 40 s":                               {40 * time.Second, 60 * time.Minute, []int{45, 45}, false},
		"every five minutes":                       {5 * time.Minute, 61 * time.Minute, []int{6, 6}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []archive.Object
			for at := time.Duration(0); at < c.at; at += c.every {
				objects = append(objects, archive.Object{Modified: noon.Add(at)})
			}
			groups, left := Groups(objects, time.Minute, noon.Add(c.at))
			var sizes []int
			for _, group := range groups {
				sizes = append(sizes, len(group))
			}
			assert.Equal(t, c.groups, sizes)
			assert.Equal(t, c.left, left)
		})
	}
}

// deleteSegment deletes the segment that contains a revision.
func (w *mergerTest) deleteSegment(revision int64) {
	w.t.Helper()
	require.NoError(w.t, w.store.Delete(context.Background(), archive.SegmentName(1, format.After(revision-1))))
}

func TestRun_reportsAMissingSegmentOnce(t *testing.T) {
	w := newMergerTest(t)
	w.writeAndMerge(3*time.Minute, 1000) // the first segment starts at revision 2
	w.deleteSegment(4)
	assert.Equal(t, 1, w.mergeAll().Holes)
	for range 5 {
		assert.Zero(t, w.run().Holes, "the missing segment has already been reported")
		w.advance(time.Hour)
	}
}

// countRequests returns the number of requests of one kind that do sends.
func (w *mergerTest) countRequests(op memory.Op, do func()) (times int) {
	w.t.Helper()
	before := w.store.CountCalls(op, "")
	do()
	return w.store.CountCalls(op, "") - before
}

// fetches returns the number of objects that a restore of a revision reads.
func (w *mergerTest) fetches(revision int64) int {
	w.t.Helper()
	path, err := w.archive.Find(context.Background(), archive.Target{Revision: revision})
	require.NoError(w.t, err)
	return w.countRequests(memory.Get, func() {
		reading, err := w.archive.Read(context.Background(), path, func(format.Row) error { return nil })
		require.NoError(w.t, err)
		require.Equal(w.t, revision, reading.Revision)
	})
}

// A restore of thousands of segments must not fetch more than a few dozen objects, even just before an hour is merged
// into one object.
func TestRun_boundsTheObjectsOfARestore(t *testing.T) {
	w := newMergerTest(t)
	most := 0
	for second := 0; second < 70*60; second += 2 {
		w.segments(1)
		w.advance(2 * time.Second)
		if second%60 == 0 {
			w.run()
		}
		if second%(8*60) == 0 {
			most = max(most, w.fetches(w.last()))
		}
	}
	assert.Less(t, most, 140, "objects for the latest revision, at any time")
	assert.Less(t, w.fetches(w.last()/2), 20, "objects for the revision half an hour ago")
	assert.Less(t, len(w.names("gen/000001/")), 400, "2,100 segments were stored")
}

// forgeMerged creates an object with the name of a merged object but different content.
func (w *mergerTest) forgeMerged(level archive.Level, from, to format.Position, content string) {
	w.store.SetContent(fmt.Sprintf("%s%s/%s_%s", archive.GenerationPrefix(1), level, from, to), []byte(content))
}

// runUntilIdle advances the clock and runs the merger until no merge or deletion is due.
func (w *mergerTest) runUntilIdle() {
	for range 5 {
		w.advance(2 * archive.Grace)
		w.run()
	}
}

// Run must not delete objects because of the names of other objects, which an attacker may have chosen.
func TestRun_namesDeleteNothing(t *testing.T) {
	everything := format.Position{Revision: 9_000_000_000_000_000_000}
	for _, level := range []archive.Level{archive.Minute, archive.Hour} {
		t.Run(string(level), func(t *testing.T) {
			w := newMergerTest(t)
			w.forgeMerged(level, format.Position{Revision: 2}, everything, "x")
			w.writeAndMerge(2*time.Hour, 6)
			w.runUntilIdle()
			last := w.last()
			w.requireRestorable(2, 3, last/2, last)
			assert.Less(t, len(w.objects(archive.Segment)), 10, "forged names do not prevent deletions")
		})
	}
}

// Run must keep the sources of a merged object whose segments are valid but do not cover the range in its name.
func TestRun_deletesOnlyVerifiedSources(t *testing.T) {
	w := newMergerTest(t)
	w.segments(2)
	segments := w.objects(archive.Segment)
	first, exists := w.store.Content(segments[0].Name())
	require.True(t, exists)
	w.forgeMerged(archive.Minute, segments[0].Start, format.Position{Revision: 900}, string(first))
	w.segments(3)
	w.runUntilIdle()
	w.requireRestorable(6)
}

// Run must keep a segment that differs from its copy in the merged object.
func TestRun_keepsADifferentSegment(t *testing.T) {
	w := newMergerTest(t)
	w.segments(3)
	require.Equal(t, 1, w.mergeAll().Merged)
	second := w.objects(archive.Segment)[1].Name()
	w.store.SetContent(second, []byte("something else"))
	w.restart()
	w.run()
	w.runUntilIdle()
	_, exists := w.store.Content(second)
	assert.True(t, exists)
	w.requireRestorable(4)
}

func TestRun_readsNothingTwice(t *testing.T) {
	w := newMergerTest(t)
	w.segments(6)
	w.mergeAll()
	w.advance(2 * archive.Grace)
	assert.Zero(t, w.countRequests(memory.Get, func() { require.Equal(t, 5, w.run().Deleted) }))
}

// A new merger must read both the segments and the merged object before it deletes the segments.
func TestRun_readsTheMergesOfOthers(t *testing.T) {
	w := newMergerTest(t)
	w.segments(6)
	w.mergeAll()
	w.advance(2 * archive.Grace)
	w.restart()
	assert.Zero(t, w.run().Deleted, "the new merger must wait for archive.Grace again")
	w.advance(archive.Grace)
	assert.Equal(t, 5, w.run().Deleted)
	w.requireRestorable(7)
}

// Run must cache objects that cannot be verified instead of reading them every time.
func TestRun_thousandsOfNames(t *testing.T) {
	const names = 1000
	w := newMergerTest(t)
	w.writeAndMerge(10*time.Minute, 6)
	for i := range names {
		w.forgeMerged(archive.Hour, format.Position{Revision: 2}, format.Position{Revision: int64(100_000 + i)}, "x")
	}
	requests := w.countRequests(memory.Get, func() {
		w.runUntilIdle()
		w.requireRestorable(w.last())
	})
	assert.Less(t, requests, 5*names, "requests of the merger and of a restore")
}

// Run must delete merged minutes even if all segments are locked.
func TestRun_lockedSegments(t *testing.T) {
	w := newMergerTest(t)
	w.store.Inject(memory.Fault{Op: memory.Delete, Prefix: archive.GenerationPrefix(1) + "segment/", Err: memory.ErrLocked})
	for range 3 * 60 * 6 {
		w.segments(1)
		w.advance(10 * time.Second)
	}
	for len(w.objects(archive.Hour)) == 0 {
		w.advance(2 * archive.Grace)
		w.run()
	}
	w.advance(2 * archive.Grace)
	assert.Positive(t, w.run().Deleted, "minutes are deleted after they were merged into an hour")
}

func TestRun_deletionsAreRefused(t *testing.T) {
	for name, failure := range map[string]error{"locked": memory.ErrLocked, "not allowed": memory.ErrDenied} {
		t.Run(name, func(t *testing.T) {
			w := newMergerTest(t)
			w.store.Inject(memory.Fault{Op: memory.Delete, Err: failure})
			var err error
			for i := range 2 * 60 * 6 {
				w.segments(1)
				w.advance(10 * time.Second)
				if i%6 == 0 {
					_, err = w.merger.Run(t.Context(), 1)
				}
			}
			requests := w.countRequests(memory.Delete, func() { _, err = w.merger.Run(t.Context(), 1) })
			assert.LessOrEqual(t, requests, 2*maxRefused)
			assert.Equal(t, errors.Is(failure, store.ErrDenied), errors.Is(err, store.ErrDenied), "locked objects are no error")
			assert.NotEmpty(t, w.objects(archive.Hour), "minutes are merged into hours")
			w.store.ClearFaults()
			before := len(w.names(archive.GenerationPrefix(1)))
			done := w.run()
			assert.Greater(t, done.Deleted, 600, "all due deletions happen once they are permitted")
			assert.Len(t, w.names(archive.GenerationPrefix(1)), before+done.Merged-done.Deleted, "each deletion is counted once")
			w.requireRestorable(w.last())
		})
	}
}

// Run must delete a late copy of a segment that was merged into an hour, and keep a late segment with different rows.
func TestRun_lateSegmentWithinAnHour(t *testing.T) {
	w := newMergerTest(t)
	start := w.head
	w.segments(1)
	again := w.head
	w.writeAndMerge(2*time.Hour, 6)
	w.runUntilIdle()
	require.NotEmpty(t, w.objects(archive.Hour))
	require.Len(t, w.objects(archive.Minute), 1)

	same := formattest.Build(t, w.archive.Keys(), start, formattest.Rows(2, 2))
	other := formattest.Build(t, w.archive.Keys(), again, formattest.Rows(3, 4))
	for _, object := range []format.Object{same, other} {
		require.NoError(t, archivetest.PutSegment(t.Context(), w.archive, object))
	}
	w.runUntilIdle()
	assert.Empty(t, w.names("gen/000001/segment/"+start.Position.String()), "the hour contains the same segment")
	assert.NotEmpty(t, w.names("gen/000001/segment/"+again.Position.String()), "the hour contains a different segment")
	assert.Len(t, w.objects(archive.Minute), 1)
	assert.Zero(t, w.holes)
	w.requireRestorable(2, 3, 4, 5, w.last())
}
