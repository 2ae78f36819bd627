package archive_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/seal"
	"etcd-wrapper/bootstrap/backup/seal/sealtest"
	"etcd-wrapper/bootstrap/backup/segment"
	. "etcd-wrapper/bootstrap/backup/segment/segmenttest"
	"etcd-wrapper/bootstrap/backup/store/memory"
)

func TestTheHistoryOfNothingIsEmpty(t *testing.T) {
	a := archive.New(memory.New(), &seal.Keys{})
	history, err := a.History(t.Context())
	require.NoError(t, err)
	assert.Nil(t, history.Cluster)
	assert.Nil(t, history.Newest())
	_, err = a.Find(t.Context(), archive.Target{})
	assert.ErrorIs(t, err, archive.ErrNotKept)
	assert.EqualError(t, err, "the latest revision is not kept in memory://test/, which has nothing that can be restored")
}

// window is what a chain tells of itself.
type window struct {
	from, to       int64
	fulls, objects int
}

func windows(history *archive.History) (all []window) {
	for _, chain := range history.Newest().Chains {
		all = append(all, window{chain.From, chain.To, len(chain.Fulls), len(chain.Objects)})
	}
	return all
}

func TestAChainGoesOnUntilAHole(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	assert.Equal(t, []window{{10, 10, 1, 0}}, windows(w.history()))
	w.segment(12)
	w.segment(14)
	w.full()
	w.segment(16)
	assert.Equal(t, []window{{10, 16, 2, 3}}, windows(w.history()))

	w.gap(20)
	w.segment(25)
	history := w.history()
	assert.Equal(t, []window{{10, 16, 2, 3}, {20, 25, 1, 1}}, windows(history))
	chains := history.Newest().Chains
	assert.Equal(t, At(16), chains[0].End)
	assert.Equal(t, At(20), chains[1].Begin)
	assert.Equal(t, At(25), chains[1].End)
	assert.Equal(t, cluster, history.Cluster.Cluster)

	for revision, full := range map[int64]int64{10: 10, 13: 10, 14: 14, 16: 14, 20: 20, 25: 20} {
		result := w.restore(archive.Target{Revision: revision})
		assert.Equal(t, full, result.full, "revision %d", revision)
		assert.Equal(t, revisions(full+1, revision), result.revisions)
		assert.Equal(t, revision, result.Revision)
	}
	for _, revision := range []int64{9, 17, 19, 26} {
		_, err := w.try(archive.Target{Revision: revision})
		assert.ErrorIs(t, err, archive.ErrNotKept, "revision %d", revision)
		assert.ErrorContains(t, err, "has revisions 10 to 16 (2026-11-22T12:00:10Z to 2026-11-22T12:00:16Z), revisions 20 to 25 (")
	}
}

func TestWhatWasDeletedBetweenFullsIsAHole(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	w.full()
	w.segment(14)
	second := w.full()
	w.segment(16)
	segments := w.objects(archive.Segment)
	w.merge(archive.Hour, segments[:2]...)
	assert.Equal(t, []window{{10, 16, 3, 2}}, windows(w.history()))
	require.NoError(t, w.store.Delete(w.ctx, w.objects(archive.Hour)[0].Name()))
	assert.Equal(t, []window{{10, 10, 1, 0}, {12, 12, 1, 0}, {14, 16, 1, 1}}, windows(w.history()))
	_, err := w.try(archive.Target{Revision: 13})
	assert.ErrorIs(t, err, archive.ErrNotKept)

	require.NoError(t, w.store.Delete(w.ctx, archive.ManifestName(1, second.Name())))
	assert.Equal(t, []window{{10, 10, 1, 0}, {12, 12, 1, 0}}, windows(w.history()), "segments without a full are no use")
	assert.Len(t, w.history().Newest().Orphans, 1)
	assert.Len(t, w.history().Newest().Objects, 1)
}

func TestARestoreDoesNotBeginWithAFullThatFailed(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	failed := w.full()
	w.segment(14)
	require.NoError(t, w.PutVerdict(w.ctx, archive.Verdict{Generation: 1, Full: failed.Name(), Outcome: archive.Failed, At: At(20)}))
	assert.Equal(t, []window{{10, 14, 1, 2}}, windows(w.history()))
	result := w.restore(archive.Target{})
	assert.EqualValues(t, 10, result.full)
	assert.Equal(t, revisions(11, 14), result.revisions)
	assert.Len(t, w.history().Newest().Fulls, 2)

	bad := w.gap(20)
	w.segment(22)
	defer w.damage(archive.ManifestName(1, bad.Name()), 999)()
	_, err := w.try(archive.Target{Revision: 22})
	assert.Error(t, err, "what follows a full that cannot be read leads nowhere")
}

