package retention

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

func TestPlan_keepsTheWindowAndSlots(t *testing.T) {
	p := plan(history(chain(hourly(20*day, 0)...)))
	require.Empty(t, p.Unsafe)
	older := []int{
		157,    // Sunday the 15th, 23:30: last full snapshot of its week; the next week ends within the window
		37,     // Friday, 23:30: last full snapshot of the day before the window starts
		26, 25, // 10:30 and 11:30; the window starts at 12:30
	}
	assert.Equal(t, append(older, countdown(24)...), keptAges(p))
	reasons := why(p)
	assert.Equal(t, "last verified full snapshot of the week starting 2026-11-09 00:00", reasons[157])
	assert.Equal(t, "last verified full snapshot of the day starting 2026-11-20 00:00", reasons[37])
	assert.Equal(t, "last verified full snapshot of the hour starting 2026-11-21 10:00", reasons[26])
	assert.Equal(t, "in the point-in-time window", reasons[0])
	assert.Contains(t, reasons[100], "not the last full snapshot")
}

// A full snapshot that the chain has passed must not be the base, because no later revision can be restored from it.
func TestPlan_crossedFullIsNoBase(t *testing.T) {
	fulls := hourly(3*day, 0)
	assert.Equal(t, "start of the point-in-time window", why(plan(history(chain(fulls...))))[25])
	fulls[len(fulls)-26].Passed = true
	p := plan(history(chain(fulls...)))
	assert.Equal(t, "start of the point-in-time window", why(p)[26])
	assert.Equal(t, "in the point-in-time window", why(p)[25])
}

// Segments whose manifests were not read, and merged objects that extend past the base, must be kept.
func TestPlan_objectsWithUnknownEnds(t *testing.T) {
	base := fullAt(ago(25 * time.Hour))
	afterBase := func(revisions int64) format.Position { return format.After(base.Revision + revisions) }
	// In each list, the first object is deleted.
	for name, objects := range map[string][]archive.Object{
		"merged": {
			{Level: archive.Hour, Start: afterBase(-60), Next: base.Next},
			{Level: archive.Minute, Start: afterBase(-1), Next: afterBase(1)},
			{Level: archive.Segment, Start: base.Next},
			{Level: archive.Segment, Start: format.Position{Revision: base.Next.Revision, Part: 1}},
		},
		"segments": {
			{Level: archive.Segment, Start: afterBase(-60), Next: afterBase(-30)},
			{Level: archive.Segment, Start: afterBase(-30), Next: afterBase(30)},
			{Level: archive.Segment, Start: afterBase(-1)}, // the manifest could not be read
		},
	} {
		h := history(chain(hourly(2*day, 0)...))
		h.Generations[0].Objects = objects
		assert.Equal(t, []string{objects[0].Name()}, deletedNames(plan(h), Segments), name)
	}
}

// Full snapshots of an idle cluster must be told apart even though all of them have the same revision.
func TestPlan_idleCluster(t *testing.T) {
	var fulls []archive.StoredFull
	for _, full := range hourly(3*day, 0) {
		full.Revision, full.Next = 7, format.After(7)
		fulls = append(fulls, full)
	}
	fulls[len(fulls)-4].Result = nil // an unverified full snapshot in the point-in-time window is kept, too
	h := history(chain(fulls...))
	h.Generations[0].Objects = nil
	assert.Equal(t, 25+1+1+1, len(keptAges(plan(h))), "the window, its base, the last of an hour and the last of a day")
}

func TestPlan_countsVerifiedFulls(t *testing.T) {
	fulls := hourly(3*day, 0)
	for i := range fulls {
		switch int(now.Sub(fulls[i].Time) / time.Hour) {
		case 25:
			fulls[i].Result = nil
		case 26:
			fulls[i].Result = result(archive.Failed, fulls[i].Revision, fulls[i].Time)
		case 37:
			fulls[i].Err = format.ErrDamaged
		}
	}
	ages := keptAges(plan(history(chain(fulls...))))
	assert.Equal(t, []int{38, 37, 27, 26, 25, 24}, ages[:6],
		"27 is the base, 37 is kept although it is damaged, and 38 is the last verified one of its day")
}

