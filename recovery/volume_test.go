package recovery

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/seed"
)

// A locked or unreadable database must not be mistaken for a new member.
func TestUnreadableVolumeIsNotEmpty(t *testing.T) {
	w, o := ofThree(t)
	held, err := bolt.Open(w.database(), 0o600, nil)
	require.NoError(t, err)
	defer held.Close()
	_, err = w.recovery().prepare(t.Context(), w.member, func(context.Context) error { return nil })
	require.ErrorContains(t, err, "cannot read how far the data")
	assert.Empty(t, w.preserved())
	assert.Empty(t, o.changes)
}

// A sanity validation may not notice the damage.
func TestPartlyReadableVolumeIsDamaged(t *testing.T) {
	w, o := ofThree(t)
	w.damage()
	o.listing = peers.Unknown
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.wait = func(context.Context, int) { cancel() }
	_, err := w.recovery().prepare(ctx, w.member, func(context.Context) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, peers.Ruins, o.holds)
	assert.Empty(t, w.preserved())
}

// addPreserved adds preserved copies, and a directory with a similar name.
func (w *world) addPreserved(times ...string) {
	w.t.Helper()
	for _, at := range append(times, "mine") {
		require.NoError(w.t, os.MkdirAll(filepath.Join(w.member.DataDir+".aside-"+at, "member"), 0o700))
	}
}

// preservedTimes returns the suffixes of the preserved copies.
func (w *world) preservedTimes() (names []string) {
	w.t.Helper()
	for _, path := range w.preserved() {
		names = append(names, path[len(w.member.DataDir+".aside-"):])
	}
	return names
}

// runOn runs recovery on a volume with room for the given number of preserved copies.
func (w *world) runOn(most int) error {
	r := w.recovery()
	r.checkRoom = func(seed.Seed, restore.Source) error {
		if len(w.preservedTimes())-1 > most {
			return fmt.Errorf("%w on the volume", restore.ErrNoRoom)
		}
		return nil
	}
	return w.prepare(r)
}

// verify records a passed restore test of the newest full snapshot.
func (w *world) verify() {
	w.t.Helper()
	full := w.newestFull()
	require.NoError(w.t, w.archive.PutResult(w.t.Context(), archive.Result{
		Cluster: full.Cluster, Generation: full.Generation, Full: full.Name(), Revision: full.Revision, Outcome: archive.Verified, At: time.Now(),
	}))
}

const (
	oldest = "20260101T000000.000Z"
	older  = "20260102T000000.000Z"
	newest = "20260103T000000.000Z"
	future = "29990101T000000.000Z"
)

func TestPreservedCopiesAreDeletedOldestFirst(t *testing.T) {
	for name, test := range map[string]struct {
		asides   []string
		room     int // number of copies that fit
		verified bool
		action   func(*world)
		left     []string // remaining copies, besides directories with similar names
		fails    bool
	}{
		"there is room":                     {[]string{oldest, older, newest}, 3, true, func(*world) {}, []string{oldest, older, newest}, false},
		"there is not, where etcd starts":   {[]string{oldest, older, newest}, 2, false, func(*world) {}, []string{older, newest}, false},
		"nor where something is restored":   {[]string{oldest, older, newest}, 2, false, (*world).lose, []string{older, newest}, false},
		"the newest: no backup is verified": {[]string{oldest, newest}, 0, false, (*world).lose, []string{newest}, true},
		"the newest: the backup is older":   {[]string{oldest, future}, 0, true, (*world).lose, []string{future}, true},
		"the newest: a younger backup is":   {[]string{oldest, newest}, 0, true, (*world).lose, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			if test.verified {
				w.verify()
			}
			w.addPreserved(test.asides...)
			test.action(w)
			if err := w.runOn(test.room); test.fails {
				require.ErrorContains(t, err, "not enough room")
			} else {
				require.NoError(t, err)
			}
			assert.Equal(t, append(test.left, "mine"), w.preservedTimes())
			if len(test.left) < len(test.asides) {
				assert.Contains(t, w.log.String(), "deleting a preserved copy, as the volume has no room for it")
				assert.Contains(t, w.log.String(), w.member.DataDir+".aside-"+oldest)
			}
		})
	}
}

// The data is valid, so etcd starts without waiting for the store.
func TestFullVolumeDoesNotWaitForAStoreThatHangs(t *testing.T) {
	w := newFilledWorld(t)
	w.verify()
	w.addPreserved(oldest, newest)
	require.NoError(t, os.MkdirAll(filepath.Join(w.options.VolumeDir, "spool.aside-"+newest), 0o700))
	w.options.Never, w.options.SpoolDir = true, filepath.Join(w.options.VolumeDir, "spool")
	w.store.Inject(memory.Fault{Hang: true})
	synctest.Test(t, func(t *testing.T) {
		w.t = t
		start := time.Now()
		require.NoError(t, w.runOn(0))
		assert.LessOrEqual(t, time.Since(start), 5*time.Second)
	})
	w.t = t
	assert.Equal(t, []string{newest, "mine"}, w.preservedTimes())
}

