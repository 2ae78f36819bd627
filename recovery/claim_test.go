package recovery

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/recovery/peers"
)

// If the data directory is a symbolic link, recovery keeps the link and restores the data to its target.
func TestDataDirThatIsASymbolicLink(t *testing.T) {
	for name, lost := range map[string]bool{"broken": false, "lost": true} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			w.damage()
			elsewhere := filepath.Join(t.TempDir(), "etcd")
			require.NoError(t, os.Rename(w.member.DataDir, elsewhere))
			require.NoError(t, os.Symlink(elsewhere, w.member.DataDir))
			if lost {
				require.NoError(t, os.RemoveAll(elsewhere))
			}
			link := w.member.DataDir
			require.NoError(t, w.run())
			target, err := os.Readlink(link)
			require.NoError(t, err, "the link is as it was")
			assert.Equal(t, elsewhere, target)
			w.member.DataDir = elsewhere
			w.requireKeys("key")
			if !lost {
				assert.Len(t, w.preserved(), 1)
			}
		})
	}
}

// A mount point cannot be replaced by renaming. Recovery must detect a mount point before it creates a generation,
// because that cannot be undone.
func TestMountPointIsRefusedBeforeAnythingIsFetched(t *testing.T) {
	w := newFilledWorld(t)
	w.lose()
	require.NoError(t, os.Mkdir(w.member.DataDir, 0o700))
	w.mount(t.TempDir(), w.member.DataDir)
	require.ErrorContains(t, w.run(), "is a mount point")
	assert.Empty(t, w.leftovers())
	assert.Len(t, w.generations(), 1)
}

// A mount point within the data directory must be reported while the data is still valid, because a restore would
// mix the mounted part of the old data with the new data.
func TestMountPointIsReportedWhileDataAreValid(t *testing.T) {
	for within, warning := range map[string]string{
		"":           "automatic recovery of lost or damaged data would fail",
		"member/wal": "member/wal is a mount point, so part of the old data would remain there after a restore",
	} {
		t.Run(within, func(t *testing.T) {
			w := newFilledWorld(t)
			w.requireStarts()
			assert.NotContains(t, w.log.String(), warning)
			at := filepath.Join(w.member.DataDir, within)
			w.mount(at, at)
			w.requireStarts()
			assert.Contains(t, w.log.String(), warning)
			assert.Contains(t, w.log.String(), at+" is a mount point")
		})
	}
}

// mount mounts a directory over another one until the test ends.
func (w *world) mount(what, at string) {
	w.t.Helper()
	if err := unix.Mount(what, at, "", unix.MS_BIND, ""); err != nil {
		w.t.Skipf("skipped: cannot mount a file system: %v", err)
	}
	w.t.Cleanup(func() { require.NoError(w.t, unix.Unmount(at, unix.MNT_DETACH)) })
}

// cutOff returns a world in which a restore was interrupted just before an action.
func cutOff(t *testing.T, before Action) *world {
	t.Helper()
	w := newFilledWorld(t)
	w.put("a")
	w.backUp()
	w.put("b")
	w.backUp()
	w.options.Request = &Request{Target: archive.Target{Revision: 3}, ID: "first"}
	require.ErrorIs(t, w.cutAt(before), errCut)
	return w
}

// Recovery must report changes that are only in the log, as after a kill, because only the contents of the database
// are uploaded.
func TestChangesOnlyInTheLogAreReported(t *testing.T) {
	w := newFilledWorld(t)
	committed, err := os.ReadFile(w.database())
	require.NoError(t, err)
	w.put("a", "b")
	require.NoError(t, os.WriteFile(w.database(), committed, 0o600))
	w.options.Flush = func(context.Context, string, datadir.Position) error { return nil }
	w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	require.NoError(t, w.run())
	assert.Contains(t, w.log.String(), "up to 2 of the latest changes were not uploaded because they are only in the write-ahead log")
	require.Len(t, w.preserved(), 1)
}

