package archive_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

func TestCreate_concurrentMembers(t *testing.T) {
	s := memory.New()
	var group sync.WaitGroup
	for i := range 5 {
		group.Go(func() {
			generation, err := archive.New(s, &format.Keys{}).Create(t.Context(), archive.Cluster{Cluster: cluster, Created: TimeAt(int64(i))}, 1)
			assert.NoError(t, err)
			assert.Equal(t, 1, generation.Number)
		})
	}
	group.Wait()
	a := archive.New(s, &format.Keys{})
	manifest, err := a.Cluster(t.Context())
	require.NoError(t, err)
	assert.Equal(t, cluster, manifest.Cluster)
}

func TestCreate_refusesAStoreOfAnotherCluster(t *testing.T) {
	s := memory.New()
	a := archive.New(s, &format.Keys{})
	_, err := a.Cluster(t.Context())
	assert.ErrorIs(t, err, store.ErrNotFound)
	s.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/", Times: 1, Err: memory.ErrUnreachable})
	_, err = a.Create(t.Context(), archive.Cluster{Cluster: cluster, Created: Noon}, 1)
	assert.ErrorIs(t, err, store.ErrUnavailable)
	for generations := range 2 {
		_, err = a.Create(t.Context(), archive.Cluster{Cluster: "7e27652122e8b2ae", Created: Noon}, 1)
		assert.ErrorIs(t, err, archive.ErrForeign)
		assert.ErrorContains(t, err, cluster)
		assert.ErrorContains(t, err, "7e27652122e8b2ae")
		all, err := a.Generations(t.Context())
		require.NoError(t, err)
		assert.Len(t, all, generations)
		generation, err := a.Create(t.Context(), archive.Cluster{Cluster: cluster, Created: TimeAt(100)}, 1)
		require.NoError(t, err, "Create completes an interrupted initialization")
		assert.Equal(t, 1, generation.Number)
	}
}

func TestGenerations_createdDuringTheListing(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	// Create the second generation while the generations are being listed.
	w.store.Inject(memory.Fault{Op: memory.List, After: 1, Times: 1, Then: func() {
		require.NoError(t, archivetest.BeginGeneration(w.ctx, w.Archive, archive.Generation{Number: 2, Cluster: cluster, Parent: 1, ParentRevision: 10}))
	}})
	all, err := w.Generations(w.ctx)
	require.NoError(t, err)
	assert.Len(t, all, 2)
}

func TestCreate_unlistedGeneration(t *testing.T) {
	s := memory.New()
	s.Inject(emptyListings)
	generation, err := archive.New(s, &format.Keys{}).Create(t.Context(), archive.Cluster{Cluster: cluster, Created: Noon}, 3)
	require.NoError(t, err)
	assert.Equal(t, 3, generation.Number)
}

func TestCreate_afterARestore(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	const renewed = "7e27652122e8b2ae"
	second := archive.Generation{Number: 2, Cluster: renewed, Parent: 1, ParentRevision: 10, Created: TimeAt(50)}
	require.NoError(t, archivetest.BeginGeneration(w.ctx, w.Archive, second))
	assert.ErrorIs(t, w.BeginGeneration(w.ctx, archive.Generation{Number: 2, Cluster: "1"}), store.ErrExists)

	for id, number := range map[string]int{cluster: 1, renewed: 2} {
		generation, err := w.Create(w.ctx, archive.Cluster{Cluster: id, Created: TimeAt(60)}, 1)
		require.NoError(t, err)
		assert.Equal(t, number, generation.Number)
	}
	_, err := w.Create(w.ctx, archive.Cluster{Cluster: "1", Created: TimeAt(60)}, 1)
	assert.ErrorContains(t, err, "last written by cluster "+renewed)

	require.NoError(t, w.store.Delete(w.ctx, "gen/000001/generation.json"))
	all, err := w.Generations(w.ctx)
	require.NoError(t, err)
	require.Len(t, all, 1, "the oldest generation may be deleted")
	assert.Equal(t, renewed, all[0].Cluster)
}