// locked locks a directory or file until the test ends.
func locked(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_EX))
}

// Two wrappers with different volumes share one data directory.
func TestDirectoryOfAnotherProcessIsKept(t *testing.T) {
	for _, ending := range []string{restoredSuffix, restoredSuffix + unfinishedSuffix} {
		t.Run(ending, func(t *testing.T) {
			w := newFilledWorld(t)
			w.damage()
			theirs := w.member.DataDir + ending
			require.NoError(t, os.MkdirAll(filepath.Join(theirs, "member"), 0o700))
			locked(t, theirs)
			require.ErrorIs(t, w.run(), seed.ErrInUse)
			assert.DirExists(t, filepath.Join(theirs, "member"))
			assert.Empty(t, w.preserved())
		})
	}
}

func TestBuiltDirectoryIsLockedUntilInstalled(t *testing.T) {
	w := newFilledWorld(t)
	w.damage()
	seen := 0
	require.NoError(t, w.runWith(func(action Action) error {
		if action == ProveData || action == ClaimGeneration || action == InstallData {
			seen++
			_, err := seed.Lock(w.member.DataDir + restoredSuffix)
			require.ErrorIs(t, err, seed.ErrInUse, action)
		}
		return nil
	}))
	assert.Equal(t, 3, seen)
	held, err := seed.Lock(w.member.DataDir)
	require.NoError(t, err, "etcd-wrapper locks it now")
	require.NoError(t, held.Close())
	w.requireEnd([]string{"key"}, 1)
}

func TestDataInUseAreNotMoved(t *testing.T) {
	for message, of := range map[string]struct{ lose, happens func(*world) }{
		"have appeared":       {(*world).lose, func(w *world) { require.NoError(t, os.MkdirAll(filepath.Dir(w.database()), 0o700)) }},
		"a running etcd has ": {(*world).damage, func(w *world) { locked(t, w.database()) }},
	} {
		w := newFilledWorld(t)
		of.lose(w)
		var there []string
		require.ErrorContains(t, w.runWith(before(SetVolumeAside, func() error { of.happens(w); there = w.files(); return nil })), message)
		assert.Equal(t, there, w.files())
		assert.Empty(t, w.preserved())
	}
}

// Only some of the objects with an unknown signer were deleted.
func TestRestoreThatCannotBeClaimedNamesTheCause(t *testing.T) {
	w := newWorld(t)
	mine := formattest.NewKeys(t)
	w.setKeys(mine.Load(t))
	w.fill()
	w.damage()
	strangers := archive.New(w.store, &format.Keys{})
	err := w.runWith(before(ClaimGeneration, func() error {
		return archivetest.BeginGeneration(t.Context(), strangers, archive.Generation{Number: 2, Cluster: ours, Owner: "etcd-cluster", Etcd: "abc"})
	}))
	require.ErrorContains(t, err, "gen/000002/generation.json")
	require.ErrorContains(t, err, "it has no signature")
	require.ErrorContains(t, err, "if its signer is unknown, delete it, and with a generation.json everything in its folder")
	assert.Empty(t, w.leftovers())
}

// Without free space, etcd would fail at every start while it receives the data.
func TestRejoinWaitsForFreeSpace(t *testing.T) {
	w, o := ofThree(t)
	w.damage()
	w.addPreserved(oldest)
	o.size = 77
	r := w.recovery()
	r.checkRoom = func(_ seed.Seed, source restore.Source) error {
		assert.Equal(t, int64(77), source.DatabaseBytes)
		if len(w.preservedTimes()) > 1 { // nothing but a user's own
			return fmt.Errorf("%w on the volume", restore.ErrNoRoom)
		}
		return nil
	}
	pauses := w.inPause(3, func() {
		assert.Len(t, w.preservedTimes(), 2, "what was set aside last is for a person to delete, or for a backup that was verified since")
		assert.NotContains(t, w.preservedTimes(), oldest)
		assert.Empty(t, o.changes, "nor has the member left the cluster")
		assert.Contains(t, r.Progress().Reason, "the volume has no room for the data of the other members: not enough room on the volume: enlarge it, or delete "+w.preserved()[0])
		require.NoError(t, os.RemoveAll(w.preserved()[0]))
	})
	r.wait = w.wait
	require.NoError(t, w.prepare(r))
	assert.Equal(t, 3, *pauses)
	assert.Equal(t, []string{"removed", "added"}, o.changes)
}
