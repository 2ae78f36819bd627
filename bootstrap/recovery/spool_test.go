package recovery

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/aside"
	"etcd-wrapper/bootstrap/backup/rebuild"
	"etcd-wrapper/bootstrap/backup/store"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/recovery/peers"
	"etcd-wrapper/bootstrap/recovery/seed"
)

// leavesWaiting has the flush of a spool answer with these, one after the other, and counts how often it was asked for.
func (w *world) leavesWaiting(answers ...error) *int {
	asked := new(int)
	w.options.SpoolDir = filepath.Join(w.volume, "backup.spool")
	w.options.FlushSpool = func(context.Context, datadir.Standing) error {
		if *asked++; *asked <= len(answers) {
			return answers[*asked-1]
		}
		return nil
	}
	return asked
}

func TestWhatWaitsIsBroughtWhateverHasBecomeOfTheData(t *testing.T) {
	for name, disaster := range map[string]func(*world){
		"broken": (*world).spoil,
		"empty":  func(w *world) { require.NoError(w.t, os.RemoveAll(w.member.DataDir)) },
	} {
		w := newWorld(t)
		w.used()
		disaster(w)
		asked := w.leavesWaiting()
		w.options.FlushSpool = func(_ context.Context, stands datadir.Standing) error {
			*asked++
			assert.Zero(t, stands, "%s: there are no data of use", name)
			assert.Len(t, w.generations(), 1, name)
			return nil
		}
		require.NoError(t, w.run(), name)
		assert.Equal(t, 1, *asked, name)
	}
}

func TestWhatAValidVolumeHasNeedNotBeBrought(t *testing.T) {
	w := newWorld(t)
	w.used()
	want := stand(t, w.member.DataDir)
	w.leavesWaiting()
	var told datadir.Standing
	w.options.FlushSpool = func(_ context.Context, stands datadir.Standing) error { told = stands; return nil }
	require.NoError(t, w.run())
	assert.Equal(t, want, told)
}

func TestAStoreThatDoesNotTakeWhatWaitsForAMomentIsWaitedFor(t *testing.T) {
	for _, silence := range []error{&store.Unavailable{}, context.DeadlineExceeded, store.ErrDenied} {
		w := newWorld(t)
		w.used()
		require.NoError(t, os.RemoveAll(w.member.DataDir))
		pauses := 0
		w.options.Pause = func(context.Context, int) { pauses++; assert.Len(t, w.generations(), 1) }
		asked := w.leavesWaiting(silence, fmt.Errorf("segment: %w", silence))
		require.NoError(t, w.run())
		assert.Equal(t, 3, *asked)
		assert.Equal(t, 2, pauses)
		assert.Len(t, w.generations(), 2)
	}
}

func TestABrokenVolumeIsNotReplacedWhileWhatWaitsIsNotInTheStore(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.spoil()
	asked := w.leavesWaiting(&store.Unavailable{})
	require.ErrorContains(t, w.run(), "what waits for it on the volume")
	assert.Len(t, w.generations(), 1)
	require.NoError(t, w.run())
	assert.Equal(t, 2, *asked)
}

func TestSeveralWithoutDataOfUseBringWhatWaitsBeforeTheyAskTheStore(t *testing.T) {
	for _, listing := range []peers.Listing{peers.Gone, peers.Founding} {
		w, o := ofThree(t)
		require.NoError(t, os.RemoveAll(w.member.DataDir))
		o.listing = listing
		asked := w.leavesWaiting(&store.Unavailable{})
		require.NoError(t, w.run(), listing)
		assert.Equal(t, 2, *asked, listing)
	}
}

func TestWhatCannotBeAddedToTheStoreRefusesTheRestoreAndSaysWhatToDo(t *testing.T) {
	w := newWorld(t)
	w.used()
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	w.leavesWaiting(errors.New("it does not go on from there"))
	err := w.run()
	require.ErrorContains(t, err, "it does not go on from there")
	require.ErrorContains(t, err, "to go on without it move "+w.options.SpoolDir+" away")
	assert.Len(t, w.generations(), 1)
}

func TestWhatWaitedAndWasSetAsideGivesWayAsDataDo(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.leavesWaiting()
	at := func(path, when string) string {
		parsed, err := time.Parse("2006-01-02", when)
		require.NoError(t, err)
		name := aside.Name(path, parsed)
		require.NoError(t, os.Mkdir(name, 0o700))
		return name
	}
	first, second := at(w.options.SpoolDir, "2026-01-01"), at(w.options.SpoolDir, "2026-01-02")
	data := at(w.member.DataDir, "2026-01-03")
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	r := New(w.options)
	r.measure = func(seed.Seed, rebuild.Source) error {
		if _, err := os.Stat(first); err == nil {
			return fmt.Errorf("%w on the volume", rebuild.ErrNoRoom)
		}
		return nil
	}
	_, err := r.Run(t.Context(), w.member, w.examine)
	require.NoError(t, err)
	assert.NoDirExists(t, first)
	assert.DirExists(t, second)
	assert.DirExists(t, data)

	r.measure = func(seed.Seed, rebuild.Source) error { return fmt.Errorf("%w on the volume", rebuild.ErrNoRoom) }
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	_, err = r.Run(t.Context(), w.member, w.examine)
	require.ErrorContains(t, err, "not enough room")
	assert.DirExists(t, second, "the newest of each stays until a younger backup was verified")
	assert.DirExists(t, data)
}
