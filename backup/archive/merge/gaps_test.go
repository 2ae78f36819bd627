package merge

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
)

// lose deletes the segment of a revision.
func (w *writer) lose(revision int64) {
	w.Helper()
	require.NoError(w, w.store.Delete(w.Context(), archive.SegmentName(1, format.After(revision-1))))
}

func TestWhatIsMissingIsFoundOnceWhereverItLies(t *testing.T) {
	for name, lost := range map[string]int64{"within a minute": 4, "at its end": 7, "at its beginning": 8} {
		t.Run(name, func(t *testing.T) {
			w := newWriter(t)
			for range 18 { // a segment every ten seconds, the first of them of revision 2
				w.segment()
				w.sleep(10 * time.Second)
			}
			w.lose(lost)
			w.sleep(spell + 2*time.Minute)
			assert.Equal(t, 1, w.run().Holes)
			assert.Zero(t, w.run().Holes, "it is known")
			for range 4 {
				w.sleep(time.Hour)
				assert.Zero(t, w.run().Holes, "it is known")
			}
		})
	}
}

func TestNothingIsMissingWhereEverythingIsThere(t *testing.T) {
	w := newWriter(t)
	for i := range 360 {
		w.segment()
		w.sleep(20 * time.Second)
		if i%5 == 0 {
			require.Zero(t, w.run().Holes)
		}
		if i%50 == 0 {
			w.restart()
		}
	}
}

func TestNothingIsMissingWhereMembersHaveCutDifferently(t *testing.T) {
	object := func(level archive.Level, start, next int64) archive.Object {
		return archive.Object{Level: level, Generation: 1, Start: format.Position{Revision: start}, Next: format.Position{Revision: next}}
	}
	m := New(nil, time.Now)
	assert.Zero(t, m.newGaps(map[archive.Level][]archive.Object{
		archive.Segment: {{Level: archive.Segment, Generation: 1, Start: format.Position{Revision: 9}}},
		archive.Minute:  {object(archive.Minute, 1, 5), object(archive.Minute, 3, 9)},
		archive.Hour:    {object(archive.Hour, 1, 7)},
	}))
}
