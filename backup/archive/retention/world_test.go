package retention

import (
	"context"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store/memory"
)

// world is a store into which a cluster makes backups. Its revisions are the seconds of its clock.
type world struct {
	t          formattest.T
	store      *memory.Store
	archive    *archive.Archive
	generation archive.Generation
	clock      int64 // seconds, and the highest revision
	head       format.Start
	unmerged   []archive.Object
	fulls      []archive.Full // of the newest generation
	rows       []point        // what was written, in all generations
}

// point is a revision with rows.
type point struct {
	generation int
	revision   int64
}

func newWorld(t formattest.T) *world {
	w := &world{t: t, store: memory.New(), clock: 1}
	w.store.Now = func() time.Time { return formattest.TimeAt(w.clock) }
	w.archive = archive.New(w.store, &format.Keys{})
	var err error
	w.generation, err = w.archive.Create(context.Background(), archive.Cluster{Cluster: "c1", Created: formattest.TimeAt(w.clock)}, 1)
	require.NoError(t, err)
	w.full(true)
	return w
}

func (w *world) now() time.Time { return formattest.TimeAt(w.clock) }

func (w *world) pass(d time.Duration) { w.clock += max(int64(d/time.Second), 1) }

// read is the way to a target, and what was read on it.
func (w *world) read(target archive.Target) (path archive.Path, reading archive.Reading, err error) {
	if path, err = w.archive.Find(context.Background(), target); err == nil {
		reading, err = w.archive.Read(context.Background(), path, func(format.Row) error { return nil })
	}
	return path, reading, err
}

// write makes a segment with rows, the last one at this moment.
func (w *world) write(rows int64) {
	first := max(w.head.Position.Revision, w.clock-rows+1)
	w.put(formattest.Build(w.t, &format.Keys{}, w.head, formattest.Rows(first, w.clock)))
	for revision := first; revision <= w.clock; revision++ {
		w.rows = append(w.rows, point{w.generation.Number, revision})
	}
}

// grant makes a segment in which only a small bucket has changed.
func (w *world) grant() {
	w.put(formattest.Build(w.t, &format.Keys{}, w.head, nil, formattest.Bucket("lease", "id", w.now().String())))
}

func (w *world) put(object format.Object) {
	require.NoError(w.t, archivetest.PutSegment(context.Background(), w.archive, object))
	w.unmerged = append(w.unmerged, archive.Object{
		Level: archive.Segment, Generation: w.generation.Number, Start: object.Position, Size: object.Size(), Modified: w.now(),
	})
	w.head = object.Start()
}

// full makes a full snapshot, at the head of the chain or, after a gap, at this moment.
func (w *world) full(gap bool) archive.Full {
	made := archive.Full{
		Cluster: w.generation.Cluster, Generation: w.generation.Number, Revision: w.head.Position.Revision - 1, Next: w.head.Position,
		Time: w.now(), Chain: w.head.Before, Last: w.head.Last, Member: "m", Reason: "schedule",
	}
	if gap {
		made.Revision, made.Next = w.clock, format.After(w.clock)
		made.Chain, made.Last = format.Seed(made.Cluster, made.Generation, made.Revision), format.Digest{}
	}
	made, err := archivetest.PutFull(context.Background(), w.archive, made, strings.NewReader(strings.Repeat("database", 64)))
	require.NoError(w.t, err)
	w.head = made.Start()
	w.fulls = append(w.fulls, made)
	if gap {
		w.unmerged = nil
		w.rows = append(w.rows, point{w.generation.Number, w.clock})
	}
	return made
}

// judge stores the outcome of a test restore.
func (w *world) judge(full archive.Full, outcome archive.Outcome) {
	require.NoError(w.t, w.archive.PutResult(context.Background(), archive.Result{
		Cluster: full.Cluster, Generation: full.Generation, Full: full.Name(), Revision: full.Revision, Outcome: outcome, Why: "it differs", At: w.now(),
	}))
	w.pass(time.Second)
}

// merge merges what was not merged yet, and deletes all of that but the newest.
func (w *world) merge() {
	if len(w.unmerged) < 2 {
		return
	}
	_, err := w.archive.Merge(context.Background(), archive.Minute, w.unmerged)
	require.NoError(w.t, err)
	for _, object := range w.unmerged[:len(w.unmerged)-1] {
		require.NoError(w.t, w.store.Delete(context.Background(), object.Name()))
	}
	w.unmerged = nil
}

// restore creates a generation, as a restore does.
func (w *world) restore() {
	number := w.generation.Number + 1
	w.generation = archive.Generation{
		Number: number, Cluster: "c" + string(rune('0'+number)), Parent: w.generation.Number, ParentRevision: w.head.Position.Revision - 1, Created: w.now(),
	}
	require.NoError(w.t, archivetest.BeginGeneration(context.Background(), w.archive, w.generation))
	w.fulls = nil
	w.full(true)
}
