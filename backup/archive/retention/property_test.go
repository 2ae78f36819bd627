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

// live simulates a cluster with backups over a few days.
func (w *world) live(t *rapid.T) {
	for range rapid.IntRange(10, 40).Draw(t, "steps") {
		w.pass(time.Duration(rapid.IntRange(1, 4*60).Draw(t, "minutes")) * time.Minute)
		if made := w.fulls[len(w.fulls)-1].Time; w.now().Sub(made) > 12*time.Hour {
			// Take a full snapshot, because a longer pause would cause a safety check to fail.
			w.full(false)
		}
		switch step := rapid.IntRange(0, 20).Draw(t, "step"); {
		case step < 8:
			w.write(rapid.Int64Range(1, 3).Draw(t, "rows"))
		case step < 9:
			w.grant()
		case step < 11:
			w.merge()
		case step < 12:
			w.full(true)
		case step < 18:
			w.full(false)
		case step < 20 && len(w.fulls) > 0:
			w.judge(rapid.SampledFrom(w.fulls).Draw(t, "full"), archive.Verified)
		case step == 20 && w.generation.Number < 3:
			w.restore()
		}
		if last := w.fulls[len(w.fulls)-1]; rapid.IntRange(0, 2).Draw(t, "judged") > 0 {
			w.judge(last, rapid.SampledFrom([]archive.Outcome{archive.Verified, archive.Verified, archive.Verified, archive.Failed}).Draw(t, "outcome"))
		}
	}
	w.pass(time.Minute)
	w.judge(w.full(false), archive.Verified)
	w.pass(time.Hour) // a safety check fails right after a pause
	w.write(1)
}

// found reports whether a point can be restored and has the rows that were written.
func (w *world) found(p point) bool {
	_, reading, err := w.read(archive.Target{Generation: p.generation, Revision: p.revision})
	if errors.Is(err, archive.ErrNotKept) {
		return false
	}
	require.NoError(w.t, err)
	require.Equal(w.t, p.revision, reading.Revision)
	return true
}

// within returns some restorable points after the given time, including the point that was current then.
func (w *world) within(t *rapid.T, since time.Time) (points []point) {
	first, _ := slices.BinarySearchFunc(w.rows, since, func(p point, since time.Time) int { return formattest.TimeAt(p.revision).Compare(since) })
	first = max(first-1, 0)
	for _, i := range append(rapid.SliceOfN(rapid.IntRange(first, len(w.rows)-1), 0, 2).Draw(t, "points"), first) {
		if w.found(w.rows[i]) {
			points = append(points, w.rows[i])
		}
	}
	return points
}

// slots returns the hours, days and weeks before a time for which a verified full snapshot must be kept.
func (w *world) slots(t *rapid.T, policy Policy, from time.Time) map[string]bool {
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
	went := 0
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(r)
		w.live(r)
		policy := Policy{
			Points: time.Duration(rapid.IntRange(0, 40).Draw(r, "points")) * time.Hour, Hourly: rapid.IntRange(0, 30).Draw(r, "hourly"),
			Daily: rapid.IntRange(0, 3).Draw(r, "daily"), Weekly: rapid.IntRange(0, 2).Draw(r, "weekly"),
		}
		from := w.now().Add(-policy.Points)
		points, slots := w.within(r, from), w.slots(r, policy, from)
		plan := w.look(policy)
		went += len(plan.Deletes())
		w.breakDown(r, plan)
		_, err := plan.Execute(context.Background(), w.archive, nil)
		if err != nil && !errors.Is(err, store.ErrUnavailable) {
			r.Fatal(err)
		}
		w.keeps(r, points, slots, policy, from)
		w.store.ClearFaults()
		w.again(r, policy)
		w.keeps(r, points, slots, policy, from)
	})
	require.NotZero(t, went, "nothing ever went")
}

