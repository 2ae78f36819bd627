package archive_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// restoreAny restores a target and tries each fallback until one succeeds or none are left.
func (w *testWriter) restoreAny(target archive.Target) (restored, archive.Path, error) {
	w.t.Helper()
	path, err := w.Find(w.ctx, target)
	for err == nil {
		result, failed := w.restorePath(path)
		if failed == nil {
			return result, path, nil
		}
		path, err = w.Fallback(w.ctx, path, failed)
	}
	return restored{}, path, err
}

// forEachFault runs a test twice. The argument spoil deletes an object in the first run, and damages it in the
// second.
func forEachFault(t *testing.T, test func(t *testing.T, spoil func(w *testWriter, name string))) {
	t.Run("missing", func(t *testing.T) {
		test(t, func(w *testWriter, name string) { require.NoError(t, w.store.Delete(w.ctx, name)) })
	})
	t.Run("damaged", func(t *testing.T) {
		test(t, func(w *testWriter, name string) {
			content, _ := w.store.Content(name)
			w.damage(name, 8*len(content)-40)
		})
	})
}

func TestFallback_olderFull(t *testing.T) {
	forEachFault(t, func(t *testing.T, spoil func(w *testWriter, name string)) {
		w := newTestWriter(t, NewKeys(t).Load(t), 12)
		middle := w.full()
		w.segment(14)
		newest := w.full()
		w.segment(16)
		spoil(w, archive.DataName(1, newest.Name()))
		for _, target := range []archive.Target{{}, {Revision: 16}, {Time: TimeAt(16)}} {
			result, path, err := w.restoreAny(target)
			require.NoError(t, err)
			assert.EqualValues(t, 12, result.full, "%s", target)
			assert.Equal(t, revisions(13, 16), result.revisions)
			assert.EqualValues(t, 16, path.Revision)
			assert.Equal(t, w.find(target).Time, path.Time, "%s", target)
		}
		spoil(w, archive.DataName(1, middle.Name()))
		result, _, err := w.restoreAny(archive.Target{})
		require.NoError(t, err)
		assert.Equal(t, revisions(11, 16), result.revisions)
		spoil(w, archive.DataName(1, w.history().Newest().Fulls[0].Name()))
		_, _, err = w.restoreAny(archive.Target{})
		assert.ErrorIs(t, err, archive.ErrNotKept, "no usable full snapshot is left")
	})
}

func TestFallback_previousChain(t *testing.T) {
	forEachFault(t, func(t *testing.T, spoil func(w *testWriter, name string)) {
		w := newTestWriter(t, &format.Keys{}, 14)
		newest := w.fullAfterGap(30)
		w.segment(36)
		sought := w.find(archive.Target{})
		require.EqualValues(t, 36, sought.Revision)
		spoil(w, archive.DataName(1, newest.Name()))
		result, path, err := w.restoreAny(archive.Target{})
		require.NoError(t, err)
		assert.EqualValues(t, 14, path.Revision)
		assert.Equal(t, revisions(11, 14), result.revisions, "rows after the gap require the newer full snapshot")
		_, _, err = w.restoreAny(archive.Target{Revision: 36})
		assert.ErrorIs(t, err, archive.ErrNotKept)
	})
}

func TestFallback_endsBeforeAnUnusableSegment(t *testing.T) {
	forEachFault(t, func(t *testing.T, spoil func(w *testWriter, name string)) {
		w := newTestWriter(t, NewKeys(t).Load(t), steps(12, 20, 2)...)
		sought := w.find(archive.Target{})
		require.EqualValues(t, 20, sought.Revision)
		spoil(w, archive.SegmentName(1, format.After(14)))
		_, failed := w.restorePath(sought)
		other, err := w.Fallback(w.ctx, sought, failed)
		require.NoError(t, err)
		assert.EqualValues(t, 14, other.Revision, "six revisions are lost")
		result, err := w.restorePath(other)
		require.NoError(t, err)
		assert.Equal(t, revisions(11, 14), result.revisions)

		exact := archive.Target{Revision: 18}
		_, _, err = w.restoreAny(exact)
		assert.ErrorIs(t, err, archive.ErrNotKept, "a requested revision must not be replaced by an earlier one")
		result, _, err = w.restoreAny(archive.Target{Revision: 14})
		require.NoError(t, err)
		assert.Equal(t, revisions(11, 14), result.revisions)
	})
}

