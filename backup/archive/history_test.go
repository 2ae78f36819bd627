package archive_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/seal/sealtest"
	. "etcd-wrapper/backup/format/segment/segmenttest"
	"etcd-wrapper/backup/store/memory"
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
	assert.Equal(t, At(21), chains[1].Begin)
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
		assert.ErrorContains(t, err, "has revisions 10 to 16 (2026-11-22T12:00:11Z to 2026-11-22T12:00:16Z), revisions 20 to 25 (")
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

// The certificate says whose the store is. That is no reason to give nothing back to whoever has all the rest.
func TestWhatIsKeptCanBeReadWithoutTheBirthCertificate(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	w.segment(12)
	repair := w.damage("cluster.json", 300)
	history := w.history()
	assert.Nil(t, history.Cluster)
	assert.Equal(t, []window{{10, 12, 1, 1}}, windows(history))
	assert.EqualValues(t, 12, w.restore(archive.Target{}).Revision)
	repair()
	assert.NotNil(t, w.history().Cluster)
}