// breakDown makes one deletion fail. If the deletion of a full snapshot fails, its manifest has been deleted but its
// data has not.
func (w *world) breakDown(t *rapid.T, plan Plan) {
	goes := plan.Deletes()
	if len(goes) == 0 || rapid.Bool().Draw(t, "all goes well") {
		return
	}
	item := rapid.SampledFrom(goes).Draw(t, "fails")
	name := item.Name
	if item.Kind == Full {
		name = archive.DataName(item.Generation, item.Name)
	}
	w.store.Inject(memory.Fault{Op: memory.Delete, Prefix: name, Err: memory.ErrServerError})
}

// again creates and executes plans until there is nothing left to delete. Deleting a merged object can reveal
// objects that it covered.
func (w *world) again(t *rapid.T, policy Policy) {
	for range 4 {
		plan := w.look(policy)
		if len(plan.Deletes()) == 0 {
			return
		}
		if _, err := plan.Execute(context.Background(), w.archive, nil); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("there is always more to do")
}

func (w *world) keeps(t *rapid.T, points []point, slots map[string]bool, policy Policy, from time.Time) {
	for _, p := range points {
		if !w.found(p) {
			t.Fatalf("revision %d of generation %d, from %v, is lost; points begin %v", p.revision, p.generation, formattest.TimeAt(p.revision), from)
		}
	}
	after := w.slots(t, policy, from)
	for slot := range slots {
		if !after[slot] {
			t.Fatalf("the verified full of %s is lost", slot)
		}
	}
}

// quick is the default number of histories. For a longer run, use go test ./backup/archive/retention -run Promised
// -rapid.checks 1500.
const quick = "30"

func TestMain(m *testing.M) {
	flag.Parse()
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		_ = checks.Value.Set(quick) // the value is a valid number
	}
	os.Exit(m.Run())
}

// world is a store with the backups of a cluster. Each revision equals the cluster's time in seconds.
type world struct {
	t          formattest.T
	store      *memory.Store
	archive    *archive.Archive
	generation archive.Generation
	clock      int64 // current time in seconds since the epoch, and the highest revision
	head       format.Start
	unmerged   []archive.Object
	fulls      []archive.Full // full snapshots of the newest generation
	rows       []point        // written rows in all generations
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

// read finds the path to a target and reads its objects.
func (w *world) read(target archive.Target) (path archive.Path, reading archive.Reading, err error) {
	if path, err = w.archive.Find(context.Background(), target); err == nil {
		reading, err = w.archive.Read(context.Background(), path, func(format.Row) error { return nil })
	}
	return path, reading, err
}

// write stores a segment with rows. The last row has the current time.
func (w *world) write(rows int64) {
	first := max(w.head.Position.Revision, w.clock-rows+1)
	w.put(formattest.Build(w.t, &format.Keys{}, w.head, formattest.Rows(first, w.clock)))
	for revision := first; revision <= w.clock; revision++ {
		w.rows = append(w.rows, point{w.generation.Number, revision})
	}
}

// grant stores a segment without rows that contains a changed bucket.
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

// full stores a full snapshot at the head of the chain, or at the current revision if there is a gap.
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

// judge stores a restore test result.
func (w *world) judge(full archive.Full, outcome archive.Outcome) {
	require.NoError(w.t, w.archive.PutResult(context.Background(), archive.Result{
		Cluster: full.Cluster, Generation: full.Generation, Full: full.Name(), Revision: full.Revision, Outcome: outcome, Why: "it differs", At: w.now(),
	}))
	w.pass(time.Second)
}

// merge merges the remaining segments and deletes all of them except the newest.
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

// restore simulates a restore that creates a new generation.
func (w *world) restore() {
	number := w.generation.Number + 1
	w.generation = archive.Generation{
		Number: number, Cluster: "c" + string(rune('0'+number)), Parent: w.generation.Number, ParentRevision: w.head.Position.Revision - 1, Created: w.now(),
	}
	require.NoError(w.t, archivetest.BeginGeneration(context.Background(), w.archive, w.generation))
	w.fulls = nil
	w.full(true)
}
