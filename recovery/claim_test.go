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
			f := newFilledFixture(t)
			f.damage()
			elsewhere := filepath.Join(t.TempDir(), "etcd")
			require.NoError(t, os.Rename(f.member.DataDir, elsewhere))
			require.NoError(t, os.Symlink(elsewhere, f.member.DataDir))
			if lost {
				require.NoError(t, os.RemoveAll(elsewhere))
			}
			link := f.member.DataDir
			require.NoError(t, f.run())
			target, err := os.Readlink(link)
			require.NoError(t, err, "the data directory is still a link")
			assert.Equal(t, elsewhere, target)
			f.member.DataDir = elsewhere
			f.requireKeys("key")
			if !lost {
				assert.Len(t, f.preserved(), 1)
			}
		})
	}
}

// A mount point cannot be replaced by renaming. Recovery must detect a mount point before it creates a generation,
// because that cannot be undone.
func TestMountPointIsRefusedBeforeAnythingIsFetched(t *testing.T) {
	f := newFilledFixture(t)
	f.lose()
	require.NoError(t, os.Mkdir(f.member.DataDir, 0o700))
	f.mount(t.TempDir(), f.member.DataDir)
	require.ErrorContains(t, f.run(), "is a mount point")
	assert.Empty(t, f.leftovers())
	assert.Len(t, f.generations(), 1)
}

// A mount point within the data directory must be reported while the data is still valid, because a restore would
// mix the mounted part of the old data with the new data.
func TestMountPointIsReportedWhileDataIsValid(t *testing.T) {
	for within, warning := range map[string]string{
		"":           "automatic recovery of lost or damaged data would fail",
		"member/wal": "member/wal is a mount point, so part of the old data would remain there after a restore",
	} {
		t.Run(within, func(t *testing.T) {
			f := newFilledFixture(t)
			f.requireStarts()
			assert.NotContains(t, f.log.String(), warning)
			at := filepath.Join(f.member.DataDir, within)
			f.mount(at, at)
			f.requireStarts()
			assert.Contains(t, f.log.String(), warning)
			assert.Contains(t, f.log.String(), at+" is a mount point")
		})
	}
}

// mount mounts a directory over another one until the test ends.
func (f *fixture) mount(what, at string) {
	f.t.Helper()
	if err := unix.Mount(what, at, "", unix.MS_BIND, ""); err != nil {
		f.t.Skipf("skipped: cannot mount a file system: %v", err)
	}
	f.t.Cleanup(func() { require.NoError(f.t, unix.Unmount(at, unix.MNT_DETACH)) })
}

// interruptedRestore returns a fixture in which a restore was interrupted just before an action.
func interruptedRestore(t *testing.T, before Action) *fixture {
	t.Helper()
	f := newFilledFixture(t)
	f.put("a")
	f.backUp()
	f.put("b")
	f.backUp()
	f.options.Request = &Request{Target: archive.Target{Revision: 3}, ID: "first"}
	require.ErrorIs(t, f.interruptBefore(before), errInterrupted)
	return f
}

// Recovery must report changes that are only in the log, as after a kill, because only the contents of the database
// are uploaded.
func TestChangesOnlyInTheLogAreReported(t *testing.T) {
	f := newFilledFixture(t)
	committed, err := os.ReadFile(f.database())
	require.NoError(t, err)
	f.put("a", "b")
	require.NoError(t, os.WriteFile(f.database(), committed, 0o600))
	f.options.Flush = func(context.Context, string, datadir.Position) error { return nil }
	f.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	require.NoError(t, f.run())
	assert.Contains(t, f.log.String(), "up to 2 of the latest changes were not uploaded because they are only in the write-ahead log")
	require.Len(t, f.preserved(), 1)
}

// Restored data must be kept if its validation fails for a reason other than damage, for example because the machine
// ran out of memory.
func TestRestoredDataThatCannotBeReadIsKept(t *testing.T) {
	f := interruptedRestore(t, InstallData)
	verify := f.options.Validate
	f.options.Validate = func(context.Context, string, bootstrap.Mode) ([]string, error) { return nil, datadir.ErrUnable }
	err := f.run()
	assert.Equal(t, exitcode.Clean, f.statusOf(err))
	assert.DirExists(t, f.member.DataDir+restoredSuffix, "the claimed data is kept")
	f.options.Validate = verify
	require.NoError(t, f.run())
	f.requireRestored([]string{"a", "key"}, 1)
	assert.Len(t, f.generations(), 2)
}

