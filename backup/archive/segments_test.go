package archive_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
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

func TestMerge_refusesHolesAndDamage(t *testing.T) {
	w := begin(t, &format.Keys{}, 11, 12, 13)
	segments := w.objects(archive.Segment)
	for name, sources := range map[string][]archive.Object{
		"nothing": nil, "a hole": {segments[0], segments[2]}, "backwards": {segments[1], segments[0]}, "twice": {segments[0], segments[0]},
	} {
		_, err := w.Merge(w.ctx, archive.Minute, sources)
		assert.Error(t, err, name)
	}
	stranger := Build(t, w.Keys(), format.Start{Cluster: cluster, Generation: 1, Position: w.next.Position}, Rows(14, 14))
	require.NoError(t, archivetest.PutSegment(w.ctx, w.Archive, stranger))
	_, err := w.Merge(w.ctx, archive.Minute, w.objects(archive.Segment))
	assert.ErrorIs(t, err, archive.ErrHole, "its digest goes on from something else")
	w.restart()
	repair := w.damage(segments[1].Name(), 8*1000)
	_, err = w.Merge(w.ctx, archive.Minute, segments)
	assert.ErrorIs(t, err, archive.ErrHole)
	assert.ErrorIs(t, err, format.ErrDamaged)
	assert.ErrorContains(t, err, segments[1].Name())
	repair()
	require.NoError(t, w.store.Delete(w.ctx, segments[1].Name()))
	_, err = w.Merge(w.ctx, archive.Minute, segments)
	assert.ErrorIs(t, err, store.ErrNotFound)
	broken := errors.New("broken")
	w.store.Inject(memory.Fault{Op: memory.Put, Err: broken})
	_, err = w.Merge(w.ctx, archive.Minute, segments[:1])
	assert.ErrorIs(t, err, broken)
	assert.Empty(t, w.names("gen/000001/minute/"), "nothing was made of that")
}

func TestMerge_mayBeRepeated(t *testing.T) {
	w := begin(t, NewKeys(t).Load(t), 11, 12)
	segments := w.objects(archive.Segment)
	w.store.Inject(memory.Fault{Op: memory.Put, Times: 1, Err: memory.ErrLostReply, ReplyLost: true})
	first, err := w.Merge(w.ctx, archive.Minute, segments)
	require.NoError(t, err)
	again, err := w.Merge(w.ctx, archive.Minute, segments)
	require.NoError(t, err)
	assert.Equal(t, first, again)
	content, exists := w.store.Content(first.Name())
	require.True(t, exists)
	assert.EqualValues(t, len(content), first.Size)
	assert.Equal(t, segments[0].Size+segments[1].Size, first.Size, "verbatim")
	w.merge(archive.Minute, segments...)
	assert.Equal(t, revisions(11, 12), w.restore(archive.Target{}).revisions)
}

// Two members each started a chain, and the chains overlap. A merged object would hide the segments that start within
// it.
func TestMerge_refusesOverlappingChains(t *testing.T) {
	w := begin(t, &format.Keys{})
	other := w.again()
	w.segment(20)
	other.gap(15)
	other.segment(25)
	w.segments(30, 40)
	segments := w.objects(archive.Segment)
	for _, sources := range [][]archive.Object{segments[:1], segments[1:2]} {
		_, err := w.Merge(w.ctx, archive.Minute, sources)
		assert.ErrorIs(t, err, archive.ErrHole)
	}
	minute, err := w.Merge(w.ctx, archive.Minute, segments[2:])
	assert.NoError(t, err, "nothing begins within these")
	other.segment(35)
	_, err = w.Merge(w.ctx, archive.Hour, []archive.Object{minute.Object})
	assert.NoError(t, err, "what starts within a minute counts as merged")
}

// A slow writer creates a segment at a position that was already merged and deleted. The late segment must not become
// part of a merged object that spans the original segments.
func TestMerge_refusesAnotherSegmentAtAMergedPosition(t *testing.T) {
	for name, test := range map[string]struct {
		last    int64 // of the late segment
		sources int   // number of objects to merge, which end with the late segment
	}{"another range": {12, 2}, "the same start": {12, 1}, "the same end": {13, 2}} {
		for _, level := range []archive.Level{archive.Minute, archive.Hour} {
			t.Run(fmt.Sprint(name, " ", level), func(t *testing.T) {
				w := begin(t, NewKeys(t).Load(t), 11)
				late := w.again()
				w.segments(11, 13, 14)
				segments := w.objects(archive.Segment)
				right := w.merge(level, segments[1:3]...)
				late.segment(test.last)
				before := w.names("gen/000001/minute/")
				sources := w.objects(archive.Segment)[2-test.sources : 2]
				_, err := w.Merge(w.ctx, archive.Minute, sources)
				require.ErrorIs(t, err, archive.ErrHole)
				assert.ErrorContains(t, err, right.Name()+" and ")
				assert.ErrorContains(t, err, " contain different segments")
				assert.Equal(t, before, w.names("gen/000001/minute/"))
				assert.Equal(t, revisions(11, 14), w.restore(archive.Target{}).revisions)

				w.store.SetContent(right.Name(), []byte("only a name"))
				w.restart()
				_, err = w.Merge(w.ctx, archive.Minute, sources)
				assert.NoError(t, err, "a name stops nothing")
			})
		}
	}
}

// The page must describe every field of a statement.
func TestFormatPage_hasEveryField(t *testing.T) {
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", "backup-format.md"))
	require.NoError(t, err)
	_, page, _ := strings.Cut(string(content), "### Cluster, generation, reservation and result")
	page, segments, _ := strings.Cut(page, "## Segments")
	require.NotEmpty(t, segments)
	for begins, statement := range map[string]any{
		"`cluster.json` is the first": archive.Cluster{}, "The history consists of": archive.Generation{}, "A reservation has these fields": archive.Reservation{},
		"A result describes": archive.Result{}, "## Full snapshots": archive.Full{},
	} {
		_, table, found := strings.Cut(page, begins)
		require.True(t, found, begins)
		_, table, _ = strings.Cut(table, "|---|---|\n")
		table, _, _ = strings.Cut(table, "\n\n")
		of := reflect.TypeOf(statement)
		for _, field := range reflect.VisibleFields(of) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name != "" && len(field.Index) == 1 {
				assert.Contains(t, table, fmt.Sprintf("`%s`", name), "%s.%s", of, field.Name)
			}
		}
	}
}
