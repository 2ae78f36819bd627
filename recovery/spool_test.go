package recovery

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive/identity"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/internal/preserved"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/seed"
)

// leavesWaiting has the flush of a spool answer with these, one after the other, and counts how often it was asked for.
func (w *world) leavesWaiting(answers ...error) *int {
	asked := new(int)
	w.options.SpoolDir = filepath.Join(w.volume, "backup.spool")
	w.options.FlushSpool = func(context.Context, identity.Identity, int64) error {
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
		w.options.FlushSpool = func(_ context.Context, data identity.Identity, _ int64) error {
			*asked++
			assert.Zero(t, data, "%s: there are no data of use", name)
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
	w.leavesWaiting()
	var told identity.Identity
	var reaches int64
	w.options.FlushSpool = func(_ context.Context, data identity.Identity, reach int64) error {
		told, reaches = data, reach
		return nil
	}
	require.NoError(t, w.run())
	assert.Equal(t, identity.Identity{Cluster: ours, Generation: 1}, told)
	assert.Equal(t, stand(t, w.member.DataDir).HighestRevision, reaches)
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
	w.options.Pause = func(context.Context, int) { assert.Len(t, w.generations(), 1) }
	asked := w.leavesWaiting(&store.Unavailable{})
	require.NoError(t, w.run())
	assert.Contains(t, w.log.String(), "what waits for it on the volume")
	assert.Equal(t, 2, *asked)
	assert.Len(t, w.generations(), 2)
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

func TestWhatCannotBeBroughtIntoTheStoreRefusesTheRestoreAndSaysWhatToDo(t *testing.T) {
	for name, of := range map[string]struct {
		why    error
		status exitcode.Code // 0 if it is tried again
	}{
		"it does not go on from there":    {errors.New("it does not go on from there"), exitcode.EtcdFailed},
		"the store's last object is none": {fmt.Errorf("segment 7: %w", seal.ErrDamaged), exitcode.EtcdFailed},
		"the disk cannot be read":         {fmt.Errorf("segment 7: %w", syscall.EIO), exitcode.Clean},
		"it was merged at that moment":    {fmt.Errorf("segment 7: %w", store.ErrNotFound), exitcode.Clean},
		"others were always faster":       {fmt.Errorf("segment 7: %w", store.ErrExists), exitcode.Clean},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.used()
			require.NoError(t, os.RemoveAll(w.member.DataDir))
			w.leavesWaiting(of.why)
			err := w.run()
			require.ErrorIs(t, err, of.why)
			require.ErrorContains(t, err, "to go on without it move "+w.options.SpoolDir+" away")
			assert.Len(t, w.generations(), 1)
			assert.Equal(t, of.status, w.statusOf(err))
		})
	}
}

// Nothing is wrong with it, and it must not be moved away.
func TestWhatWaitsStaysWhereItIsWhileKeysAreLacking(t *testing.T) {
	for _, lacking := range []error{seal.ErrUntrusted, seal.ErrNoIdentity} {
		w := newWorld(t)
		w.used()
		w.spoil()
		w.leavesWaiting(fmt.Errorf("the last segment: %w", lacking))
		err := w.run()
		require.ErrorIs(t, err, lacking)
		require.ErrorContains(t, err, "add the key")
		require.NotContains(t, err.Error(), w.options.SpoolDir)
		assert.Equal(t, exitcode.EtcdFailed, w.statusOf(err))
		assert.Len(t, w.generations(), 1)
	}
}

// statusOf is what the program exits with because of a refusal; 0 if it tries again.
func (w *world) statusOf(err error) exitcode.Code {
	w.t.Helper()
	var refusal *Refusal
	require.ErrorAs(w.t, err, &refusal)
	return refusal.Status()
}

func TestWhatWaitedAndWasSetAsideGivesWayAsDataDo(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.leavesWaiting()
	at := func(path, when string) string {
		parsed, err := time.Parse("2006-01-02", when)
		require.NoError(t, err)
		name := preserved.Name(path, parsed)
		require.NoError(t, os.Mkdir(name, 0o700))
		return name
	}
	first, second := at(w.options.SpoolDir, "2026-01-01"), at(w.options.SpoolDir, "2026-01-02")
	data := at(w.member.DataDir, "2026-01-03")
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	r := w.recovery()
	r.measure = func(seed.Seed, restore.Source) error {
		if _, err := os.Stat(first); err == nil {
			return fmt.Errorf("%w on the volume", restore.ErrNoRoom)
		}
		return nil
	}
	_, err := r.Run(t.Context(), w.member, w.examine)
	require.NoError(t, err)
	assert.NoDirExists(t, first)
	assert.DirExists(t, second)
	assert.DirExists(t, data)

	r.measure = func(seed.Seed, restore.Source) error { return fmt.Errorf("%w on the volume", restore.ErrNoRoom) }
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	_, err = r.Run(t.Context(), w.member, w.examine)
	require.ErrorContains(t, err, "not enough room")
	assert.DirExists(t, second, "the newest of each stays until a younger backup was verified")
	assert.DirExists(t, data)
}