// disasters contains events after which recovery must restore a backup, with the keys and the number of preserved
// copies that must exist afterwards.
var disasters = map[string]struct {
	happens func(*fixture)
	keys    []string
	copies  int
}{
	"lost":        {(*fixture).lose, []string{"a", "b", "c", "key"}, 0},
	"broken":      {(*fixture).damage, []string{"a", "b", "c", "key"}, 1},
	"rolled back": {(*fixture).rollBack, []string{"a", "b", "c", "key"}, 1},
	"restore requested": {func(f *fixture) {
		f.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	}, []string{"key"}, 1},
}

// everywhere makes tests interrupt recovery at every point rather than at a sample of points. The Makefile target
// test-recovery sets the flag.
var everywhere = flag.Bool("everywhere", false, "interrupt recovery at every point")

// stride returns the distance between two interruption points: 1 with -everywhere, and sample otherwise.
func stride(sample int) int {
	if *everywhere {
		return 1
	}
	return sample
}

// afterDisaster returns a fixture with four keys, all of which are in the backups, after a disaster.
func afterDisaster(t *testing.T, disaster string) *fixture {
	f := newFilledFixture(t)
	f.copyVolume()
	f.put("a", "b", "c")
	f.backUp()
	disasters[disaster].happens(f)
	return f
}

// interruptEverywhere repeats a run and interrupts it before a different action each time. step is the distance
// between two interruption points. requireEnd checks the result of the run that follows the interruption. The run
// must have at least minActions actions.
func interruptEverywhere(t *testing.T, step, minActions int, begin func() *fixture, requireEnd func(f *fixture, start string)) {
	t.Helper()
	for at := 0; ; at += step {
		f, seen := begin(), 0
		start, err := f.start(func(Action) error {
			if seen++; seen > at {
				return errInterrupted
			}
			return nil
		})
		cut := err != nil
		if cut {
			require.ErrorIs(t, err, errInterrupted)
			start, err = f.start(nil)
			require.NoError(t, err)
		}
		requireEnd(f, start)
		if !cut {
			require.GreaterOrEqual(t, at, minActions, "the run has too few actions to interrupt")
			return
		}
	}
}

// The result must not depend on where a run is interrupted.
func TestRunCutOffBeforeAnyActionIsCompleted(t *testing.T) {
	for name, disaster := range disasters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin := func() *fixture { return afterDisaster(t, name) }
			interruptEverywhere(t, stride(3), 9, begin, func(f *fixture, _ string) { f.requireRestored(disaster.keys, disaster.copies) })
		})
	}
}

// An interrupted rejoin must be completed by the next run, which reads the progress from the member list of the
// cluster.
func TestRejoinCutOffBeforeAnyActionIsCompleted(t *testing.T) {
	begin := func() *fixture {
		f, _ := memberOfThree(t)
		f.damage()
		return f
	}
	interruptEverywhere(t, 1, 10, begin, func(f *fixture, start string) {
		assert.Equal(t, "m-0=http://m-0,m-2=http://m-2", start)
		assert.Len(t, f.preserved(), 1)
		assert.Equal(t, []string{"removed", "added"}, f.member.Peers.(*fakePeers).changes)
	})
}

// The result must be the same even if a single request to the store fails before or after it takes effect.
func TestFailureOfAnyRequestDoesNotChangeTheResult(t *testing.T) {
	for name, disaster := range disasters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at, more := 0, true; more; at += stride(11) {
				for _, lost := range []bool{false, true} {
					f := afterDisaster(t, name)
					before := len(f.store.Calls())
					f.store.Inject(memory.Fault{After: at, Times: 1, Err: store.ErrUnavailable, ReplyLost: lost})
					if err := f.run(); err != nil {
						require.ErrorIs(t, err, store.ErrUnavailable)
						require.NoError(t, f.run())
					}
					more = len(f.store.Calls())-before > at
					f.requireRestored(disaster.keys, disaster.copies)
				}
			}
		})
	}
}

