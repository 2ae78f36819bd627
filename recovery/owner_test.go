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
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/recovery/peers"
)

// identified is what the volume says of itself.
func (w *world) identified() archive.Identity {
	w.t.Helper()
	is, err := archive.ReadIdentity(w.member.DataDir)
	require.NoError(w.t, err)
	return is
}

func (w *world) whose() archive.Cluster {
	w.t.Helper()
	is, err := w.archive.Cluster(w.t.Context())
	require.NoError(w.t, err)
	return is
}

// plain gives the volume the data of an etcd that no store knows.
func (w *world) plain() {
	w.t.Helper()
	require.NoError(w.t, os.RemoveAll(w.member.DataDir))
	require.NoError(w.t, os.Rename(datadirtest.Initialized(w.t), w.member.DataDir))
}

// refused says why a run ends with 70.
func (w *world) refused() string {
	w.t.Helper()
	err := w.run()
	require.Error(w.t, err)
	require.Equal(w.t, exitcode.EtcdFailed, w.statusOf(err), err)
	return err.Error()
}

func TestANewClusterGetsItsIDBeforeEtcdOpensItsData(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.run())
	first := w.whose()
	assert.Len(t, first.Cluster, 32)
	assert.Equal(t, "etcd-cluster", first.Owner)
	assert.Equal(t, archive.Identity{Cluster: first.Cluster, Generation: 1}, w.identified())
	assert.Empty(t, w.generations(), "they are begun with the first backup")

	require.NoError(t, w.run(), "it was cut off before etcd had stored anything")
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	require.NoError(t, w.run(), "or before the volume knew")
	assert.Equal(t, first, w.whose())
	assert.Equal(t, first.Cluster, w.identified().Cluster)
}

// A reply that is lost is no reason for another id.
func TestTheIDThatTheStoreHasCounts(t *testing.T) {
	w := newWorld(t)
	w.store.Inject(memory.Fault{Op: memory.Put, Prefix: "cluster.json", Err: memory.ErrUnreachable, ReplyLost: true, Times: 1})
	require.NoError(t, w.run())
	assert.Equal(t, w.whose().Cluster, w.identified().Cluster)
}

// A member that went on without a name would be refused once the others had founded the store.
func TestAnEmptyVolumeWaitsUntilTheStoreTellsWhatItsClusterIsCalled(t *testing.T) {
	w := newWorld(t)
	w.store.Inject(memory.Fault{Op: memory.Put, Prefix: "cluster.json", Err: memory.ErrUnreachable})
	require.ErrorContains(t, w.run(), "a new cluster has no name yet")
	assert.NoFileExists(t, filepath.Join(w.member.DataDir, archive.IdentityFile))
	w.store.Heal()
	require.NoError(t, w.run())
	assert.Equal(t, w.whose().Cluster, w.identified().Cluster)
}

func TestMembersThatFoundAStoreTogetherHaveOneID(t *testing.T) {
	w, o := ofThree(t)
	w.emptyStore()
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	o.listing = peers.Founding
	require.NoError(t, w.run())
	other, o := ofThree(t)
	other.archive, other.options.Archive = w.archive, w.archive
	require.NoError(t, os.RemoveAll(other.member.DataDir))
	o.listing = peers.Founding
	require.NoError(t, other.run())
	assert.Equal(t, w.identified(), other.identified())
}

func TestAnEmptyVolumeDoesNotTakeTheStoreOfAnotherOwnerUnlessAPersonSaysSo(t *testing.T) {
	w := usedWorld(t)
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	w.options.Owner = func(token string) string { return "second/" + token }
	said := w.refused()
	assert.Contains(t, said, "is etcd-cluster's, of cluster "+ours+", and this member is second/etcd-cluster's")
	assert.Contains(t, said, "--adopt")
	assert.Len(t, w.generations(), 1)
	w.options.Adopt = "beef"
	assert.Contains(t, w.refused(), "is not the one that --adopt names")

	w.options.Adopt = ours
	require.NoError(t, w.run())
	all := w.generations()
	require.Len(t, all, 2)
	assert.Equal(t, "second/etcd-cluster", all[1].Owner)
	assert.Equal(t, []string{"second/etcd-cluster"}, all[1].Adopted)
	w.requireKeys("key")

	w.options.Owner = nil
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	w.options.Adopt = ""
	assert.Contains(t, w.refused(), "is second/etcd-cluster's", "the store is the other's by now")
}

