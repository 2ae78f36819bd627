package archive_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal/sealtest"
)

// Two members have begun a chain each, and only the first one goes on with its own.
func TestAFullThatNothingFollowsDoesNotHideTheChainThatGoesOnAcrossIt(t *testing.T) {
	for where, revision := range map[string]int64{"within a segment": 25, "between two": 30} {
		t.Run(where, func(t *testing.T) {
			w := begin(t, sealtest.New(t).Load(t))
			w.segment(20)
			w.segment(30)
			w.again().gap(revision)
			check := func(to int64) {
				assert.Equal(t, w.next, w.head().Start)
				history := w.history()
				chains := history.Newest().Chains
				require.Len(t, chains, 1)
				assert.Equal(t, []int64{10, to}, []int64{chains[0].From, chains[0].To})
				assert.Equal(t, []bool{false, to > revision}, []bool{history.Newest().Fulls[0].Passed, history.Newest().Fulls[1].Passed})
				assert.Equal(t, revisions(11, to), w.restore(archive.Target{}).revisions)
				assert.Equal(t, revisions(11, 28), w.restore(archive.Target{Revision: 28}).revisions)
			}
			if revision < 30 {
				check(30)
			}
			w.segment(40)
			check(40)
			w.segment(50)
			check(50)
			w.merge(archive.Minute, w.objects(archive.Segment)...)
			check(50)
			w.full()
			w.segment(60)
			assert.Equal(t, []window{{10, 60, 2, 2}}, windows(w.history()))
		})
	}
}

// What begins with the second full is a chain of its own, whatever lies before it.
func TestAFullThatIsGoneOnFromBeginsAChainThoughASegmentReachesAcrossIt(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	other := w.again()
	w.segment(30)
	other.gap(25)
	other.segment(40)
	assert.Equal(t, []window{{10, 30, 1, 1}, {25, 40, 1, 1}}, windows(w.history()))
	assert.Equal(t, other.next, w.head().Start)
	assert.Equal(t, revisions(26, 40), w.restore(archive.Target{}).revisions)
}

func TestAFullThatWasPassedIsAWayToItsRevisionWhereNothingElseIs(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	w.segment(30)
	w.again().gap(25)
	w.segment(40)
	defer w.damage(archive.DataName(1, w.history().Newest().Fulls[0].Label), 999)()
	result, path, err := w.instead(archive.Target{Revision: 25})
	require.NoError(t, err)
	assert.EqualValues(t, 25, path.Revision)
	assert.EqualValues(t, 25, result.full)
}

// It ends a segment that cannot be read, so nobody knows whether that one reached across.
func TestADamagedSegmentPassesNothing(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	crossing := w.segment(30)
	w.again().gap(25)
	defer w.damage(archive.SegmentName(1, crossing.Position), 999)()
	path := w.find(archive.Target{})
	assert.EqualValues(t, 25, path.Revision)
}