// invariants must hold in every reachable state of the model.
var invariants = []struct {
	name  string
	holds func(modelState) bool
}{
	{"actions run only if their preconditions hold", func(p modelState) bool { return p.actual.violation == "" }},
	{"etcd opens only restored data that was verified, original data that was found valid, or a new data directory", func(p modelState) bool {
		t := p.actual
		return !p.opens() || t.data == "restored" && t.installedVerified || t.data == "original" && t.validated && p.input.volume != VolumeCorrupt || p.isNew() || t.joinsPeers
	}},
	{"data that is older than the store is not opened while no other member has usable data", func(p modelState) bool {
		byStore := p.input.behind && p.input.listing == peers.AllLost
		return !p.opens() || !byStore || p.input.never || p.actual.data != "original" || p.actual.listing != peers.AllLost
	}},
	{"a member that lists no peers and joins no cluster creates a cluster only if the store is unused", func(p modelState) bool {
		return !p.opens() || !p.isNew() || p.input.peers || p.input.joins || p.input.storeState == relation.Empty || p.input.storeState == relation.Initialized
	}},
	{"if the store was queried, a cluster is created only after the queued segments were uploaded", func(p modelState) bool {
		return !p.opens() || !p.isNew() || p.core.Facts.Answer == "" || p.actual.spoolUploaded
	}},
	{"a volume that is behind the store is not opened unless the store was unreachable for long", func(p modelState) bool {
		return !p.opens() || p.actual.uncompared || !p.input.alone || p.input.never || p.actual.data == "restored" || !p.input.behind || p.input.storeState != relation.Ours && p.input.storeState != StoreUnverified
	}},
	{"a member of a multi-member cluster starts without data only if the cluster is new or expects it, or with --recover=never", func(p modelState) bool {
		founds := p.actual.listing == peers.AllEmpty || p.actual.listing == peers.SomeStarted
		unknown := founds && p.core.Facts.Listing == p.actual.listing && (!p.input.store || p.input.storeState == relation.Empty || p.input.storeState == relation.Initialized)
		left := p.input.never && (p.core.Facts.Listing == peers.Added || p.core.Facts.Listing == peers.Unlisted)
		return !p.opens() || !p.isNew() || !p.input.peers || left || unknown || p.core.Facts.Listing == peers.Expected
	}},
	{"a volume that is outdated according to the peers is not opened", func(p modelState) bool {
		return !p.opens() || p.input.alone || p.actual.data != "original" || !p.core.Facts.Outdated
	}},
	{"data that was compared with the store is opened only if the store is unused, adopted, or of the same cluster", func(p modelState) bool {
		others := p.input.storeState == relation.OtherCluster || p.input.storeState == relation.OtherOwner || p.input.storeState == relation.Unidentified || p.input.storeState == relation.Adopted && !p.actual.adoptedStore
		return !p.opens() || !p.input.alone || p.input.never || p.actual.uncompared || !others
	}},
	{"a claim is installed at most once", func(p modelState) bool { return p.actual.installCount <= 1 }},
	{"a member of a multi-member cluster whose configuration lists no peers restores nothing", func(p modelState) bool { return p.input.alone || p.input.peers || !p.actual.claimed }},
	{"a member of a multi-member cluster whose configuration lists no peers moves nothing", func(p modelState) bool { return p.input.alone || p.input.peers || p.actual.data == "original" }},
	{"the data of a single member is not moved if the target cannot be restored", func(p modelState) bool { return !p.input.alone || p.input.restorable || p.actual.data == "original" }},
	{"a requested restore is done before etcd opens the data", func(p modelState) bool {
		return !p.opens() || !p.input.requested || p.actual.idRecorded || !p.input.alone && p.actual.overtaken
	}},
	{"a run that has not ended has a pending action or a timer", func(p modelState) bool {
		return p.ended() || p.pending != "" || p.timer
	}},
}

func (p modelState) opens() bool { return p.core.State == Ready && p.pending == "" }
func (p modelState) ended() bool { return p.opens() || p.core.State == Refused && p.pending == "" }
func (p modelState) isNew() bool {
	return !p.actual.joinsPeers && (p.actual.data == "original" && p.input.volume == VolumeEmpty || p.actual.data == "")
}