func TestReserved_highestCounts(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	_, err := w.Reserved(w.ctx)
	assert.ErrorIs(t, err, store.ErrNotFound)
	for _, revision := range []int64{1000, 900, 20_000} {
		require.NoError(t, w.Reserve(w.ctx, archive.Reservation{Cluster: cluster, Generation: 1, Revision: revision, Created: Noon}))
	}
	// Reserved must ignore an impossible revision and an unrecognized object name.
	require.NoError(t, w.Reserve(w.ctx, archive.Reservation{Cluster: cluster, Generation: 1, Revision: math.MaxInt64 - 10, Created: Noon}))
	w.store.SetContent("reservation/zzz", []byte("x"))
	reserved, err := w.Reserved(w.ctx)
	require.NoError(t, err)
	assert.EqualValues(t, 20_000, reserved.Revision)
	assert.Equal(t, cluster, reserved.Cluster)
	assert.ErrorIs(t, w.Reserve(w.ctx, archive.Reservation{Cluster: "1", Revision: 1000}), store.ErrExists)
}

func TestStatements_underAnotherNameAreDamaged(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	require.NoError(t, w.Reserve(w.ctx, archive.Reservation{Cluster: cluster, Revision: 1000}))
	moved, _ := w.store.Content("reservation/0000000000000001000")
	w.store.SetContent("reservation/0000000000000002000", moved)
	w.store.SetContent("reservation/0000000900000000000", []byte("x"))
	reserved, err := w.Reserved(w.ctx)
	require.NoError(t, err, "an object name alone reserves nothing")
	assert.EqualValues(t, 1000, reserved.Revision)

	generation, _ := w.store.Content("gen/000001/generation.json")
	require.NoError(t, archivetest.BeginGeneration(w.ctx, w.Archive, archive.Generation{Number: 2, Cluster: cluster}))
	w.store.SetContent("gen/000002/generation.json", generation)
	_, err = w.Generations(w.ctx)
	assert.ErrorIs(t, err, format.ErrDamaged)
	manifest, _ := w.store.Content("cluster.json")
	for _, content := range [][]byte{generation, nil, append(bytes.Clone(manifest), 'x')} {
		w.store.SetContent("cluster.json", content)
		_, err = w.Cluster(w.ctx)
		assert.ErrorIs(t, err, format.ErrDamaged)
	}
}

func TestCreate_untrustedCluster(t *testing.T) {
	ours := NewKeys(t)
	s := memory.New()
	_, err := archive.New(s, NewKeys(t).Load(t)).Create(t.Context(), archive.Cluster{Cluster: cluster, Created: Noon}, 1)
	require.NoError(t, err)
	_, err = archive.New(s, ours.Load(t)).Create(t.Context(), archive.Cluster{Cluster: cluster, Created: Noon}, 1)
	assert.ErrorIs(t, err, format.ErrUntrusted)
	assert.ErrorContains(t, err, "cluster.json in memory://test/")
}

func TestSafeRevision(t *testing.T) {
	assert.EqualValues(t, 100+archive.Margin, archive.SafeRevision(0, 100), "without a reservation")
	assert.EqualValues(t, 100+archive.Renewal, archive.SafeRevision(100+archive.Renewal, 100))
	assert.EqualValues(t, 100+archive.Margin, archive.SafeRevision(101, 100), "no member has renewed the reservation")
}

func TestCreate_withoutAClusterManifest(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	const renewed, foreign = "7e27652122e8b2ae", "beef"
	require.NoError(t, archivetest.BeginGeneration(w.ctx, w.Archive, archive.Generation{Number: 2, Cluster: renewed, Parent: 1, ParentRevision: 10}))
	require.NoError(t, w.store.Delete(w.ctx, "cluster.json"))
	before := w.names("")
	_, err := w.Create(w.ctx, archive.Cluster{Cluster: foreign, Created: Noon}, 1)
	assert.ErrorIs(t, err, archive.ErrForeign)
	assert.ErrorContains(t, err, renewed)
	assert.ErrorContains(t, err, foreign)
	assert.Equal(t, before, w.names(""), "nothing was written")

	generation, err := w.Create(w.ctx, archive.Cluster{Cluster: renewed, Created: Noon}, 1)
	require.NoError(t, err)
	assert.Equal(t, 2, generation.Number)
	manifest, err := w.Cluster(w.ctx)
	require.NoError(t, err)
	assert.Equal(t, cluster, manifest.Cluster, "the manifest names the cluster of the oldest generation")
}

