package archive_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

func TestPutStored_lateUpload(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newTestWriter(t, &format.Keys{})
		slow := w.clone()
		mine := slow.build(13)
		w.segments(12, 14)
		w.merge(archive.Minute, w.objects(archive.Segment)...)
		w.store.Inject(memory.Fault{Op: memory.Put, Times: 1, Delay: archive.Grace})
		assert.ErrorIs(t, archivetest.PutSegment(w.ctx, slow.Archive, mine), store.ErrExists)
		assert.Empty(t, w.objects(archive.Segment))

		late := w.build(15)
		w.store.Inject(memory.Fault{Op: memory.Put, Times: 1, Delay: archive.Grace})
		assert.NoError(t, archivetest.PutSegment(w.ctx, w.Archive, late), "no other segment is at this position")
	})
}

func TestHead_laggingListing(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, steps(11, 15, 1)...)
	for _, hidden := range []int64{15, 13, 11} {
		w.store.Inject(memory.Fault{Op: memory.List, Prefix: "gen/000001/segment/", Hides: func(name string) bool {
			return name >= archive.SegmentName(1, format.After(hidden-1))
		}})
		assert.Equal(t, w.next, w.head().Start, "segments from revision %d on are not listed", hidden)
		w.store.ClearFaults()
	}
}

func TestHead_mergedDuringTheListing(t *testing.T) {
	for listing := 1; listing <= 4; listing++ {
		w := newTestWriter(t, &format.Keys{}, steps(11, 15, 1)...)
		merged := false
		w.store.Inject(memory.Fault{Op: memory.List, After: listing - 1, Times: 1, Then: func() {
			w.merge(archive.Minute, w.objects(archive.Segment)...)
			merged = true
		}})
		assert.Equal(t, w.next, w.head().Start, "merged after listing %d", listing)
		assert.True(t, merged)
	}
}

func TestAdvance_needsNoListing(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	head := w.head()
	w.segments(12, 15)
	others := func() int { return w.store.CountCalls(memory.Any, "") - w.store.CountCalls(memory.Get, "") }
	asked := others()
	advanced, err := w.Advance(w.ctx, head)
	require.NoError(t, err)
	assert.Equal(t, w.next, advanced.Start)
	assert.Equal(t, asked, others())
	before := len(w.store.Calls())
	again, err := w.Advance(w.ctx, advanced)
	require.NoError(t, err)
	assert.Equal(t, advanced, again)
	assert.Len(t, w.store.Calls()[before:], 1)
}

func TestAdvance_checksTheDigest(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	foreign := w.next
	foreign.Before = format.Seed(cluster, 1, 9)
	require.NoError(t, archivetest.PutSegment(w.ctx, w.Archive, Build(t, w.Keys(), foreign, Rows(11, 12))))
	known := archive.Head{Start: w.next}
	_, err := w.Advance(w.ctx, known)
	assert.ErrorIs(t, err, archive.ErrHole)
	path := w.find(archive.Target{})
	assert.EqualValues(t, 10, path.Revision)
	assert.ErrorIs(t, path.PastEnd, archive.ErrHole)
}

func TestHead_needsFewRequests(t *testing.T) {
	t.Parallel()
	w := newTestWriter(t, &format.Keys{})
	for hour := range int64(24) {
		for second := range int64(30) {
			w.segment(10 + hour*3600 + (second+1)*120)
		}
		w.merge(archive.Hour, w.objects(archive.Segment)...)
		w.full()
	}
	w.segment(90_000)
	before := len(w.store.Calls())
	assert.Equal(t, w.next, w.head().Start)
	calls := w.store.Calls()[before:]
	assert.LessOrEqual(t, len(calls), 8, "%v", calls)
}

func TestReader_deniedIsNotEmpty(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12)
	for _, op := range []memory.Op{memory.List, memory.Get} {
		w.store.Inject(memory.Fault{Op: op, Err: memory.ErrDenied})
		_, err := w.Head(w.ctx, 1)
		assert.ErrorIs(t, err, store.ErrDenied)
		_, err = w.History(w.ctx)
		assert.ErrorIs(t, err, store.ErrDenied)
		_, err = w.Create(w.ctx, archive.Cluster{Cluster: cluster, Created: Noon}, 1)
		assert.ErrorIs(t, err, store.ErrDenied)
		w.store.ClearFaults()
	}
}

func TestHead_segmentUnderAnotherName(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	object := w.segment(12)
	content, _ := w.store.Content(archive.SegmentName(1, object.Position))
	w.store.SetContent(archive.SegmentName(1, format.After(12)), content)
	_, err := w.Manifest(w.ctx, 1, format.After(12))
	assert.ErrorIs(t, err, format.ErrDamaged)
	assert.ErrorContains(t, err, archive.SegmentName(1, format.After(12))+" in memory://test/")
	head := w.head()
	assert.ErrorIs(t, head.Damaged, format.ErrDamaged, "a writer must not continue from the misnamed object")
	assert.Equal(t, w.next, head.Start)
}

