package recovery

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/recovery/seed"
)

// setAside has earlier recoveries leave data directories, and somebody one of his own.
func (w *world) setAside(times ...string) {
	w.t.Helper()
	for _, at := range append(times, "mine") {
		require.NoError(w.t, os.MkdirAll(filepath.Join(w.member.DataDir+".aside-"+at, "member"), 0o700))
	}
}

// left are the names of what is aside.
func (w *world) left() (names []string) {
	w.t.Helper()
	for _, path := range w.asides() {
		names = append(names, path[len(w.member.DataDir+".aside-"):])
	}
	return names
}

// runOn runs with a volume that has room when no more than so many old data directories are on it.
func (w *world) runOn(most int) error {
	r := w.recovery()
	r.measure = func(seed.Seed, restore.Source) error {
		if len(w.left())-1 > most {
			return fmt.Errorf("%w on the volume", restore.ErrNoRoom)
		}
		return nil
	}
	_, err := r.Run(w.t.Context(), w.member, w.examine)
	return err
}

// verify enters that the newest full was restored to test it.
func (w *world) verify() {
	w.t.Helper()
	history, err := w.archive.History(w.t.Context())
	require.NoError(w.t, err)
	fulls := history.Newest().Fulls
	full := fulls[len(fulls)-1]
	require.NoError(w.t, w.archive.PutResult(w.t.Context(), archive.Result{
		Cluster: full.Cluster, Generation: full.Generation, Full: full.Label, Revision: full.Revision, Outcome: archive.Verified, At: time.Now(),
	}))
}

const (
	oldest = "20260101T000000.000Z"
	older  = "20260102T000000.000Z"
	newest = "20260103T000000.000Z"
	future = "29990101T000000.000Z"
)

func TestWhatWasSetAsideStaysAsLongAsThereIsRoom(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.verify()
	w.setAside(oldest, older, newest)
	require.NoError(t, w.runOn(3))
	assert.Equal(t, []string{oldest, older, newest, "mine"}, w.left())
}

func TestWhatWasSetAsideGivesWayTheOldestFirst(t *testing.T) {
	for _, happens := range []func(*world){(*world).spoil, func(*world) {}} {
		w := newWorld(t)
		w.used()
		w.setAside(oldest, older, newest)
		happens(w)
		require.NoError(t, w.runOn(2))
		assert.NotContains(t, w.left(), oldest)
		assert.Subset(t, w.left(), []string{newest, "mine"})
		assert.Contains(t, w.log.String(), "what was set aside is deleted, as there is no room for it any more")
		assert.Contains(t, w.log.String(), w.member.DataDir+".aside-"+oldest)
	}
}

func TestTheNewestThatWasSetAsideStaysUntilAYoungerBackupWasVerified(t *testing.T) {
	for name, of := range map[string]struct {
		aside    string
		verified bool
		goes     bool
	}{
		"no backup is verified": {newest, false, false},
		"the backup is older":   {future, true, false},
		"a younger backup is":   {newest, true, true},
	} {
		w := newWorld(t)
		w.used()
		if of.verified {
			w.verify()
		}
		w.setAside(oldest, of.aside)
		require.NoError(t, os.RemoveAll(w.member.DataDir))
		err := w.runOn(0)
		assert.NotContains(t, w.left(), oldest, name)
		if of.goes {
			require.NoError(t, err, name)
			assert.NotContains(t, w.left(), of.aside, name)
			continue
		}
		require.ErrorContains(t, err, "not enough room", name)
		assert.Contains(t, w.left(), of.aside, name)
	}
}

// What is on the volume is in order, and etcd is not to wait for a store that nothing is needed from.
func TestAStartOnANearlyFullVolumeDoesNotWaitForAStoreThatHangs(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.verify()
	w.setAside(oldest, newest)
	require.NoError(t, os.MkdirAll(filepath.Join(w.options.VolumeDir, "spool.aside-"+newest), 0o700))
	w.options.Never, w.options.SpoolDir = true, filepath.Join(w.options.VolumeDir, "spool")
	w.store.Inject(memory.Fault{Hang: true})
	synctest.Test(t, func(t *testing.T) {
		w.t = t
		begun := time.Now()
		require.NoError(t, w.runOn(0))
		assert.LessOrEqual(t, time.Since(begun), 5*time.Second)
	})
	w.t = t
	assert.Equal(t, []string{newest, "mine"}, w.left())
}
