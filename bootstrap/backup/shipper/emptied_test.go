package shipper

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/store"
	"etcd-wrapper/bootstrap/backup/store/memory"
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

// leaking is a store that loses what is read.
type leaking struct{ store.Store }

func (l leaking) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	content, err := l.Store.Get(ctx, name, offset, length)
	if err == nil && name == "gen/000001/generation.json" {
		err = l.Delete(ctx, name)
	}
	return content, err
}

func TestAStoreThatIsEmptiedWhileItIsLookedAtIsLookedAtAgain(t *testing.T) {
	kept := memory.New()
	_, err := archive.New(kept, keys).Found(t.Context(), "c1", time.Now())
	require.NoError(t, err)
	for _, begin := range []bool{false, true} {
		_, err = found{archive: archive.New(leaking{kept}, keys)}.find(t.Context(), nil, "c1", begin, time.Now())
		require.ErrorIs(t, err, store.ErrNotFound)
	}
}
