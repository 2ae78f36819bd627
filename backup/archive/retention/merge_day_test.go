package retention

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/memory"
)

// asked is how often the store was asked for something, in a function.
func (w *writer) asked(op memory.Op, do func()) (times int) {
	w.Helper()
	before := len(w.store.Calls())
	do()
	for _, call := range w.store.Calls()[before:] {
		if call.Op == op {
			times++
		}
	}
	return times
}

// fetches is how many objects are read on the way to a revision.
func (w *writer) fetches(revision int64) int {
	w.Helper()
	return w.asked(memory.Get, func() {
		path, err := w.archive.Find(w.Context(), archive.Target{Revision: revision})
		require.NoError(w, err)
		reading, err := w.archive.Read(w.Context(), path, func(format.Row) error { return nil })
		require.NoError(w, err)
		require.Equal(w, revision, reading.Revision)
	})
}

// A restore fetches some tens of objects of the thousands that were stored; at the worst, before an hour becomes one object, twice as
// many: its minutes, and the segments of the last two.
func TestOfThousandsOfSegmentsTensOfObjectsAreFetched(t *testing.T) {
	w := newWriter(t)
	most := 0
	for second := 0; second < 70*60; second += 2 {
		w.segment()
		w.sleep(2 * time.Second)
		if second%60 == 0 {
			w.run()
		}
		if second%(8*60) == 0 {
			most = max(most, w.fetches(w.start.Position.Revision-1))
		}
	}
	assert.Less(t, most, 140, "of the latest, whenever it is")
	assert.Less(t, w.fetches(w.start.Position.Revision/2), 20, "half an hour ago")
	listed := 0
	for range w.store.List(t.Context(), "gen/000001/", "") {
		listed++
	}
	assert.Less(t, listed, 400, "of 2,100")
}
