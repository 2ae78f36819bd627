package retention

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/memory"
)

// plant puts an object that has a merged object's name and nothing of what the name says.
func (w *writer) plant(level archive.Level, from, to format.Position, content string) {
	w.store.SetContent(fmt.Sprintf("%s%s/%s_%s", archive.GenerationPrefix(1), level, from, to), []byte(content))
}

// later merges until everything is merged, and deleted, that may be.
func (w *writer) later() {
	for range 5 {
		w.sleep(2 * archive.Grace)
		w.run()
	}
}

// Whoever may only put objects must not be able to have others deleted by what they are called.
func TestANameAloneDeletesNothing(t *testing.T) {
	everything := format.Position{Revision: 9_000_000_000_000_000_000}
	for _, level := range []archive.Level{archive.Minute, archive.Hour} {
		t.Run(string(level), func(t *testing.T) {
			w := newWriter(t)
			w.plant(level, format.Position{Revision: 2}, everything, "x")
			w.write(2 * time.Hour)
			w.later()
			last := w.start.Position.Revision - 1
			for _, revision := range []int64{2, 3, last / 2, last} {
				w.requireWhole(revision)
			}
			assert.Less(t, len(w.objects(archive.Segment)), 10, "what is merged is deleted all the same")
		})
	}
}

// An object that holds true segments, but not all that its name covers, is not what they were merged to.
func TestOnlyWhatWasReadInTheMergedObjectIsDeleted(t *testing.T) {
	w := newWriter(t)
	w.segment()
	w.segment()
	segments := w.objects(archive.Segment)
	first, there := w.store.Content(segments[0].Name())
	require.True(t, there)
	w.plant(archive.Minute, segments[0].Start, format.Position{Revision: 900}, string(first))
	for range 3 {
		w.segment()
	}
	w.later()
	w.requireWhole(6)
}

// The segment beside the merged object is not the one that was merged: nobody knows which of the two is right.
func TestASegmentThatDiffersFromTheMergedOneStays(t *testing.T) {
	w := newWriter(t)
	w.segment()
	w.segment()
	w.segment()
	w.sleep(spell + 2*time.Minute)
	require.Equal(t, 1, w.run().Merged)
	second := w.objects(archive.Segment)[1].Name()
	w.store.SetContent(second, []byte("something else"))
	w.restart()
	w.run()
	w.later()
	_, there := w.store.Content(second)
	assert.True(t, there)
	w.requireWhole(4)
}

func TestWhatThisProcessHasMergedIsNotReadAgain(t *testing.T) {
	w := newWriter(t)
	for range 6 {
		w.segment()
	}
	w.sleep(spell + 2*time.Minute)
	w.run()
	w.sleep(2 * archive.Grace)
	assert.Zero(t, w.asked(memory.Get, func() { require.Equal(t, 5, w.run().Deleted) }))
}

// A process that has just started knows of nobody's reading, and reads both.
func TestAnotherMembersMergeIsReadBeforeItsSourcesGo(t *testing.T) {
	w := newWriter(t)
	for range 6 {
		w.segment()
	}
	w.sleep(spell + 2*time.Minute)
	w.run()
	w.restart()
	w.run()
	w.sleep(2 * archive.Grace)
	assert.Equal(t, 5, w.run().Deleted)
	w.requireWhole(7)
}

// However often the merger runs: what was read is remembered.
func TestThousandsOfNamesAreReadAFewTimesEach(t *testing.T) {
	const names = 1000
	w := newWriter(t)
	w.write(10 * time.Minute)
	for i := range names {
		w.plant(archive.Hour, format.Position{Revision: 2}, format.Position{Revision: int64(100_000 + i)}, "x")
	}
	asked := w.asked(memory.Get, func() {
		w.later()
		w.requireWhole(w.start.Position.Revision - 1)
	})
	assert.Less(t, asked, 5*names, "by the merger, and by who reads")
}
