package recovery

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/recovery/peers"
)

// noted is a world in which a restore to revision 2 was about to be claimed, when the store went away and the pod was stopped.
func noted(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.used()
	w.put("a mistake")
	w.backUp(1)
	w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := w.startWithin(ctx, func(action Action) error {
		if action == ClaimGeneration {
			w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
			cancel()
		}
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	w.store.Heal()
	require.Len(t, w.generations(), 1)
	return w
}

func TestARestoreThatWasAboutToBeClaimedIsDoneOnlyIfNothingHasChanged(t *testing.T) {
	for name, of := range map[string]struct {
		happens func(*world)
		keys    []string
	}{
		"nothing":                 {func(*world) {}, []string{"key"}},
		"etcd has served since":   {func(w *world) { w.put("acknowledged since"); w.options.Request, w.options.Never = nil, true }, []string{"a mistake", "acknowledged since", "key"}},
		"it is not asked for now": {func(w *world) { w.options.Request = nil }, []string{"a mistake", "key"}},
		"another one is":          {func(w *world) { w.options.Request.Target = archive.Target{Revision: 3} }, []string{"a mistake", "key"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := noted(t)
			of.happens(w)
			require.NoError(t, w.run())
			keys, _ := w.keys()
			assert.Equal(t, of.keys, keys)
			assert.Empty(t, w.leftovers())
		})
	}
}

// Only the store tells whether it was claimed.
func TestARestoreThatWasBegunIsNotGoneOnWithWithoutAStore(t *testing.T) {
	w, o := ofThree(t)
	o.listing = peers.Asking
	w.options.Request = &Request{Target: archive.Target{}, ID: "drop"}
	require.ErrorIs(t, w.runWith(func(action Action) error {
		if action == ClaimGeneration {
			return errCut
		}
		return nil
	}), errCut)
	w.options.Archive, w.options.Request = nil, nil
	o.listing = peers.Started
	err := w.run()
	var refusal *Refusal
	require.ErrorAs(t, err, &refusal)
	assert.True(t, refusal.Final)
	require.ErrorContains(t, err, "start with --backup-store")
	assert.Empty(t, w.asides())
	require.NoError(t, os.Remove(w.volume+"/"+positionFile), "the way out")
	require.NoError(t, w.run())
	keys, _ := w.keys()
	assert.Equal(t, []string{"key"}, keys)
}
