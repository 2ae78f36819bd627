package archive_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal/sealtest"
	"etcd-wrapper/backup/format/segment"
	. "etcd-wrapper/backup/format/segment/segmenttest"
)

// stranger puts a segment of another cluster, with revisions from first to last that were the present at a time.
func (w *world) stranger(first, last int64, at time.Time) {
	w.t.Helper()
	start := segment.Start{Cluster: "beef", Generation: 1, Position: segment.After(first - 1), Before: segment.Seed("beef", 1, first-1)}
	builder, err := segment.NewBuilder(w.Keys(), start)
	require.NoError(w.t, err)
	for _, row := range Rows(first, last) {
		require.NoError(w.t, builder.Row(row))
	}
	require.NoError(w.t, builder.Marker(segment.Marker{Revision: last, Time: at}))
	object, err := builder.Finish(segment.Source{Member: "1"})
	require.NoError(w.t, err)
	require.NoError(w.t, w.PutSegment(w.ctx, object))
}

// The store was emptied and founded anew by one cluster while another one wrote to it, which has noticed that some seconds later. What
// that one has left lies beside the chain, and between the names of its segments.
func TestWhatAnotherClusterHasLeftIsNotMixedIntoAChain(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	w.stranger(5, 8, At(9))
	for last := int64(14); last <= 30; last += 4 {
		w.segment(last)
		w.stranger(last-1, last+20, At(last-1).Add(100*time.Millisecond))
	}
	w.stranger(500, 520, At(29))
	w.stranger(521, 530, At(29))

	assert.Equal(t, revisions(11, 30), w.restore(archive.Target{}).revisions)
	for revision := int64(11); revision <= 30; revision++ {
		assert.Equal(t, revisions(11, revision), w.restore(archive.Target{Revision: revision}).revisions)
		if revision < 30 {
			path := w.find(archive.Target{Time: At(revision).Add(500 * time.Millisecond)})
			assert.Equal(t, revision, path.Revision, "at the time of %d", revision)
		}
	}
	examined, err := w.Examined(w.ctx)
	require.NoError(t, err)
	for _, history := range []*archive.History{w.history(), examined} {
		chains := history.Newest().Chains
		require.Len(t, chains, 1)
		assert.Equal(t, []int64{10, 30}, []int64{chains[0].From, chains[0].To})
		assert.ErrorIs(t, chains[0].Behind, archive.ErrForeign, "it is told of")
	}
	_, err = w.Find(w.ctx, archive.Target{Revision: 505})
	require.ErrorIs(t, err, archive.ErrNotKept)
}

// A merged object holds whatever begins within it: what comes there later would be deleted as being held.
func TestWhatAnotherClusterHasLeftIsNotMerged(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	w.stranger(20, 30, At(9))
	_, err := w.Merge(w.ctx, archive.Minute, w.objects(archive.Segment))
	require.ErrorIs(t, err, archive.ErrHole)
	assert.Empty(t, w.objects(archive.Minute))
}

// The newest object by its name is nothing but a name: it does not move the end, and nobody has to begin anew behind it.
func TestANameDoesNotMoveTheEnd(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	w.segment(14)
	w.segment(20)
	for _, level := range []archive.Level{archive.Minute, archive.Hour} {
		w.store.SetContent("gen/000001/"+string(level)+"/0000000000000000011.000000_9000000000000000000.000000", []byte("x"))
	}
	head := w.head()
	assert.NoError(t, head.Damaged)
	assert.EqualValues(t, 20, head.Revision())
	assert.True(t, head.Beyond.IsZero())
	chains := w.history().Newest().Chains
	require.Len(t, chains, 1)
	assert.EqualValues(t, 20, chains[0].To)
}
