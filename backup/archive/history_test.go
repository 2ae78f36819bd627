package archive_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store/memory"
)

func TestHistory_emptyStore(t *testing.T) {
	a := archive.New(memory.New(), &format.Keys{})
	head, err := a.Head(t.Context(), 1)
	require.NoError(t, err)
	assert.True(t, head.Empty())
	history, err := a.History(t.Context())
	require.NoError(t, err)
	assert.Nil(t, history.Cluster)
	assert.Nil(t, history.Newest())
	_, err = a.Find(t.Context(), archive.Target{})
	assert.ErrorIs(t, err, archive.ErrNotKept)
	assert.EqualError(t, err, "the latest revision is not available in memory://test/; restore points: none")
}

// A summary describes a chain: the first and last revision, and the numbers of full snapshots and objects.
type summary struct {
	from, to       int64
	fulls, objects int
}

func summaries(history *archive.History) (all []summary) {
	for _, chain := range history.Newest().Chains {
		all = append(all, summary{chain.From, chain.To, len(chain.Fulls), len(chain.Objects)})
	}
	return all
}

func TestHistory_chains(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t))
	assert.Equal(t, []summary{{10, 10, 1, 0}}, summaries(w.history()))
	w.segments(12, 14)
	w.full()
	w.segment(16)
	assert.Equal(t, []summary{{10, 16, 2, 3}}, summaries(w.history()))

	w.fullAfterGap(20)
	w.segment(25)
	history := w.history()
	assert.Equal(t, []summary{{10, 16, 2, 3}, {20, 25, 1, 1}}, summaries(history))
	chains := history.Newest().Chains
	assert.Equal(t, TimeAt(16), chains[0].End)
	assert.Equal(t, TimeAt(21), chains[1].Begin)
	assert.Equal(t, TimeAt(25), chains[1].End)
	assert.Equal(t, cluster, history.Cluster.Cluster)

	for revision, full := range map[int64]int64{10: 10, 13: 10, 14: 14, 16: 14, 20: 20, 25: 20} {
		result := w.restore(archive.Target{Revision: revision})
		assert.Equal(t, full, result.full, "revision %d", revision)
		assert.Equal(t, revisions(full+1, revision), result.revisions)
		assert.Equal(t, revision, result.Revision)
	}
	for _, revision := range []int64{9, 17, 19, 26} {
		_, err := w.tryRestore(archive.Target{Revision: revision})
		assert.ErrorIs(t, err, archive.ErrNotKept, "revision %d", revision)
		assert.ErrorContains(t, err, "restore points: revisions 10 to 16 (2026-11-22T12:00:11Z to 2026-11-22T12:00:16Z), revisions 20 to 25 (")
	}
}

func TestHistory_deletedObjectsBetweenFulls(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12)
	w.full()
	w.segment(14)
	second := w.full()
	w.segment(16)
	segments := w.objects(archive.Segment)
	w.merge(archive.Hour, segments[:2]...)
	assert.Equal(t, []summary{{10, 16, 3, 2}}, summaries(w.history()))
	require.NoError(t, w.store.Delete(w.ctx, w.objects(archive.Hour)[0].Name()))
	assert.Equal(t, []summary{{10, 10, 1, 0}, {12, 12, 1, 0}, {14, 16, 1, 1}}, summaries(w.history()))
	_, err := w.tryRestore(archive.Target{Revision: 13})
	assert.ErrorIs(t, err, archive.ErrNotKept)

	require.NoError(t, w.store.Delete(w.ctx, archive.ManifestName(1, second.Name())))
	assert.Equal(t, []summary{{10, 10, 1, 0}, {12, 12, 1, 0}}, summaries(w.history()), "segments require a full snapshot")
	assert.Len(t, w.history().Newest().Orphans, 1)
	assert.Len(t, w.history().Newest().Objects, 1)
}