// It may be a copy of the owner's volume.
func TestAVolumeThatIsBehindDoesNotTakeTheStoreOfAnotherOwnerUnlessAPersonSaysSo(t *testing.T) {
	w := usedWorld(t)
	w.copyVolume()
	w.put("after the copy")
	w.backUp(1)
	w.rollBack()
	w.options.Owner = func(token string) string { return "second/" + token }
	said := w.refused()
	assert.Contains(t, said, "is etcd-cluster's, of cluster "+ours+", and this member is second/etcd-cluster's")
	assert.Empty(t, w.asides())
	assert.Len(t, w.generations(), 1)

	w.options.Adopt = ours
	require.NoError(t, w.run())
	require.Len(t, w.generations(), 2)
	assert.Equal(t, "second/etcd-cluster", w.generations()[1].Owner)
	assert.Empty(t, w.asides(), "it goes on with its own data")
}

func TestDataThatNoStoreKnowsFoundOneAndDoNotGoOnInAnotherOne(t *testing.T) {
	w := newWorld(t)
	w.plain()
	require.NoError(t, w.run())
	first := w.whose()
	assert.Equal(t, hex(stand(t, w.member.DataDir).ClusterID), first.Etcd)
	assert.Equal(t, first.Cluster, w.identified().Cluster)

	w.backUpOf(first.Cluster)
	w.plain()
	said := w.refused()
	assert.Contains(t, said, "the volume names no cluster")
	assert.Contains(t, said, "is cluster "+first.Cluster+"'s")
	assert.Contains(t, said, "--adopt")
	assert.Empty(t, w.asides())
}

// backUpOf keeps what the volume has, as of that cluster.
func (w *world) backUpOf(cluster string) {
	w.t.Helper()
	first := w.whose()
	require.Equal(w.t, cluster, first.Cluster)
	_, err := w.archive.Found(w.t.Context(), first)
	require.NoError(w.t, err)
	w.putFull(cluster, 1)
}

func TestDataThatAreAdoptedBeginAGenerationOnce(t *testing.T) {
	for name, of := range map[string]func(w *world){
		"of no store": func(w *world) { w.plain() },
		"of another cluster": func(w *world) {
			w.plain()
			require.NoError(w.t, archive.Identity{Cluster: "beef", Generation: 4}.Write(w.member.DataDir))
		},
		"a copy": func(w *world) { w.put("of its own") },
	} {
		t.Run(name, func(t *testing.T) {
			w := usedWorld(t)
			of(w)
			w.options.Adopt = ours
			before := stand(t, w.member.DataDir)
			require.NoError(t, w.run())
			assert.Equal(t, before, stand(t, w.member.DataDir), "the data are as they were")
			assert.Equal(t, archive.Identity{Cluster: ours, Generation: 2}, w.identified())
			all := w.generations()
			require.Len(t, all, 2)
			assert.Equal(t, []string{"etcd-cluster"}, all[1].Adopted)
			head, err := w.archive.Head(t.Context(), 1)
			require.NoError(t, err)
			require.NotNil(t, head.Ending(), "whoever wrote before ends")
			assert.Equal(t, 2, head.Ending().Successor)

			require.NoError(t, w.run(), "the flag is left in its place")
			assert.Len(t, w.generations(), 2)
			w.putFull(ours, 2)
			require.NoError(t, os.RemoveAll(w.member.DataDir))
			require.NoError(t, w.run())
			assert.Equal(t, []string{"etcd-cluster"}, w.generations()[2].Adopted, "a restore remembers it")
			w.plain()
			assert.Contains(t, w.refused(), "--adopt="+ours+" was done before; --adopt="+ours+"/3 does so once more")
		})
	}
}

// A copy of the cluster's own data is adopted, and later another one. The flag stays where it is, so it takes another word.
func TestAnotherCopyIsAdoptedByThePersonWhoNamesTheGenerationThatItEnds(t *testing.T) {
	w := usedWorld(t)
	w.put("of the first copy")
	w.options.Adopt = ours
	require.NoError(t, w.run())
	w.putFull(ours, 2)
	w.put("of the second copy")
	before := stand(t, w.member.DataDir)
	for _, inert := range []string{ours, ours + "/1", ours + "/3"} {
		w.options.Adopt = inert
		require.NoError(t, w.run())
		assert.Len(t, w.generations(), 2, inert)
	}
	w.options.Adopt = ours + "/2"
	require.NoError(t, w.run())
	assert.Equal(t, before, stand(t, w.member.DataDir), "the data are as they were")
	assert.Equal(t, archive.Identity{Cluster: ours, Generation: 3}, w.identified())
	assert.Empty(t, w.asides())
	head, err := w.archive.Head(t.Context(), 2)
	require.NoError(t, err)
	require.NotNil(t, head.Ending(), "whoever wrote before ends")

	w.put("afterwards")
	require.NoError(t, w.run(), "the flag is left in its place")
	require.Len(t, w.generations(), 3)
	assert.Equal(t, []string{"etcd-cluster"}, w.generations()[2].Adopted)
	w.putFull(ours, 3)
	w.plain()
	assert.Contains(t, w.refused(), "--adopt="+ours+"/3", "the way in that works")
}