// An input describes the configuration and the initial state of the volume, the store and the peers.
type input struct {
	volume     VolumeState
	alone      bool // the cluster has a single member
	never      bool // --recover=never
	requested  bool // --restore-to
	storeState StoreState
	restorable bool // the store has a backup to restore
	behind     bool // the volume was rolled back, so the store or the peers have data that it lacks

	unidentified bool // the data does not record which cluster it belongs to

	store bool // a store is configured
	// Fields for multi-member clusters.
	peers   bool      // the configuration lists the peers
	joins   bool      // the configuration joins an existing cluster
	remains bool      // the empty volume has the directories of an etcd that was killed right after its first start
	listing PeerState // how the peers initially list this member
}

// allInputs returns every sensible input.
func allInputs() (all []input) {
	for _, found := range []VolumeState{VolumeEmpty, VolumeValid, VolumeCorrupt} {
		for _, owner := range []StoreState{relation.Empty, relation.Initialized, relation.Ours, relation.Adopted, relation.OtherOwner, relation.Unidentified, relation.OtherCluster, StoreUnverified} {
			for bits := range 32 {
				given := input{store: true, volume: found, storeState: owner, alone: bits&1 == 0, never: bits&2 > 0, requested: bits&4 > 0, restorable: bits&8 > 0, behind: bits&16 > 0}
				given.unidentified = found == VolumeValid && (owner == relation.Unidentified || owner == relation.Adopted || owner == relation.Empty)
				if given.isConsistent() {
					all = append(all, given.variants()...)
				}
			}
		}
		for bits := range 4 {
			all = append(all, input{volume: found, storeState: relation.Empty, alone: bits&1 == 0, never: bits&2 > 0}) // without a store
		}
	}
	return all
}

// isConsistent reports whether the store can be in this state for this volume.
func (l input) isConsistent() bool {
	switch l.storeState { //nolint:exhaustive // the other states are possible with every volume
	case StoreUnverified:
		return !l.restorable
	case relation.Empty:
		return !l.restorable && (!l.behind || !l.alone)
	case relation.Initialized:
		return l.volume != VolumeValid && !l.restorable && !l.behind
	case relation.OtherOwner:
		return l.volume != VolumeValid || l.behind
	case relation.Unidentified:
		return l.volume == VolumeValid && !l.behind
	case relation.Adopted:
		return l.volume == VolumeValid && !l.behind && !l.requested
	case relation.OtherCluster:
		return l.volume != VolumeEmpty
	}
	return true
}

// variants returns the inputs for a member of a multi-member cluster, with and without backups in the store.
func (l input) variants() (all []input) {
	if l.alone {
		return []input{l}
	}
	if l.behind && (l.volume != VolumeValid || l.requested) {
		return nil
	}
	joining := l
	joining.joins = true
	all = append(all, l, joining) // the configuration does not list the peers
	for _, listing := range []PeerState{peers.AllEmpty, peers.SomeStarted, peers.AllLost, peers.RestoreAgreed, peers.Expected, peers.Added, peers.Started, peers.Unlisted} {
		for bits := range 4 {
			l.peers, l.listing, l.store, l.remains = true, listing, bits&1 > 0, bits&2 > 0
			if l.isPossible() {
				all = append(all, l)
			}
		}
	}
	return all
}

// isPossible reports whether the peers' responses are consistent with this member's state.
func (l input) isPossible() bool {
	switch {
	case l.remains && l.volume != VolumeEmpty, l.behind && !l.rolledBack(), l.requested && !l.store:
		return false
	case l.listing == peers.AllEmpty, l.listing == peers.SomeStarted:
		return l.volume == VolumeEmpty && !l.requested
	case l.listing == peers.AllLost:
		return (l.volume != VolumeValid || l.behind) && !l.requested
	case l.listing == peers.RestoreAgreed:
		return l.requested
	default:
		return true
	}
}

// rolledBack reports whether the peers or the store can reveal that the volume was rolled back.
func (l input) rolledBack() bool {
	return l.listing == peers.Started || l.listing == peers.AllLost && l.store && l.storeState == relation.Ours && l.restorable
}

func initialState(given input) actualState {
	return actualState{data: "original", listing: given.listing}
}