func TestFind_listsTheNewestRanges(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	for revision := int64(12); revision <= 20; revision += 2 {
		w.segment(revision)
		w.full()
	}
	for _, segment := range w.objects(archive.Segment) {
		require.NoError(t, w.store.Delete(w.ctx, segment.Name()))
	}
	require.Len(t, summaries(w.history()), 6)
	_, err := w.tryRestore(archive.Target{Revision: 4711})
	require.ErrorContains(t, err, "restore points: revisions 16 to 16 (")
	require.ErrorContains(t, err, "), revisions 20 to 20 (")
	require.ErrorContains(t, err, "); older ranges not listed: 3")
}

func TestFind_skipsAFullThatFailedItsTest(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12)
	failed := w.full()
	w.segment(14)
	w.result(w.Archive, failed, archive.Failed, 20, false)
	assert.Equal(t, []summary{{10, 14, 1, 2}}, summaries(w.history()))
	result := w.restore(archive.Target{})
	assert.EqualValues(t, 10, result.full)
	assert.Equal(t, revisions(11, 14), result.revisions)
	assert.Len(t, w.history().Newest().Fulls, 2)

	bad := w.fullAfterGap(20)
	w.segment(22)
	defer w.damage(archive.ManifestName(1, bad.Name()), 999)()
	_, err := w.tryRestore(archive.Target{Revision: 22})
	assert.Error(t, err, "segments after an unreadable full snapshot cannot be restored")
}

func TestHistory_ignoresUnknownNames(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12)
	for _, name := range []string{
		"gen/000001/segment/notes.txt", "gen/000001/segment/11.0", "gen/000001/minute/0000000000000000011.000000000", "gen/x/generation.json",
		"gen/000001/hour/0000000000000000015.000000000_0000000000000000011.000000000", "gen/000001/full/hello", "gen/1/generation.json",
		"gen/000001/full/0000000000000000099-yesterday/manifest.json", "gen/000001/verified/hello", "gen/zzz", "aaa", "zzz",
	} {
		w.store.SetContent(name, []byte("hello"))
	}
	assert.Equal(t, w.next, w.head().Start)
	assert.Equal(t, []summary{{10, 12, 1, 1}}, summaries(w.history()))
	assert.Equal(t, revisions(11, 12), w.restore(archive.Target{}).revisions)
}

// A damaged cluster manifest must not prevent a restore if all other objects are intact.
func TestHistory_damagedClusterManifest(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), 12)
	repair := w.damage("cluster.json", 300)
	history := w.history()
	assert.Nil(t, history.Cluster)
	assert.Equal(t, []summary{{10, 12, 1, 1}}, summaries(history))
	assert.EqualValues(t, 12, w.restore(archive.Target{}).Revision)
	repair()
	assert.NotNil(t, w.history().Cluster)
}

