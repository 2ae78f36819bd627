package archive_test

import (
	"context"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/seal/sealtest"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store"
)

func TestAHoleIsToldOfBehindTheChainThatItEnds(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	for last := int64(12); last <= 30; last += 2 {
		w.segment(last)
		if last == 24 {
			w.full()
		}
	}
	whole := w.history().Newest().Chains
	require.Len(t, whole, 1)
	require.NoError(t, whole[0].Behind)
	segments := w.objects(archive.Segment)
	w.merge(archive.Minute, segments[:2]...)
	lost := w.merge(archive.Minute, segments[2:4]...)
	require.NoError(t, w.store.Delete(w.ctx, lost.Name()))
	w.gap(40)
	w.segment(42)

	chains := w.history().Newest().Chains
	require.Len(t, chains, 3)
	assert.Equal(t, []window{{10, 14, 1, 1}, {24, 30, 1, 3}, {40, 42, 1, 1}}, windows(w.history()))
	require.ErrorIs(t, chains[0].Behind, archive.ErrHole)
	require.ErrorContains(t, chains[0].Behind, "nothing begins at "+segment.After(14).String())
	require.NoError(t, chains[1].Behind, "a chain that was begun anew is no hole")
	require.NoError(t, chains[2].Behind)
	for _, chain := range chains {
		require.NoError(t, chain.Beyond)
	}
}

// A segment's name does not tell where it ends.
func TestASegmentThatIsMissingBehindAnotherIsFoundByLooking(t *testing.T) {
	why := map[string]error{"missing": archive.ErrHole, "damaged": seal.ErrDamaged}
	for how := range why {
		t.Run(how, func(t *testing.T) {
			w := begin(t, sealtest.New(t).Load(t))
			for last := int64(12); last <= 30; last += 2 {
				w.segment(last)
				if last == 20 || last == 26 {
					w.full()
				}
			}
			whole, err := w.Examined(w.ctx)
			require.NoError(t, err)
			require.Len(t, whole.Newest().Chains, 1)
			for _, last := range []int64{16, 22} {
				name := archive.SegmentName(1, segment.After(last))
				if how == "missing" {
					require.NoError(t, w.store.Delete(w.ctx, name))
				} else {
					w.damage(name, 99)
				}
			}
			require.Len(t, w.history().Newest().Chains, 1, "by names alone")
			examined, err := w.Examined(w.ctx)
			require.NoError(t, err)
			chains := examined.Newest().Chains
			assert.Equal(t, []window{{10, 16, 1, 3}, {20, 22, 1, 1}, {26, 30, 1, 2}}, windows(examined))
			for i, chain := range chains {
				if i == len(chains)-1 {
					require.NoError(t, chain.Behind)
				} else {
					require.ErrorIs(t, chain.Behind, why[how])
				}
			}
			for _, chain := range chains {
				for revision := chain.From; revision <= chain.To; revision++ {
					result, path, err := w.instead(archive.Target{Revision: revision})
					require.NoError(t, err, "revision %d", revision)
					assert.EqualValues(t, revision, path.Revision)
					assert.Equal(t, chain.From, result.full)
				}
			}
		})
	}
}

// Where merging does not go on for a day there are as many of them as the day has seconds.
func TestASegmentIsExaminedOnce(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	for last := int64(12); last <= 30; last += 2 {
		w.segment(last)
	}
	var read atomic.Int32
	counting := archive.New(&reading{Store: w.store, first: func() { read.Add(1) }}, w.Keys())
	_, err := counting.Examined(w.ctx)
	require.NoError(t, err)
	require.EqualValues(t, 10, read.Swap(0))
	w.segment(32)
	segments := w.objects(archive.Segment)
	require.NoError(t, w.store.Delete(w.ctx, segments[4].Name()))
	examined, err := counting.Examined(w.ctx)
	require.NoError(t, err)
	assert.LessOrEqual(t, read.Load(), int32(4), "those whose neighbour has changed, and the last one of each chain")
	assert.Equal(t, []window{{10, 18, 1, 4}}, windows(examined))
}

// reading is a store in which something happens before the first segment is read.
type reading struct {
	store.Store
	first func()
}

func (r *reading) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if strings.Contains(name, "/segment/") {
		r.first()
	}
	return r.Store.Get(ctx, name, offset, length)
}

func TestWhatIsMergedWhileItIsExaminedIsNoHole(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	for last := int64(12); last <= 18; last += 2 {
		w.segment(last)
	}
	segments := w.objects(archive.Segment)
	merging := &reading{Store: w.store, first: sync.OnceFunc(func() { w.merge(archive.Minute, segments[:3]...) })}
	examined, err := archive.New(merging, w.Keys()).Examined(w.ctx)
	require.NoError(t, err)
	require.Len(t, examined.Newest().Chains, 1)
	require.NoError(t, examined.Newest().Chains[0].Behind)
}
