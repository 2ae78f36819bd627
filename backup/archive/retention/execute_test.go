package retention

import (
	"context"
	"slices"
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
)

var hour = Policy{Points: time.Hour}

// aged returns a cluster with a verified full snapshot for each hour. The `hour` policy keeps the last three.
func aged(t *testing.T, hours int) *world {
	w := newWorld(t)
	for range hours {
		w.pass(30 * time.Minute)
		w.write(2)
		w.pass(30 * time.Minute)
		w.judge(w.full(false), archive.Verified)
	}
	return w
}

func (w *world) look(policy Policy) Plan {
	plan := w.lookAny(policy)
	require.Empty(w.t, plan.Unsafe)
	return plan
}

// lookAny returns a plan without requiring that the safety checks pass.
func (w *world) lookAny(policy Policy) Plan {
	history, err := w.archive.History(context.Background())
	require.NoError(w.t, err)
	plan, err := NewPlan(context.Background(), w.archive, history, policy, w.now(), w.head.Position.Revision-1)
	require.NoError(w.t, err)
	return plan
}

// names returns the names of all objects with a prefix.
func (w *world) names(prefix string) (names []string) {
	for object, err := range w.store.List(context.Background(), prefix, "") {
		require.NoError(w.t, err)
		names = append(names, object.Name)
	}
	return names
}

func TestExecute_deletesResults(t *testing.T) {
	w := aged(t, 5)
	require.NoError(t, w.archive.PutResult(t.Context(), archive.Result{
		Cluster: "c1", Generation: 1, Segments: true, Revision: 1, Outcome: archive.Verified, At: w.now().Add(-100 * 24 * time.Hour),
	}))
	var told []Item
	done, err := w.look(hour).Execute(t.Context(), w.archive, func(item Item) { told = append(told, item) })
	require.NoError(t, err)
	assert.Len(t, w.names("gen/000001/full/"), 6, "three fulls")
	assert.Len(t, w.names("gen/000001/segment/"), 2)
	assert.Len(t, w.names("gen/000001/verified/"), 3)
	assert.Empty(t, w.names("gen/000001/tested/"))
	assert.Empty(t, w.names("probe/"))
	assert.Len(t, told, 4, "three fulls and the segments")
	assert.Equal(t, 3*2+3+2+1, done.Objects, "the first full was never verified")
	assert.Positive(t, done.Bytes)
	assert.Empty(t, w.look(hour).Deletes())
}

func TestExecute_keepsResultsOfUnknownFulls(t *testing.T) {
	w := aged(t, 5)
	plan := w.look(hour)
	w.judge(w.full(false), archive.Verified)
	_, err := plan.Execute(t.Context(), w.archive, nil)
	require.NoError(t, err)
	assert.Len(t, w.names("gen/000001/verified/"), 4)
}

func TestExecute_lockedObjects(t *testing.T) {
	w := aged(t, 5)
	plan := w.look(hour)
	// The first of these full snapshots was never verified.
	fulls := slices.DeleteFunc(plan.Deletes(), func(i Item) bool { return i.Kind != Full })
	result, other := "gen/000001/verified/"+fulls[1].Name, "gen/000001/verified/"+fulls[2].Name
	w.store.Inject(
		memory.Fault{Op: memory.Delete, Prefix: archive.ManifestName(1, fulls[1].Name), Err: memory.ErrLocked},
		memory.Fault{Op: memory.Delete, Prefix: other, Err: memory.ErrLocked})
	done, err := plan.Execute(t.Context(), w.archive, nil)
	require.NoError(t, err)
	assert.Equal(t, 1, done.Locked)
	assert.Len(t, w.names("gen/000001/full/"), 8, "with its data")
	assert.NotEmpty(t, w.names(result), "and with what is known of it")
	assert.NotEmpty(t, w.names(other))
	w.store.ClearFaults()
	_, err = w.look(hour).Execute(t.Context(), w.archive, nil)
	require.NoError(t, err)
	assert.Len(t, w.names("gen/000001/full/"), 6)
	assert.Empty(t, w.names(result))
	assert.Empty(t, w.names(other), "its full had gone before")
}

func TestExecute_denied(t *testing.T) {
	w := aged(t, 5)
	plan := w.look(hour)
	before := w.names("")
	w.store.Inject(memory.Fault{Op: memory.Delete, Err: memory.ErrDenied})
	_, err := plan.Execute(t.Context(), w.archive, nil)
	require.ErrorIs(t, err, store.ErrDenied)
	assert.Equal(t, before, w.names(""))
	plan = w.lookAny(hour)
	require.Len(t, plan.Unsafe, 1)
	assert.Contains(t, plan.Unsafe[0], "permission denied")
}

// The listing may be wrong, so Execute reads the full snapshots to keep before deleting others.
func TestExecute_readsWhatStays(t *testing.T) {
	for name, harm := range map[string]func(w *world, stays string){
		"no manifest": func(w *world, stays string) {
			require.NoError(t, w.store.Delete(context.Background(), archive.ManifestName(1, stays)))
		},
		"no data": func(w *world, stays string) {
			require.NoError(t, w.store.Delete(context.Background(), archive.DataName(1, stays)))
		},
		"data that is cut off": func(w *world, stays string) {
			content, _ := w.store.Content(archive.DataName(1, stays))
			w.store.SetContent(archive.DataName(1, stays), content[:len(content)-1])
		},
	} {
		w := aged(t, 5)
		plan := w.look(hour)
		i := slices.IndexFunc(plan.Items, func(item Item) bool { return item.Kind == Full && !item.Goes })
		harm(w, plan.Items[i].Name)
		before := w.names("")
		_, err := plan.Execute(t.Context(), w.archive, nil)
		require.ErrorContains(t, err, "nothing was deleted: cannot read required full snapshot "+plan.Items[i].Name, name)
		assert.Equal(t, before, w.names(""), name)
	}
}

