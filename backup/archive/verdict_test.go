package archive_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/seal/sealtest"
	. "etcd-wrapper/backup/format/segment/segmenttest"
)

func TestTheNewestVerdictOfAFullCounts(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	full := *w.head().Full
	put := func(after int64, outcome archive.Outcome, drill bool) {
		require.NoError(t, w.PutVerdict(w.ctx, archive.Verdict{
			Cluster: cluster, Generation: 1, Full: full.Name(), Revision: 10, Outcome: outcome, At: At(after), Drill: drill, Why: "for a test",
		}))
	}
	assert.Nil(t, w.history().Newest().Fulls[0].Verdict)
	put(20, archive.Failed, false)
	assert.False(t, w.history().Newest().Fulls[0].Usable())
	_, err := w.try(archive.Target{})
	assert.ErrorIs(t, err, archive.ErrNotKept)
	put(30, archive.Verified, false)
	kept := w.history().Newest().Fulls[0]
	assert.True(t, kept.Usable())
	assert.Equal(t, archive.Verified, kept.Verdict.Outcome)

	put(40, archive.Verified, true)
	put(50, archive.Failed, true)
	drills, err := w.Drills(w.ctx, 1, At(40))
	require.NoError(t, err)
	assert.Len(t, drills, 2)
	drills, err = w.Drills(w.ctx, 1, At(41))
	require.NoError(t, err)
	require.Len(t, drills, 1)
	assert.Equal(t, archive.Failed, drills[0].Outcome)
	assert.True(t, w.history().Newest().Fulls[0].Usable(), "a drill says nothing of the full alone")
}

// A member and somebody at a terminal may restore the same full at the same time.
func TestVerdictsOfTheSameSecondAreAllKept(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	full := *w.head().Full
	for _, drill := range []bool{false, true} {
		for _, outcome := range []archive.Outcome{archive.Verified, archive.Verified, archive.Failed} {
			require.NoError(t, w.PutVerdict(w.ctx, archive.Verdict{
				Cluster: cluster, Generation: 1, Full: full.Name(), Revision: 10, Outcome: outcome, At: At(20), Drill: drill,
				Seconds: float64(len(w.names("gen/"))), // they differ in something
			}))
		}
	}
	assert.Len(t, w.names("gen/000001/verified/"), 3)
	assert.Equal(t, archive.Failed, w.history().Newest().Fulls[0].Verdict.Outcome, "the last one counts")
	drills, err := w.Drills(w.ctx, 1, At(20))
	require.NoError(t, err)
	assert.Len(t, drills, 3)
}

func TestAVerdictThatNobodyTrustedGaveIsIgnored(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	full := *w.head().Full
	stranger := archive.New(w.store, sealtest.New(t).Load(t))
	require.NoError(t, stranger.PutVerdict(w.ctx, archive.Verdict{Generation: 1, Full: full.Name(), Outcome: archive.Failed, At: At(1)}))
	kept := w.history().Newest().Fulls[0]
	assert.True(t, kept.Usable())
	assert.ErrorIs(t, kept.VerdictErr, seal.ErrUntrusted)
}

func TestAVerdictOfAnotherFullIsIgnored(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	first, second := *w.head().Full, w.full()
	require.NoError(t, w.PutVerdict(w.ctx, archive.Verdict{Generation: 1, Full: first.Name(), Outcome: archive.Verified, At: At(60)}))
	verdict := w.names("gen/000001/verified/")[0]
	content, _ := w.store.Content(verdict)
	w.store.SetContent(strings.Replace(verdict, first.Name(), second.Name(), 1), content)
	fulls := w.history().Newest().Fulls
	assert.NotNil(t, fulls[0].Verdict)
	assert.Nil(t, fulls[1].Verdict)
	assert.ErrorIs(t, fulls[1].VerdictErr, seal.ErrDamaged)
}

// One small object that has decayed must keep nobody from listing, testing and deleting everything else.
func TestADrillThatIsNotBelievedIsIgnored(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	put := func(into *archive.Archive, after int64, outcome archive.Outcome) {
		require.NoError(t, into.PutVerdict(w.ctx, archive.Verdict{Generation: 1, Drill: true, Outcome: outcome, At: At(after)}))
	}
	put(w.Archive, 20, archive.Verified)
	put(w.Archive, 30, archive.Verified)
	put(archive.New(w.store, sealtest.New(t).Load(t)), 40, archive.Failed)
	w.damage(w.names("gen/000001/drill/")[1], 300)
	drills, err := w.Drills(w.ctx, 1, At(0))
	require.NoError(t, err)
	require.Len(t, drills, 1)
	assert.Equal(t, At(20), drills[0].At)
}
