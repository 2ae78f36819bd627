package archive_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

var first = archive.Generation{Number: 1, Cluster: cluster}

// ending returns the ending of a process that creates generation 2.
func ending(nonce string) format.Ending { return format.Ending{Successor: 2, Nonce: nonce, At: Noon} }

func TestEnd_blocksLaterSegments(t *testing.T) {
	w := begin(t, &format.Keys{}, 12)
	late := w.again()
	require.NoError(t, w.End(t.Context(), first, w.head(), "a", ending("a")))
	require.NotNil(t, w.head().Ending())
	assert.Equal(t, "a", w.head().Ending().Nonce)
	assert.EqualValues(t, 12, w.head().Revision())

	object := Segment(t, w.Keys(), late.next, format.Source{Member: "late"})
	require.ErrorIs(t, archivetest.PutSegment(t.Context(), w.Archive, object), store.ErrExists)

	assert.EqualValues(t, 12, w.restore(archive.Target{}).Revision, "readers of rows pass over it")
}

func TestEnd_onlyAtTheHeadThatWasRead(t *testing.T) {
	w := begin(t, &format.Keys{})
	read := w.head()
	w.segment(12)
	require.ErrorIs(t, w.End(t.Context(), first, read, "a", ending("a")), archive.ErrMoved)
	require.Nil(t, w.head().Ending())

	read = w.head()
	w.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable, ReplyLost: true, Times: 1})
	require.NoError(t, w.End(t.Context(), first, read, "a", ending("a")), "a reply that is lost is read back")
	require.NoError(t, w.End(t.Context(), first, read, "a", ending("a")), "it may be repeated")
	require.ErrorIs(t, w.End(t.Context(), first, read, "b", ending("b")), archive.ErrEnded)
	require.ErrorIs(t, w.End(t.Context(), first, w.head(), "b", ending("b")), archive.ErrEnded)
	assert.Equal(t, "a", w.head().Ending().Nonce)
}

// behind stores a full snapshot of revision 20 that starts a chain after a gap.
func (w *world) behind() archive.Full {
	const revision = 20
	w.t.Helper()
	next := w.head().Next(first)
	return w.put(archive.Full{Revision: revision, Chain: format.Seed(cluster, 1, revision), Behind: &next, Session: "writer"})
}

func TestOpen_takesThePositionOfTheEnd(t *testing.T) {
	w := begin(t, &format.Keys{}, 12)
	read, full := w.head(), w.behind()
	require.NotNil(t, w.head().Unlinked)
	require.NoError(t, w.Open(t.Context(), first, full, "writer"))
	require.NoError(t, w.Open(t.Context(), first, full, "another"), "whoever completes it says the same")
	assert.Nil(t, w.head().Unlinked)
	require.ErrorIs(t, w.End(t.Context(), first, read, "a", ending("a")), archive.ErrMoved)
	require.NoError(t, w.End(t.Context(), first, w.head(), "a", ending("a")))
	assert.EqualValues(t, 20, w.head().Revision())
	require.NotNil(t, w.head().Ending())
}

func TestOpen_positionIsTaken(t *testing.T) {
	for name, c := range map[string]struct {
		taken func(w *world, read archive.Head) error
		why   error
	}{
		"by the end":                        {func(w *world, read archive.Head) error { return w.End(w.ctx, first, read, "a", ending("a")) }, archive.ErrEnded},
		"by the end of one who has read it": {func(w *world, _ archive.Head) error { return w.End(w.ctx, first, w.head(), "a", ending("a")) }, archive.ErrEnded},
		"by another writer":                 {func(w *world, _ archive.Head) error { w.segment(13); return nil }, archive.ErrMoved},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, &format.Keys{}, 12)
			read, full := w.head(), w.behind()
			require.NoError(t, c.taken(w, read))
			require.ErrorIs(t, w.Open(t.Context(), first, full, "writer"), c.why)
			if errors.Is(c.why, archive.ErrEnded) {
				require.NotNil(t, w.head().Ending(), "the full is there, and counts for nobody")
			} else {
				require.EqualValues(t, 10, w.head().Full.Revision)
			}
		})
	}
}

func TestEnd_generationWithoutAFull(t *testing.T) {
	w := begin(t, &format.Keys{})
	second := archive.Generation{Number: 2, Cluster: "c2", Parent: 1, ParentRevision: 10, Session: "a", Created: Noon}
	require.NoError(t, w.BeginGeneration(t.Context(), second))
	head, err := w.Head(t.Context(), 2)
	require.NoError(t, err)
	assert.Equal(t, archive.Origin, head.Next(second).Position)
	require.NoError(t, w.End(t.Context(), second, head, "b", format.Ending{Successor: 3, Nonce: "b", At: Noon}))
	head, err = w.Head(t.Context(), 2)
	require.NoError(t, err)
	require.NotNil(t, head.Ending())
	assert.True(t, head.Empty())
}
