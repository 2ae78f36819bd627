package archive_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/seal/sealtest"
	"etcd-wrapper/backup/format/segment"
	. "etcd-wrapper/backup/format/segment/segmenttest"
)

// Whatever lies behind the latest revision and cannot be read is told of, with how many revisions at least are lost.
func TestWhatCannotBeReadBehindTheLatestRevisionIsToldOf(t *testing.T) {
	for what, example := range map[string]struct {
		happens func(w *world)
		latest  int64
		lost    int64
		beyond  string // empty for nothing
	}{
		"nothing":         {func(*world) {}, 30, 0, ""},
		"the last object": {func(w *world) { w.damage(archive.SegmentName(1, segment.After(28)), 300) }, 28, 0, "damaged"},
		"merged objects in the middle": {func(w *world) {
			minutes := w.objects(archive.Minute)
			require.NoError(w.t, w.store.Delete(w.ctx, minutes[1].Name()))
		}, 14, 14, "the chain has a hole"},
		"a full's manifest behind a gap": {func(w *world) {
			w.segment(32)
			w.damage(archive.ManifestName(1, w.gap(40).Name()), 200)
		}, 32, 8, "damaged"},
		"a full behind a gap that failed its test": {func(w *world) {
			full := w.gap(40)
			require.NoError(w.t, w.PutVerdict(w.ctx, archive.Verdict{
				Cluster: cluster, Generation: 1, Full: full.Name(), Revision: 40, Outcome: archive.Failed, Why: "of a reason", At: At(41),
			}))
		}, 30, 10, "of a reason"},
	} {
		t.Run(what, func(t *testing.T) {
			w := begin(t, sealtest.New(t).Load(t))
			for last := int64(12); last <= 30; last += 2 {
				w.segment(last)
			}
			segments := w.objects(archive.Segment)
			w.merge(archive.Minute, segments[:2]...)
			w.merge(archive.Minute, segments[2:4]...)
			w.merge(archive.Minute, segments[4:6]...)
			example.happens(w)
			path := w.find(archive.Target{})
			assert.Equal(t, example.latest, path.Revision)
			assert.GreaterOrEqual(t, path.Lost(), example.lost)
			assert.LessOrEqual(t, path.Lost(), example.lost+2, "a name does not tell the last segment's end")
			if example.beyond == "" {
				assert.NoError(t, path.Beyond)
			} else {
				assert.ErrorContains(t, path.Beyond, example.beyond)
			}
			assert.Zero(t, w.find(archive.Target{Revision: example.latest}).Lost(), "it was asked for")
			assert.Equal(t, example.latest, w.find(archive.Target{Time: At(example.latest)}).Revision)
			for _, later := range []time.Duration{time.Millisecond, time.Hour} {
				_, err := w.Find(w.ctx, archive.Target{Time: At(example.latest).Add(later)})
				if example.beyond != "" {
					assert.ErrorIs(t, err, archive.ErrNotKept, "something came by then, perhaps")
				} else {
					assert.NoError(t, err)
				}
			}
		})
	}
}

// The manifest of the full is damaged with which a new chain began: names alone don't show that something lay between the segments.
func TestAtATimeWithinAHoleNothingIsKept(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	for last := int64(12); last <= 30; last += 2 {
		w.segment(last)
	}
	full := w.gap(40)
	w.segment(44)
	w.segment(46)
	w.damage(archive.ManifestName(1, full.Name()), 200)
	for revision, kept := range map[int64]bool{29: true, 30: true, 31: false, 35: false, 40: false, 42: false} {
		_, path, err := w.instead(archive.Target{Time: At(revision)})
		if !kept {
			assert.ErrorIs(t, err, archive.ErrNotKept, "revision %d", revision)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, revision, path.Revision)
	}
	result, path, err := w.instead(archive.Target{})
	require.NoError(t, err)
	assert.Equal(t, revisions(11, 30), result.revisions)
	require.ErrorIs(t, path.Beyond, seal.ErrDamaged)
	assert.GreaterOrEqual(t, path.Lost(), int64(14))
}

