package retention

import (
	"context"
	"errors"
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

// aged simulates a cluster that stored a verified full snapshot every hour. The policy hour keeps the last three.
func aged(t *testing.T, hours int) *simulation {
	w := newSimulation(t)
	for range hours {
		w.advance(30 * time.Minute)
		w.write(2)
		w.advance(30 * time.Minute)
		w.putResult(w.full(false), archive.Verified)
	}
	return w
}

func (w *simulation) plan(policy Policy) Plan {
	plan := w.planUnchecked(policy)
	require.Empty(w.t, plan.Unsafe)
	return plan
}

// planUnchecked returns a plan without requiring that the safety checks pass.
func (w *simulation) planUnchecked(policy Policy) Plan {
	history, err := w.archive.History(context.Background())
	require.NoError(w.t, err)
	plan, err := NewPlan(context.Background(), w.archive, history, policy, w.now(), w.head.Position.Revision-1)
	require.NoError(w.t, err)
	return plan
}

// names returns the names of all objects with a prefix.
func (w *simulation) names(prefix string) (names []string) {
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
	var deleted []Item
	done, err := w.plan(hour).Execute(t.Context(), w.archive, func(item Item) { deleted = append(deleted, item) })
	require.NoError(t, err)
	assert.Len(t, w.names("gen/000001/full/"), 6, "three full snapshots are left")
	assert.Len(t, w.names("gen/000001/segment/"), 2)
	assert.Len(t, w.names("gen/000001/verified/"), 3)
	assert.Empty(t, w.names("gen/000001/tested/"))
	assert.Empty(t, w.names("probe/"))
	assert.Len(t, deleted, 4, "three full snapshots and the segments")
	assert.Equal(t, 3*2+3+2+1, done.Objects, "full snapshots, segments, results of two of them, and a restore test")
	assert.Positive(t, done.Bytes)
	assert.Empty(t, w.plan(hour).Deletes())
}

func TestExecute_keepsResultsOfUnknownFulls(t *testing.T) {
	w := aged(t, 5)
	plan := w.plan(hour)
	w.putResult(w.full(false), archive.Verified)
	_, err := plan.Execute(t.Context(), w.archive, nil)
	require.NoError(t, err)
	assert.Len(t, w.names("gen/000001/verified/"), 4)
}

func TestExecute_lockedObjects(t *testing.T) {
	w := aged(t, 5)
	plan := w.plan(hour)
	fulls := slices.DeleteFunc(plan.Deletes(), func(i Item) bool { return i.Kind != Full })
	result, other := "gen/000001/verified/"+fulls[1].Name, "gen/000001/verified/"+fulls[2].Name
	w.store.Inject(
		memory.Fault{Op: memory.Delete, Prefix: archive.ManifestName(1, fulls[1].Name), Err: memory.ErrLocked},
		memory.Fault{Op: memory.Delete, Prefix: other, Err: memory.ErrLocked})
	done, err := plan.Execute(t.Context(), w.archive, nil)
	require.NoError(t, err)
	assert.Equal(t, 1, done.Locked)
	assert.Len(t, w.names("gen/000001/full/"), 8, "the data of the locked full snapshot is kept")
	assert.NotEmpty(t, w.names(result), "the result of the locked full snapshot is kept")
	assert.NotEmpty(t, w.names(other))
	w.store.ClearFaults()
	_, err = w.plan(hour).Execute(t.Context(), w.archive, nil)
	require.NoError(t, err)
	assert.Len(t, w.names("gen/000001/full/"), 6)
	assert.Empty(t, w.names(result))
	assert.Empty(t, w.names(other), "the full snapshot was deleted earlier")
}

func TestExecute_denied(t *testing.T) {
	w := aged(t, 5)
	plan := w.plan(hour)
	before := w.names("")
	w.store.Inject(memory.Fault{Op: memory.Delete, Err: memory.ErrDenied})
	_, err := plan.Execute(t.Context(), w.archive, nil)
	require.ErrorIs(t, err, store.ErrDenied)
	assert.Equal(t, before, w.names(""))
	plan = w.planUnchecked(hour)
	require.Len(t, plan.Unsafe, 1)
	assert.Contains(t, plan.Unsafe[0], "permission denied")
}

// Execute must read the full snapshots to keep before deleting others, because the listing may be wrong.
func TestExecute_readsRequiredFullsFirst(t *testing.T) {
	for name, damage := range map[string]func(w *simulation, full string){
		"missing manifest": func(w *simulation, full string) {
			require.NoError(t, w.store.Delete(context.Background(), archive.ManifestName(1, full)))
		},
		"missing data": func(w *simulation, full string) {
			require.NoError(t, w.store.Delete(context.Background(), archive.DataName(1, full)))
		},
		"truncated data": func(w *simulation, full string) {
			content, _ := w.store.Content(archive.DataName(1, full))
			w.store.SetContent(archive.DataName(1, full), content[:len(content)-1])
		},
	} {
		w := aged(t, 5)
		plan := w.plan(hour)
		i := slices.IndexFunc(plan.Items, func(item Item) bool { return item.Kind == Full && !item.Goes })
		damage(w, plan.Items[i].Name)
		before := w.names("")
		_, err := plan.Execute(t.Context(), w.archive, nil)
		require.ErrorContains(t, err, "nothing was deleted: cannot read required full snapshot "+plan.Items[i].Name, name)
		assert.Equal(t, before, w.names(""), name)
	}
}

func TestExecute_oldGeneration(t *testing.T) {
	w := aged(t, 3)
	w.restore()
	w.putResult(w.fulls[0], archive.Verified)
	for range 5 {
		w.advance(time.Hour)
		w.write(1)
		w.putResult(w.full(false), archive.Verified)
	}
	plan := w.plan(hour)
	w.store.Inject(memory.Fault{Op: memory.Delete, Prefix: "gen/000001/segment/", Err: memory.ErrLocked, Times: 1})
	done, err := plan.Execute(t.Context(), w.archive, nil)
	require.NoError(t, err)
	assert.Equal(t, 1, done.Locked)
	assert.Contains(t, w.names("gen/000001/"), "gen/000001/generation.json")
	for _, name := range w.names("gen/000001/full/") {
		assert.NotContains(t, name, "manifest", "manifests are deleted first, so the full snapshot is ignored")
	}
	_, err = w.plan(hour).Execute(t.Context(), w.archive, nil)
	require.NoError(t, err)
	assert.Empty(t, w.names("gen/000001/"))
}

// A full snapshot after a gap must not cause the deletion of the backups before the gap.
func TestPlan_fullAfterAHole(t *testing.T) {
	w := newSimulation(t)
	w.putResult(w.fulls[0], archive.Verified)
	for range 4 {
		w.advance(30 * time.Minute)
		w.write(2)
		if len(w.unmerged) == 2 {
			w.merge()
		}
	}
	for _, name := range w.names("gen/000001/minute/") {
		require.NoError(t, w.store.Delete(t.Context(), name))
	}
	w.putResult(w.full(false), archive.Verified)
	w.advance(30 * time.Minute)
	w.write(2)
	plan := w.plan(Policy{Points: time.Hour})
	history, err := w.archive.History(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, history.Newest().Chains[0].PastEnd, archive.ErrHole)
	assert.Empty(t, plan.Deletes(), "the older backups are required for the window")
}

// An object name with a revision that was never stored must not prevent deletions.
func TestPlan_forgedNamesDoNotPreventDeletions(t *testing.T) {
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

// A gap before the latest revision must be found even though the names of segments do not reveal it.
func TestPlan_holeBeforeTheLatestRevision(t *testing.T) {
	w := aged(t, 5)
	for range 3 {
		w.advance(time.Second)
		w.write(1)
	}
	require.NotEmpty(t, w.plan(hour).Deletes())
	lost := w.unmerged[len(w.unmerged)-2]
	require.NoError(t, w.store.Delete(t.Context(), lost.Name()))
	plan := w.planUnchecked(hour)
	require.Len(t, plan.Unsafe, 1)
	assert.Contains(t, plan.Unsafe[0], "segment "+lost.Start.String()+" is missing")
	assert.Empty(t, plan.Deletes())

	w.advance(time.Second)
	w.putResult(w.full(true), archive.Verified)
	assert.NotEmpty(t, w.plan(hour).Deletes(), "a gap before a later chain does not prevent deletions")
}

// A full snapshot within a merged object must not be the base, because later revisions can only be restored from an
// older full snapshot.
func TestPlan_crossedFullWithinAMergedObjectIsNoBase(t *testing.T) {
	for name, otherRows := range map[string]bool{"within a segment": false, "with other rows": true} {
		t.Run(name, func(t *testing.T) {
			w := aged(t, 2)
			w.advance(30 * time.Minute)
			end := formattest.Build(t, &format.Keys{}, w.head, formattest.Rows(w.clock-9, w.clock-5)).Start()
			w.write(10)
			if otherRows {
				end.Position, end.Before = w.head.Position, format.Digest{1}
			}
			crossed, err := archivetest.PutFull(t.Context(), w.archive, archive.Full{
				Cluster: "c1", Generation: 1, Revision: end.Position.Revision - 1, Next: end.Position, Time: w.now(), Chain: end.Before, Last: end.Last,
			}, strings.NewReader("database"))
			require.NoError(t, err)
			w.putResult(crossed, archive.Verified)
			w.advance(70 * time.Minute)
			w.write(1)
			w.merge()

			plan := w.plan(hour)
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

func TestPlan_failedChecks(t *testing.T) {
	for _, failing := range []struct {
		message string // part of the expected Plan.Unsafe
		change  func(f *Facts, g *archive.GenerationContents)
	}{
		{"no backups found", func(f *Facts, _ *archive.GenerationContents) { f.History = &archive.History{} }},
		{"no backup of generation 1 has been verified yet", func(_ *Facts, g *archive.GenerationContents) {
			for i := range g.Fulls {
				g.Fulls[i].Result = nil
			}
		}},
		{"the last restore test (revision 7) failed: bad hash", func(_ *Facts, g *archive.GenerationContents) {
			g.Fulls[len(g.Fulls)-1].Result = result(archive.Failed, 7, now)
		}},
		{"the last restore test (revision 9) failed: bad hash", func(f *Facts, _ *archive.GenerationContents) {
			f.RestoreTests = []archive.Result{*result(archive.Failed, 9, now.Add(time.Minute))}
		}},
		{"the store's time is unknown", func(f *Facts, _ *archive.GenerationContents) { f.Store = time.Time{} }},
		{"is 20m0s; correct this machine's clock", func(f *Facts, _ *archive.GenerationContents) { f.Store = now.Add(20 * time.Minute) }},
		{"is 20m0s; correct this machine's clock", func(f *Facts, _ *archive.GenerationContents) { f.Store = now.Add(-20 * time.Minute) }},
		{"is 1h0m0s in the future", func(_ *Facts, g *archive.GenerationContents) { g.Objects[3].Modified = now.Add(time.Hour) }},
		{"is 1h0m0s in the future", func(_ *Facts, g *archive.GenerationContents) { g.Chains[0].End = now.Add(time.Hour) }},
		{"a member's clock was wrong", func(_ *Facts, g *archive.GenerationContents) {
			last := len(g.Fulls) - 1
			g.Fulls[last].Time = g.Fulls[last-1].Time.Add(-time.Hour)
		}},
		{"full snapshot " + archive.FullName(fullAt(now).Revision, now.Add(time.Hour)) + " in generation 1 is 1h0m0s in the future", func(_ *Facts, g *archive.GenerationContents) {
			g.Fulls[len(g.Fulls)-1].Time = now.Add(time.Hour)
		}},
		{"no new backups for 48h0m0s", func(f *Facts, _ *archive.GenerationContents) {
			f.Now, f.Store = now.Add(2*day+10*time.Minute), now.Add(2*day+10*time.Minute)
		}},
		{"cannot read revisions after 131000: gap", func(_ *Facts, g *archive.GenerationContents) { g.Chains[0].PastEnd = errors.New("gap") }},
		{"but revision 99999999 was uploaded", func(f *Facts, _ *archive.GenerationContents) { f.Known = 99999999 }},
	} {
		h := history(chain(hourly(5*day, 0)...))
		facts := Facts{History: h, Now: now, Store: now, Known: h.Generations[0].Chains[0].To}
		require.NotEmpty(t, Make(policy, facts).Deletes(), "all checks pass before the change")
		failing.change(&facts, &h.Generations[0])
		p := Make(policy, facts)
		require.Len(t, p.Unsafe, 1, failing.message)
		assert.Contains(t, p.Unsafe[0], failing.message)
		assert.Empty(t, p.Deletes())
	}
}

// A full snapshot with a time in the past must not cause the deletion of earlier snapshots.
func TestPlan_clockWasBehind(t *testing.T) {
	fulls := hourly(5*day, 0)
	window := len(fulls) - 25 // oldest full snapshot in the point-in-time window
	fulls[window].Time = time.Unix(0, 0)
	p := plan(history(chain(fulls...)))
	require.Empty(t, p.Unsafe, "the order before the window is not checked")
	require.NotEmpty(t, p.Deletes())
	assert.Contains(t, keptAges(p), 25, "the base of the window is kept")
	fulls[window+2].Time = time.Unix(0, 0)
	assert.Contains(t, plan(history(chain(fulls...))).Unsafe[0], "a member's clock was wrong")
}

// A clock that has jumped ahead must be detected from the times of the backups, because a folder uses the local
// clock.
func TestPlan_clockJumpedAhead(t *testing.T) {
	fulls := hourly(5*day, 0)
	h := history(chain(append(fulls, fullAt(now.Add(365*day)), fullAt(now.Add(365*day+time.Hour)))...))
	then := now.Add(365*day + 2*time.Hour)
	p := Make(policy, Facts{History: h, Now: then, Store: then})
	require.Len(t, p.Unsafe, 1)
	assert.Contains(t, p.Unsafe[0], " before 2027-11-22T12:30:00Z, or a clock jumped")
	assert.Empty(t, p.Deletes())

	then = then.Add(day)
	h = history(chain(append(fulls, shifted(hourly(day+2*time.Hour, 0), then)...)...))
	p = Make(policy, Facts{History: h, Now: then, Store: then})
	assert.Empty(t, p.Unsafe, "a day after the pause, deletions are allowed again")
	assert.NotEmpty(t, p.Deletes())
}

func TestCheckJump_keepsEverythingForAnHourAfterAPause(t *testing.T) {
	before := hourly(5*day, 8*time.Hour)
	h := history(chain(append(before, fullAt(now))...))
	for since, safe := range map[time.Duration]bool{59 * time.Minute: false, 61 * time.Minute: true} {
		p := Make(policy, Facts{History: h, Now: now.Add(since), Store: now.Add(since)})
		assert.Equal(t, safe, len(p.Unsafe) == 0, p.Unsafe)
		assert.Equal(t, safe, len(p.Deletes()) > 0)
	}
}

// A full snapshot that cannot be verified must be deleted if it is old according to the store's clock.
func TestPlan_deletesAFullThatCannotBeVerified(t *testing.T) {
	h := history(chain(hourly(5*day, 0)...))
	g := &h.Generations[0]
	garbage := archive.StoredFull{Full: archive.Full{Generation: 1, Revision: 1 << 40, Time: now.Add(365 * day)}, Stored: now, Err: errors.New("garbage")}
	g.Fulls = append(g.Fulls, garbage)
	for after, deleted := range map[time.Duration]bool{0: false, 30 * day: true} {
		p := Make(policy, Facts{History: h, Now: now.Add(after), Store: now.Add(after)})
		i := slices.IndexFunc(p.Items, func(i Item) bool { return i.Name == garbage.Name() })
		assert.Equal(t, deleted, p.Items[i].Goes)
		assert.Contains(t, p.Items[i].Why, "cannot be verified")
	}
}

// shifted returns full snapshots with all times shifted by the difference between now and another time.
func shifted(fulls []archive.StoredFull, to time.Time) (all []archive.StoredFull) {
	for _, full := range fulls {
		all = append(all, fullAt(full.Time.Add(to.Sub(now))))
	}
	return all
}