// A full snapshot after a gap must not replace the base before the gap unless the snapshot is verified.
func TestPlan_unverifiedChainIntoTheWindow(t *testing.T) {
	first, second := hourly(3*day, 40*time.Hour), hourly(30*time.Hour, 0)
	for i := range 10 {
		second[i].Result = nil
	}
	ages := keptAges(plan(history(chain(first...), chain(second...))))
	assert.Equal(t, append([]int{40}, countdown(30)...), ages, "the second chain and the newest verified full snapshot before it")
}

func TestPlan_windowIsNotCovered(t *testing.T) {
	p := plan(history(chain(hourly(24*time.Hour, 0)...)))
	assert.Empty(t, p.Unsafe)
	assert.Empty(t, p.Deletes())
	assert.Contains(t, p.Items[0].Why, "no full snapshot before the point-in-time window has been verified yet")
}

func TestPlan_withoutPoints(t *testing.T) {
	fulls := hourly(3*day, 0)
	fulls[len(fulls)-1].Result = nil
	p := Make(Policy{Daily: 1}, Facts{History: history(chain(fulls...)), Now: now, Store: now})
	require.Empty(t, p.Unsafe)
	assert.Equal(t, []int{1, 0}, keptAges(p))
}

func TestPlan_oldGeneration(t *testing.T) {
	for _, example := range []struct {
		end, next time.Duration // age of the last backup, and of the next generation
		deleted   bool          // whether the generation is deleted
	}{
		{time.Hour, time.Hour, false},
		{3 * day, 3 * day, false},
		{14 * day, 14 * day, true},
		{300 * day, 299 * day, true},
		{14 * day, 23 * time.Hour, false}, // the last revision was current until the next generation started
	} {
		end := example.end
		h := history(chain(hourly(end+day, end)...))
		h.Generations[0].Created = ago(end + day)
		newest := history(chain(hourly(2*day, 0)...)).Generations[0]
		newest.Number, newest.Created = 2, ago(example.next)
		for i := range newest.Fulls {
			newest.Fulls[i].Result.Generation = 2
		}
		h.Generations = append(h.Generations, newest)
		p := plan(h)
		require.Empty(t, p.Unsafe)
		require.Equal(t, Generation, p.Items[0].Kind)
		assert.Equal(t, example.deleted, p.Items[0].Goes, "the last backup is %v old: %s", end, p.Items[0].Why)
	}
}

func TestPlan_unfinishedFulls(t *testing.T) {
	h := history(chain(hourly(5*day, 0)...))
	old, young := fullAt(ago(3*day-time.Minute)), fullAt(ago(26*time.Hour-time.Minute))
	late := fullAt(ago(3*day - 2*time.Minute))
	h.Generations[0].Orphans = []store.Object{
		{Name: archive.DataName(1, old.Name()), Modified: old.Time},
		{Name: archive.DataName(1, young.Name()), Modified: young.Time},
		{Name: archive.DataName(1, late.Name()), Modified: now},
		{Name: archive.GenerationPrefix(1) + "full/notes.txt"},
	}
	assert.Equal(t, []string{archive.DataName(1, old.Name())}, deletedNames(plan(h), Remains))
}

var (
	now    = time.Date(2026, time.November, 22, 12, 30, 0, 0, time.UTC) // a Sunday
	policy = Policy{Points: 24 * time.Hour, Hourly: 3, Daily: 2, Weekly: 2}
)

// ago returns the time d before now.
func ago(d time.Duration) time.Time { return now.Add(-d) }

// result returns the result of a restore test at the given time.
func result(outcome archive.Outcome, revision int64, at time.Time) *archive.Result {
	return &archive.Result{Generation: 1, Revision: revision, Outcome: outcome, Why: "bad hash", At: at.Add(time.Minute)}
}

// fullAt returns a verified full snapshot whose revision is 100,000 plus the minutes since 1 November.
func fullAt(at time.Time) archive.StoredFull {
	revision := int64(at.Sub(time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC))/time.Minute) + 100_000
	return archive.StoredFull{
		Full: archive.Full{Generation: 1, Revision: revision, Next: format.After(revision), Time: at},
		Size: 1000, Stored: at.Add(time.Second), Result: result(archive.Verified, revision, at),
	}
}

