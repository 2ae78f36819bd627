package archive_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/seal/sealtest"
	"etcd-wrapper/backup/format/segment"
	. "etcd-wrapper/backup/format/segment/segmenttest"
)

func TestSmallBucketsAreThoseOfTheTarget(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
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

func TestReadingTellsWhatItFound(t *testing.T) {
	w := begin(t, &seal.Keys{})
	builder, err := segment.NewBuilder(w.Keys(), w.next)
	require.NoError(t, err)
	for _, row := range Rows(11, 13) {
		require.NoError(t, builder.Row(row))
	}
	for revision := int64(12); revision <= 13; revision++ {
		require.NoError(t, builder.CompactionHash(segment.CompactionHash{Revision: revision, Compacted: revision, Hash: uint32(revision)}))
	}
	object, err := builder.Finish(segment.Source{Compacted: 12})
	require.NoError(t, err)
	require.NoError(t, w.PutSegment(w.ctx, object))
	w.next = object.Start()

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

func TestWhatIsMergedWhileItIsReadIsReadAllTheSame(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	for last := int64(12); last <= 30; last += 2 {
		w.segment(last)
	}
	path := w.find(archive.Target{})
	segments := w.objects(archive.Segment)
	var found []int64
	_, err := w.Read(w.ctx, path, func(row segment.Row) error {
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

func TestWhatIsMissingIsNamed(t *testing.T) {
	w := begin(t, &seal.Keys{})
	for last := int64(12); last <= 16; last += 2 {
		w.segment(last)
	}
	path := w.find(archive.Target{})
	require.NoError(t, w.store.Delete(w.ctx, archive.SegmentName(1, segment.After(12))))
	_, err := w.follow(path)
	assert.ErrorIs(t, err, archive.ErrHole)
	assert.ErrorContains(t, err, "nothing in memory://test/ begins at 0000000000000000013.000000")
}

func TestSegmentsOfAnotherClusterAreNotRead(t *testing.T) {
	w := begin(t, &seal.Keys{})
	foreign := w.next
	foreign.Cluster = "7e27652122e8b2ae"
	object := Build(t, w.Keys(), foreign, Rows(11, 12))
	require.NoError(t, w.PutSegment(w.ctx, object))
	path := w.find(archive.Target{})
	assert.EqualValues(t, 10, path.Revision)
	require.ErrorIs(t, path.Beyond, archive.ErrForeign)
	assert.ErrorContains(t, path.Beyond, archive.SegmentName(1, object.Position))

	w.next = w.build(12).Start() // whose place that has taken
	w.segment(14)
	_, err := w.try(archive.Target{})
	assert.ErrorIs(t, err, archive.ErrForeign)
	assert.ErrorContains(t, err, archive.SegmentName(1, object.Position))
}

func TestWhatTheCallerFailsWithComesThrough(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	_, err := w.Read(w.ctx, w.find(archive.Target{}), func(segment.Row) error { return assert.AnError })
	assert.Equal(t, assert.AnError, err)
}

func TestAMergedObjectThatLiesAboutItsEndIsNotReadWhereAnotherTellsTheTruth(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	w.segment(14)
	minute := w.merge(archive.Minute, w.objects(archive.Segment)...)
	content, _ := w.store.Content(minute.Name())
	w.store.SetContent(strings.Replace(minute.Name(), "15.000000", "16.000000", 1), content)
	assert.Equal(t, revisions(11, 14), w.restore(archive.Target{}).revisions)
	head := w.head()
	assert.ErrorIs(t, head.Damaged, seal.ErrDamaged)
	assert.EqualValues(t, 14, head.Revision())
	liar := w.objects(archive.Minute)[1]
	_, err := w.Merge(w.ctx, archive.Hour, []archive.Object{liar})
	assert.ErrorIs(t, err, archive.ErrHole)
}

func TestAMergedObjectThatLiesAboutItsEndAloneIsDamage(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	w.segment(14)
	minute := w.merge(archive.Minute, w.objects(archive.Segment)...)
	content, _ := w.store.Content(minute.Name())
	w.store.SetContent(strings.Replace(minute.Name(), "15.000000", "16.000000", 1), content)
	require.NoError(t, w.store.Delete(w.ctx, minute.Name()))
	path := w.find(archive.Target{})
	assert.EqualValues(t, 10, path.Revision)
	assert.ErrorIs(t, path.Beyond, seal.ErrDamaged)
}

func TestThePathOfAFullAloneNeedsNothingElse(t *testing.T) {
	w := begin(t, &seal.Keys{})
	full := *w.head().Full
	w.segment(12)
	reading, err := w.Read(w.ctx, archive.Path{Full: full, Revision: full.Revision}, nil)
	require.NoError(t, err)
	assert.Zero(t, reading.Rows)
	assert.Equal(t, full.Revision, reading.Revision)
}