// If an object after the latest restorable revision cannot be read, Find reports the object and the minimum number of
// lost revisions.
func TestFind_reportsUnreadableLaterBackups(t *testing.T) {
	for what, example := range map[string]struct {
		change  func(w *testWriter)
		latest  int64  // expected latest revision
		lost    int64  // expected minimum of Path.Lost
		pastEnd string // part of Path.PastEnd; empty if no error is expected
	}{
		"no change":            {func(*testWriter) {}, 30, 0, ""},
		"damaged last segment": {func(w *testWriter) { w.damage(archive.SegmentName(1, format.After(28)), 300) }, 28, 0, "damaged"},
		"missing merged object in the middle": {func(w *testWriter) {
			minutes := w.objects(archive.Minute)
			require.NoError(w.t, w.store.Delete(w.ctx, minutes[1].Name()))
		}, 14, 14, "gap in the chain"},
		"damaged manifest of a linked full snapshot after a gap": {func(w *testWriter) {
			w.segment(32)
			next := w.head().Next(first)
			full := w.put(archive.Full{Revision: 40, Chain: format.Seed(cluster, 1, 40), Behind: &next})
			require.NoError(w.t, w.Open(w.ctx, first, full, "writer"))
			w.damage(archive.ManifestName(1, full.Name()), 200)
		}, 32, 8, "damaged"},
		"damaged manifest of a full snapshot with segments after it": {func(w *testWriter) {
			full := w.fullAfterGap(40)
			w.segments(44, 46)
			w.damage(archive.ManifestName(1, full.Name()), 200)
		}, 30, 14, "damaged"},
		"missing segment after a full snapshot": {func(w *testWriter) {
			w.full()
			lost := w.segment(34)
			w.segments(36, 38)
			require.NoError(w.t, w.store.Delete(w.ctx, archive.SegmentName(1, lost.Position)))
		}, 30, 6, "gap in the chain: segment 0000000000000000031.000000000 is missing"},
		"missing manifest of a linked full snapshot": {func(w *testWriter) {
			next := w.head().Next(first)
			full := w.put(archive.Full{Revision: 40, Chain: format.Seed(cluster, 1, 40), Behind: &next})
			require.NoError(w.t, w.Open(w.ctx, first, full, "writer"))
			require.NoError(w.t, w.store.Delete(w.ctx, archive.ManifestName(1, full.Name())))
		}, 30, 0, "the full snapshot for position 0000000000000000041.000000000 is missing"},
		"forged names": {func(w *testWriter) {
			w.store.SetContent(archive.ManifestName(1, archive.FullName(9000, TimeAt(9000))), []byte("x"))
			w.store.SetContent(archive.SegmentName(1, format.After(9000)), []byte("x"))
			w.store.SetContent("gen/000001/hour/0000000000000000040.000000000_0000000000000000050.000000000", []byte("x"))
			w.store.SetContent("gen/000001/hour/0000000000000000012.000000000_0000000000000000050.000000000", []byte("x"))
		}, 30, 0, ""},
		"segment of another cluster before the last segment": {func(w *testWriter) {
			foreign := w.next
			foreign.Cluster = "7e27652122e8b2ae"
			w.putSegment(Build(w.t, w.Keys(), foreign, Rows(31, 32)))
			w.next = w.build(32).Start()
			w.segment(34)
		}, 30, 2, archive.SegmentName(1, format.After(30)) + " in memory://test/: cluster ID mismatch: found 7e27652122e8b2ae"},
		"full snapshot after a gap whose test failed": {func(w *testWriter) {
			w.result(w.Archive, w.fullAfterGap(40), archive.Failed, 41, false)
		}, 30, 10, "bad hash"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newTestWriter(t, NewKeys(t).Load(t), steps(12, 30, 2)...)
			segments := w.objects(archive.Segment)
			w.merge(archive.Minute, segments[:2]...)
			w.merge(archive.Minute, segments[2:4]...)
			w.merge(archive.Minute, segments[4:6]...)
			example.change(w)
			path := w.find(archive.Target{})
			assert.Equal(t, example.latest, path.Revision)
			assert.GreaterOrEqual(t, path.Lost(), example.lost)
			assert.LessOrEqual(t, path.Lost(), example.lost+2, "the name of the last segment does not contain its end")
			if example.pastEnd == "" {
				assert.NoError(t, path.PastEnd)
			} else {
				assert.ErrorContains(t, path.PastEnd, example.pastEnd)
			}
			assert.Zero(t, w.find(archive.Target{Revision: example.latest}).Lost(), "no later revision was requested")
			for revision := example.latest + 1; revision < 50; revision++ {
				_, err := w.Find(w.ctx, archive.Target{Revision: revision})
				assert.ErrorIs(t, err, archive.ErrNotKept, "revision %d", revision)
			}
			assert.Equal(t, example.latest, w.find(archive.Target{Time: TimeAt(example.latest)}).Revision)
			for _, later := range []time.Duration{time.Millisecond, 6 * time.Second, time.Hour} {
				_, err := w.Find(w.ctx, archive.Target{Time: TimeAt(example.latest).Add(later)})
				if example.pastEnd != "" {
					assert.ErrorIs(t, err, archive.ErrNotKept, "a later revision may have been current at that time")
				} else {
					assert.NoError(t, err)
				}
			}
		})
	}
}

