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

// A world is an archive with a writer.
type world struct {
	*archive.Archive
	t     T
	ctx   context.Context
	store *memory.Store
	next  format.Start  // start of the next segment
	fulls map[int64]int // number of full snapshots at each revision
	stale bool          // the segment at next may already have been merged
}

// begin creates an archive with a full snapshot of revision 10 and later segments.
func begin(t T, keys *format.Keys, lasts ...int64) *world {
	t.Helper()
	s := memory.New()
	w := &world{Archive: archive.New(s, keys), t: t, ctx: context.Background(), store: s, fulls: map[int64]int{}}
	_, err := w.Create(w.ctx, archive.Cluster{Cluster: cluster, Created: Noon}, 1)
	require.NoError(t, err)
	w.gap(10)
	w.segments(lasts...)
	return w
}

// again returns another writer for the same archive.
func (w *world) again() *world { copied := *w; return &copied }

// through returns a writer that uses another store for the same archive.
func (w *world) through(s store.Store) *world {
	other := w.again()
	other.Archive = archive.New(s, w.Keys())
	return other
}

// restart clears the cache of this process.
func (w *world) restart() { w.Archive = archive.New(w.store, w.Keys()) }

// database returns the content of a full snapshot.
func database(revision int64) string { return fmt.Sprintf("database of revision %d", revision) }

// put stores a full snapshot in the first generation. If full.Time is zero, put uses the time of the revision.
func (w *world) put(full archive.Full) archive.Full {
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

// gap stores a full snapshot that starts a new chain.
func (w *world) gap(revision int64) archive.Full { return w.gapAt(revision, time.Time{}) }

func (w *world) gapAt(revision int64, at time.Time) archive.Full {
	w.t.Helper()
	full := w.put(archive.Full{Revision: revision, Chain: format.Seed(cluster, 1, revision), Time: at})
	w.next = full.Start()
	return full
}

// full stores a full snapshot at the end of the chain.
func (w *world) full() archive.Full {
	w.t.Helper()
	return w.put(archive.Full{Revision: w.next.Position.Revision - 1, Next: w.next.Position, Chain: w.next.Before, Last: w.next.Last})
}

// segment stores a segment with all following revisions up to last.
func (w *world) segment(last int64, buckets ...*format.Bucket) format.Object {
	w.t.Helper()
	return w.add(w.build(last, buckets...))
}

// add stores the next segment.
func (w *world) add(object format.Object) format.Object {
	w.t.Helper()
	w.putSegment(object)
	w.next = object.Start()
	return object
}

func (w *world) putSegment(object format.Object) {
	w.t.Helper()
	require.NoError(w.t, archivetest.PutSegment(w.ctx, w.Archive, object))
}

// rows returns a segment with one row per revision up to last, and a marker unless the time is zero.
func (w *world) rows(from format.Start, last int64, at time.Time) format.Object {
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

// result stores the result of a restore test that did or did not include segments.
func (w *world) result(into *archive.Archive, full archive.Full, outcome archive.Outcome, after int64, segments bool) {
	w.t.Helper()
	require.NoError(w.t, into.PutResult(w.ctx, archive.Result{
		Cluster: cluster, Generation: 1, Full: full.Name(), Revision: full.Revision, Outcome: outcome, At: TimeAt(after), Segments: segments, Why: "of a reason",
		Seconds: float64(len(w.names("gen/"))), // distinguishes results from the same second
	}))
}

// segments stores one segment up to each of the given revisions.
func (w *world) segments(lasts ...int64) {
	w.t.Helper()
	for _, last := range lasts {
		w.segment(last)
	}
}

// steps returns every apart-th number from first to last.
func steps(first, last, apart int64) (all []int64) {
	for ; first <= last; first += apart {
		all = append(all, first)
	}
	return all
}

func (w *world) build(last int64, buckets ...*format.Bucket) format.Object {
	w.t.Helper()
	return Build(w.t, w.Keys(), w.next, Rows(w.next.Position.Revision, last), buckets...)
}

func (w *world) objects(level archive.Level) []archive.Object {
	w.t.Helper()
	objects, err := w.Objects(w.ctx, 1, level)
	require.NoError(w.t, err)
	return objects
}

// merge merges the sources and then deletes them.
func (w *world) merge(level archive.Level, sources ...archive.Object) archive.Object {
	w.t.Helper()
	merged, err := w.Merge(w.ctx, level, sources)
	require.NoError(w.t, err)
	for _, source := range sources {
		require.NoError(w.t, w.store.Delete(w.ctx, source.Name()))
	}
	return merged.Object
}

func (w *world) head() archive.Head {
	w.t.Helper()
	head, err := w.Head(w.ctx, 1)
	require.NoError(w.t, err)
	return head
}

func (w *world) history() *archive.History {
	w.t.Helper()
	history, err := w.History(w.ctx)
	require.NoError(w.t, err)
	return history
}

func (w *world) find(target archive.Target) archive.Path {
	w.t.Helper()
	path, err := w.Find(w.ctx, target)
	require.NoError(w.t, err)
	return path
}

// A restored is the result of a restore: the revision of the full snapshot, the revisions of the rows, and the bucket
// contents.
type restored struct {
	full      int64
	revisions []int64
	archive.Reading
}

func (w *world) restore(target archive.Target) restored {
	w.t.Helper()
	result, err := w.try(target)
	require.NoError(w.t, err)
	return result
}

func (w *world) try(target archive.Target) (restored, error) {
	path, err := w.Find(w.ctx, target)
	if err != nil {
		return restored{}, err
	}
	return w.follow(path)
}

// follow restores a path.
func (w *world) follow(path archive.Path) (result restored, err error) {
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

// damage flips a bit in an object; repair restores the object.
func (w *world) damage(name string, bit int) (repair func()) {
	w.t.Helper()
	content, exists := w.store.Content(name)
	require.True(w.t, exists, name)
	damaged := bytes.Clone(content)
	damaged[bit/8%len(content)] ^= 1 << (bit % 8)
	w.store.SetContent(name, damaged)
	return func() { w.store.SetContent(name, content) }
}

// names returns the names of all objects.
func (w *world) names(prefix string) (names []string) {
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
