package archive_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

const cluster = "cdf818194e3a8c32"

// A testWriter is an archive and the state of a writer that adds segments and full snapshots to it.
type testWriter struct {
	*archive.Archive
	t     T
	ctx   context.Context
	store *memory.Store
	next  format.Start  // start of the next segment
	fulls map[int64]int // number of full snapshots at each revision
	stale bool          // the segment at next may already have been merged
}

// newTestWriter creates an archive with a full snapshot at revision 10 and one segment up to each of the given
// revisions.
func newTestWriter(t T, keys *format.Keys, lasts ...int64) *testWriter {
	t.Helper()
	s := memory.New()
	w := &testWriter{Archive: archive.New(s, keys), t: t, ctx: context.Background(), store: s, fulls: map[int64]int{}}
	_, err := w.Create(w.ctx, archive.Cluster{Cluster: cluster, Created: Noon}, 1)
	require.NoError(t, err)
	w.fullAfterGap(10)
	w.segments(lasts...)
	return w
}

// clone returns another writer for the same archive.
func (w *testWriter) clone() *testWriter { copied := *w; return &copied }

// withStore returns a writer that accesses the archive through another store.
func (w *testWriter) withStore(s store.Store) *testWriter {
	other := w.clone()
	other.Archive = archive.New(s, w.Keys())
	return other
}

// restart simulates a restart of the process, which clears the archive's cache.
func (w *testWriter) restart() { w.Archive = archive.New(w.store, w.Keys()) }

// database returns the content of a full snapshot.
func database(revision int64) string { return fmt.Sprintf("database of revision %d", revision) }

// put stores a full snapshot in the first generation. If full.Time is zero, put uses the time of the revision.
func (w *testWriter) put(full archive.Full) archive.Full {
	w.t.Helper()
	if full.Time.IsZero() {
		full.Time = TimeAt(full.Revision).Add(time.Duration(w.fulls[full.Revision]) * time.Second)
		w.fulls[full.Revision]++
	}
	full.Cluster, full.Generation, full.Reason = cmp.Or(full.Cluster, cluster), cmp.Or(full.Generation, 1), "for a test"
	stored, err := archivetest.PutFull(w.ctx, w.Archive, full, strings.NewReader(database(full.Revision)))
	require.NoError(w.t, err)
	return stored
}

// fullAfterGap stores a full snapshot that starts a new chain.
func (w *testWriter) fullAfterGap(revision int64) archive.Full {
	return w.fullAfterGapAt(revision, time.Time{})
}

func (w *testWriter) fullAfterGapAt(revision int64, at time.Time) archive.Full {
	w.t.Helper()
	full := w.put(archive.Full{Revision: revision, Chain: format.Seed(cluster, 1, revision), Time: at})
	w.next = full.Start()
	return full
}

// full stores a full snapshot at the end of the chain.
func (w *testWriter) full() archive.Full {
	w.t.Helper()
	return w.put(archive.Full{Revision: w.next.Position.Revision - 1, Next: w.next.Position, Chain: w.next.Before, Last: w.next.Last})
}

// segment stores a segment with all following revisions up to last.
func (w *testWriter) segment(last int64, buckets ...*format.Bucket) format.Object {
	w.t.Helper()
	return w.add(w.build(last, buckets...))
}

// add stores the next segment.
func (w *testWriter) add(object format.Object) format.Object {
	w.t.Helper()
	w.putSegment(object)
	w.next = object.Start()
	return object
}

func (w *testWriter) putSegment(object format.Object) {
	w.t.Helper()
	require.NoError(w.t, archivetest.PutSegment(w.ctx, w.Archive, object))
}

// rows returns a segment with one row per revision up to last, and a marker unless the time is zero.
func (w *testWriter) rows(from format.Start, last int64, at time.Time) format.Object {
	w.t.Helper()
	var records []format.Record
	for _, row := range Rows(from.Position.Revision, last) {
		records = append(records, &row)
	}
	if !at.IsZero() {
		records = append(records, &format.Marker{Revision: last, Time: at})
	}
	return Segment(w.t, w.Keys(), from, format.Source{}, records...)
}

// result stores the result of a restore test of a full snapshot. segments is true if the test included segments.
func (w *testWriter) result(into *archive.Archive, full archive.Full, outcome archive.Outcome, after int64, segments bool) {
	w.t.Helper()
	require.NoError(w.t, into.PutResult(w.ctx, archive.Result{
		Cluster: cluster, Generation: 1, Full: full.Name(), Revision: full.Revision, Outcome: outcome, At: TimeAt(after), Segments: segments, Why: "bad hash",
		Seconds: float64(len(w.names("gen/"))), // distinguishes results from the same second
	}))
}

