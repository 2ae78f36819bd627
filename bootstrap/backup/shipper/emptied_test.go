package shipper

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/backup/archive"
)

// empty deletes all that the store has.
func (s *stand) empty() {
	s.Helper()
	for object, err := range s.store.List(s.Context(), "", "") {
		require.NoError(s, err)
		require.NoError(s, s.store.Delete(s.Context(), object.Name))
	}
}

func TestAStoreThatIsEmptiedUnderARunningMemberIsBegunAnewAtTheNextWrites(t *testing.T) {
	s := begun(t)
	s.awaitStored(s.put("a", "1"))
	s.empty()
	s.eventually(func(f Facts) bool {
		s.put("a", "2")
		return f.Fulls == 2 && f.Broken == nil
	}, "another full begins another chain")
	s.awaitStored(s.put("a", "3"))
	s.requireAllKept()
	generation, err := archive.New(s.store, keys).GenerationOf(t.Context(), s.options.Etcd.ClusterID())
	require.NoError(t, err, "the birth certificate is there again")
	assert.Equal(t, 1, generation.Number)
	assert.Contains(t, s.log.String(), "the store was emptied")
	require.Eventually(t, func() bool { return s.reserved() >= archive.Margin }, patience, look, "so is the reservation")
}
