package recovery

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// disasters are what can have happened to a volume, and how it ends.
var disasters = map[string]struct {
	happens func(*world)
	keys    []string
	asides  int
}{
	"lost":        {func(w *world) { require.NoError(w.t, os.RemoveAll(w.member.DataDir)) }, []string{"a", "key"}, 0},
	"broken":      {(*world).spoil, []string{"a", "key"}, 1},
	"rolled back": {(*world).rollBack, []string{"a", "key"}, 1},
	"going back": {func(w *world) {
		w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	}, []string{"key"}, 1},
}

// everywhere has runs cut off, and requests fail, at every place; otherwise some are tried. make test-recovery sets it.
var everywhere = flag.Bool("everywhere", false, "cut recovery off at every place")

// some is how far apart places are that are tried.
func some(apart int) int {
	if *everywhere {
		return 1
	}
	return apart
}

// stricken is a world in which that has happened.
func stricken(t *testing.T, disaster string) *world {
	w := newWorld(t)
	w.used()
	w.older = filepath.Join(t.TempDir(), "older")
	require.NoError(t, os.CopyFS(w.older, os.DirFS(w.member.DataDir)))
	w.put("a")
	w.backUp(1)
	disasters[disaster].happens(w)
	return w
}

// Wherever it is cut off, the next run comes to the same end.
func TestARunThatIsCutOffInFrontOfAnyActionIsBroughtToItsEnd(t *testing.T) {
	for name, disaster := range disasters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at := 0; ; at += some(3) {
				w := stricken(t, name)
				seen := 0
				err := w.runWith(func(Action) error {
					if seen++; seen > at {
						return errCut
					}
					return nil
				})
				if err == nil {
					require.Greater(t, at, 8, "there is something to cut off")
					return
				}
				require.ErrorIs(t, err, errCut)
				require.NoError(t, w.run())
				w.requireEnd(disaster.keys, disaster.asides)
			}
		})
	}
}

// Each request to the store fails once, with and without being done.
func TestAStoreThatFailsAtAnyRequestChangesNothingAboutTheEnd(t *testing.T) {
	for name, disaster := range disasters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at, more := 0, true; more; at += some(11) {
				for _, lost := range []bool{false, true} {
					w := stricken(t, name)
					begun := len(w.store.Calls())
					w.store.Inject(memory.Fault{After: at, Times: 1, Err: store.ErrUnavailable, ReplyLost: lost})
					if err := w.run(); err != nil {
						require.ErrorIs(t, err, store.ErrUnavailable)
						require.NoError(t, w.run())
					}
					more = len(w.store.Calls())-begun > at
					w.requireEnd(disaster.keys, disaster.asides)
				}
			}
		})
	}
}