// segments stores one segment up to each of the given revisions.
func (w *testWriter) segments(lasts ...int64) {
	w.t.Helper()
	for _, last := range lasts {
		w.segment(last)
	}
}

// steps returns the numbers from first to last in increments of step.
func steps(first, last, step int64) (all []int64) {
	for ; first <= last; first += step {
		all = append(all, first)
	}
	return all
}

func (w *testWriter) build(last int64, buckets ...*format.Bucket) format.Object {
	w.t.Helper()
	return Build(w.t, w.Keys(), w.next, Rows(w.next.Position.Revision, last), buckets...)
}

func (w *testWriter) objects(level archive.Level) []archive.Object {
	w.t.Helper()
	objects, err := w.Objects(w.ctx, 1, level)
	require.NoError(w.t, err)
	return objects
}

// merge merges the sources and then deletes them.
func (w *testWriter) merge(level archive.Level, sources ...archive.Object) archive.Object {
	w.t.Helper()
	merged, err := w.Merge(w.ctx, level, sources)
	require.NoError(w.t, err)
	for _, source := range sources {
		require.NoError(w.t, w.store.Delete(w.ctx, source.Name()))
	}
	return merged.Object
}

func (w *testWriter) head() archive.Head {
	w.t.Helper()
	head, err := w.Head(w.ctx, 1)
	require.NoError(w.t, err)
	return head
}

func (w *testWriter) history() *archive.History {
	w.t.Helper()
	history, err := w.History(w.ctx)
	require.NoError(w.t, err)
	return history
}

func (w *testWriter) find(target archive.Target) archive.Path {
	w.t.Helper()
	path, err := w.Find(w.ctx, target)
	require.NoError(w.t, err)
	return path
}

// A restored is the result of a restore: the revision of the full snapshot, the revisions of the restored rows, and
// the result of Read.
type restored struct {
	full      int64
	revisions []int64
	archive.Reading
}

func (w *testWriter) restore(target archive.Target) restored {
	w.t.Helper()
	result, err := w.tryRestore(target)
	require.NoError(w.t, err)
	return result
}

func (w *testWriter) tryRestore(target archive.Target) (restored, error) {
	path, err := w.Find(w.ctx, target)
	if err != nil {
		return restored{}, err
	}
	return w.restorePath(path)
}

// restorePath restores a path and verifies the content of the full snapshot and the rows.
func (w *testWriter) restorePath(path archive.Path) (result restored, err error) {
	result.full = path.Full.Revision
	content, err := w.OpenFull(w.ctx, path.Full)
	if err != nil {
		return result, err
	}
	defer content.Close()
	snapshot, err := io.ReadAll(content)
	if err != nil {
		return result, err
	}
	require.Equal(w.t, database(result.full), string(snapshot[:len(snapshot)-32]))
	result.Reading, err = w.Read(w.ctx, path, func(row format.Row) error {
		revision, err := row.Revision()
		result.revisions = append(result.revisions, revision)
		require.Equal(w.t, fmt.Sprintf("value %d", revision), string(row.Value))
		return err
	})
	return result, err
}

// revisions returns the revisions from first to last.
func revisions(first, last int64) []int64 { return steps(first, last, 1) }

// damage flips a bit in an object. The returned function repairs the object.
func (w *testWriter) damage(name string, bit int) (repair func()) {
	w.t.Helper()
	content, exists := w.store.Content(name)
	require.True(w.t, exists, name)
	damaged := bytes.Clone(content)
	damaged[bit/8%len(content)] ^= 1 << (bit % 8)
	w.store.SetContent(name, damaged)
	return func() { w.store.SetContent(name, content) }
}

// names returns the names of all objects with a prefix.
func (w *testWriter) names(prefix string) (names []string) {
	w.t.Helper()
	for object, err := range w.store.List(w.ctx, prefix, "") {
		require.NoError(w.t, err)
		names = append(names, object.Name)
	}
	return names
}

// inBubble runs a test with a fake clock. Pooled compressors must not be shared between bubbles, so the pools are
// emptied before and after the test.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	emptyPools()
	defer emptyPools()
	synctest.Test(t, test)
}

// emptyPools runs the garbage collector twice, because pooled objects survive the first run.
func emptyPools() {
	runtime.GC()
	runtime.GC()
}