func TestHead_newestFullThatVerifies(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12)
	newest := w.full()
	w.segment(14)
	defer w.damage(archive.ManifestName(1, newest.Name()), 1000)()
	head := w.head()
	assert.Equal(t, w.next, head.Start)
	assert.EqualValues(t, 10, head.Full.Revision)
	assert.ErrorIs(t, head.Newer, format.ErrDamaged)
	assert.ErrorContains(t, head.Newer, newest.Name())
	assert.NoError(t, head.Damaged, "the segments continue past the damaged full snapshot")

	defer w.damage(archive.ManifestName(1, head.Full.Name()), 1000)()
	_, err := w.Head(w.ctx, 1)
	assert.ErrorIs(t, err, format.ErrDamaged, "Head must not return an empty head")
	assert.ErrorContains(t, err, archive.ManifestName(1, newest.Name()))
	w.store.SetContent("gen/000001/segment/0000009000000000000.000000000", []byte("x"))
	past, err := w.PastAll(w.ctx, 1, 14)
	require.NoError(t, err)
	assert.Equal(t, format.Position{Revision: 13, Part: 1}, past, "after the last segment that may belong to this history")
}

func TestHead_newChainAfterADamagedSegment(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12)
	last := w.segment(12, Bucket("lease", "1", "2"))
	repair := w.damage(archive.SegmentName(1, last.Position), 100)
	head := w.head()
	assert.ErrorIs(t, head.Damaged, format.ErrDamaged)
	assert.Equal(t, last.Position, head.Position)
	assert.Equal(t, last.Next(), head.PastEnd)

	opening := w.put(archive.Full{Revision: 12, Next: head.PastEnd, Chain: format.Seed(cluster, 1, 12)})
	head = w.head()
	assert.Equal(t, opening.Start(), head.Start)
	assert.NoError(t, head.Damaged, "the damaged segment is before the new chain")
	w.next = head.Start
	w.segment(14)
	assert.Equal(t, w.next, w.head().Start)
	assert.Equal(t, revisions(13, 14), w.restore(archive.Target{}).revisions)
	repair()
	assert.Equal(t, w.next, w.head().Start)
	assert.Equal(t, revisions(13, 14), w.restore(archive.Target{}).revisions)
}

func TestHead_segmentOfAnotherCluster(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12)
	put := func(position format.Position) func() {
		foreign := format.Start{Cluster: "beef", Generation: 1, Position: position, Before: w.next.Before}
		object := Build(t, w.Keys(), foreign, Rows(position.Revision, position.Revision+1))
		require.NoError(t, archivetest.PutSegment(w.ctx, w.Archive, object))
		return func() { require.NoError(t, w.store.Delete(w.ctx, archive.SegmentName(1, position))) }
	}
	remove := put(w.next.Position)
	head := w.head()
	assert.Equal(t, w.next, head.Start)
	assert.ErrorIs(t, head.Damaged, archive.ErrForeign)
	assert.ErrorContains(t, head.Damaged, "found beef, expected "+cluster)
	assert.Equal(t, format.Position{Revision: 13, Part: 1}, head.PastEnd)
	remove()

	put(format.After(500))
	head = w.head()
	assert.Equal(t, w.next, head.Start)
	assert.NoError(t, head.Damaged, "segments after the next position belong to another history")
}

// Head must ignore objects whose names are far ahead of the next position, because anyone with write access to the
// store can create them.
func TestHead_ignoresNamesFarAhead(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12, 14, 16)
	_, err := w.Merge(w.ctx, archive.Minute, w.objects(archive.Segment)[:2])
	require.NoError(t, err)
	for position := format.After(16); position.Revision < 500; position.Revision++ {
		if position != w.next.Position {
			w.store.SetContent(archive.SegmentName(1, position), []byte("x"))
		}
	}
	w.store.SetContent("gen/000001/segment/0000009000000000000.000000000", []byte("x"))
	for _, level := range []archive.Level{archive.Minute, archive.Hour} {
		w.store.SetContent("gen/000001/"+string(level)+"/0000000000000000011.000000000_0000009000000000000.000000000", []byte("x"))
	}
	before := len(w.store.Calls())
	head := w.head()
	assert.Equal(t, w.next, head.Start)
	assert.NoError(t, head.Damaged)
	assert.True(t, head.PastEnd.IsZero())
	assert.Less(t, len(w.store.Calls())-before, 40, "the number of requests does not depend on the number of names")

	assert.Equal(t, []summary{{10, 16, 1, 2}}, summaries(w.history()))
	w.segment(18)
	assert.Equal(t, w.next, w.head().Start)
	assert.Equal(t, revisions(11, 18), w.restore(archive.Target{}).revisions)
}

