package retention

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// simulate simulates a few days in which the cluster writes, is backed up and is restored.
func (w *simulation) simulate(t *rapid.T) {
	for range rapid.IntRange(10, 40).Draw(t, "steps") {
		w.advance(time.Duration(rapid.IntRange(1, 4*60).Draw(t, "minutes")) * time.Minute)
		if lastTime := w.fulls[len(w.fulls)-1].Time; w.now().Sub(lastTime) > 12*time.Hour {
			// Take a full snapshot, because a longer pause would cause a safety check to fail.
			w.full(false)
		}
		switch step := rapid.IntRange(0, 20).Draw(t, "step"); {
		case step < 8:
			w.write(rapid.Int64Range(1, 3).Draw(t, "rows"))
		case step < 9:
			w.writeBucket()
		case step < 11:
			w.merge()
		case step < 12:
			w.full(true)
		case step < 18:
			w.full(false)
		case step < 20 && len(w.fulls) > 0:
			w.putResult(rapid.SampledFrom(w.fulls).Draw(t, "full"), archive.Verified)
		case step == 20 && w.generation.Number < 3:
			w.restore()
		}
		if last := w.fulls[len(w.fulls)-1]; rapid.IntRange(0, 2).Draw(t, "judged") > 0 {
			w.putResult(last, rapid.SampledFrom([]archive.Outcome{archive.Verified, archive.Verified, archive.Verified, archive.Failed}).Draw(t, "outcome"))
		}
	}
	w.advance(time.Minute)
	w.putResult(w.full(false), archive.Verified)
	w.advance(time.Hour) // after a pause, a safety check prevents deletions for an hour
	w.write(1)
}

// isRestorable reports whether a point can be restored.
func (w *simulation) isRestorable(p point) bool {
	_, reading, err := w.read(archive.Target{Generation: p.generation, Revision: p.revision})
	if errors.Is(err, archive.ErrNotKept) {
		return false
	}
	require.NoError(w.t, err)
	require.Equal(w.t, p.revision, reading.Revision)
	return true
}

// restorablePoints returns some restorable points after the given time, including the point that was current then.
func (w *simulation) restorablePoints(t *rapid.T, since time.Time) (points []point) {
	first, _ := slices.BinarySearchFunc(w.rows, since, func(p point, since time.Time) int { return formattest.TimeAt(p.revision).Compare(since) })
	first = max(first-1, 0)
	for _, i := range append(rapid.SliceOfN(rapid.IntRange(first, len(w.rows)-1), 0, 2).Draw(t, "points"), first) {
		if w.isRestorable(w.rows[i]) {
			points = append(points, w.rows[i])
		}
	}
	return points
}

