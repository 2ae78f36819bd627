package archive_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
	. "etcd-wrapper/backup/format/segment/segmenttest"
)

func TestASegmentUnderAnotherNameIsDamage(t *testing.T) {
	w := begin(t, &seal.Keys{})
	object := w.segment(12)
	content, _ := w.store.Content(archive.SegmentName(1, object.Position))
	w.store.SetContent(archive.SegmentName(1, segment.After(12)), content)
	_, err := w.Manifest(w.ctx, 1, segment.After(12))
	assert.ErrorIs(t, err, seal.ErrDamaged)
	assert.ErrorContains(t, err, archive.SegmentName(1, segment.After(12))+" in memory://test/")
	head := w.head()
	assert.ErrorIs(t, head.Damaged, seal.ErrDamaged, "or a writer would go on from there")
	assert.Equal(t, w.next, head.Start)
}

func TestTheHeadGoesByTheNewestFullThatCanBeBelieved(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	newest := w.full()
	w.segment(14)
	defer w.damage(archive.ManifestName(1, newest.Name()), 1000)()
	head := w.head()
	assert.Equal(t, w.next, head.Start)
	assert.EqualValues(t, 10, head.Full.Revision)
	assert.ErrorIs(t, head.Newer, seal.ErrDamaged)
	assert.ErrorContains(t, head.Newer, newest.Name())
	assert.NoError(t, head.Damaged, "segments go on all the same")

	defer w.damage(archive.ManifestName(1, head.Full.Name()), 1000)()
	head, err := w.Head(w.ctx, 1)
	assert.ErrorIs(t, err, seal.ErrDamaged, "it is not taken for a store that has nothing")
	assert.ErrorContains(t, err, archive.ManifestName(1, newest.Name()))
	assert.Equal(t, segment.Position{Revision: 13, Part: 1}, head.Beyond, "behind the last segment, wherever that ends")
}

func TestANewChainLeavesWhatIsDamagedAlone(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	last := w.segment(12, Bucket("lease", "1", "2"))
	heal := w.damage(archive.SegmentName(1, last.Position), 100)
	head := w.head()
	assert.ErrorIs(t, head.Damaged, seal.ErrDamaged)
	assert.Equal(t, last.Position, head.Position)
	assert.Equal(t, last.Next(), head.Beyond)

	begun := w.put(archive.Full{Revision: 12, Next: head.Beyond, Chain: segment.Seed(cluster, 1, 12)})
	head = w.head()
	assert.Equal(t, begun.Start(), head.Start)
	assert.NoError(t, head.Damaged, "it lies before the new chain")
	w.next = head.Start
	w.segment(14)
	assert.Equal(t, w.next, w.head().Start)
	assert.Equal(t, revisions(13, 14), w.restore(archive.Target{}).revisions)
	heal()
	assert.Equal(t, w.next, w.head().Start)
	assert.Equal(t, revisions(13, 14), w.restore(archive.Target{}).revisions)
}

func TestAMergedObjectThatIsDamagedIsNoMatterAsLongAsTheLastSegmentIsThere(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	w.segment(14)
	merged, err := w.Merge(w.ctx, archive.Minute, w.objects(archive.Segment))
	require.NoError(t, err)
	defer w.damage(merged.Name(), 100)()
	head := w.head()
	assert.Equal(t, w.next, head.Start)
	assert.NoError(t, head.Damaged)
	assert.Zero(t, head.Beyond)
}

func TestAnotherClustersSegmentIsNotTakenForTheHead(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	for _, position := range []segment.Position{w.next.Position, segment.After(500)} {
		stranger := segment.Start{Cluster: "beef", Generation: 1, Position: position, Before: w.next.Before}
		object := Build(t, w.Keys(), stranger, Rows(position.Revision, position.Revision+1))
		require.NoError(t, archivetest.PutSegment(w.ctx, w, object))
		head := w.head()
		assert.Equal(t, w.next, head.Start)
		assert.ErrorIs(t, head.Damaged, archive.ErrForeign)
		assert.ErrorContains(t, head.Damaged, "of cluster beef instead of "+cluster)
		require.NoError(t, w.store.Delete(w.ctx, archive.SegmentName(1, position)))
	}
}