// emptyListings is a fault that makes all listings empty.
var emptyListings = memory.Fault{Op: memory.List, Hides: func(string) bool { return true }}

func TestCheckExists(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	generation, err := w.Create(w.ctx, archive.Cluster{Cluster: cluster}, 1)
	require.NoError(t, err)
	w.store.Inject(emptyListings)
	require.NoError(t, w.CheckExists(w.ctx, generation))

	for _, name := range []string{"cluster.json", "gen/000001/generation.json"} {
		content, _ := w.store.Content(name)
		require.NoError(t, w.store.Delete(w.ctx, name))
		assert.ErrorIs(t, w.CheckExists(w.ctx, generation), store.ErrNotFound)
		w.store.SetContent(name, content)
	}
	others := memory.New()
	_, err = archive.New(others, &format.Keys{}).Create(w.ctx, archive.Cluster{Cluster: "beef", Created: Noon}, 1)
	require.NoError(t, err)
	theirs, _ := others.Content("gen/000001/generation.json")
	w.store.SetContent("gen/000001/generation.json", theirs)
	err = w.CheckExists(w.ctx, generation)
	assert.ErrorIs(t, err, archive.ErrForeign)
	assert.ErrorContains(t, err, "beef")
	assert.ErrorContains(t, err, cluster)
}

// Generations must return an error if only the newest generation.json is missing, because continuing from the
// previous generation would lose backups.
func TestGenerations_newestWithoutAStatement(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	second := archive.Generation{Number: 2, Cluster: "beef"}
	require.NoError(t, archivetest.BeginGeneration(t.Context(), w.Archive, second))
	require.NoError(t, w.store.Delete(t.Context(), "gen/000001/generation.json"))
	generations, err := w.Generations(t.Context())
	require.NoError(t, err, "the oldest generation may be deleted")
	assert.Len(t, generations, 1)

	require.NoError(t, w.BeginGeneration(t.Context(), archive.Generation{Number: 1, Cluster: cluster}))
	w.put(archive.Full{Cluster: "beef", Generation: 2, Revision: 20, Chain: format.Seed("beef", 2, 20)})
	require.NoError(t, w.store.Delete(t.Context(), "gen/000002/generation.json"))
	_, err = w.Generations(t.Context())
	require.ErrorIs(t, err, archive.ErrNameless)
	require.ErrorContains(t, err, "gen/000002/generation.json")
	assert.True(t, archive.NotVerified(err))

	require.NoError(t, w.BeginGeneration(t.Context(), second), "store generation.json again")
	generations, err = w.Generations(t.Context())
	require.NoError(t, err)
	assert.Len(t, generations, 2)
}

