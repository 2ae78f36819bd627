package writer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
)

func TestAStoreOfAnotherClusterIsNotTouched(t *testing.T) {
	s := newStand(t)
	_, err := archive.New(s.store, keys).Found(t.Context(), archive.Cluster{Cluster: "beef", Created: time.Now()})
	require.NoError(t, err)
	s.run()
	s.requireUntouched("beef", clusterID)
}

// names are those of all objects.
func (s *stand) names() (found []string) {
	s.Helper()
	for object, err := range s.store.List(s.Context(), "", "") {
		require.NoError(s, err)
		if !strings.HasPrefix(object.Name, "probe/") { // which shows what a store can, and goes at once
			found = append(found, object.Name)
		}
	}
	return found
}

// requireUntouched says that nothing is written, and why.
func (s *stand) requireUntouched(sentence ...string) {
	s.Helper()
	before := s.names()
	s.eventually(func(f Facts) bool { return f.Trouble != nil && f.Role == Unknown }, "it is said")
	for _, part := range sentence {
		assert.Contains(s, s.Facts().Trouble.Text, part)
	}
	assert.Contains(s, s.Facts().Trouble.Text, "--backup-store")
	s.put("a", "1")
	require.ErrorContains(s, s.Flush(s.Context()), sentence[0])
	_, err := s.FullNow(s.Context(), "asked for")
	require.Error(s, err)
	assert.Equal(s, before, s.names())
	assert.Equal(s, Unknown, s.Facts().Role)
}

func TestAGenerationThatWasRestoredFromIsNotExtended(t *testing.T) {
	s := begun(t)
	s.end()
	a := archive.New(s.store, keys)
	require.NoError(t, a.BeginGeneration(t.Context(), archive.Generation{Number: 2, Cluster: clusterID, Parent: 1, ParentRevision: 1, Created: time.Now()}))
	s.run()
	s.requireUntouched("generation 2", clusterID)
}

// other stores a segment of one row as a member with another history would.
func (s *stand) other(rows ...format.Row) {
	s.Helper()
	a := archive.New(s.store, keys)
	generation, err := a.GenerationOf(s.Context(), clusterID)
	require.NoError(s, err)
	head, err := a.Head(s.Context(), generation.Number)
	require.NoError(s, err)
	builder, err := format.NewSegmentBuilder(keys, head.Start)
	require.NoError(s, err)
	for _, row := range rows {
		require.NoError(s, builder.Row(row))
	}
	object, err := builder.Finish(format.Source{Member: "1"})
	require.NoError(s, err)
	require.NoError(s, archivetest.PutSegment(s.Context(), a, object))
}

func TestDataThatTookAnotherWayThanItsBackupsIsNotMixedWithThem(t *testing.T) {
	s := begun(t)
	s.end()
	own := s.current()
	row := own[len(own)-1]
	row.Key[7]++ // the revision behind the last
	row.Value = []byte("of another history")
	s.other(row)
	last := s.put("a", "of this one")
	s.run()
	s.requireUntouched(fmt.Sprintf("revision %d", last), "another copy of these data")
}

func TestDataThatIsOlderThanItsBackupsIsNotMixedWithThem(t *testing.T) {
	s := begun(t)
	s.end()
	own := s.current()
	row := own[len(own)-1]
	row.Key[7] += 100
	s.other(row)
	s.run()
	s.requireUntouched("another copy of these data", fmt.Sprint("data end at revision ", s.etcd.Revision()))
}