// An invalid object after a full snapshot must not hide the segment that spans the snapshot.
func TestHead_garbageAfterAFullSnapshotThatWasPassed(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), 20, 30)
	w.clone().fullAfterGap(25)
	for count := int64(0); count < 12; count++ {
		assert.Equal(t, w.next, w.head().Start, "%d objects", count)
		w.store.SetContent(archive.SegmentName(1, format.After(100+count)), []byte("x"))
	}
}

var first = archive.Generation{Number: 1, Cluster: cluster}

// ending returns an end marker that names generation 2 as the successor.
func ending(nonce string) format.Ending { return format.Ending{Successor: 2, Nonce: nonce, At: Noon} }

func TestEnd_blocksLaterSegments(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12)
	late := w.clone()
	require.NoError(t, w.End(t.Context(), first, w.head(), "a", ending("a")))
	require.NotNil(t, w.head().Ending())
	assert.Equal(t, "a", w.head().Ending().Nonce)
	assert.EqualValues(t, 12, w.head().Revision())

	object := Segment(t, w.Keys(), late.next, format.Source{Member: "late"})
	require.ErrorIs(t, archivetest.PutSegment(t.Context(), w.Archive, object), store.ErrExists)

	assert.EqualValues(t, 12, w.restore(archive.Target{}).Revision, "the end marker does not affect a restore")
}

func TestEnd_onlyAtTheHeadThatWasRead(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	read := w.head()
	w.segment(12)
	require.ErrorIs(t, w.End(t.Context(), first, read, "a", ending("a")), archive.ErrMoved)
	require.Nil(t, w.head().Ending())

	read = w.head()
	w.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable, ReplyLost: true, Times: 1})
	require.NoError(t, w.End(t.Context(), first, read, "a", ending("a")), "lost reply")
	require.NoError(t, w.End(t.Context(), first, read, "a", ending("a")), "End may be repeated")
	require.ErrorIs(t, w.End(t.Context(), first, read, "b", ending("b")), archive.ErrEnded)
	require.ErrorIs(t, w.End(t.Context(), first, w.head(), "b", ending("b")), archive.ErrEnded)
	assert.Equal(t, "a", w.head().Ending().Nonce)
}

// linkedFull stores a full snapshot at revision 20 that starts a chain after a gap. Its link is not stored yet.
func (w *testWriter) linkedFull() archive.Full {
	const revision = 20
	w.t.Helper()
	next := w.head().Next(first)
	return w.put(archive.Full{Revision: revision, Chain: format.Seed(cluster, 1, revision), Behind: &next, Session: "writer"})
}

func TestOpen_takesThePositionOfTheEnd(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12)
	read, full := w.head(), w.linkedFull()
	require.NotNil(t, w.head().Unlinked)
	require.NoError(t, w.Open(t.Context(), first, full, "writer"))
	require.NoError(t, w.Open(t.Context(), first, full, "another"), "any process may store the link")
	assert.Nil(t, w.head().Unlinked)
	require.ErrorIs(t, w.End(t.Context(), first, read, "a", ending("a")), archive.ErrMoved)
	require.NoError(t, w.End(t.Context(), first, w.head(), "a", ending("a")))
	assert.EqualValues(t, 20, w.head().Revision())
	require.NotNil(t, w.head().Ending())
}

func TestOpen_positionIsTaken(t *testing.T) {
	for name, c := range map[string]struct {
		taken func(w *testWriter, read archive.Head) error
		why   error
	}{
		"by the end marker":                          {func(w *testWriter, read archive.Head) error { return w.End(w.ctx, first, read, "a", ending("a")) }, archive.ErrEnded},
		"by the end marker, after the link was seen": {func(w *testWriter, _ archive.Head) error { return w.End(w.ctx, first, w.head(), "a", ending("a")) }, archive.ErrEnded},
		"by another writer":                          {func(w *testWriter, _ archive.Head) error { w.segment(13); return nil }, archive.ErrMoved},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestWriter(t, &format.Keys{}, 12)
			read, full := w.head(), w.linkedFull()
			require.NoError(t, c.taken(w, read))
			require.ErrorIs(t, w.Open(t.Context(), first, full, "writer"), c.why)
			if errors.Is(c.why, archive.ErrEnded) {
				require.NotNil(t, w.head().Ending(), "the full snapshot exists, but is ignored")
			} else {
				require.EqualValues(t, 10, w.head().Full.Revision)
			}
		})
	}
}

func TestEnd_generationWithoutAFull(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	second := archive.Generation{Number: 2, Cluster: "c2", Parent: 1, ParentRevision: 10, Session: "a", Created: Noon}
	require.NoError(t, w.BeginGeneration(t.Context(), second))
	head, err := w.Head(t.Context(), 2)
	require.NoError(t, err)
	assert.Equal(t, archive.Origin, head.Next(second).Position)
	require.NoError(t, w.End(t.Context(), second, head, "b", format.Ending{Successor: 3, Nonce: "b", At: Noon}))
	head, err = w.Head(t.Context(), 2)
	require.NoError(t, err)
	require.NotNil(t, head.Ending())
	assert.True(t, head.Empty())
}
