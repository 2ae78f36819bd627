package archive_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store/memory"
)

// The first chain must continue past another member's full snapshot if no segment continues from that snapshot.
func TestHistory_chainCrossesAnUnusedFull(t *testing.T) {
	for where, revision := range map[string]int64{"within a segment": 25, "between two segments": 30} {
		t.Run(where, func(t *testing.T) {
			w := newTestWriter(t, NewKeys(t).Load(t), 20, 30)
			w.clone().fullAfterGap(revision)
			check := func(to int64) {
				assert.Equal(t, w.next, w.head().Start)
				history := w.history()
				chains := history.Newest().Chains
				require.Len(t, chains, 1)
				assert.Equal(t, []int64{10, to}, []int64{chains[0].From, chains[0].To})
				assert.Equal(t, []bool{false, to > revision}, []bool{history.Newest().Fulls[0].Passed, history.Newest().Fulls[1].Passed})
				assert.Equal(t, revisions(11, to), w.restore(archive.Target{}).revisions)
				assert.Equal(t, revisions(11, 28), w.restore(archive.Target{Revision: 28}).revisions)
			}
			if revision < 30 {
				check(30)
			}
			w.segment(40)
			check(40)
			w.segment(50)
			check(50)
			w.merge(archive.Minute, w.objects(archive.Segment)...)
			check(50)
			w.full()
			w.segment(60)
			assert.Equal(t, []summary{{10, 60, 2, 2}}, summaries(w.history()))
		})
	}
}

func TestFallback_usesACrossedFull(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), 30)
	w.clone().fullAfterGap(25)
	w.segment(40)
	defer w.damage(archive.DataName(1, w.history().Newest().Fulls[0].Name()), 999)()
	result, path, err := w.restoreAny(archive.Target{Revision: 25})
	require.NoError(t, err)
	assert.EqualValues(t, 25, path.Revision)
	assert.EqualValues(t, 25, result.full)
}

// The first chain must end at a segment that cannot be read, even if the segment may extend past the next full
// snapshot. The latest revision is then the one of that full snapshot.
func TestFind_damagedSegmentCrossesNothing(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t))
	crossing := w.segment(30)
	w.clone().fullAfterGap(25)
	defer w.damage(archive.SegmentName(1, crossing.Position), 999)()
	path := w.find(archive.Target{})
	assert.EqualValues(t, 25, path.Revision)
}

// Find must find segments that are missing from a listing, because their names are known in advance.
func TestFind_unlistedSegment(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), steps(12, 20, 2)...)
	name := archive.SegmentName(1, w.full().Next)
	w.segments(steps(22, 30, 2)...)
	w.store.Inject(memory.Fault{Op: memory.List, Hides: func(n string) bool { return n == name }})
	for _, target := range []archive.Target{{}, {Revision: 21}, {Revision: 25}, {Revision: 30}, {Time: TimeAt(25)}, {Time: TimeAt(30)}} {
		path := w.find(target)
		assert.NoError(t, path.PastEnd)
		result, err := w.restorePath(path)
		require.NoError(t, err, target)
		assert.Equal(t, path.Revision, result.Revision, target)
	}
	assert.EqualValues(t, 30, w.find(archive.Target{}).Revision)
}

// foreignSegment stores a segment that belongs to another cluster.
func (w *testWriter) foreignSegment(first, last int64, at time.Time) {
	w.t.Helper()
	start := format.Start{Cluster: "beef", Generation: 1, Position: format.After(first - 1), Before: format.Seed("beef", 1, first-1)}
	w.putSegment(w.rows(start, last, at))
}

// Find must skip the segments of a cluster that kept writing after its store was emptied and initialized by another
// cluster.
func TestFind_skipsSegmentsOfAnotherCluster(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t))
	w.foreignSegment(5, 8, TimeAt(9))
	for last := int64(14); last <= 30; last += 4 {
		w.segment(last)
		w.foreignSegment(last-1, last+20, TimeAt(last-1).Add(100*time.Millisecond))
	}
	w.foreignSegment(500, 520, TimeAt(29))
	w.foreignSegment(521, 530, TimeAt(29))

	assert.Equal(t, revisions(11, 30), w.restore(archive.Target{}).revisions)
	for revision := int64(11); revision <= 30; revision++ {
		assert.Equal(t, revisions(11, revision), w.restore(archive.Target{Revision: revision}).revisions)
		if revision < 30 {
			path := w.find(archive.Target{Time: TimeAt(revision).Add(500 * time.Millisecond)})
			assert.Equal(t, revision, path.Revision, "at the time of revision %d", revision)
		}
	}
	chains := w.history().Newest().Chains
	require.Len(t, chains, 1)
	assert.Equal(t, []int64{10, 30}, []int64{chains[0].From, chains[0].To})
	assert.NoError(t, chains[0].PastEnd)
	assert.ErrorIs(t, w.history().Newest().Ignored, archive.ErrForeign, "the skipped segments are reported")
	_, err := w.Find(w.ctx, archive.Target{Revision: 505})
	require.ErrorIs(t, err, archive.ErrNotKept)
}