// Lineage must ignore a generation.json that was created before the previous generation ended.
func TestLineage_ignoresStrays(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12)
	statement := archive.Generation{Number: 2, Cluster: cluster, Parent: 1, ParentRevision: 11}
	for name, put := range map[string]func(number int){
		"a statement":                        func(n int) { g := statement; g.Number = n; require.NoError(t, w.BeginGeneration(t.Context(), g)) },
		"an invalid statement":               func(n int) { w.store.SetContent(fmt.Sprintf("gen/%06d/generation.json", n), []byte("x")) },
		"an object name without a statement": func(n int) { w.store.SetContent(fmt.Sprintf("gen/%06d/full/x", n), []byte("x")) },
	} {
		for _, number := range []int{2, 777} {
			put(number)
			w.restart()
			lineage, err := w.Lineage(t.Context())
			require.NoError(t, err, name)
			require.Len(t, lineage.Generations, 1, name)
			require.Len(t, lineage.Strays, 1, name)
			assert.ErrorContains(t, lineage.Strays[0], fmt.Sprintf("ignoring gen/%06d/ in memory://test/: generation 1 has not ended", number))
			assert.Equal(t, map[int]int{2: 3, 777: 2}[number], lineage.Next, "the first number without objects")
			assert.Equal(t, revisions(11, 12), w.restore(archive.Target{}).revisions)
			for _, object := range w.names(fmt.Sprintf("gen/%06d/", number)) {
				require.NoError(t, w.store.Delete(t.Context(), object))
			}
		}
	}
	require.NoError(t, w.BeginGeneration(t.Context(), statement))
	ending := format.Ending{Successor: 2, Nonce: "a", At: Noon}
	require.NoError(t, w.End(t.Context(), first, w.head(), "a", ending))
	all, err := w.Generations(t.Context())
	require.NoError(t, err)
	assert.Len(t, all, 2)
	require.NoError(t, w.store.Delete(t.Context(), "gen/000001/segment/0000000000000000013.000000000"))
	all, err = w.Generations(t.Context())
	require.NoError(t, err, "a process that has read the end marker caches it")
	assert.Len(t, all, 2)
}

// Generations must return an error if generation 2 has backups but the end marker of generation 1 is missing.
func TestLineage_strayWithBackups(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12)
	require.NoError(t, w.BeginGeneration(t.Context(), archive.Generation{Number: 2, Cluster: cluster, Parent: 1, ParentRevision: 12}))
	w.put(archive.Full{Generation: 2, Revision: 20, Chain: format.Seed(cluster, 2, 20)})
	_, err := w.Generations(t.Context())
	require.ErrorIs(t, err, format.ErrDamaged)
	assert.ErrorContains(t, err, "gen/000002/ in memory://test/")
	assert.ErrorContains(t, err, "the end marker of generation 1 is missing")
}

// Generations must return an error if a listing is incomplete; otherwise, a new cluster would be created despite the
// existing backups.
func TestGenerations_unlisted(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	w.store.Inject(emptyListings)
	_, err := w.Generations(t.Context())
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, "gen/000001/generation.json: object exists but is not listed")
}

func TestGenerations_contradictoryStatements(t *testing.T) {
	for name, g := range map[string]archive.Generation{
		"its own parent":              {Parent: 2},
		"a later parent":              {Parent: 3},
		"a negative parent":           {Parent: -1},
		"a negative revision":         {Parent: 1, ParentRevision: -1},
		"a revision without a parent": {ParentRevision: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestWriter(t, &format.Keys{})
			g.Number, g.Cluster = 2, cluster
			require.NoError(t, archivetest.BeginGeneration(t.Context(), w.Archive, g))
			_, err := w.Generations(t.Context())
			require.ErrorIs(t, err, format.ErrDamaged)
			require.ErrorContains(t, err, "gen/000002/generation.json")
		})
	}
}

func TestGenerations_ignoresImpossibleNumbers(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	require.NoError(t, w.BeginGeneration(t.Context(), archive.Generation{Number: math.MaxInt, Cluster: cluster}))
	all, err := w.Generations(t.Context())
	require.NoError(t, err)
	assert.Len(t, all, 1)
}

func TestMayAdd(t *testing.T) {
	s, files := memory.New(), NewKeys(t)
	signing, unsigning := archive.New(s, LoadKeys(t, format.KeyFiles{SigningKey: files.SigningKey})), archive.New(s, &format.Keys{})
	_, err := signing.Create(t.Context(), archive.Cluster{Cluster: "beef", Created: TimeAt(1)}, 1)
	require.NoError(t, err)
	signed, err := unsigning.Create(t.Context(), archive.Cluster{Cluster: "beef"}, 1)
	require.NoError(t, err, "a process without keys may read signed statements")
	assert.NoError(t, signing.MayAdd(signed))
	assert.ErrorIs(t, unsigning.MayAdd(signed), archive.ErrUnsigned)

	open := archive.New(memory.New(), &format.Keys{})
	unsigned, err := open.Create(t.Context(), archive.Cluster{Cluster: "beef", Created: TimeAt(1)}, 1)
	require.NoError(t, err)
	assert.NoError(t, open.MayAdd(unsigned))
}