// chain returns a chain with a segment after each full snapshot.
func chain(fulls ...archive.StoredFull) archive.Chain {
	c := archive.Chain{Fulls: fulls, From: fulls[0].Revision, Begin: fulls[0].Time}
	last := fulls[len(fulls)-1]
	c.To, c.End = last.Revision+10, last.Time.Add(10*time.Minute)
	for i, full := range fulls {
		object := archive.Object{Level: archive.Segment, Generation: 1, Start: full.Next, Size: 10, Modified: full.Time}
		if i+1 < len(fulls) {
			object.Next = fulls[i+1].Next
		}
		c.Objects = append(c.Objects, object)
	}
	return c
}

// history returns the history of a generation with the given chains.
func history(chains ...archive.Chain) *archive.History {
	g := archive.GenerationContents{Generation: archive.Generation{Number: 1, Created: ago(1000 * day)}, Chains: chains}
	for _, c := range chains {
		g.Fulls = append(g.Fulls, c.Fulls...)
		g.Objects = append(g.Objects, c.Objects...)
	}
	return &archive.History{Cluster: &archive.Cluster{}, Generations: []archive.GenerationContents{g}}
}

func hourly(from, to time.Duration) (fulls []archive.StoredFull) {
	for age := from; age >= to; age -= time.Hour {
		fulls = append(fulls, fullAt(ago(age)))
	}
	return fulls
}

func plan(h *archive.History) Plan { return Make(policy, Facts{History: h, Now: now, Store: now}) }

// why returns the plan's reason for each full snapshot, keyed by its age in hours.
func why(p Plan) map[int]string {
	reasons := map[int]string{}
	for _, item := range p.Items {
		if item.Kind == Full {
			reasons[int(now.Sub(item.Time)/time.Hour)] = item.Why
		}
	}
	return reasons
}

// deletedNames returns the object names of all items of the given kind that the plan deletes.
func deletedNames(p Plan, kind Kind) (names []string) {
	for _, item := range p.Deletes() {
		if item.Kind == kind {
			names = append(names, item.names...)
		}
	}
	return names
}

// keptAges returns the ages in hours of the full snapshots that the plan keeps.
func keptAges(p Plan) (ages []int) {
	for _, item := range p.Items {
		if item.Kind == Full && (!item.Goes || len(p.Unsafe) > 0) {
			ages = append(ages, int(now.Sub(item.Time)/time.Hour))
		}
	}
	return ages
}

func countdown(from int) (all []int) {
	for age := from; age >= 0; age-- {
		all = append(all, age)
	}
	return all
}

func TestParsePolicy(t *testing.T) {
	for text, expected := range map[string]Policy{
		"points=24h,hourly=24,daily=7,weekly=4": {Points: 24 * time.Hour, Hourly: 24, Daily: 7, Weekly: 4},
		"points=90m":                            {Points: 90 * time.Minute},
		"weekly=52, points=2w":                  {Points: 14 * 24 * time.Hour, Weekly: 52},
		"points=7d,hourly=0":                    {Points: 7 * 24 * time.Hour},
		"daily=30":                              {Daily: 30},
	} {
		policy, err := ParsePolicy(text)
		require.NoError(t, err, text)
		assert.Equal(t, expected, policy)
		parsed, err := ParsePolicy(policy.String())
		require.NoError(t, err, policy)
		assert.Equal(t, policy, parsed)
	}
	assert.Equal(t, "points=24h,hourly=24,daily=0,weekly=0", Policy{Points: day, Hourly: 24}.String())
}

func TestParsePolicy_errors(t *testing.T) {
	for text, why := range map[string]string{
		"":                             `unknown key ""`,
		"points":                       `points "" is not a valid duration`,
		"points=24":                    "not a valid duration",
		"points=-1h":                   "not a valid duration",
		"points=99999w":                "not a valid duration",
		"points=-1d":                   "not a valid duration",
		"points=1.5d":                  "not a valid duration",
		"hourly=-1":                    "an integer between 0 and 10000",
		"hourly=1h":                    "an integer between 0 and 10000",
		"daily=10001":                  "an integer between 0 and 10000",
		"monthly=3":                    `unknown key "monthly"`,
		"points=1h,points=2h":          "duplicate key points",
		"points=1h,":                   `unknown key ""`,
		"points=0s":                    "only the newest",
		"points=0h,hourly=0":           "only the newest",
		"points=24h;hourly=24,daily=7": "not a valid duration",
	} {
		_, err := ParsePolicy(text)
		require.ErrorContains(t, err, "--backup-keep: ", text)
		assert.ErrorContains(t, err, why, text)
		assert.NotContains(t, err.Error(), "\n")
	}
}
