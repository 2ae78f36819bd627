package recovery

import (
	"context"
	"iter"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/recovery/peers"
)

// allGone is a member of three that has lost its volume, as the others have.
func allGone(t *testing.T) (*world, *others) {
	t.Helper()
	w, o := ofThree(t)
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	o.listing = peers.Founding
	return w, o
}

// before is what a run is interrupted by in front of an action, once.
func before(action Action, happens func() error) func(Action) error {
	seen := false
	return func(next Action) error {
		if next != action || seen {
			return nil
		}
		seen = true
		return happens()
	}
}

// While the backup is built, or while this program is dead, the others may come back with what was taken for lost. They have written
// nothing since, so the store cannot tell.
func TestNothingIsClaimedOnceTheOthersAreBackWithTheirData(t *testing.T) {
	back := func(o *others) { o.listing = peers.Started }
	t.Run("while it is built", func(t *testing.T) {
		w, o := allGone(t)
		start, err := w.start(before(ClaimGeneration, func() error { back(o); return nil }))
		require.NoError(t, err)
		assert.Equal(t, takenIn, start)
		assert.Len(t, w.generations(), 1)
		assert.Empty(t, w.leftovers())
	})
	t.Run("while it is dead", func(t *testing.T) {
		w, o := allGone(t)
		require.ErrorIs(t, w.runWith(before(ClaimGeneration, func() error { return errCut })), errCut)
		back(o)
		start, err := w.start(nil)
		require.NoError(t, err)
		assert.Equal(t, takenIn, start)
		assert.Len(t, w.generations(), 1)
		assert.Empty(t, w.leftovers())
	})
}

func TestAClaimWaitsForWhoeverIsMissing(t *testing.T) {
	w, o := allGone(t)
	waits := 0
	w.options.Pause = func(context.Context, int) {
		if waits++; waits == 2 {
			o.listing = peers.Founding
		}
	}
	err := w.runWith(before(ClaimGeneration, func() error { o.listing = peers.Unknown; return nil }))
	require.NoError(t, err)
	assert.Equal(t, 2, waits)
	assert.Len(t, w.generations(), 2)
	assert.Contains(t, w.log.String(), "not every other member has said by now that it has no data of use: m-0 does not answer")
}

// Once it is in the store, nobody else can have it: the others wait for this member.
func TestWhatIsClaimedIsInstalledWhoeverIsMissing(t *testing.T) {
	w, o := allGone(t)
	require.ErrorIs(t, w.runWith(before(SetVolumeAside, func() error { return errCut })), errCut)
	require.Len(t, w.generations(), 2)
	o.listing = peers.Unknown
	require.NoError(t, w.run())
	keys, _ := w.keys()
	assert.Equal(t, []string{"key"}, keys)
	assert.Len(t, w.generations(), 2)
}

// forgetful is a store that lists nothing for a while.
type forgetful struct {
	store.Store
	forgets bool
}

func (f *forgetful) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	if f.forgets {
		return func(func(store.Object, error) bool) {}
	}
	return f.Store.List(ctx, prefix, after)
}

func TestAStoreThatDoesNotListWhatWasBegunIsAskedAgain(t *testing.T) {
	w := newWorld(t)
	w.used()
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	lists := &forgetful{Store: w.store}
	w.options.Archive = archive.New(lists, w.archive.Keys())
	w.options.Pause = func(context.Context, int) { lists.forgets = false }
	require.NoError(t, w.runWith(before(ClaimGeneration, func() error { lists.forgets = true; return nil })))
	assert.Len(t, w.generations(), 2)
	assert.Contains(t, w.log.String(), "does not list generation 2 yet")
}