// slots returns the hours, days and weeks before a time for which a verified full snapshot must be kept.
func (w *simulation) slots(t *rapid.T, policy Policy, from time.Time) map[string]bool {
	history, err := w.archive.History(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	slots := map[string]bool{}
	for _, full := range history.Newest().Fulls {
		if full.Result == nil || full.Result.Outcome != archive.Verified {
			continue
		}
		for length, count := range map[time.Duration]int{time.Hour: policy.Hourly, 24 * time.Hour: policy.Daily, 7 * 24 * time.Hour: policy.Weekly} {
			begin := full.Time.Truncate(length) // Truncate starts weeks on Monday too
			if !begin.After(from) && begin.After(from.Truncate(length).Add(-time.Duration(count)*length)) {
				slots[fmt.Sprint(length, begin)] = true
			}
		}
	}
	return slots
}

// Execute must keep all restore points that the policy requires, even if the plan is executed only partially.
func TestExecute_keepsWhatIsPromised(t *testing.T) {
	deleted := 0
	rapid.Check(t, func(r *rapid.T) {
		w := newSimulation(r)
		w.simulate(r)
		policy := Policy{
			Points: time.Duration(rapid.IntRange(0, 40).Draw(r, "points")) * time.Hour, Hourly: rapid.IntRange(0, 30).Draw(r, "hourly"),
			Daily: rapid.IntRange(0, 3).Draw(r, "daily"), Weekly: rapid.IntRange(0, 2).Draw(r, "weekly"),
		}
		from := w.now().Add(-policy.Points)
		points, slots := w.restorablePoints(r, from), w.slots(r, policy, from)
		plan := w.plan(policy)
		deleted += len(plan.Deletes())
		w.failDeletion(r, plan)
		_, err := plan.Execute(context.Background(), w.archive, nil)
		if err != nil && !errors.Is(err, store.ErrUnavailable) {
			r.Fatal(err)
		}
		w.requireKept(r, points, slots, policy, from)
		w.store.ClearFaults()
		w.executeAll(r, policy)
		w.requireKept(r, points, slots, policy, from)
	})
	require.NotZero(t, deleted, "no plan has deleted anything")
}

// failDeletion makes the deletion of a random item fail, or none. For a full snapshot, the manifest is deleted before
// the deletion of the data fails.
func (w *simulation) failDeletion(t *rapid.T, plan Plan) {
	items := plan.Deletes()
	if len(items) == 0 || rapid.Bool().Draw(t, "no failure") {
		return
	}
	item := rapid.SampledFrom(items).Draw(t, "failed item")
	name := item.Name
	if item.Kind == Full {
		name = archive.DataName(item.Generation, item.Name)
	}
	w.store.Inject(memory.Fault{Op: memory.Delete, Prefix: name, Err: memory.ErrServerError})
}

// executeAll creates and executes plans until there is nothing left to delete. Several plans may be required, because
// deleting a merged object can reveal objects that it covered.
func (w *simulation) executeAll(t *rapid.T, policy Policy) {
	for range 4 {
		plan := w.plan(policy)
		if len(plan.Deletes()) == 0 {
			return
		}
		if _, err := plan.Execute(context.Background(), w.archive, nil); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("every plan deletes something")
}

func (w *simulation) requireKept(t *rapid.T, points []point, slots map[string]bool, policy Policy, from time.Time) {
	for _, p := range points {
		if !w.isRestorable(p) {
			t.Fatalf("revision %d of generation %d (%v) is lost; window starts at %v", p.revision, p.generation, formattest.TimeAt(p.revision), from)
		}
	}
	after := w.slots(t, policy, from)
	for slot := range slots {
		if !after[slot] {
			t.Fatalf("no verified full snapshot is left for slot %s", slot)
		}
	}
}

// defaultChecks is the default number of histories. For a longer run, use:
//
//	go test ./backup/archive/retention -run Promised -rapid.checks 1500
const defaultChecks = "30"

func TestMain(m *testing.M) {
	flag.Parse()
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		_ = checks.Value.Set(defaultChecks) // the value is a valid number
	}
	os.Exit(m.Run())
}

// A simulation is a store with the backups of a simulated cluster. The current revision equals the cluster's time in
// seconds.
type simulation struct {
	t          formattest.T
	store      *memory.Store
	archive    *archive.Archive
	generation archive.Generation
	clock      int64 // current time in seconds since the epoch, and the highest revision
	head       format.Start
	unmerged   []archive.Object // segments since the last merge or gap
	fulls      []archive.Full   // full snapshots of the newest generation
	rows       []point          // written rows in all generations
}

// point is a revision with rows.
type point struct {
	generation int
	revision   int64
}

func newSimulation(t formattest.T) *simulation {
	w := &simulation{t: t, store: memory.New(), clock: 1}
	w.store.Now = func() time.Time { return formattest.TimeAt(w.clock) }
	w.archive = archive.New(w.store, &format.Keys{})
	var err error
	w.generation, err = w.archive.Create(context.Background(), archive.Cluster{Cluster: "c1", Created: formattest.TimeAt(w.clock)}, 1)
	require.NoError(t, err)
	w.full(true)
	return w
}

func (w *simulation) now() time.Time { return formattest.TimeAt(w.clock) }

func (w *simulation) advance(d time.Duration) { w.clock += max(int64(d/time.Second), 1) }

// read finds the path to a target and reads its objects.
func (w *simulation) read(target archive.Target) (path archive.Path, reading archive.Reading, err error) {
	if path, err = w.archive.Find(context.Background(), target); err == nil {
		reading, err = w.archive.Read(context.Background(), path, func(format.Row) error { return nil })
	}
	return path, reading, err
}

// write stores a segment with rows. The last row has the current time.
func (w *simulation) write(rows int64) {
	first := max(w.head.Position.Revision, w.clock-rows+1)
	w.put(formattest.Build(w.t, &format.Keys{}, w.head, formattest.Rows(first, w.clock)))
	for revision := first; revision <= w.clock; revision++ {
		w.rows = append(w.rows, point{w.generation.Number, revision})
	}
}

// writeBucket stores a segment without rows that contains a changed bucket.
func (w *simulation) writeBucket() {
	w.put(formattest.Build(w.t, &format.Keys{}, w.head, nil, formattest.Bucket("lease", "id", w.now().String())))
}

func (w *simulation) put(object format.Object) {
	require.NoError(w.t, archivetest.PutSegment(context.Background(), w.archive, object))
	w.unmerged = append(w.unmerged, archive.Object{
		Level: archive.Segment, Generation: w.generation.Number, Start: object.Position, Size: object.Size(), Modified: w.now(),
	})
	w.head = object.Start()
}

// full stores a full snapshot at the head of the chain, or at the current revision if there is a gap.
func (w *simulation) full(gap bool) archive.Full {
	full := archive.Full{
		Cluster: w.generation.Cluster, Generation: w.generation.Number, Revision: w.head.Position.Revision - 1, Next: w.head.Position,
		Time: w.now(), Chain: w.head.Before, Last: w.head.Last, Member: "m", Reason: "schedule",
	}
	if gap {
		full.Revision, full.Next = w.clock, format.After(w.clock)
		full.Chain, full.Last = format.Seed(full.Cluster, full.Generation, full.Revision), format.Digest{}
	}
	full, err := archivetest.PutFull(context.Background(), w.archive, full, strings.NewReader(strings.Repeat("database", 64)))
	require.NoError(w.t, err)
	w.head = full.Start()
	w.fulls = append(w.fulls, full)
	if gap {
		w.unmerged = nil
		w.rows = append(w.rows, point{w.generation.Number, w.clock})
	}
	return full
}

// putResult stores the result of a restore test of a full snapshot.
func (w *simulation) putResult(full archive.Full, outcome archive.Outcome) {
	require.NoError(w.t, w.archive.PutResult(context.Background(), archive.Result{
		Cluster: full.Cluster, Generation: full.Generation, Full: full.Name(), Revision: full.Revision, Outcome: outcome, Why: "bad hash", At: w.now(),
	}))
	w.advance(time.Second)
}

// merge merges the unmerged segments and deletes all of them except the newest.
func (w *simulation) merge() {
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

// restore simulates a restore that creates a new generation.
func (w *simulation) restore() {
	number := w.generation.Number + 1
	w.generation = archive.Generation{
		Number: number, Cluster: "c" + string(rune('0'+number)), Parent: w.generation.Number, ParentRevision: w.head.Position.Revision - 1, Created: w.now(),
	}
	require.NoError(w.t, archivetest.BeginGeneration(context.Background(), w.archive, w.generation))
	w.fulls = nil
	w.full(true)
}