func TestExecute_oldGeneration(t *testing.T) {
	w := aged(t, 3)
	w.restore()
	w.judge(w.fulls[0], archive.Verified)
	for range 5 {
		w.pass(time.Hour)
		w.write(1)
		w.judge(w.full(false), archive.Verified)
	}
	plan := w.look(hour)
	w.store.Inject(memory.Fault{Op: memory.Delete, Prefix: "gen/000001/segment/", Err: memory.ErrLocked, Times: 1})
	done, err := plan.Execute(t.Context(), w.archive, nil)
	require.NoError(t, err)
	assert.Equal(t, 1, done.Locked)
	assert.Contains(t, w.names("gen/000001/"), "gen/000001/generation.json")
	for _, name := range w.names("gen/000001/full/") {
		assert.NotContains(t, name, "manifest", "nothing can be begun with it")
	}
	_, err = w.look(hour).Execute(t.Context(), w.archive, nil)
	require.NoError(t, err)
	assert.Empty(t, w.names("gen/000001/"))
}

// Revisions before a gap cannot be restored from the full snapshot after the gap.
func TestPlan_fullAfterAHole(t *testing.T) {
	w := newWorld(t)
	w.judge(w.fulls[0], archive.Verified)
	for range 4 {
		w.pass(30 * time.Minute)
		w.write(2)
		if len(w.unmerged) == 2 {
			w.merge()
		}
	}
	for _, name := range w.names("gen/000001/minute/") {
		require.NoError(t, w.store.Delete(t.Context(), name))
	}
	w.judge(w.full(false), archive.Verified)
	w.pass(30 * time.Minute)
	w.write(2)
	plan := w.look(Policy{Points: time.Hour})
	history, err := w.archive.History(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, history.Newest().Chains[0].PastEnd, archive.ErrHole)
	assert.Empty(t, plan.Deletes(), "what is before it is all that there is of the window's beginning")
}

// Anyone with write access to the store can create object names, and a command does not know which revisions were
// actually stored.
func TestPlan_namesAheadOfTheBackupsStopNothing(t *testing.T) {
	w := aged(t, 5)
	for _, name := range []string{
		"segment/0000009000000000000.000000000", "minute/0000008000000000000.000000000_0000009000000000000.000000000",
		"full/0000000009000000000-20991122T120000Z/manifest.json",
	} {
		w.store.SetContent("gen/000001/"+name, []byte("x"))
	}
	history, err := w.archive.History(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, history.Newest().Ignored, format.ErrDamaged)
	for _, known := range []int64{0, w.head.Position.Revision - 1} {
		plan, err := NewPlan(t.Context(), w.archive, history, hour, w.now(), known)
		require.NoError(t, err)
		assert.Empty(t, plan.Unsafe)
		assert.NotEmpty(t, plan.Deletes())
	}
}

// Segment names do not contain the end of the segment, so names do not reveal a gap.
func TestPlan_holeBeforeTheLatestRevision(t *testing.T) {
	w := aged(t, 5)
	for range 3 {
		w.pass(time.Second)
		w.write(1)
	}
	require.NotEmpty(t, w.look(hour).Deletes())
	lost := w.unmerged[len(w.unmerged)-2]
	require.NoError(t, w.store.Delete(t.Context(), lost.Name()))
	plan := w.lookAny(hour)
	require.Len(t, plan.Unsafe, 1)
	assert.Contains(t, plan.Unsafe[0], "segment "+lost.Start.String()+" is missing")
	assert.Empty(t, plan.Deletes())

	w.pass(time.Second)
	w.judge(w.full(true), archive.Verified)
	assert.NotEmpty(t, w.look(hour).Deletes(), "another chain was begun")
}

// Another member has split the rows differently, or has different rows. If the other member's full snapshot is inside
// a merged object, later revisions can only be restored from an older full snapshot.
func TestPlan_crossedFullWithinAMergedObjectIsNoBase(t *testing.T) {
	for name, otherRows := range map[string]bool{"within a segment": false, "with other rows": true} {
		t.Run(name, func(t *testing.T) {
			w := aged(t, 2)
			w.pass(30 * time.Minute)
			end := formattest.Build(t, &format.Keys{}, w.head, formattest.Rows(w.clock-9, w.clock-5)).Start()
			w.write(10)
			if otherRows {
				end.Position, end.Before = w.head.Position, format.Digest{1}
			}
			crossed, err := archivetest.PutFull(t.Context(), w.archive, archive.Full{
				Cluster: "c1", Generation: 1, Revision: end.Position.Revision - 1, Next: end.Position, Time: w.now(), Chain: end.Before, Last: end.Last,
			}, strings.NewReader("database"))
			require.NoError(t, err)
			w.judge(crossed, archive.Verified)
			w.pass(70 * time.Minute)
			w.write(1)
			w.merge()

			plan := w.look(hour)
			require.NotEmpty(t, plan.Deletes())
			_, err = plan.Execute(t.Context(), w.archive, nil)
			require.NoError(t, err)
			target := archive.Target{Revision: w.head.Position.Revision - 1}
			path, _, failed := w.read(target)
			path, err = w.archive.Fallback(t.Context(), path, failed)
			require.NoError(t, err)
			reading, err := w.archive.Read(t.Context(), path, func(format.Row) error { return nil })
			require.NoError(t, err)
			assert.Equal(t, target.Revision, reading.Revision)
		})
	}
}
