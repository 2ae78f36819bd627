package archive_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

func TestRead_bucketsOfARevision(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t))
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
	w := newTestWriter(t, &format.Keys{})
	rows := Rows(11, 13)
	object := w.add(Segment(t, w.Keys(), w.next, format.Source{Compacted: 12}, &rows[0], &rows[1], &rows[2],
		&format.Hash{Revision: 12, Compacted: 12, Hash: 12}, &format.Hash{Revision: 13, Compacted: 13, Hash: 13}))

	path := w.find(archive.Target{})
	var fetched int
	path.Fetched = func(bytes int) { fetched += bytes }
	result, err := w.restorePath(path)
	require.NoError(t, err)
	assert.EqualValues(t, 12, result.Compacted)
	assert.EqualValues(t, 3, result.Rows)
	assert.Len(t, result.Hashes, 2)
	assert.Equal(t, object.After, result.Chain)
	assert.Equal(t, object.Size(), result.Bytes)
	assert.EqualValues(t, object.Size(), fetched)

	half := w.restore(archive.Target{Revision: 12})
	assert.Len(t, half.Hashes, 1)
	assert.Zero(t, half.Compacted, "the segment that recorded the compaction ends later")
}

func TestRead_objectsMergedDuringTheRead(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), steps(12, 30, 2)...)
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
	w := newTestWriter(t, &format.Keys{}, 12)
	_, err := w.Read(w.ctx, w.find(archive.Target{}), func(format.Row) error { return assert.AnError })
	assert.Equal(t, assert.AnError, err)
}

func TestFind_mergedObjectWithAWrongName(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12, 14)
	minute := w.merge(archive.Minute, w.objects(archive.Segment)...)
	content, _ := w.store.Content(minute.Name())
	w.store.SetContent(strings.Replace(minute.Name(), "15.000000000", "16.000000000", 1), content)
	assert.Equal(t, revisions(11, 14), w.restore(archive.Target{}).revisions)
	head := w.head()
	assert.ErrorIs(t, head.Damaged, format.ErrDamaged)
	assert.EqualValues(t, 14, head.Revision())
	misnamed := w.objects(archive.Minute)[1]
	_, err := w.Merge(w.ctx, archive.Hour, []archive.Object{misnamed})
	assert.ErrorIs(t, err, archive.ErrHole)

	require.NoError(t, w.store.Delete(w.ctx, minute.Name()))
	w.restart()
	path := w.find(archive.Target{})
	assert.EqualValues(t, 10, path.Revision)
	assert.ErrorIs(t, path.PastEnd, format.ErrDamaged, "the misnamed object is the only one left")
}

// The chain must not continue after a merged object that was only partly read, even though the next object starts at
// the end given in its name.
func TestFallback_readsTheStartOfAMergedObject(t *testing.T) {
	for name, damage := range map[string]func(w *testWriter, name string, content []byte, second int64){
		"damaged": func(w *testWriter, name string, _ []byte, second int64) { w.damage(name, 8*int(second+second/2)) },
		"truncated": func(w *testWriter, name string, content []byte, second int64) {
			w.store.SetContent(name, content[:second])
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestWriter(t, &format.Keys{}, steps(12, 20, 2)...)
			segments := w.objects(archive.Segment)
			merged := w.merge(archive.Minute, segments[:4]...)
			content, _ := w.store.Content(merged.Name())
			damage(w, merged.Name(), content, segments[0].Size)
			result, path, err := w.restoreAny(archive.Target{})
			require.NoError(t, err)
			assert.EqualValues(t, 12, path.Revision)
			assert.Equal(t, revisions(11, 12), result.revisions)
		})
	}
}

func TestRead_singleFull(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	full := *w.head().Full
	w.segment(12)
	reading, err := w.Read(w.ctx, archive.Path{Full: full, Revision: full.Revision}, nil)
	require.NoError(t, err)
	assert.Zero(t, reading.Rows)
	assert.Equal(t, full.Revision, reading.Revision)
}

// leaseAfter returns the value of lease "a" shortly after a revision, or "" if no later segment contains the lease.
func (w *testWriter) leaseAfter(revision int64) (value string) {
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
	w := newTestWriter(t, NewKeys(t).Load(t))
	w.segment(12, Bucket("lease", "a", "1"))
	w.segment(14)
	w.segment(16, Bucket("alarm", "x", "y"))
	w.segment(18, Bucket("alarm", "x", "z"), Bucket("lease", "a", "2"))
	w.segment(18, Bucket("lease", "a", "3"))
	w.segment(20)
	check := func() {
		for revision, lease := range map[int64]string{10: "1", 11: "1", 12: "2", 13: "2", 14: "2", 16: "2", 17: "2", 18: "3", 19: "", 20: ""} {
			assert.Equal(t, lease, w.leaseAfter(revision), "revision %d", revision)
		}
	}
	check()
	segments := w.objects(archive.Segment)
	w.merge(archive.Minute, segments[:2]...)
	w.merge(archive.Minute, segments[2:5]...)
	check()
}