// For a restored cluster without backups, Find must select the revision to which the cluster was restored.
func TestFind_latestOfARestoredGenerationWithoutBackups(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 20)
	w.restoreGeneration(2, 14)
	path := w.find(archive.Target{})
	assert.EqualValues(t, 14, path.Revision)
	assert.Equal(t, 1, path.Generation.Number)
	assert.Zero(t, path.Lost(), "the restore discarded the later revisions")
	assert.Equal(t, revisions(11, 14), w.restore(archive.Target{}).revisions)
	assert.EqualValues(t, 20, w.find(archive.Target{Generation: 1}).Revision)

	w.restoreGeneration(3, 17) // the newer of two generations with the same parent is used
	assert.EqualValues(t, 17, w.find(archive.Target{}).Revision)
}

// Fallback must not return revisions that the restore discarded.
func TestFallback_neverUsesDiscardedRevisions(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12, 20)
	w.restoreGeneration(2, 14)
	require.NoError(t, w.store.Delete(w.ctx, archive.SegmentName(1, format.After(12))))
	_, _, err := w.restoreAny(archive.Target{})
	assert.ErrorIs(t, err, archive.ErrNotKept)
}

// Find must not treat a generation as empty if it has full snapshots but none of them are usable.
func TestFind_generationWithUnusableFulls(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 20)
	w.restoreGeneration(2, 14)
	full := w.put(archive.Full{Cluster: "restored2", Generation: 2, Revision: 1000, Chain: format.Seed("restored2", 2, 1000)})
	w.damage(archive.ManifestName(2, full.Name()), 200)
	_, err := w.Find(w.ctx, archive.Target{})
	require.ErrorIs(t, err, archive.ErrNotKept)
	require.ErrorIs(t, err, format.ErrDamaged)
	assert.ErrorContains(t, err, "the latest revision is not available")
}

// Find must report an object signed with an untrusted key before any damaged object.
func TestFind_reportsUntrustedObjects(t *testing.T) {
	trusted, others := NewKeys(t), NewKeys(t)
	w := newTestWriter(t, trusted.Load(t), 12)
	foreign := w.clone()
	foreign.Archive = archive.New(w.store, others.Load(t))
	foreign.segment(14)
	path := w.find(archive.Target{})
	assert.EqualValues(t, 12, path.Revision)
	require.ErrorIs(t, path.PastEnd, format.ErrUntrusted)
	assert.ErrorContains(t, path.PastEnd, "--backup-trusted-keys")
	assert.ErrorContains(t, path.PastEnd, archive.SegmentName(1, format.After(12)))

	foreign.fullAfterGap(30)
	path = w.find(archive.Target{})
	require.ErrorIs(t, path.PastEnd, format.ErrUntrusted)
	assert.EqualValues(t, 18, path.Lost())

	_, err := archive.New(w.store, &format.Keys{}).Find(w.ctx, archive.Target{})
	require.NoError(t, err, "without trusted keys, all signatures are accepted")
	for _, kept := range w.history().Newest().Fulls {
		require.NoError(t, w.store.Delete(w.ctx, archive.ManifestName(1, kept.Name())))
	}
	foreign.full()
	_, err = w.Find(w.ctx, archive.Target{})
	require.ErrorIs(t, err, archive.ErrNotKept)
	assert.ErrorIs(t, err, format.ErrUntrusted)
}

// restoreGeneration creates a generation that was restored from a revision of the first generation.
func (w *testWriter) restoreGeneration(number int, revision int64) {
	w.t.Helper()
	require.NoError(w.t, archivetest.BeginGeneration(w.ctx, w.Archive, archive.Generation{
		Number: number, Cluster: "restored" + string(rune('0'+number)), Parent: 1, ParentRevision: revision, Created: TimeAt(25),
	}))
}