// Restored data must be kept if the validation fails for another reason, for example because the machine ran out of
// memory.
func TestRestoredDataThatCannotBeReadAreKept(t *testing.T) {
	w := cutOff(t, InstallData)
	verify := w.options.Validate
	w.options.Validate = func(context.Context, string, bootstrap.Mode) ([]string, error) { return nil, datadir.ErrUnable }
	err := w.run()
	assert.Equal(t, exitcode.Clean, w.statusOf(err))
	assert.DirExists(t, w.member.DataDir+restoredSuffix, "it is claimed, and all there is")
	w.options.Validate = verify
	require.NoError(t, w.run())
	w.requireEnd([]string{"a", "key"}, 1)
	assert.Len(t, w.generations(), 2)
}

// disasters maps the ways of losing the data on a volume to the expected result of recovery.
var disasters = map[string]struct {
	happens func(*world)
	keys    []string
	asides  int
}{
	"lost":        {(*world).lose, []string{"a", "b", "c", "key"}, 0},
	"broken":      {(*world).damage, []string{"a", "b", "c", "key"}, 1},
	"rolled back": {(*world).rollBack, []string{"a", "b", "c", "key"}, 1},
	"going back": {func(w *world) {
		w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	}, []string{"key"}, 1},
}

// everywhere makes tests interrupt recovery at every point rather than at a sample of points. The Makefile target
// test-recovery sets the flag.
var everywhere = flag.Bool("everywhere", false, "cut recovery off at every place")

// some returns the distance between two interruption points.
func some(apart int) int {
	if *everywhere {
		return 1
	}
	return apart
}

// afterDisaster returns a world after a disaster.
func afterDisaster(t *testing.T, disaster string) *world {
	w := newFilledWorld(t)
	w.copyVolume()
	w.put("a", "b", "c")
	w.backUp()
	disasters[disaster].happens(w)
	return w
}

// cutEverywhere interrupts a run before each action, or before a sample of the actions, and checks the result of the
// next run. At least atLeast actions must be interrupted.
func cutEverywhere(t *testing.T, apart, atLeast int, begin func() *world, requireEnd func(w *world, start string)) {
	t.Helper()
	for at := 0; ; at += apart {
		w, seen := begin(), 0
		start, err := w.start(func(Action) error {
			if seen++; seen > at {
				return errCut
			}
			return nil
		})
		cut := err != nil
		if cut {
			require.ErrorIs(t, err, errCut)
			start, err = w.start(nil)
			require.NoError(t, err)
		}
		requireEnd(w, start)
		if !cut {
			require.GreaterOrEqual(t, at, atLeast, "there is something to cut off")
			return
		}
	}
}

// The result must not depend on where a run is interrupted.
func TestRunCutOffBeforeAnyActionIsCompleted(t *testing.T) {
	for name, disaster := range disasters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin := func() *world { return afterDisaster(t, name) }
			cutEverywhere(t, some(3), 9, begin, func(w *world, _ string) { w.requireEnd(disaster.keys, disaster.asides) })
		})
	}
}

// An interrupted rejoin must be completed by the next run, which reads the progress from the member list of the
// cluster.
func TestRejoinCutOffBeforeAnyActionIsCompleted(t *testing.T) {
	begin := func() *world {
		w, _ := ofThree(t)
		w.damage()
		return w
	}
	cutEverywhere(t, 1, 10, begin, func(w *world, start string) {
		assert.Equal(t, "m-0=http://m-0,m-2=http://m-2", start)
		assert.Len(t, w.preserved(), 1)
		assert.Equal(t, []string{"removed", "added"}, w.member.Peers.(*fakePeers).changes)
	})
}