func TestRecorded_damagedSegment(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), 12)
	segment := w.segment(14, Bucket("lease", "a", "1"))
	w.segment(16)
	name := archive.SegmentName(1, segment.Position)
	content, _ := w.store.Content(name)
	for _, bit := range []int{100, 8*len(content) - 40} {
		repair := w.damage(name, bit)
		assert.Empty(t, w.leaseAfter(11))
		repair()
	}
	require.NoError(t, w.store.Delete(t.Context(), name))
	assert.Empty(t, w.leaseAfter(11))
	w.store.SetContent(name, content)
	assert.Equal(t, "1", w.leaseAfter(11))

	path := w.find(archive.Target{Revision: 11})
	w.store.Inject(memory.Fault{Op: memory.Get, Err: memory.ErrDenied})
	_, err := w.Recorded(w.ctx, path, "lease")
	assert.ErrorIs(t, err, memory.ErrDenied)
}

func TestRecorded_otherChain(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), 12)
	w.fullAfterGap(20)
	w.segment(22, Bucket("lease", "a", "1"))
	assert.Empty(t, w.leaseAfter(11))
	assert.Equal(t, "1", w.leaseAfter(20))
}

func TestFetch_resumes(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), 500)
	w.store.Inject(
		memory.Fault{Op: memory.Get, Prefix: "gen/000001/full", Times: 1}, // reading the manifest fails
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
		w := newTestWriter(t, &format.Keys{})
		full := *w.head().Full
		// 30 exceeds the retry limit for an unreachable store. Fetch still succeeds, because each attempt reads a byte,
		// which resets the count.
		w.store.Inject(memory.Fault{Op: memory.Get, Times: 30, Cut: 1})
		snapshot, err := read(t, w.Archive, full)
		require.NoError(t, err)
		assert.Equal(t, snapshotOf(database(10)), snapshot)
	})
}

// Fetch must resume a download if the store is unreachable for a minute.
func TestFetch_waitsLongerAfterTheFirstByte(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newTestWriter(t, &format.Keys{})
		full := *w.head().Full
		disconnect := func(times int) {
			w.store.Inject(memory.Fault{Op: memory.Get, Times: 1, Cut: 1}, memory.Fault{Op: memory.Get, Times: times, Err: memory.ErrUnreachable})
		}
		start := time.Now()
		disconnect(11)
		snapshot, err := read(t, w.Archive, full)
		require.NoError(t, err)
		assert.Equal(t, snapshotOf(database(10)), snapshot)
		assert.Greater(t, time.Since(start), time.Minute)
		disconnect(13)
		_, err = read(t, w.Archive, full)
		assert.ErrorIs(t, err, memory.ErrUnreachable)
		assert.Less(t, time.Since(start), 5*time.Minute)
	})
}

func TestFetch_givesUp(t *testing.T) {
	for _, failure := range []error{memory.ErrUnreachable, memory.ErrThrottled, memory.ErrDenied} {
		inBubble(t, func(t *testing.T) {
			w := newTestWriter(t, &format.Keys{})
			full := *w.head().Full
			w.store.Inject(memory.Fault{Op: memory.Get, Err: failure})
			start := time.Now()
			_, err := read(t, w.Archive, full)
			assert.ErrorIs(t, err, failure)
			assert.Less(t, time.Since(start), time.Minute)
			if errors.Is(failure, store.ErrUnavailable) {
				assert.Greater(t, time.Since(start), 5*time.Second, "temporary errors are retried")
			}
		})
	}
}

func TestMerge_refusesHolesAndDamage(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 11, 12, 13)
	segments := w.objects(archive.Segment)
	for name, sources := range map[string][]archive.Object{
		"no sources": nil, "gap": {segments[0], segments[2]}, "reversed": {segments[1], segments[0]}, "duplicate": {segments[0], segments[0]},
	} {
		_, err := w.Merge(w.ctx, archive.Minute, sources)
		assert.Error(t, err, name)
	}
	foreign := Build(t, w.Keys(), format.Start{Cluster: cluster, Generation: 1, Position: w.next.Position}, Rows(14, 14))
	require.NoError(t, archivetest.PutSegment(w.ctx, w.Archive, foreign))
	_, err := w.Merge(w.ctx, archive.Minute, w.objects(archive.Segment))
	assert.ErrorIs(t, err, archive.ErrHole, "the digest does not continue the previous segment")
	w.restart()
	repair := w.damage(segments[1].Name(), 8*1000)
	_, err = w.Merge(w.ctx, archive.Minute, segments)
	assert.ErrorIs(t, err, archive.ErrHole)
	assert.ErrorIs(t, err, format.ErrDamaged)
	assert.ErrorContains(t, err, segments[1].Name())
	repair()
	require.NoError(t, w.store.Delete(w.ctx, segments[1].Name()))
	_, err = w.Merge(w.ctx, archive.Minute, segments)
	assert.ErrorIs(t, err, store.ErrNotFound)
	broken := errors.New("broken")
	w.store.Inject(memory.Fault{Op: memory.Put, Err: broken})
	_, err = w.Merge(w.ctx, archive.Minute, segments[:1])
	assert.ErrorIs(t, err, broken)
	assert.Empty(t, w.names("gen/000001/minute/"), "failed merges create no object")
}

