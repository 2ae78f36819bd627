package recovery

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/recovery/peers"
)

// identity returns the identity of the data.
func (w *world) identity() archive.Identity {
	w.t.Helper()
	is, err := archive.ReadIdentity(w.member.DataDir)
	require.NoError(w.t, err)
	return is
}

func (w *world) clusterManifest() archive.Cluster {
	w.t.Helper()
	is, err := w.archive.Cluster(w.t.Context())
	require.NoError(w.t, err)
	return is
}

// replaceByPlainData gives the volume the data of a plain etcd.
func (w *world) replaceByPlainData() {
	w.t.Helper()
	w.lose()
	require.NoError(w.t, os.Rename(datadirtest.Initialized(w.t), w.member.DataDir))
}

func TestNewClusterGetsItsIDBeforeEtcdStarts(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.run())
	first := w.clusterManifest()
	assert.Len(t, first.Cluster, 32)
	assert.Equal(t, "etcd-cluster", first.Owner)
	assert.Equal(t, archive.Identity{Cluster: first.Cluster, Generation: 1}, w.identity())
	assert.Empty(t, w.generations(), "they are begun with the first backup")

	require.NoError(t, w.run(), "it was cut off before etcd had stored anything")
	w.lose()
	require.NoError(t, w.run(), "or before the volume knew")
	assert.Equal(t, first, w.clusterManifest())
	assert.Equal(t, first.Cluster, w.identity().Cluster)

	w.lose()
	w.options.Owner = func(token string) string { return "second/" + token }
	w.requireRefused("belongs to cluster "+first.Cluster+" of etcd-cluster", "--adopt")
}

// A lost reply must not lead to another ID.
func TestIDIsKeptIfTheReplyIsLost(t *testing.T) {
	w := newWorld(t)
	w.store.Inject(memory.Fault{Op: memory.Put, Prefix: "cluster.json", Err: memory.ErrUnreachable, ReplyLost: true, Times: 1})
	require.NoError(t, w.run())
	assert.Equal(t, w.clusterManifest().Cluster, w.identity().Cluster)
}

// A member without an ID would be refused after the others have founded the store.
func TestEmptyVolumeWaitsForItsID(t *testing.T) {
	w := newWorld(t)
	w.store.Inject(memory.Fault{Op: memory.Put, Prefix: "cluster.json", Err: memory.ErrUnreachable})
	require.ErrorContains(t, w.run(), "cannot create the ID of a new cluster")
	assert.NoFileExists(t, filepath.Join(w.member.DataDir, archive.IdentityFile))
	w.store.ClearFaults()
	require.NoError(t, w.run())
	assert.Equal(t, w.clusterManifest().Cluster, w.identity().Cluster)
}

func TestMembersThatFoundTogetherHaveOneID(t *testing.T) {
	w, o := ofThree(t)
	w.emptyStore()
	w.lose()
	o.listing = peers.Founding
	require.NoError(t, w.run())
	other, o := ofThree(t)
	other.archive, other.options.Archive = w.archive, w.archive
	other.lose()
	o.listing = peers.Founding
	require.NoError(t, other.run())
	assert.Equal(t, w.identity(), other.identity())
}

func TestEmptyVolumeNeedsAdoptForAnotherOwner(t *testing.T) {
	w := newFilledWorld(t)
	w.lose()
	w.options.Owner = func(token string) string { return "second/" + token }
	w.requireRefused("belongs to cluster "+ours+" of etcd-cluster, and this member to second/etcd-cluster", "--adopt")
	w.options.Adopt = "beef"
	w.requireRefused("--adopt=beef names another one")

	w.options.Adopt = ours
	require.NoError(t, w.run())
	all := w.generations()
	require.Len(t, all, 2)
	assert.Equal(t, "second/etcd-cluster", all[1].Owner)
	assert.Equal(t, []string{"second/etcd-cluster"}, all[1].Adopted)
	w.requireKeys("key")

	w.options.Owner = asItsToken
	w.lose()
	w.options.Adopt = ""
	w.requireRefused("of second/etcd-cluster") // the store is the other's by now
}

// It may be a copy of the owner's volume.
func TestVolumeBehindNeedsAdoptForAnotherOwner(t *testing.T) {
	w := newFilledWorld(t)
	w.advanceStore()
	w.options.Owner = func(token string) string { return "second/" + token }
	w.requireRefused("belongs to cluster " + ours + " of etcd-cluster, and this member to second/etcd-cluster")

	w.options.Adopt = ours
	require.NoError(t, w.run())
	require.Len(t, w.generations(), 2)
	assert.Equal(t, "second/etcd-cluster", w.generations()[1].Owner)
	assert.Empty(t, w.preserved(), "it goes on with its own data")
}