func TestFallback_readsTheSourcesOfADamagedMergedObject(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12, 14, 16)
	merged, err := w.Merge(w.ctx, archive.Minute, w.objects(archive.Segment)[:2])
	require.NoError(t, err)
	w.damage(merged.Name(), 8*int(merged.Size)-40)
	head := w.head()
	assert.Equal(t, w.next, head.Start)
	assert.NoError(t, head.Damaged)
	assert.Zero(t, head.PastEnd)
	result, path, err := w.restoreAny(archive.Target{})
	require.NoError(t, err)
	assert.Equal(t, revisions(11, 16), result.revisions)
	assert.Len(t, path.Objects, 3)
}

func TestFallback_fullAfterAMissingSegment(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12, 14)
	full := w.full()
	w.segment(16)
	w.damage(archive.DataName(1, full.Name()), 99)
	require.NoError(t, w.store.Delete(w.ctx, archive.SegmentName(1, format.After(12))))
	result, path, err := w.restoreAny(archive.Target{})
	require.NoError(t, err)
	assert.EqualValues(t, 12, path.Revision, "neither the full snapshot nor the segments lead to revision 14")
	assert.Equal(t, revisions(11, 12), result.revisions)
}

func TestFallback_returnsOtherErrors(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12)
	w.full()
	path := w.find(archive.Target{})
	other := errors.New("disk full")
	_, err := w.Fallback(w.ctx, path, other)
	assert.Equal(t, other, err)
	w.store.Inject(memory.Fault{Op: memory.Get, Err: memory.ErrDenied})
	_, failed := w.restorePath(path)
	_, err = w.Fallback(w.ctx, path, failed)
	assert.Equal(t, failed, err)
}

func TestFind_time(t *testing.T) {
	t.Parallel()
	w := newTestWriter(t, NewKeys(t).Load(t), steps(13, 25, 3)...)
	w.full()
	w.segments(steps(28, 40, 3)...)
	segments := w.objects(archive.Segment)
	w.merge(archive.Minute, segments[:3]...)
	w.merge(archive.Minute, segments[3:6]...)
	w.fullAfterGap(60)
	w.segment(70)
	check := func() {
		for revision := int64(10); revision <= 70; revision++ {
			for _, offset := range []time.Duration{0, time.Millisecond, 999 * time.Millisecond} {
				target := archive.Target{Time: TimeAt(revision).Add(offset)}
				path, err := w.Find(w.ctx, target)
				full := revision == 10 || revision == 60 // a full snapshot was created during these seconds
				if revision > 40 && revision < 60 || revision == 40 && offset > 0 || full {
					assert.ErrorIs(t, err, archive.ErrNotKept, "%s", target)
					continue
				}
				if assert.NoError(t, err) {
					assert.Equal(t, revision, path.Revision, "%s", target)
					assert.False(t, path.Time.After(target.Time))
				}
			}
		}
	}
	check()
	assert.EqualValues(t, 70, w.find(archive.Target{Time: TimeAt(1000)}).Revision, "no later revision is known")
	_, err := w.Find(w.ctx, archive.Target{Time: TimeAt(9)})
	assert.ErrorIs(t, err, archive.ErrNotKept)
	assert.ErrorContains(t, err, "2026-11-22T12:00:09Z is not available in memory://test/; restore points: revisions 10 to 40 (")

	result := w.restore(archive.Target{Time: TimeAt(33)})
	assert.EqualValues(t, 25, result.full)
	assert.Equal(t, revisions(26, 33), result.revisions)
}

// Find must select the state before a write even if a full snapshot was taken in the same second as the write.
func TestFind_timeJustBeforeAFull(t *testing.T) {
	w, _ := newClockedWriter(t)
	w.segmentWithMarker(12, TimeAt(20).Add(100*time.Millisecond))
	w.segmentWithMarker(13, TimeAt(20).Add(500*time.Millisecond))
	w.put(archive.Full{Revision: 13, Next: w.next.Position, Time: TimeAt(20).Add(900 * time.Millisecond), Chain: w.next.Before, Last: w.next.Last})
	for at, revision := range map[time.Duration]int64{0: 10, 200 * time.Millisecond: 12, 600 * time.Millisecond: 13, time.Second: 13} {
		path := w.find(archive.Target{Time: TimeAt(20).Add(at)})
		assert.Equal(t, revision, path.Revision, "%s", at)
		assert.Equal(t, at == time.Second, path.Full.Revision == 13, "%s", at)
		assert.False(t, path.Time.After(TimeAt(20).Add(at)))
	}
}