func TestAnAdoptionThatWasCutOffIsCompleted(t *testing.T) {
	for name, of := range map[string]struct {
		fault memory.Fault
		cut   func(w *world)
	}{
		"before the end is marked":         {memory.Fault{Op: memory.Put, Prefix: "gen/000001/segment/", Err: store.ErrUnavailable}, nil},
		"before the generation":            {memory.Fault{Op: memory.Put, Prefix: "gen/000002/", Err: store.ErrUnavailable}, nil},
		"the generation's reply was lost":  {memory.Fault{Op: memory.Put, Prefix: "gen/000002/", Err: memory.ErrUnreachable, ReplyLost: true}, nil},
		"before the volume remembers that": {memory.Fault{Times: 0, Op: memory.Delete}, func(w *world) { w.plain() }},
	} {
		t.Run(name, func(t *testing.T) {
			w := usedWorld(t)
			w.plain()
			w.options.Adopt = ours
			w.store.Inject(of.fault)
			_, err := w.patient()
			w.store.Heal()
			if of.cut != nil {
				require.NoError(t, err)
				of.cut(w)
			}
			w.options.Pause = func(context.Context, int) {}
			require.NoError(t, w.run())
			assert.Equal(t, archive.Identity{Cluster: ours, Generation: 2}, w.identified())
			assert.Len(t, w.generations(), 2)
		})
	}
}

// A plain etcd of three is upgraded one member after the other: the first has founded the store.
func TestAMemberWhoseDataNoStoreKnowsTakesTheIDThatTheOthersTell(t *testing.T) {
	for name, of := range map[string]struct {
		id     string
		starts bool
	}{"told": {ours, true}, "not told": {"", false}, "another one": {"beef", false}} {
		t.Run(name, func(t *testing.T) {
			w, o := ofThree(t)
			w.plain()
			o.id, o.of = of.id, 1
			if !of.starts {
				assert.Contains(t, w.refused(), "the volume names no cluster")
				return
			}
			require.NoError(t, w.run())
			assert.Equal(t, archive.Identity{Cluster: ours, Generation: 1}, w.identified())
		})
	}
}

// Two clusters of one configuration have one id of etcd's, and names lead to the other one's members for a moment.
func TestMembersThatTellAnotherIDAreNotChanged(t *testing.T) {
	for name, happens := range map[string]func(w *world){
		"the volume is empty": func(w *world) { require.NoError(w.t, os.RemoveAll(w.member.DataDir)) },
		"it is broken":        (*world).spoil,
		"the store is away": func(w *world) {
			w.spoil()
			w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := ofThree(t)
			happens(w)
			o.id, o.of = "beef", 1
			pauses := 0
			w.options.Pause = func(context.Context, int) {
				assert.Empty(t, o.changes)
				if pauses++; pauses == 3 {
					o.id = ours
				}
			}
			start, err := w.start(nil)
			require.NoError(t, err)
			assert.Equal(t, 3, pauses)
			assert.Equal(t, takenIn, start)
			assert.Contains(t, w.log.String(), "the others are cluster beef, and this member is one of cluster "+ours)
			assert.Equal(t, archive.Identity{Cluster: ours, Generation: 1}, w.identified())
		})
	}
}

// Nothing tells whether they are this member's: the volume is empty, and the store is away.
func TestNobodyIsRemovedBeforeItIsKnownWhoseTheOthersAre(t *testing.T) {
	w, o := ofThree(t)
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	o.id, o.of = ours, 1
	now := w.ticks(brief)
	_ = now
	w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
	pause, pauses := w.options.Pause, 0
	w.options.Pause = func(ctx context.Context, times int) {
		pause(ctx, times)
		assert.Empty(t, o.changes)
		if pauses++; pauses == 3 {
			w.store.Heal()
		}
	}
	w.requireTakenIn()
	assert.Equal(t, 3, pauses)
	assert.Contains(t, w.log.String(), "neither the volume nor the store tells")
}

// Etcd's id is another one after each restore, and the cluster is the same.
func TestAMemberJoinsTheRestoredClusterByTheIDOfItsStore(t *testing.T) {
	w, o := ofThree(t)
	o.listing, o.cluster, o.id, o.of = peers.Unlisted, 0xbeef, ours, 2
	w.requireTakenIn()
	assert.Len(t, w.asides(), 1, "its data are of generation 1")
	assert.Equal(t, archive.Identity{Cluster: ours, Generation: 2}, w.identified())
}

func TestAnIdentityThatCannotBeReadIsForPeople(t *testing.T) {
	w := usedWorld(t)
	require.NoError(t, os.WriteFile(filepath.Join(w.member.DataDir, archive.IdentityFile), []byte("{"), 0o600))
	err := w.run()
	require.ErrorContains(t, err, "move that file away")
	assert.True(t, strings.Contains(err.Error(), archive.IdentityFile))
	assert.Len(t, w.generations(), 1)
}