func TestUnnamedDataFoundAStoreButDoNotContinueInAnother(t *testing.T) {
	w := newWorld(t)
	w.replaceByPlainData()
	require.NoError(t, w.run())
	first := w.clusterManifest()
	assert.Equal(t, hex(positionOf(t, w.member.DataDir).ClusterID), first.Etcd)
	assert.Equal(t, first.Cluster, w.identity().Cluster)

	_, err := w.archive.Create(t.Context(), first, 1)
	require.NoError(t, err)
	w.uploadFull(first.Cluster, 1)
	w.replaceByPlainData()
	w.requireRefused("the data name no cluster", "belongs to cluster "+first.Cluster, "--adopt")
}

// requireAdopted requires that the data have started one generation, although the flag stays.
func (w *world) requireAdopted(generation int) {
	w.t.Helper()
	w.requireStarts()
	assert.Equal(w.t, archive.Identity{Cluster: ours, Generation: generation}, w.identity())
	all := w.generations()
	require.Len(w.t, all, generation)
	assert.Equal(w.t, []string{"etcd-cluster"}, all[generation-1].Adopted)
	head, err := w.archive.Head(w.t.Context(), generation-1)
	require.NoError(w.t, err)
	require.NotNil(w.t, head.Ending(), "whoever wrote before ends")
	assert.Equal(w.t, generation, head.Ending().Successor)
}

func TestAdoptionStartsOneGeneration(t *testing.T) {
	for name, of := range map[string]func(w *world){
		"of no store": func(w *world) { w.replaceByPlainData() },
		"of another cluster": func(w *world) {
			w.replaceByPlainData()
			require.NoError(w.t, archive.Identity{Cluster: "beef", Generation: 4}.Write(w.member.DataDir))
		},
		"a copy": func(w *world) { w.put("of its own") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			of(w)
			w.options.Adopt = ours
			before := positionOf(t, w.member.DataDir)
			require.NoError(t, w.run())
			assert.Equal(t, before, positionOf(t, w.member.DataDir), "the data are as they were")
			w.requireAdopted(2)
			w.uploadFull(ours, 2)
			w.lose()
			require.NoError(t, w.run())
			assert.Equal(t, []string{"etcd-cluster"}, w.generations()[2].Adopted, "a restore remembers it")
			w.replaceByPlainData()
			w.requireRefused("--adopt=" + ours + " names another one or was done before; --adopt=" + ours + "/3 adopts this one")
		})
	}
}

// A copy of the cluster's data is adopted, and later another one. The flag stays, so its value has to change.
func TestAnotherAdoptionNamesTheGenerationItEnds(t *testing.T) {
	w := newFilledWorld(t)
	w.put("of the first copy")
	w.options.Adopt = ours
	require.NoError(t, w.run())
	w.uploadFull(ours, 2)
	w.put("of the second copy")
	before := positionOf(t, w.member.DataDir)
	for _, inert := range []string{ours, ours + "/1", ours + "/3"} {
		w.options.Adopt = inert
		require.NoError(t, w.run())
		assert.Len(t, w.generations(), 2, inert)
	}
	w.options.Adopt = ours + "/2"
	require.NoError(t, w.run())
	assert.Equal(t, before, positionOf(t, w.member.DataDir), "the data are as they were")
	w.put("afterwards")
	w.requireAdopted(3)
	w.uploadFull(ours, 3)
	w.replaceByPlainData()
	w.requireRefused("--adopt=" + ours + "/3") // the way in that works
}

func TestAdoptionThatWasCutOffIsCompleted(t *testing.T) {
	for name, of := range map[string]struct {
		fault memory.Fault
		cut   func(w *world)
	}{
		"before the end is marked":         {memory.Fault{Op: memory.Put, Prefix: "gen/000001/segment/", Err: store.ErrUnavailable}, nil},
		"before the generation":            {memory.Fault{Op: memory.Put, Prefix: "gen/000002/", Err: store.ErrUnavailable}, nil},
		"the generation's reply was lost":  {memory.Fault{Op: memory.Put, Prefix: "gen/000002/", Err: memory.ErrUnreachable, ReplyLost: true}, nil},
		"before the volume remembers that": {memory.Fault{Times: 0, Op: memory.Delete}, func(w *world) { w.replaceByPlainData() }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			w.replaceByPlainData()
			w.options.Adopt = ours
			w.store.Inject(of.fault)
			_, err := w.patient()
			w.store.ClearFaults()
			if of.cut != nil {
				require.NoError(t, err)
				of.cut(w)
			}
			w.wait = func(context.Context, int) {}
			require.NoError(t, w.run())
			assert.Equal(t, archive.Identity{Cluster: ours, Generation: 2}, w.identity())
			assert.Len(t, w.generations(), 2)
		})
	}
}