// Merge must refuse segments of another cluster, because segments that start within the merged object would be
// deleted.
func TestMerge_refusesSegmentsOfAnotherCluster(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t))
	w.foreignSegment(20, 30, TimeAt(9))
	_, err := w.Merge(w.ctx, archive.Minute, w.objects(archive.Segment))
	require.ErrorIs(t, err, archive.ErrHole)
	assert.Empty(t, w.objects(archive.Minute))
}

// A full snapshot after a gap must start a chain even if a stray segment spans the snapshot's revision.
func TestHistory_fullStartsAChainAfterAHole(t *testing.T) {
	for what, crosses := range map[string]func(w *testWriter){
		"segment of another cluster": func(w *testWriter) { w.foreignSegment(20, 30, TimeAt(9)) },
		"segment after a gap": func(w *testWriter) {
			lost := w.segment(19)
			w.segment(30)
			require.NoError(t, w.store.Delete(w.ctx, archive.SegmentName(1, lost.Position)))
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newTestWriter(t, NewKeys(t).Load(t), 12)
			crosses(w)
			w.clone().fullAfterGap(25)
			_, path, err := w.restoreAny(archive.Target{})
			require.NoError(t, err)
			assert.EqualValues(t, 25, path.Revision)
			assert.Equal(t, []summary{{10, 12, 1, 1}, {25, 25, 1, 0}}, summaries(w.history()))
		})
	}
}

func TestHead_ignoresACrossingSegmentOfAnotherCluster(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t))
	w.foreignSegment(20, 30, TimeAt(9))
	w.fullAfterGap(25)
	assert.Equal(t, w.next, w.head().Start)
}

// A damaged merged object at the start of another chain must not extend the previous chain.
func TestHistory_damagedMergedObjectWhereAnotherChainStarts(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), 20, 30)
	before := w.merge(archive.Minute, w.objects(archive.Segment)...)
	w.fullAfterGap(30)
	w.segments(40, 50)
	after := w.merge(archive.Minute, w.objects(archive.Segment)...)
	w.segment(60)

	repair := w.damage(before.Name(), 999)
	assert.Equal(t, []summary{{10, 10, 1, 0}, {30, 60, 1, 2}}, summaries(w.history()))
	repair()
	defer w.damage(after.Name(), 999)()
	history := w.history()
	assert.Equal(t, []summary{{10, 30, 1, 1}, {30, 30, 1, 0}}, summaries(history))
	assert.ErrorIs(t, history.Newest().Chains[1].PastEnd, format.ErrDamaged)
}

// Find must return a path even if the second full snapshot appears to start a chain because no rows precede it.
func TestFind_mergedObjectsOverlapAtAFull(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), 10)
	w.full()
	w.segment(10)
	hour, err := w.Merge(w.ctx, archive.Hour, w.objects(archive.Segment))
	require.NoError(t, err)
	w.segment(11)
	minute := w.merge(archive.Minute, w.objects(archive.Segment)[1:]...)
	require.NoError(t, w.store.Delete(w.ctx, archive.SegmentName(1, hour.Start)))
	require.Equal(t, []format.Position{{Revision: 11}, {Revision: 11, Part: 2}, {Revision: 11, Part: 1}, {Revision: 12}},
		[]format.Position{hour.Start, hour.Next, minute.Start, minute.Next})

	path := w.find(archive.Target{})
	assert.EqualValues(t, 11, path.Revision)
	assert.NoError(t, path.PastEnd)
	assert.Equal(t, []int64{11}, w.restore(archive.Target{}).revisions)
}

// A full snapshot within a segment must not start a chain, because the previous chain continues past the snapshot.
func TestFind_fullWithinASegment(t *testing.T) {
	for name, merged := range map[string]bool{"segment": false, "merged object": true} {
		t.Run(name, func(t *testing.T) {
			w := newTestWriter(t, NewKeys(t).Load(t), 14)
			within := w.clone().build(17).Start()
			w.segment(20)
			w.put(archive.Full{Revision: 17, Next: within.Position, Chain: within.Before, Last: within.Last})
			if merged {
				w.merge(archive.Minute, w.objects(archive.Segment)...)
			}
			w.segment(24)

			for revision := int64(11); revision <= 24; revision++ {
				restored, _, err := w.restoreAny(archive.Target{Revision: revision})
				require.NoError(t, err)
				assert.Equal(t, revision, restored.Revision)
			}
			restored, path, err := w.restoreAny(archive.Target{})
			require.NoError(t, err)
			assert.EqualValues(t, 24, restored.Revision)
			assert.NoError(t, path.PastEnd)
		})
	}
}
