package archive_test

import (
	"errors"
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

func TestRead_bucketsOfARevision(t *testing.T) {
	w := begin(t, NewKeys(t).Load(t))
	w.segment(12, Bucket("lease", "a", "1"), Bucket("alarm", "x", "y"))
	w.segment(14, Bucket("lease", "a", "2"))
	w.segment(14, Bucket("lease", "a", "3"))
	w.segment(16, Bucket("lease", "a", "4"))
	for revision, lease := range map[int64]string{10: "", 11: "", 12: "1", 13: "1", 14: "3", 15: "3", 16: "4"} {
		found := ""
		for _, bucket := range w.restore(archive.Target{Revision: revision}).Buckets {
			for _, value := range bucket.Entries() {
				if bucket.Name == "lease" {
					found = string(value)
				}
			}
		}
		assert.Equal(t, lease, found, "revision %d", revision)
	}
	names := []string{}
	for _, bucket := range w.restore(archive.Target{}).Buckets {
		names = append(names, bucket.Name)
	}
	assert.Equal(t, []string{"alarm", "lease"}, names)
}

func TestRead_result(t *testing.T) {
	w := begin(t, &format.Keys{})
	rows := Rows(11, 13)
	object := w.add(Segment(t, w.Keys(), w.next, format.Source{Compacted: 12}, &rows[0], &rows[1], &rows[2],
		&format.Hash{Revision: 12, Compacted: 12, Hash: 12}, &format.Hash{Revision: 13, Compacted: 13, Hash: 13}))

	path := w.find(archive.Target{})
	var fetched int
	path.Fetched = func(bytes int) { fetched += bytes }
	result, err := w.follow(path)
	require.NoError(t, err)
	assert.EqualValues(t, 12, result.Compacted)
	assert.EqualValues(t, 3, result.Rows)
	assert.Len(t, result.Hashes, 2)
	assert.Equal(t, object.After, result.Chain)
	assert.Equal(t, object.Size(), result.Bytes)
	assert.EqualValues(t, object.Size(), fetched)

	half := w.restore(archive.Target{Revision: 12})
	assert.Len(t, half.Hashes, 1)
	assert.Zero(t, half.Compacted, "not as of then")
}

func TestRead_mergedMeanwhile(t *testing.T) {
	w := begin(t, NewKeys(t).Load(t), steps(12, 30, 2)...)
	path := w.find(archive.Target{})
	segments := w.objects(archive.Segment)
	var found []int64
	_, err := w.Read(w.ctx, path, func(row format.Row) error {
		revision, err := row.Revision()
		found = append(found, revision)
		switch revision {
		case 15:
			w.merge(archive.Minute, segments[:5]...)
		case 21:
			w.merge(archive.Minute, segments[5:8]...)
		case 25:
			w.merge(archive.Hour, append(w.objects(archive.Minute), segments[8:]...)...)
		}
		return err
	})
	require.NoError(t, err)
	assert.Equal(t, revisions(11, 30), found)
}

func TestRead_returnsTheErrorOfTheCaller(t *testing.T) {
	w := begin(t, &format.Keys{}, 12)
	_, err := w.Read(w.ctx, w.find(archive.Target{}), func(format.Row) error { return assert.AnError })
	assert.Equal(t, assert.AnError, err)
}

func TestFind_mergedObjectWithAWrongName(t *testing.T) {
	w := begin(t, &format.Keys{}, 12, 14)
	minute := w.merge(archive.Minute, w.objects(archive.Segment)...)
	content, _ := w.store.Content(minute.Name())
	w.store.SetContent(strings.Replace(minute.Name(), "15.000000000", "16.000000000", 1), content)
	assert.Equal(t, revisions(11, 14), w.restore(archive.Target{}).revisions)
	head := w.head()
	assert.ErrorIs(t, head.Damaged, format.ErrDamaged)
	assert.EqualValues(t, 14, head.Revision())
	liar := w.objects(archive.Minute)[1]
	_, err := w.Merge(w.ctx, archive.Hour, []archive.Object{liar})
	assert.ErrorIs(t, err, archive.ErrHole)

	require.NoError(t, w.store.Delete(w.ctx, minute.Name()))
	w.restart()
	path := w.find(archive.Target{})
	assert.EqualValues(t, 10, path.Revision)
	assert.ErrorIs(t, path.PastEnd, format.ErrDamaged, "where it is alone")
}

// The next object starts where the merged object ends according to its name, so a chain must not continue after a
// partially read object.
func TestFallback_readsTheStartOfAMergedObject(t *testing.T) {
	for name, spoil := range map[string]func(w *world, name string, content []byte, second int64){
		"damaged": func(w *world, name string, _ []byte, second int64) { w.damage(name, 8*int(second+second/2)) },
		"truncated": func(w *world, name string, content []byte, second int64) {
			w.store.SetContent(name, content[:second])
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, &format.Keys{}, steps(12, 20, 2)...)
			segments := w.objects(archive.Segment)
			merged := w.merge(archive.Minute, segments[:4]...)
			content, _ := w.store.Content(merged.Name())
			spoil(w, merged.Name(), content, segments[0].Size)
			result, path, err := w.instead(archive.Target{})
			require.NoError(t, err)
			assert.EqualValues(t, 12, path.Revision)
			assert.Equal(t, revisions(11, 12), result.revisions)
		})
	}
}

func TestRead_singleFull(t *testing.T) {
	w := begin(t, &format.Keys{})
	full := *w.head().Full
	w.segment(12)
	reading, err := w.Read(w.ctx, archive.Path{Full: full, Revision: full.Revision}, nil)
	require.NoError(t, err)
	assert.Zero(t, reading.Rows)
	assert.Equal(t, full.Revision, reading.Revision)
}