// A cluster that was restored and has not backed up anything yet is what was restored, and not what came after that.
func TestTheLatestOfAGenerationThatHasNothingIsWhatWasRestoredIntoIt(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(20)
	w.restoredTo(2, 14)
	path := w.find(archive.Target{})
	assert.EqualValues(t, 14, path.Revision)
	assert.Equal(t, 1, path.Generation.Number)
	assert.Zero(t, path.Lost(), "it was given up")
	assert.Equal(t, revisions(11, 14), w.restore(archive.Target{}).revisions)
	assert.EqualValues(t, 20, w.find(archive.Target{Generation: 1}).Revision)

	w.restoredTo(3, 17) // another one of the same parent: the newest counts
	assert.EqualValues(t, 17, w.find(archive.Target{}).Revision)
}

// Instead keeps to what was restored, too.
func TestWhereWhatWasRestoredCannotBeReadNothingElseIsTakenForIt(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	w.segment(20)
	w.restoredTo(2, 14)
	require.NoError(t, w.store.Delete(w.ctx, archive.SegmentName(1, segment.After(12))))
	_, _, err := w.instead(archive.Target{})
	assert.ErrorIs(t, err, archive.ErrNotKept)
}

// A generation whose fulls are all of no use is not one that has nothing.
func TestAGenerationThatCannotBeReadIsNotTakenForTheOneBefore(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(20)
	w.restoredTo(2, 14)
	full, err := archivetest.PutFull(w.ctx, w, archive.Full{
		Cluster: "restored2", Generation: 2, Revision: 1000, Chain: segment.Seed("restored2", 2, 1000), Time: At(30), Reason: "for a test",
	}, strings.NewReader("a database"))
	require.NoError(t, err)
	w.damage(archive.ManifestName(2, full.Name()), 200)
	_, err = w.Find(w.ctx, archive.Target{})
	require.ErrorIs(t, err, archive.ErrNotKept)
	require.ErrorIs(t, err, seal.ErrDamaged)
	assert.ErrorContains(t, err, "the latest revision is not kept")
}

// A key that was taken away is no damage, and is told before that.
func TestWhatNobodyTrustsIsTold(t *testing.T) {
	trusted, others := sealtest.New(t), sealtest.New(t)
	w := begin(t, trusted.Load(t))
	w.segment(12)
	foreign := w.again()
	foreign.Archive = archive.New(w.store, others.Load(t))
	foreign.segment(14)
	path := w.find(archive.Target{})
	assert.EqualValues(t, 12, path.Revision)
	require.ErrorIs(t, path.Beyond, seal.ErrUntrusted)
	assert.ErrorContains(t, path.Beyond, "--backup-trusted-keys")
	assert.ErrorContains(t, path.Beyond, archive.SegmentName(1, segment.After(12)))

	foreign.gap(30)
	path = w.find(archive.Target{})
	require.ErrorIs(t, path.Beyond, seal.ErrUntrusted)
	assert.EqualValues(t, 18, path.Lost())

	_, err := archive.New(w.store, &seal.Keys{}).Find(w.ctx, archive.Target{})
	require.NoError(t, err, "who trusts everybody sees nothing wrong")
	for _, kept := range w.history().Newest().Fulls {
		require.NoError(t, w.store.Delete(w.ctx, archive.ManifestName(1, kept.Label)))
	}
	foreign.full()
	_, err = w.Find(w.ctx, archive.Target{})
	require.ErrorIs(t, err, archive.ErrNotKept)
	assert.ErrorIs(t, err, seal.ErrUntrusted)
}

// restoredTo begins a generation that goes on from a revision of the first one.
func (w *world) restoredTo(number int, revision int64) {
	w.t.Helper()
	require.NoError(w.t, w.BeginGeneration(w.ctx, archive.Generation{
		Number: number, Cluster: "restored" + string(rune('0'+number)), Parent: 1, ParentRevision: revision, Created: At(25),
	}))
}