// Three plain etcds are upgraded one after the other: the first one has founded the store.
func TestUnnamedMemberTakesTheIDOfItsPeers(t *testing.T) {
	for name, of := range map[string]struct {
		id     string
		starts bool
	}{"told": {ours, true}, "not told": {"", false}, "another one": {"beef", false}} {
		t.Run(name, func(t *testing.T) {
			w, o := ofThree(t)
			w.replaceByPlainData()
			o.id, o.of = of.id, 1
			if !of.starts {
				w.requireRefused("the data name no cluster")
				return
			}
			require.NoError(t, w.run())
			assert.Equal(t, archive.Identity{Cluster: ours, Generation: 1}, w.identity())
		})
	}
}

// Two clusters with one configuration have one etcd ID, and names lead to the members of the other one for a moment.
func TestPeersOfAnotherClusterAreNotChanged(t *testing.T) {
	for name, happens := range map[string]func(w *world){
		"the volume is empty": (*world).lose,
		"it is broken":        (*world).damage,
		"the store is away": func(w *world) {
			w.damage()
			w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := ofThree(t)
			happens(w)
			o.id, o.of = "beef", 1
			pauses := w.inPause(3, func() {
				assert.Empty(t, o.changes)
				o.id = ours
			})
			w.requireRejoined()
			assert.Equal(t, 3, *pauses)
			assert.Contains(t, w.log.String(), "the other members belong to cluster beef, but this member to cluster "+ours)
			assert.Equal(t, archive.Identity{Cluster: ours, Generation: 1}, w.identity())
		})
	}
}

// The volume is empty and the store unreachable, so the peers' cluster may be another one.
func TestPeersOfAnUnknownClusterAreNotChanged(t *testing.T) {
	w, o := ofThree(t)
	w.lose()
	o.id, o.of = ours, 1
	w.setClock(brief)
	w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
	pauses := w.inPause(3, func() {
		assert.Empty(t, o.changes)
		w.store.ClearFaults()
	})
	w.requireRejoined()
	assert.Equal(t, 3, *pauses)
	assert.Contains(t, w.log.String(), "neither the volume nor the store shows")
}

// A restore changes etcd's ID, but not that of the cluster.
func TestMemberJoinsTheRestoredClusterByItsID(t *testing.T) {
	w, o := ofThree(t)
	o.listing, o.cluster, o.id, o.of = peers.Unlisted, 0xbeef, ours, 2
	w.requireRejoined()
	assert.Len(t, w.preserved(), 1, "its data are of generation 1")
	assert.Equal(t, archive.Identity{Cluster: ours, Generation: 2}, w.identity())
}

func TestUnreadableIdentityIsRefused(t *testing.T) {
	w := newFilledWorld(t)
	require.NoError(t, os.WriteFile(filepath.Join(w.member.DataDir, archive.IdentityFile), []byte("{"), 0o600))
	err := w.run()
	require.ErrorContains(t, err, archive.IdentityFile)
	require.ErrorContains(t, err, "move that file away")
	assert.Len(t, w.generations(), 1)
}

// A new cluster in an emptied store would start at revision 1 without a word.
func TestEmptiedStoreIsRefused(t *testing.T) {
	w := newWorld(t)
	w.fill()
	w.lose()
	require.NoError(t, w.archive.Reserve(t.Context(), archive.Reservation{Cluster: ours, Generation: 1, Revision: archive.Margin, Created: at}))
	for _, name := range w.objects("gen/") {
		require.NoError(t, w.store.Delete(t.Context(), name))
	}
	for range 2 {
		w.requireRefused("names cluster "+ours+" and has a reservation of revision 1000000000, and none of its backups", "restore them from an earlier version")
		assert.NoDirExists(t, w.member.DataDir)
	}
}

// Its end marker and a reservation name the generation that followed.
func TestDeletedGenerationIsReportedAsLost(t *testing.T) {
	w := newWorld(t)
	w.fill()
	require.NoError(t, archivetest.BeginGeneration(t.Context(), w.archive, archive.Generation{
		Number: 2, Cluster: ours, Owner: "etcd-cluster", Etcd: "beef", Parent: 1, ParentRevision: 2, Created: at,
	}))
	require.NoError(t, w.archive.Reserve(t.Context(), archive.Reservation{Cluster: ours, Generation: 2, Revision: archive.Margin, Created: at}))
	for _, name := range w.objects("gen/000002/") {
		require.NoError(t, w.store.Delete(t.Context(), name))
	}
	w.lose()
	require.NoError(t, w.run())
	loss := w.log.String()
	assert.Contains(t, loss, "the later generation 2 is missing from the store and lost")
	assert.NotContains(t, loss, "nothing is known to be lost")
}