func TestMerge_mayBeRepeated(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), 11, 12)
	segments := w.objects(archive.Segment)
	w.store.Inject(memory.Fault{Op: memory.Put, Times: 1, Err: memory.ErrLostReply, ReplyLost: true})
	first, err := w.Merge(w.ctx, archive.Minute, segments)
	require.NoError(t, err)
	again, err := w.Merge(w.ctx, archive.Minute, segments)
	require.NoError(t, err)
	assert.Equal(t, first, again)
	content, exists := w.store.Content(first.Name())
	require.True(t, exists)
	assert.EqualValues(t, len(content), first.Size)
	assert.Equal(t, segments[0].Size+segments[1].Size, first.Size, "segments are copied unchanged")
	w.merge(archive.Minute, segments...)
	assert.Equal(t, revisions(11, 12), w.restore(archive.Target{}).revisions)
}

// Merge must refuse to merge segments if another chain overlaps them, because the merged object would hide the
// segments of the other chain.
func TestMerge_refusesOverlappingChains(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	other := w.clone()
	w.segment(20)
	other.fullAfterGap(15)
	other.segment(25)
	w.segments(30, 40)
	segments := w.objects(archive.Segment)
	for _, sources := range [][]archive.Object{segments[:1], segments[1:2]} {
		_, err := w.Merge(w.ctx, archive.Minute, sources)
		assert.ErrorIs(t, err, archive.ErrHole)
	}
	minute, err := w.Merge(w.ctx, archive.Minute, segments[2:])
	assert.NoError(t, err, "no other segment starts within these segments")
	other.segment(35)
	_, err = w.Merge(w.ctx, archive.Hour, []archive.Object{minute.Object})
	assert.NoError(t, err, "segments that start within a minute are treated as merged")
}

// Merge must refuse a late segment that a slow writer stored at a position that was already merged and deleted.
func TestMerge_refusesAnotherSegmentAtAMergedPosition(t *testing.T) {
	for name, test := range map[string]struct {
		last    int64 // last revision of the late segment
		sources int   // number of objects to merge; the last one is the late segment
	}{"other range": {12, 2}, "same start": {12, 1}, "same end": {13, 2}} {
		for _, level := range []archive.Level{archive.Minute, archive.Hour} {
			t.Run(fmt.Sprint(name, " ", level), func(t *testing.T) {
				w := newTestWriter(t, NewKeys(t).Load(t), 11)
				late := w.clone()
				w.segments(11, 13, 14)
				segments := w.objects(archive.Segment)
				right := w.merge(level, segments[1:3]...)
				late.segment(test.last)
				before := w.names("gen/000001/minute/")
				sources := w.objects(archive.Segment)[2-test.sources : 2]
				_, err := w.Merge(w.ctx, archive.Minute, sources)
				require.ErrorIs(t, err, archive.ErrHole)
				assert.ErrorContains(t, err, right.Name()+" and ")
				assert.ErrorContains(t, err, " contain different segments")
				assert.Equal(t, before, w.names("gen/000001/minute/"))
				assert.Equal(t, revisions(11, 14), w.restore(archive.Target{}).revisions)

				w.store.SetContent(right.Name(), []byte("invalid"))
				w.restart()
				_, err = w.Merge(w.ctx, archive.Minute, sources)
				assert.NoError(t, err, "an object that cannot be verified does not prevent a merge")
			})
		}
	}
}

// The documentation page must describe every field of every statement.
func TestFormatPage_hasEveryField(t *testing.T) {
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", "backup-format.md"))
	require.NoError(t, err)
	_, page, _ := strings.Cut(string(content), "### Cluster, generation, reservation and result")
	page, segments, _ := strings.Cut(page, "## Segments")
	require.NotEmpty(t, segments)
	for begins, statement := range map[string]any{
		"`cluster.json` is the first": archive.Cluster{}, "The history consists of": archive.Generation{}, "A reservation has these fields": archive.Reservation{},
		"A result describes": archive.Result{}, "## Full snapshots": archive.Full{},
	} {
		_, table, found := strings.Cut(page, begins)
		require.True(t, found, begins)
		_, table, _ = strings.Cut(table, "|---|---|\n")
		table, _, _ = strings.Cut(table, "\n\n")
		of := reflect.TypeOf(statement)
		for _, field := range reflect.VisibleFields(of) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name != "" && len(field.Index) == 1 {
				assert.Contains(t, table, fmt.Sprintf("`%s`", name), "%s.%s", of, field.Name)
			}
		}
	}
}