// Without segments, a full snapshot can be selected only by the exact end of the second in which it was taken.
func TestFind_timeOfASingleFull(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	w.fullAfterGap(20)
	w.fullAfterGap(30)
	path := w.find(archive.Target{Time: TimeAt(20).Add(time.Second)})
	assert.EqualValues(t, 20, path.Revision)
	assert.Equal(t, TimeAt(21), path.Time)
	for _, offset := range []time.Duration{0, 999 * time.Millisecond, 1001 * time.Millisecond} {
		_, err := w.Find(w.ctx, archive.Target{Time: TimeAt(20).Add(offset)})
		assert.ErrorIs(t, err, archive.ErrNotKept, "%s", offset)
	}
}

func TestFind_timeAmongSegmentsWithoutMarkers(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	w.segmentWithoutMarker(12)
	w.segmentWithoutMarker(14)
	assert.EqualValues(t, 10, w.find(archive.Target{Time: TimeAt(12)}).Revision, "no marker proves a later revision")
	w.segment(16)
	assert.EqualValues(t, 10, w.find(archive.Target{Time: TimeAt(12)}).Revision)
	assert.EqualValues(t, 15, w.find(archive.Target{Time: TimeAt(15)}).Revision)
	assert.Equal(t, revisions(11, 15), w.restore(archive.Target{Time: TimeAt(15)}).revisions)
	w.segmentWithoutMarker(18)
	assert.EqualValues(t, 16, w.find(archive.Target{Time: TimeAt(16)}).Revision)
}

// segmentWithoutMarker stores a segment without a marker, like a writer that is catching up.
func (w *testWriter) segmentWithoutMarker(last int64) { w.segmentWithMarker(last, time.Time{}) }

// segmentWithMarker stores a segment whose last marker has the given time.
func (w *testWriter) segmentWithMarker(last int64, at time.Time) {
	w.t.Helper()
	w.add(w.rows(w.next, last, at))
}

func TestRead_bucketsOfATime(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12)
	w.add(Segment(t, w.Keys(), w.next, format.Source{}, &format.Marker{Revision: 12, Time: TimeAt(20)}, Bucket("lease", "a", "1")))

	assert.Empty(t, w.restore(archive.Target{Time: TimeAt(19)}).Buckets)
	assert.Len(t, w.restore(archive.Target{Time: TimeAt(20)}).Buckets, 1)
}

// newClockedWriter returns a testWriter whose store uses the returned clock.
func newClockedWriter(t *testing.T) (w *testWriter, clock *time.Time) {
	t.Helper()
	clock = new(Noon)
	w = newTestWriter(t, &format.Keys{})
	w.store.Now = func() time.Time { return *clock }
	return w, clock
}

// Find must use the store's clock if a member's clock was an hour ahead.
func TestFind_timeWithAMemberWhoseClockWasAhead(t *testing.T) {
	w, clock := newClockedWriter(t)
	start := *clock
	w.fullAfterGapAt(20, start)
	tick := func() time.Time { *clock = clock.Add(time.Minute); return *clock }
	w.segmentWithMarker(22, tick())
	w.segmentWithMarker(24, tick().Add(time.Hour))
	future := clock.Add(time.Hour)
	for last := int64(26); last <= 40; last += 2 {
		tick()
		w.segmentWithMarker(last, future)
	}
	for last := int64(22); last <= 40; last += 2 {
		at := start.Add(time.Duration(last-20) / 2 * time.Minute).Add(time.Second)
		path := w.find(archive.Target{Time: at})
		assert.Equal(t, last, path.Revision, "%s", at.Sub(start))
		assert.False(t, path.Time.After(at))
	}
	assert.EqualValues(t, 20, w.find(archive.Target{Time: start.Add(time.Second)}).Revision)
}