// One PUT must not roll a cluster back, nor block the next restore.
func TestStrayGenerationIsIgnored(t *testing.T) {
	w := newWorld(t)
	w.fill()
	require.NoError(t, w.archive.BeginGeneration(t.Context(), archive.Generation{
		Number: 2, Cluster: ours, Owner: "etcd-cluster", Etcd: "beef", Parent: 1, ParentRevision: 1, Created: at,
	}))
	w.store.SetContent("gen/000777/generation.json", []byte("x"))
	w.requireStarts()
	w.lose()
	require.NoError(t, w.run())
	all, err := w.archive.Generations(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 2)
	assert.Equal(t, 3, all[1].Number, "the name is taken")
	assert.Equal(t, 1, all[1].Parent)
}

// Its cluster writes all the time, so every build would be outdated if the generation were not ended first.
func TestAdoptionEndsTheGenerationBeforeItBuilds(t *testing.T) {
	w := newFilledWorld(t)
	w.lose()
	w.options.Owner = func(token string) string { return "second/" + token }
	w.options.Adopt = ours
	builds := 0
	writes := func() error {
		builds++
		head, err := w.archive.Head(t.Context(), 1)
		require.NoError(t, err)
		return w.archive.PutStored(t.Context(), 1, head.Position, formattest.Segment(t, w.archive.Keys(), head.Start, format.Source{Session: "theirs"}).Reader())
	}
	require.NoError(t, w.runWith(func(next Action) error {
		if next == EndAdopted && builds < 3 {
			return writes()
		}
		if next == BuildData {
			head, err := w.archive.Head(t.Context(), 1)
			require.NoError(t, err)
			require.NotNil(t, head.Ending(), "nothing can be added any more")
		}
		return nil
	}))
	assert.Equal(t, 1, builds)
	assert.Len(t, w.generations(), 2)
}

// The store lists its objects 90 s late, and the first generations were deleted long ago.
func TestStoreThatListsLateIsNotEmpty(t *testing.T) {
	w := newWorld(t)
	w.fill()
	require.NoError(t, archivetest.BeginGeneration(t.Context(), w.archive, archive.Generation{
		Number: 2, Cluster: ours, Owner: "etcd-cluster", Etcd: "beef", Parent: 1, ParentRevision: 2, Created: at,
	}))
	for _, name := range w.objects("gen/000001/") {
		require.NoError(t, w.store.Delete(t.Context(), name))
	}
	w.uploadFull(ours, 2)
	w.lose()
	for hidden, says := range map[string]string{"": "recovery was stopped in AskStore", "gen/000002/full/": "none of its backups can be found"} {
		w.store.Inject(memory.Fault{Op: memory.List, Hides: func(name string) bool { return strings.HasPrefix(name, hidden) }})
		_, err := w.patient()
		w.store.ClearFaults()
		require.ErrorContains(t, err, says)
		assert.NotContains(t, err.Error(), "create a new cluster")
		assert.Len(t, w.generations(), 1, "nothing was founded or restored: %q", hidden)
		assert.NoDirExists(t, w.member.DataDir)
	}
	require.NoError(t, w.run())
	w.requireKeys("key")
}

// Data that were refused stay refused when the store fails.
func TestRefusedDataAreNotServedWhileTheStoreIsUnreachable(t *testing.T) {
	w := newFilledWorld(t)
	require.NoError(t, archive.Identity{Cluster: "beef", Generation: 1}.Write(w.member.DataDir))
	w.now = func() func() time.Time {
		now := at
		return func() time.Time { now = now.Add(time.Minute); return now } // longer than valid data wait
	}()
	w.requireRefused("belongs to cluster " + ours + ", and the data to cluster beef")

	w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
	_, err := w.patient()
	require.ErrorContains(t, err, "recovery was stopped in AskStore")
	w.store.ClearFaults()

	w.emptyStore()
	w.requireStarts()
	w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
	w.requireStarts()
}

func TestDataOfAnEndedGenerationAreNotServedAgain(t *testing.T) {
	w := newFilledWorld(t)
	require.NoError(t, w.recovery().RecordMismatch(w.member.DataDir, errors.New("another copy of these data goes on")))
	w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
	_, err := w.patient()
	require.ErrorContains(t, err, "recovery was stopped in AskStore")
}