func TestHistory_reportsHoles(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), steps(12, 24, 2)...)
	w.full()
	w.segments(steps(26, 30, 2)...)
	whole := w.history().Newest().Chains
	require.Len(t, whole, 1)
	require.NoError(t, whole[0].PastEnd)
	segments := w.objects(archive.Segment)
	w.merge(archive.Minute, segments[:2]...)
	lost := w.merge(archive.Minute, segments[2:4]...)
	require.NoError(t, w.store.Delete(w.ctx, lost.Name()))
	w.fullAfterGap(40)
	w.segment(42)

	chains := w.history().Newest().Chains
	require.Len(t, chains, 3)
	assert.Equal(t, []summary{{10, 14, 1, 1}, {24, 30, 1, 3}, {40, 42, 1, 1}}, summaries(w.history()))
	require.ErrorIs(t, chains[0].PastEnd, archive.ErrHole)
	require.ErrorContains(t, chains[0].PastEnd, "segment "+format.After(14).String()+" is missing")
	require.NoError(t, chains[1].PastEnd, "the next chain starts with a full snapshot, so nothing is missing")
	require.NoError(t, chains[2].PastEnd)
}

// History must read a segment's manifest, because the segment's name does not include its end.
func TestHistory_readsTheEndsOfSegments(t *testing.T) {
	for fault, want := range map[string]error{"missing": archive.ErrHole, "damaged": format.ErrDamaged} {
		t.Run(fault, func(t *testing.T) {
			w := newTestWriter(t, NewKeys(t).Load(t), steps(12, 20, 2)...)
			w.full()
			w.segments(22, 24, 26)
			w.full()
			w.segments(28, 30)
			require.Len(t, w.history().Newest().Chains, 1)
			for _, last := range []int64{16, 22} {
				name := archive.SegmentName(1, format.After(last))
				if fault == "missing" {
					require.NoError(t, w.store.Delete(w.ctx, name))
				} else {
					w.damage(name, 99)
				}
			}
			holed := w.history()
			chains := holed.Newest().Chains
			assert.Equal(t, []summary{{10, 16, 1, 3}, {20, 22, 1, 1}, {26, 30, 1, 2}}, summaries(holed))
			for i, chain := range chains {
				if i == len(chains)-1 {
					require.NoError(t, chain.PastEnd)
				} else {
					require.ErrorIs(t, chain.PastEnd, want)
				}
			}
			for _, chain := range chains {
				for revision := chain.From; revision <= chain.To; revision++ {
					result, path, err := w.restoreAny(archive.Target{Revision: revision})
					require.NoError(t, err, "revision %d", revision)
					assert.EqualValues(t, revision, path.Revision)
					assert.Equal(t, chain.From, result.full)
				}
			}
		})
	}
}

func TestHistory_readsEachSegmentOnce(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), steps(12, 30, 2)...)
	w.restart()
	reads := func() int { return w.store.CountCalls(memory.Get, "gen/000001/segment/") }
	before := reads()
	w.history()
	require.Equal(t, before+11, reads(), "ten segments and the next position")
	w.segment(32)
	segments := w.objects(archive.Segment)
	require.NoError(t, w.store.Delete(w.ctx, segments[4].Name()))
	before = reads()
	changed := w.history()
	assert.LessOrEqual(t, reads(), before+4, "only segments next to a change and the last segment of each chain")
	assert.Equal(t, []summary{{10, 18, 1, 4}}, summaries(changed))
}

func TestHistory_mergedDuringTheListing(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t), steps(12, 18, 2)...)
	segments := w.objects(archive.Segment)
	merged := false
	w.store.Inject(memory.Fault{Op: memory.Get, Prefix: "gen/000001/segment/", Times: 1, Then: func() {
		w.merge(archive.Minute, segments[:3]...)
		merged = true
	}})
	chains := w.history().Newest().Chains
	require.True(t, merged)
	require.Len(t, chains, 1)
	require.NoError(t, chains[0].PastEnd)
}
