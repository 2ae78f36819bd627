package recovery

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
)

// cutOff is a world in which a restore was cut off in front of an action.
func cutOff(t *testing.T, before Action) *world {
	t.Helper()
	w := newWorld(t)
	w.used()
	w.put("a")
	w.backUp(1)
	w.put("b")
	w.backUp(1)
	w.options.Request = &Request{Target: archive.Target{Revision: 3}, ID: "first"}
	require.ErrorIs(t, w.runWith(func(action Action) error {
		if action == before {
			return errCut
		}
		return nil
	}), errCut)
	return w
}

// What was asked for last is what etcd opens: later it would undo what was written meanwhile.
func TestAnotherRestoreThanTheOneThatWasCutOffIsDoneBeforeEtcdOpens(t *testing.T) {
	for _, before := range []Action{ClaimGeneration, SetVolumeAside, InstallData, Remember} {
		t.Run(string(before), func(t *testing.T) {
			t.Parallel()
			w := cutOff(t, before)
			w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "second"}
			require.NoError(t, w.run())
			keys, _ := w.keys()
			assert.Equal(t, []string{"key"}, keys)
			w.put("later")
			require.NoError(t, w.run())
			keys, _ = w.keys()
			assert.Equal(t, []string{"key", "later"}, keys)
		})
	}
}

func TestARestoreThatWasDoneIsSaidOnceAndIgnored(t *testing.T) {
	const said = "restore \\\"drop\\\" was done before"
	w := newWorld(t)
	w.used()
	w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	require.NoError(t, w.run())
	assert.NotContains(t, w.log.String(), said, "it was done now")
	w.put("later")
	for _, remembered := range []string{"on the volume", "in the store alone"} {
		w.log.Reset()
		w.options.Request.Target.Revision++ // whatever it asks for
		r := w.recovery()
		for range 2 {
			_, err := r.Run(t.Context(), w.member, w.examine)
			require.NoError(t, err)
		}
		assert.Equal(t, 1, strings.Count(w.log.String(), said), remembered)
		require.NoError(t, os.Remove(filepath.Join(w.volume, positionFile)))
	}
	keys, _ := w.keys()
	assert.Equal(t, []string{"key", "later"}, keys)
}

// The flags may stay: they must not be in the way of a volume that is lost a year later.
func TestARestoreThatWasDoneIsKnownWhenItsGenerationIsGone(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.put("a mistake")
	w.backUp(1)
	w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	require.NoError(t, w.run())
	w.backUp(2)
	for range 2 {
		require.NoError(t, os.RemoveAll(w.member.DataDir))
		require.NoError(t, os.Remove(filepath.Join(w.volume, positionFile)))
		require.NoError(t, w.run())
		all := w.generations()
		w.backUp(all[len(all)-1].Number)
		for _, old := range all[:len(all)-1] {
			w.forget(archive.GenerationPrefix(old.Number))
		}
	}
	keys, _ := w.keys()
	assert.Equal(t, []string{"key"}, keys)
	assert.Equal(t, []string{"drop"}, w.generations()[0].Restored)
}

// forget deletes what a retention lets go.
func (w *world) forget(prefix string) {
	w.t.Helper()
	for object, err := range w.store.List(w.t.Context(), prefix, "") {
		require.NoError(w.t, err)
		require.NoError(w.t, w.store.Delete(w.t.Context(), object.Name))
	}
}

// The store gets what a database has. Of an etcd that was killed the log has a moment more.
func TestWhatIsInTheLogAloneIsToldOfBeforeGoingBack(t *testing.T) {
	w := newWorld(t)
	w.used()
	committed, err := os.ReadFile(w.database())
	require.NoError(t, err)
	w.put("a", "b")
	require.NoError(t, os.WriteFile(w.database(), committed, 0o600))
	w.options.Flush = func(context.Context, string, datadir.Position) error { return nil }
	w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	require.NoError(t, w.run())
	assert.Contains(t, w.log.String(), "the last changes, up to 2, are in etcd's log alone")
	require.Len(t, w.asides(), 1)
}

// The kernel may have had no memory for the process that looks at what was built.
func TestWhatCouldNotBeLookedAtIsNotTakenForInvalid(t *testing.T) {
	w := cutOff(t, InstallData)
	verify := w.options.Validate
	w.options.Validate = func(context.Context, string, bootstrap.Mode) ([]string, error) { return nil, datadir.ErrUnable }
	err := w.run()
	var refusal *Refusal
	require.ErrorAs(t, err, &refusal)
	assert.False(t, refusal.Final)
	assert.DirExists(t, w.member.DataDir+restored, "it is claimed, and all there is")
	w.options.Validate = verify
	require.NoError(t, w.run())
	w.requireEnd([]string{"a", "key"}, 1)
	assert.Len(t, w.generations(), 2)
}

// Where neither a store nor others are asked, what seems to be an empty volume may be half of a restore.
func TestARestoreThatWasCutOffIsNoVolumeToBeginOn(t *testing.T) {
	for _, before := range []Action{ClaimGeneration, InstallData} {
		w := cutOff(t, before)
		w.options.Archive, w.options.Request = nil, nil
		err := w.run()
		var refusal *Refusal
		require.ErrorAs(t, err, &refusal, before)
		assert.True(t, refusal.Final)
		require.ErrorContains(t, err, "start with --backup-store")
	}
	w := cutOff(t, Remember)
	w.options.Archive, w.options.Request = nil, nil
	require.NoError(t, w.run(), "it is installed")
}