func TestLastNamed(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	named := func() int64 {
		t.Helper()
		revision, err := w.LastNamed(t.Context())
		require.NoError(t, err)
		return revision
	}
	assert.EqualValues(t, 10, named(), "the revision of the first full snapshot")
	w.segments(14, 20)
	assert.EqualValues(t, 14, named(), "the name of the last segment does not contain its end")
	w.merge(archive.Minute, w.objects(archive.Segment)...)
	assert.EqualValues(t, 20, named())
	require.NoError(t, w.Reserve(t.Context(), archive.Reservation{Cluster: "next", Generation: 2, Revision: 7 * archive.Margin, Created: Noon}))
	assert.EqualValues(t, 20, named(), "a restore without a generation does not count")
	require.NoError(t, archivetest.BeginGeneration(t.Context(), w.Archive, archive.Generation{Number: 2, Cluster: "next", Parent: 1, ParentRevision: 20, Created: Noon}))
	assert.EqualValues(t, 6*archive.Margin, named())
}

func TestCreate_firstGenerationWithoutAStatement(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 20)
	require.NoError(t, w.store.Delete(w.ctx, "gen/000001/generation.json"))
	_, err := w.Generations(w.ctx)
	require.ErrorIs(t, err, archive.ErrNameless)
	assert.ErrorContains(t, err, "gen/000001/generation.json")
	_, err = w.Find(w.ctx, archive.Target{})
	require.ErrorIs(t, err, archive.ErrNameless)

	_, err = w.Create(w.ctx, archive.Cluster{Cluster: "7e27652122e8b2ae", Created: Noon}, 1)
	require.ErrorIs(t, err, archive.ErrNameless, "another cluster must not take over the backups")
	generation, err := w.Create(w.ctx, archive.Cluster{Cluster: cluster, Created: Noon}, 1)
	require.NoError(t, err, "the cluster in cluster.json stores generation.json again")
	assert.Equal(t, 1, generation.Number)
	assert.Equal(t, revisions(11, 20), w.restore(archive.Target{}).revisions)
}

// CreateCluster must return the existing cluster if another member created it first.
func TestCreateCluster_concurrent(t *testing.T) {
	s := memory.New()
	a := archive.New(s, &format.Keys{})
	faster, err := a.CreateCluster(t.Context(), archive.Cluster{Cluster: "1", Owner: "a", Created: Noon})
	require.NoError(t, err)
	s.Inject(memory.Fault{Op: memory.Get, Prefix: "cluster.json", Err: store.ErrNotFound, Times: 1})
	existing, err := a.CreateCluster(t.Context(), archive.Cluster{Cluster: "2", Owner: "b", Created: Noon})
	require.NoError(t, err)
	assert.Equal(t, faster.Cluster, existing.Cluster)
	assert.Equal(t, faster.Owner, existing.Owner)
}

func TestIdentity_isStoredInTheDataDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	none, err := archive.ReadIdentity(dir)
	require.NoError(t, err)
	assert.False(t, none.Known())

	identity := archive.Identity{Cluster: "c1", Generation: 3, Position: format.Position{Revision: 7}, Session: "s"}
	require.NoError(t, identity.Write(dir))
	read, err := archive.ReadIdentity(dir)
	require.NoError(t, err)
	assert.Equal(t, identity, read)
	info, err := os.Stat(filepath.Join(dir, archive.IdentityFile))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
}

// A damaged identity file must not be treated as a missing one.
func TestReadIdentity_reportsDamage(t *testing.T) {
	for _, content := range []string{"", "{", "{}", `{"cluster":"c1"}`} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, archive.IdentityFile), []byte(content), 0o600))
		_, err := archive.ReadIdentity(dir)
		require.ErrorContains(t, err, filepath.Join(dir, archive.IdentityFile), content)
	}
}