// The result must be the same even if a single request to the store fails before or after it takes effect.
func TestFailureOfAnyRequestDoesNotChangeTheEnd(t *testing.T) {
	for name, disaster := range disasters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at, more := 0, true; more; at += some(11) {
				for _, lost := range []bool{false, true} {
					w := afterDisaster(t, name)
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

// promises lists the invariants that must hold in every reachable place.
var promises = []struct {
	what string
	kept func(place) bool
}{
	{"nothing happens that must not", func(p place) bool { return p.truth.lost == "" }},
	{"etcd opens only what was proved, or found valid, or a new cluster", func(p place) bool {
		t := p.truth
		return !p.opens() || t.place == "restored" && t.sound || t.place == "original" && t.validated && p.lot.found != VolumeCorrupt || p.isNew() || t.adopted
	}},
	{"nor one of several that all are", func(p place) bool {
		byStore := p.lot.behind && p.lot.listing == peers.Gone
		return !p.opens() || !byStore || p.lot.never || p.truth.place != "original" || p.truth.listing != peers.Gone
	}},
	{"new is said only where no certificate is", func(p place) bool {
		return !p.opens() || !p.isNew() || p.lot.peers || p.lot.joins || p.lot.owner == relation.Empty || p.lot.owner == relation.Founded
	}},
	{"a cluster is begun only after what waits on the volume has told whether there was one", func(p place) bool {
		return !p.opens() || !p.isNew() || p.core.Facts.Answer == "" || p.truth.brought
	}},
	{"a volume that is behind its store is not opened, unless the store was away for long", func(p place) bool {
		return !p.opens() || p.truth.uncompared || !p.lot.alone || p.lot.never || p.truth.place == "restored" || !p.lot.behind || p.lot.owner != relation.Ours && p.lot.owner != StoreUnverified
	}},
	{"a member of several is begun anew only where nobody knows it", func(p place) bool {
		founds := p.truth.listing == peers.Founding || p.truth.listing == peers.Partial
		unknown := founds && p.core.Facts.Listing == p.truth.listing && (!p.lot.store || p.lot.owner == relation.Empty || p.lot.owner == relation.Founded)
		left := p.lot.never && (p.core.Facts.Listing == peers.Added || p.core.Facts.Listing == peers.Unlisted)
		return !p.opens() || !p.isNew() || !p.lot.peers || left || unknown || p.core.Facts.Listing == peers.Expected
	}},
	{"a volume that was put back is not opened where a quorum says so", func(p place) bool {
		return !p.opens() || p.lot.alone || p.truth.place != "original" || !p.core.Facts.Outdated
	}},
	{"a volume is opened beside the store of its own cluster, or of nobody, or one that a person has named for it", func(p place) bool {
		others := p.lot.owner == relation.OtherCluster || p.lot.owner == relation.OtherOwner || p.lot.owner == relation.Unclaimed || p.lot.owner == relation.Adopted && !p.truth.taken
		return !p.opens() || !p.lot.alone || p.lot.never || p.truth.uncompared || !others
	}},
	{"a claim is installed once", func(p place) bool { return p.truth.installs <= 1 }},
	{"a member whose peers are not named restores nothing", func(p place) bool { return p.lot.alone || p.lot.peers || !p.truth.claimed }},
	{"a member whose peers are not named moves nothing", func(p place) bool { return p.lot.alone || p.lot.peers || p.truth.place == "original" }},
	{"a target that is not kept moves nothing", func(p place) bool { return !p.lot.alone || p.lot.kept || p.truth.place == "original" }},
	{"a restore that is asked for is done before etcd opens", func(p place) bool {
		return !p.opens() || !p.lot.requested || p.truth.done || !p.lot.alone && p.truth.outrun
	}},
	{"a visit ends: there is work, or a timer", func(p place) bool {
		return p.ended() || p.chain != "" || p.timer
	}},
}

func (p place) opens() bool { return p.core.State == Ready && p.chain == "" }
func (p place) ended() bool { return p.opens() || p.core.State == Refused && p.chain == "" }
func (p place) isNew() bool {
	return !p.truth.adopted && (p.truth.place == "original" && p.lot.found == VolumeEmpty || p.truth.place == "")
}

// An input is the configuration and the initial state of a run.
type input struct {
	found     VolumeState
	alone     bool
	never     bool
	requested bool // --restore-to
	owner     StoreState
	kept      bool // the requested target can be restored
	behind    bool // after a rollback in a multi-member cluster, the store has data that the volume lacks

	unidentified bool // the data does not record which cluster it belongs to

	store bool // a store is configured
	// Fields for multi-member clusters.
	peers   bool      // the configuration lists the peers
	joins   bool      // the configuration joins an existing cluster
	remains bool      // the volume has only the files of an etcd server that had just started
	listing PeerState // how the peers initially list this member
}

// allInputs returns every sensible input.
func allInputs() (all []input) {
	for _, found := range []VolumeState{VolumeEmpty, VolumeValid, VolumeCorrupt} {
		for _, owner := range []StoreState{relation.Empty, relation.Founded, relation.Ours, relation.Adopted, relation.OtherOwner, relation.Unclaimed, relation.OtherCluster, StoreUnverified} {
			for bits := range 32 {
				given := input{store: true, found: found, owner: owner, alone: bits&1 == 0, never: bits&2 > 0, requested: bits&4 > 0, kept: bits&8 > 0, behind: bits&16 > 0}
				given.unidentified = found == VolumeValid && (owner == relation.Unclaimed || owner == relation.Adopted || owner == relation.Empty)
				if given.sensible() {
					all = append(all, given.variants()...)
				}
			}
		}
		for bits := range 4 {
			all = append(all, input{found: found, owner: relation.Empty, alone: bits&1 == 0, never: bits&2 > 0}) // without a store
		}
	}
	return all
}

// sensible reports whether the store can be in this state for this volume.
func (l input) sensible() bool {
	switch l.owner { //nolint:exhaustive // of the others nothing more is demanded
	case StoreUnverified:
		return !l.kept
	case relation.Empty:
		return !l.kept && (!l.behind || !l.alone)
	case relation.Founded:
		return l.found != VolumeValid && !l.kept && !l.behind
	case relation.OtherOwner:
		return l.found != VolumeValid || l.behind
	case relation.Unclaimed:
		return l.found == VolumeValid && !l.behind
	case relation.Adopted:
		return l.found == VolumeValid && !l.behind && !l.requested
	case relation.OtherCluster:
		return l.found != VolumeEmpty
	}
	return true
}

// variants returns the inputs for a member of a multi-member cluster, with and without backups in the store.
func (l input) variants() (all []input) {
	if l.alone {
		return []input{l}
	}
	if l.behind && (l.found != VolumeValid || l.requested) {
		return nil
	}
	joining := l
	joining.joins = true
	all = append(all, l, joining) // the configuration does not list the peers
	for _, listing := range []PeerState{peers.Founding, peers.Partial, peers.Gone, peers.Asking, peers.Expected, peers.Added, peers.Started, peers.Unlisted} {
		for bits := range 4 {
			l.peers, l.listing, l.store, l.remains = true, listing, bits&1 > 0, bits&2 > 0
			if l.possible() {
				all = append(all, l)
			}
		}
	}
	return all
}

// possible reports whether the peers' responses are consistent with this member's state.
func (l input) possible() bool {
	switch {
	case l.remains && l.found != VolumeEmpty, l.behind && !l.rolledBack(), l.requested && !l.store:
		return false
	case l.listing == peers.Founding, l.listing == peers.Partial:
		return l.found == VolumeEmpty && !l.requested
	case l.listing == peers.Gone:
		return (l.found != VolumeValid || l.behind) && !l.requested
	case l.listing == peers.Asking:
		return l.requested
	default:
		return true
	}
}

// rolledBack reports whether the peers or the store can reveal that the volume was rolled back.
func (l input) rolledBack() bool {
	return l.listing == peers.Started || l.listing == peers.Gone && l.store && l.owner == relation.Ours && l.kept
}

func origin(given input) reality { return reality{place: "original", listing: given.listing} }
