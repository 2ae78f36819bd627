package archive_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal/sealtest"
	"etcd-wrapper/backup/format/segment"
	. "etcd-wrapper/backup/format/segment/segmenttest"
)

// holed is an archive with a full of revision 20 in the middle of a chain that ends with 30, and the name of the segment behind it.
func holed(t *testing.T) (w *world, name string) {
	w = begin(t, sealtest.New(t).Load(t))
	for last := int64(12); last <= 20; last += 2 {
		w.segment(last)
	}
	name = archive.SegmentName(1, w.full().Next)
	for last := int64(22); last <= 30; last += 2 {
		w.segment(last)
	}
	return w, name
}

func TestAFullWhoseNextSegmentIsGoneIsNotTheLatestThatThereWas(t *testing.T) {
	w, name := holed(t)
	require.NoError(t, w.store.Delete(w.ctx, name))

	path := w.find(archive.Target{})
	assert.EqualValues(t, 20, path.Revision)
	require.ErrorIs(t, path.Beyond, archive.ErrHole)
	assert.ErrorContains(t, path.Beyond, "0000000000000000021.000000", "the first position that is missing")
	assert.GreaterOrEqual(t, path.Lost(), int64(8))
	assert.Equal(t, revisions(11, 20), append(revisions(11, path.Full.Revision), w.restore(archive.Target{}).revisions...))

	for revision := int64(21); revision <= 30; revision++ {
		_, err := w.Find(w.ctx, archive.Target{Revision: revision})
		assert.ErrorIs(t, err, archive.ErrNotKept, "revision %d", revision)
		_, err = w.Find(w.ctx, archive.Target{Time: At(revision)})
		assert.ErrorIs(t, err, archive.ErrNotKept, "at the time of %d", revision)
	}
	for revision := int64(11); revision <= 20; revision++ {
		assert.Equal(t, revision, w.restore(archive.Target{Revision: revision}).Revision)
	}
	chains := w.history().Newest().Chains
	require.Len(t, chains, 1)
	assert.Equal(t, []int64{10, 20}, []int64{chains[0].From, chains[0].To})
}

// A segment's name can be computed: what a listing lacks for a while is read all the same.
func TestASegmentThatAListingLacksIsRead(t *testing.T) {
	w, name := holed(t)
	lagging := archive.New(&stale{Store: w.store, hides: func(n string) bool { return n == name }}, w.Keys())
	for _, target := range []archive.Target{{}, {Revision: 21}, {Revision: 25}, {Revision: 30}, {Time: At(25)}, {Time: At(30)}} {
		path, err := lagging.Find(w.ctx, target)
		require.NoError(t, err, target)
		assert.NoError(t, path.Beyond)
		reading, err := lagging.Read(w.ctx, path, func(segment.Row) error { return nil })
		require.NoError(t, err, target)
		assert.Equal(t, path.Revision, reading.Revision, target)
	}
	path, err := lagging.Find(w.ctx, archive.Target{})
	require.NoError(t, err)
	assert.EqualValues(t, 30, path.Revision)
}

// A full that lies within a segment, as where two members have cut the rows in other places, leads nowhere: the chain goes on across it.
func TestAFullWithinASegmentLeadsToItsOwnRevisionAlone(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	w.segment(14)
	other := w.again()
	within := other.build(17).Start()
	w.segment(20)
	w.put(archive.Full{Revision: 17, Next: within.Position, Chain: within.Before, Last: within.Last})
	w.segment(24)

	for revision := int64(11); revision <= 24; revision++ {
		restored := w.restore(archive.Target{Revision: revision})
		assert.Equal(t, revision, restored.Revision)
	}
	assert.EqualValues(t, 24, w.restore(archive.Target{}).Revision)
	assert.NoError(t, w.find(archive.Target{}).Beyond)
}
