package writer

import (
	"context"
	"fmt"
	"io"
	"iter"
	"regexp"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// hiding is a store whose listings lack some objects.
type hiding struct {
	store.Store
	hides atomic.Pointer[regexp.Regexp] // the names of these; nil hides none
}

func (h *hiding) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		for object, err := range h.Store.List(ctx, prefix, after) {
			if hides := h.hides.Load(); err == nil && hides != nil && hides.MatchString(object.Name) {
				continue
			}
			if !yield(object, err) {
				return
			}
		}
	}
}

func TestAListingThatLacksWhatIsThereBeginsNothingAnew(t *testing.T) {
	for name, hidden := range map[string]string{"everything": "", "every full": "/full/", "all behind the full": "/(segment|minute)/"} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			h := &hiding{Store: s.store}
			s.options.Open = func(context.Context) (*archive.Archive, error) { return archive.New(h, keys), nil }
			s.run()
			for i := range 3 {
				s.awaitStored(s.put("a", fmt.Sprint(i)))
			}
			s.mergeAll()
			h.hides.Store(regexp.MustCompile(hidden))
			require.NoError(t, s.tell(t.Context(), func() { s.take(t.Context(), expired, payload{}) }))
			s.eventually(func(f Facts) bool { return f.Trouble != nil }, "it is said")
			assert.Contains(t, s.Facts().Trouble.Text, "its listing ends at revision")
			assert.Contains(t, s.Facts().Trouble.Text, " is there")
			last := s.put("a", "meanwhile")
			s.BeforeCompaction(t.Context())
			s.compact(last)
			h.hides.Store(nil)
			s.awaitStored(last)
			require.NoError(t, s.Flush(t.Context()))
			s.requireChains(1)
			assert.EqualValues(t, 1, s.Facts().Fulls)
			assert.NotContains(t, s.log.String(), "the store was emptied")
		})
	}
}

// The spool keeps the last segment that was stored: a member that has just started goes by that.
func TestAListingThatLacksWhatAFormerLifeHasStoredIsNotBelieved(t *testing.T) {
	s := newStand(t)
	h := &hiding{Store: s.store}
	s.options.Open = func(context.Context) (*archive.Archive, error) { return archive.New(h, keys), nil }
	s.run()
	for i := range 3 {
		s.awaitStored(s.put("a", fmt.Sprint(i)))
	}
	require.NoError(t, s.Flush(t.Context()))
	s.end()
	s.mergeAll()
	h.hides.Store(regexp.MustCompile("/(segment|minute)/"))
	s.run()
	s.eventually(func(f Facts) bool { return f.Trouble != nil }, "it is said")
	assert.Contains(t, s.Facts().Trouble.Text, "its listing ends at revision")
	h.hides.Store(nil)
	s.awaitStored(s.put("a", "afterwards"))
	require.NoError(t, s.Flush(t.Context()))
	s.requireChains(1)
	s.requireAllKept()
}

func TestASegmentThatWasKnownAndIsAnotherClustersByNowIsGone(t *testing.T) {
	s := begun(t)
	require.NoError(t, s.Flush(t.Context()))
	s.end()
	generation, head := s.newest()
	for cluster, gone := range map[string]bool{clusterID: false, "beef": true} {
		object := segmentAt(t, format.Start{Cluster: cluster, Generation: 1, Position: format.After(head.Revision() + 5)})
		content, err := io.ReadAll(object.Reader())
		require.NoError(t, err)
		s.store.SetContent(archive.SegmentName(1, object.Position), content)
		h := &hiding{Store: s.store}
		h.hides.Store(regexp.MustCompile(object.Position.String()))
		seen, err := found{archive: archive.New(h, keys), generation: generation, last: object.Position}.find(t.Context(), nil, "session", false)
		if gone {
			require.NoError(t, err)
			assert.Equal(t, head.Position, seen.head.Position, "the chain goes on from there")
		} else {
			require.ErrorContains(t, err, "its listing ends at revision")
		}
	}
}

// mergeAll merges all segments and deletes them but for the last, and what was merged as well: as if a listing's page were lost.
func (s *stand) mergeAll() {
	s.Helper()
	a := archive.New(s.store, keys)
	segments, err := a.Objects(s.Context(), 1, archive.Segment, format.Position{})
	require.NoError(s, err)
	require.Greater(s, len(segments), 1)
	_, err = a.Merge(s.Context(), archive.Minute, segments)
	require.NoError(s, err)
	for _, object := range segments[:len(segments)-1] {
		require.NoError(s, s.store.Delete(s.Context(), object.Name()))
	}
}