// statedAt returns the value of lease "a" shortly after a revision, or "" if no segment contains the lease.
func (w *world) statedAt(revision int64) (value string) {
	w.t.Helper()
	bucket, err := w.Recorded(w.ctx, w.find(archive.Target{Revision: revision}), "lease")
	require.NoError(w.t, err)
	if bucket != nil {
		for _, found := range bucket.Entries() {
			value = string(found)
		}
	}
	return value
}

func TestRecorded_nextSegment(t *testing.T) {
	w := begin(t, NewKeys(t).Load(t))
	w.segment(12, Bucket("lease", "a", "1"))
	w.segment(14)
	w.segment(16, Bucket("alarm", "x", "y"))
	w.segment(18, Bucket("alarm", "x", "z"), Bucket("lease", "a", "2"))
	w.segment(18, Bucket("lease", "a", "3"))
	w.segment(20)
	check := func() {
		for revision, stated := range map[int64]string{10: "1", 11: "1", 12: "2", 13: "2", 14: "2", 16: "2", 17: "2", 18: "3", 19: "", 20: ""} {
			assert.Equal(t, stated, w.statedAt(revision), "revision %d", revision)
		}
	}
	check()
	segments := w.objects(archive.Segment)
	w.merge(archive.Minute, segments[:2]...)
	w.merge(archive.Minute, segments[2:5]...)
	check()
}

func TestRecorded_damagedSegment(t *testing.T) {
	w := begin(t, NewKeys(t).Load(t), 12)
	stating := w.segment(14, Bucket("lease", "a", "1"))
	w.segment(16)
	name := archive.SegmentName(1, stating.Position)
	content, _ := w.store.Content(name)
	for _, bit := range []int{100, 8*len(content) - 40} {
		repair := w.damage(name, bit)
		assert.Empty(t, w.statedAt(11))
		repair()
	}
	require.NoError(t, w.store.Delete(t.Context(), name))
	assert.Empty(t, w.statedAt(11))
	w.store.SetContent(name, content)
	assert.Equal(t, "1", w.statedAt(11))

	path := w.find(archive.Target{Revision: 11})
	w.store.Inject(memory.Fault{Op: memory.Get, Err: memory.ErrDenied})
	_, err := w.Recorded(w.ctx, path, "lease")
	assert.ErrorIs(t, err, memory.ErrDenied)
}

func TestRecorded_otherChain(t *testing.T) {
	w := begin(t, NewKeys(t).Load(t), 12)
	w.gap(20)
	w.segment(22, Bucket("lease", "a", "1"))
	assert.Empty(t, w.statedAt(11))
	assert.Equal(t, "1", w.statedAt(20))
}

func TestFetch_resumes(t *testing.T) {
	w := begin(t, NewKeys(t).Load(t), 500)
	w.store.Inject(
		memory.Fault{Op: memory.Get, Prefix: "gen/000001/full", Times: 1}, // the manifest
		memory.Fault{Op: memory.Get, Prefix: "gen/000001/full", Times: 1, Cut: 100},
		memory.Fault{Op: memory.Get, Prefix: "gen/000001/full", Times: 1, Err: memory.ErrUnreachable},
		memory.Fault{Op: memory.Get, Prefix: "gen/000001/segment", Times: 1}, // reading the end of the chain fails
		memory.Fault{Op: memory.Get, Prefix: "gen/000001/segment", Times: 2, Cut: 1000},
	)
	before := len(w.store.Calls())
	assert.Equal(t, revisions(11, 500), w.restore(archive.Target{}).revisions)
	assert.GreaterOrEqual(t, len(w.store.Calls())-before, 5)
}

func TestFetch_manyLostConnections(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := begin(t, &format.Keys{})
		full := *w.head().Full
		// Inject more failures than the number of retries for an unreachable store.
		w.store.Inject(memory.Fault{Op: memory.Get, Times: 30, Cut: 1})
		snapshot, err := read(t, w.Archive, full)
		require.NoError(t, err)
		assert.Equal(t, snapshotOf(database(10)), snapshot)
	})
}

// A download that took hours must not start over because the store is unreachable for a minute.
func TestFetch_waitsLongerAfterTheFirstByte(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := begin(t, &format.Keys{})
		full := *w.head().Full
		away := func(times int) {
			w.store.Inject(memory.Fault{Op: memory.Get, Times: 1, Cut: 1}, memory.Fault{Op: memory.Get, Times: times, Err: memory.ErrUnreachable})
		}
		start := time.Now()
		away(11)
		snapshot, err := read(t, w.Archive, full)
		require.NoError(t, err)
		assert.Equal(t, snapshotOf(database(10)), snapshot)
		assert.Greater(t, time.Since(start), time.Minute)
		away(13)
		_, err = read(t, w.Archive, full)
		assert.ErrorIs(t, err, memory.ErrUnreachable)
		assert.Less(t, time.Since(start), 5*time.Minute)
	})
}

func TestFetch_givesUp(t *testing.T) {
	for _, away := range []error{memory.ErrUnreachable, memory.ErrThrottled, memory.ErrDenied} {
		inBubble(t, func(t *testing.T) {
			w := begin(t, &format.Keys{})
			full := *w.head().Full
			w.store.Inject(memory.Fault{Op: memory.Get, Err: away})
			start := time.Now()
			_, err := read(t, w.Archive, full)
			assert.ErrorIs(t, err, away)
			assert.Less(t, time.Since(start), time.Minute)
			if errors.Is(away, store.ErrUnavailable) {
				assert.Greater(t, time.Since(start), 5*time.Second, "but not at once")
			}
		})
	}
}
