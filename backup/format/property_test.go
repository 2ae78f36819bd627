package format_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
)

// history generates rows from revision 7 on, grouped by revision: transactions, tombstones, and revisions without
// rows.
func history(t *rapid.T) (revisions [][]format.Row) {
	revision := int64(6)
	for range rapid.IntRange(0, 12).Draw(t, "revisions") {
		revision += rapid.Int64Range(1, 3).Draw(t, "step")
		var rows []format.Row
		for sub := range rapid.Int64Range(1, 3).Draw(t, "changes") {
			row := Row(revision, sub, rapid.StringN(0, 20, 40).Draw(t, "value"))
			if rapid.Bool().Draw(t, "deleted") {
				row = tombstone(revision, sub, string(row.Value))
			}
			rows = append(rows, row)
		}
		revisions = append(revisions, rows)
	}
	return revisions
}

// cut splits a history into segments at random revisions.
func cut(t *rapid.T, tb testing.TB, keys *format.Keys, revisions [][]format.Row) (segments []format.Object) {
	next := start()
	for len(revisions) > 0 {
		n := rapid.IntRange(0, len(revisions)).Draw(t, "revisions of a segment")
		var rows []format.Row
		for _, revision := range revisions[:n] {
			rows = append(rows, revision...)
		}
		object := Build(tb, keys, next, rows)
		segments, revisions, next = append(segments, object), revisions[n:], object.Start()
	}
	return segments
}

func TestChain_doesNotDependOnSegmentBoundaries(t *testing.T) {
	keys := NewKeys(t).Load(t)
	rapid.Check(t, func(rt *rapid.T) {
		revisions := history(rt)
		first, second := cut(rt, t, keys, revisions), cut(rt, t, keys, revisions)
		if len(revisions) == 0 {
			return
		}
		one, other := first[len(first)-1], second[len(second)-1]
		assert.Equal(t, one.After, other.After)
		assert.Equal(t, one.Last, other.Last)
		assert.Equal(t, text(join(revisions)), text(rowsOf(t, keys, first)))
		assert.Equal(t, text(join(revisions)), text(rowsOf(t, keys, second)))
	})
}

func TestChain_differsForDifferentRows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		revisions := append(history(rt), []format.Row{Row(1000, 0, "last")})
		before := Build(t, &format.Keys{}, start(), join(revisions))
		changed := rapid.IntRange(0, len(revisions)-1).Draw(rt, "changed")
		i := rapid.IntRange(0, len(revisions[changed])-1).Draw(rt, "row")
		if rapid.Bool().Draw(rt, "removed") {
			revisions[changed] = append(revisions[changed][:i:i], revisions[changed][i+1:]...)
		} else {
			revisions[changed][i].Value = append([]byte("x"), revisions[changed][i].Value...)
		}
		assert.NotEqual(t, before.After, Build(t, &format.Keys{}, start(), join(revisions)).After)
	})
}

func join(revisions [][]format.Row) (rows []format.Row) {
	for _, revision := range revisions {
		rows = append(rows, revision...)
	}
	return rows
}

// text formats rows for comparison, because an empty value may be nil.
func text(rows []format.Row) (lines []string) {
	for _, row := range rows {
		lines = append(lines, fmt.Sprintf("%x %q", row.Key, row.Value))
	}
	return lines
}

// rowsOf reads concatenated segments, as in a merged object.
func rowsOf(t testing.TB, keys *format.Keys, segments []format.Object) (rows []format.Row) {
	t.Helper()
	var readers []io.Reader
	for _, object := range segments {
		readers = append(readers, object.Reader())
	}
	read, err := readAll(io.MultiReader(readers...), keys)
	require.NoError(t, err)
	require.Len(t, read, len(segments))
	for _, one := range read {
		rows = append(rows, one.rows...)
	}
	return rows
}