// Find must use the markers if all of them are ahead of the store's clock.
func TestFind_timeWithAStoreWhoseClockIsBehind(t *testing.T) {
	w, clock := newClockedWriter(t)
	start := clock.Add(time.Hour)
	w.fullAfterGapAt(20, start)
	for last := int64(22); last <= 30; last += 2 {
		*clock = clock.Add(time.Minute)
		w.segmentWithMarker(last, clock.Add(time.Hour))
	}
	assert.EqualValues(t, 24, w.find(archive.Target{Time: start.Add(2*time.Minute + time.Second)}).Revision)
}

// Find must not mistake a burst of segments with the same marker time for a member's clock being ahead.
func TestFind_timeWithinABurst(t *testing.T) {
	w, clock := newClockedWriter(t)
	w.fullAfterGapAt(20, *clock)
	at := clock.Add(1500 * time.Millisecond)
	for last := int64(22); last <= 26; last += 2 {
		w.segmentWithMarker(last, at) // the store's clock has not reached the marker's time yet
	}
	assert.EqualValues(t, 20, w.find(archive.Target{Time: clock.Add(1400 * time.Millisecond)}).Revision)
}

// Find must not conclude that a member's clock was ahead just because segments from the same second are unlisted.
func TestFind_timeBeforeUnlistedSegmentsOfOneSecond(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), 20, 22, 24)
	at := TimeAt(30)
	for _, last := range []int64{30, 32, 34} {
		name := archive.SegmentName(1, w.add(w.rows(w.next, last, at)).Position)
		w.store.Inject(memory.Fault{Op: memory.List, Hides: func(n string) bool { return n >= name && strings.HasPrefix(n, "gen/000001/segment/") }})
		assert.EqualValues(t, 22, w.find(archive.Target{Time: TimeAt(22)}).Revision)
		chain := w.history().Newest().Chains[0]
		assert.Equal(t, []any{last, at}, []any{chain.To, chain.End})
	}
}

// A time between the last revision and a restore must select the last revision.
func TestFind_timeBetweenTheLastRevisionAndARestore(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 15)
	w.fullAfterGap(18)
	w.segment(20)
	w.store.Now = func() time.Time { return TimeAt(25).Add(-1) }
	w.restoreGeneration(2, 20) // the restore takes place at second 25
	for at, revision := range map[time.Time]int64{TimeAt(20): 20, TimeAt(22): 20, TimeAt(25).Add(-1): 20, TimeAt(15): 15} {
		assert.Equal(t, revision, w.find(archive.Target{Time: at}).Revision, "%s", at)
	}
	for _, at := range []time.Time{TimeAt(25), TimeAt(15).Add(1), TimeAt(18)} {
		_, err := w.Find(w.ctx, archive.Target{Time: at})
		assert.ErrorIs(t, err, archive.ErrNotKept, "%s", at)
	}
}

// An inflated store appends zeros to one object, as if the object were a sparse file.
type inflated struct {
	store.Store
	name string
	size int64
}

func (s *inflated) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		for object, err := range s.Store.List(ctx, prefix, after) {
			if object.Name == s.name {
				object.Size = s.size
			}
			if !yield(object, err) {
				return
			}
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func (s *inflated) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if name != s.name || length < 0 {
		return s.Store.Get(ctx, name, offset, length)
	}
	content, err := s.Store.Get(ctx, name, 0, -1)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	all, err := io.ReadAll(content)
	if err != nil {
		return nil, err
	}
	rest := io.MultiReader(bytes.NewReader(all[min(offset, int64(len(all))):]), zeros{})
	return io.NopCloser(io.LimitReader(rest, min(length, s.size-offset))), nil
}

// Find must skip an object whose listed size is so large that a restore would need a huge volume.
func TestFind_skipsAnInflatedObject(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), steps(12, 20, 2)...)
	w.full()
	w.segments(22, 24)
	name := archive.SegmentName(1, format.After(22))
	large := &inflated{w.store, name, 1 << 45}
	path := w.withStore(large).find(archive.Target{})
	assert.EqualValues(t, 22, path.Revision)
	require.ErrorIs(t, path.PastEnd, format.ErrDamaged)
	assert.ErrorContains(t, path.PastEnd, name)
	for _, object := range path.Objects {
		assert.Less(t, object.Size, int64(1<<20), object.Name())
	}
	_, err := w.withStore(large).Find(w.ctx, archive.Target{Revision: 24})
	require.ErrorIs(t, err, archive.ErrNotKept)
	assert.ErrorContains(t, err, name)
}
