package retention

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// live lets a cluster make backups for a few days.
func (w *world) live(t *rapid.T) {
	for range rapid.IntRange(10, 40).Draw(t, "steps") {
		w.pass(time.Duration(rapid.IntRange(1, 4*60).Draw(t, "minutes")) * time.Minute)
		if made := w.fulls[len(w.fulls)-1].Time; w.now().Sub(made) > 12*time.Hour {
			w.full(false) // by the schedule: a longer silence fails a check
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
	w.pass(time.Hour) // a pause that has just ended fails a check
	w.write(1)
}

// found reports whether a point can be restored with the rows that were written.
func (w *world) found(p point) bool {
	_, reading, err := w.read(archive.Target{Generation: p.generation, Revision: p.revision})
	if errors.Is(err, archive.ErrNotKept) {
		return false
	}
	require.NoError(w.t, err)
	require.Equal(w.t, p.revision, reading.Revision)
	return true
}

// within returns some points since a time that can be restored, and always the one that was current at that time.
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

// slots are the hours, days and weeks before a time that a verified full is kept of, by the definition.
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
			begin := full.Time.Truncate(length) // weeks of Truncate begin on Monday, too
			if !begin.After(from) && begin.After(from.Truncate(length).Add(-time.Duration(count)*length)) {
				slots[fmt.Sprint(length, begin)] = true
			}
		}
	}
	return slots
}

// After any execution of a plan, complete or not, everything that the policy promises is kept.
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

// breakDown lets one of the deletions fail: for a full snapshot, between its manifest and its data.
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

// again executes plans until there is nothing left to do: deleting a merged object reveals the ones that it hid.
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

// quick is the default number of histories; a longer run is
// go test ./backup/archive/retention -run Promised -rapid.checks 1500.
const quick = "30"

func TestMain(m *testing.M) {
	flag.Parse()
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		_ = checks.Value.Set(quick) // it is a number
	}
	os.Exit(m.Run())
}