func TestWhatSomebodyElsePutThereIsOverlooked(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	for _, name := range []string{
		"gen/000001/segment/notes.txt", "gen/000001/segment/11.0", "gen/000001/minute/0000000000000000011.000000", "gen/x/generation.json",
		"gen/000001/hour/0000000000000000015.000000_0000000000000000011.000000", "gen/000001/full/hello", "gen/1/generation.json",
		"gen/000001/full/0000000000000000099-yesterday/manifest.json", "gen/000001/verified/hello", "gen/zzz", "aaa", "zzz",
	} {
		w.store.SetContent(name, []byte("hello"))
	}
	assert.Equal(t, w.next, w.head().Start)
	assert.Equal(t, []window{{10, 12, 1, 1}}, windows(w.history()))
	assert.Equal(t, revisions(11, 12), w.restore(archive.Target{}).revisions)
}

func TestATimeIsTheLastRevisionThatThereWas(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	for last := int64(13); last <= 40; last += 3 {
		w.segment(last)
		if last == 25 {
			w.full()
		}
	}
	segments := w.objects(archive.Segment)
	w.merge(archive.Minute, segments[:3]...)
	w.merge(archive.Minute, segments[3:6]...)
	w.gap(60)
	w.segment(70)
	check := func() {
		for revision := int64(10); revision <= 70; revision++ {
			for _, offset := range []time.Duration{0, time.Millisecond, 999 * time.Millisecond} {
				target := archive.Target{Time: At(revision).Add(offset)}
				path, err := w.Find(w.ctx, target)
				if revision > 40 && revision < 60 || revision == 40 && offset > 0 {
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
	assert.EqualValues(t, 70, w.find(archive.Target{Time: At(1000)}).Revision, "nothing later is known")
	_, err := w.Find(w.ctx, archive.Target{Time: At(9)})
	assert.ErrorIs(t, err, archive.ErrNotKept)
	assert.ErrorContains(t, err, "2026-11-22T12:00:09Z is not kept in memory://test/, which has revisions 10 to 40 (")

	result := w.restore(archive.Target{Time: At(33)})
	assert.EqualValues(t, 25, result.full)
	assert.Equal(t, revisions(26, 33), result.revisions)
}

func TestATimeIsFoundAmongSegmentsWithoutMarkers(t *testing.T) {
	w := begin(t, &seal.Keys{})
	for _, last := range []int64{12, 14} { // a backlog that was cut
		builder, err := segment.NewBuilder(w.Keys(), w.next)
		require.NoError(t, err)
		for _, row := range Rows(w.next.Position.Revision, last) {
			require.NoError(t, builder.Row(row))
		}
		object, err := builder.Finish(segment.Source{})
		require.NoError(t, err)
		require.NoError(t, w.PutSegment(w.ctx, object))
		w.next = object.Start()
	}
	assert.EqualValues(t, 10, w.find(archive.Target{Time: At(12)}).Revision, "none of them is known to have been by then")
	w.segment(16)
	assert.EqualValues(t, 10, w.find(archive.Target{Time: At(12)}).Revision)
	assert.EqualValues(t, 15, w.find(archive.Target{Time: At(15)}).Revision)
	assert.Equal(t, revisions(11, 15), w.restore(archive.Target{Time: At(15)}).revisions)
}

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
	assert.Equal(t, path.Full.Data.Bytes+object.Size(), path.Bytes())

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

func TestAMergedObjectThatLiesAboutItsEndIsDamage(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	w.segment(14)
	minute := w.merge(archive.Minute, w.objects(archive.Segment)...)
	content, _ := w.store.Content(minute.Name())
	w.store.SetContent(strings.Replace(minute.Name(), "15.000000", "16.000000", 1), content)
	_, err := w.try(archive.Target{})
	assert.ErrorIs(t, err, seal.ErrDamaged)
	_, err = w.Head(w.ctx, 1)
	assert.ErrorIs(t, err, seal.ErrDamaged)
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
