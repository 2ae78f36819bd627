package retention

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
)

func TestPlan_failedChecks(t *testing.T) {
	for _, failing := range []struct {
		sentence string
		change   func(f *Facts, g *archive.GenerationContents)
	}{
		{"no backups found", func(f *Facts, _ *archive.GenerationContents) { f.History = &archive.History{} }},
		{"no backup of generation 1 has been verified yet", func(_ *Facts, g *archive.GenerationContents) {
			for i := range g.Fulls {
				g.Fulls[i].Result = nil
			}
		}},
		{"the last restore test (revision 7) failed: its hash differs", func(_ *Facts, g *archive.GenerationContents) {
			g.Fulls[len(g.Fulls)-1].Result = result(archive.Failed, 7, now)
		}},
		{"the last restore test (revision 9) failed: its hash differs", func(f *Facts, _ *archive.GenerationContents) {
			f.RestoreTests = []archive.Result{*result(archive.Failed, 9, now.Add(time.Minute))}
		}},
		{"the store's time is unknown", func(f *Facts, _ *archive.GenerationContents) { f.Store = time.Time{} }},
		{"is 20m0s; correct this machine's clock", func(f *Facts, _ *archive.GenerationContents) { f.Store = now.Add(20 * time.Minute) }},
		{"is 20m0s; correct this machine's clock", func(f *Facts, _ *archive.GenerationContents) { f.Store = now.Add(-20 * time.Minute) }},
		{"is 1h0m0s in the future", func(_ *Facts, g *archive.GenerationContents) { g.Objects[3].Modified = now.Add(time.Hour) }},
		{"is 1h0m0s in the future", func(_ *Facts, g *archive.GenerationContents) { g.Chains[0].End = now.Add(time.Hour) }},
		{"a clock was wrong", func(_ *Facts, g *archive.GenerationContents) {
			last := len(g.Fulls) - 1
			g.Fulls[last].Time = g.Fulls[last-1].Time.Add(-time.Hour)
		}},
		{"full snapshot " + archive.FullName(fullAt(now).Revision, now.Add(time.Hour)) + " in generation 1 is 1h0m0s in the future", func(_ *Facts, g *archive.GenerationContents) {
			g.Fulls[len(g.Fulls)-1].Time = now.Add(time.Hour)
		}},
		{"no new backups for 48h0m0s", func(f *Facts, _ *archive.GenerationContents) {
			f.Now, f.Store = now.Add(2*day+10*time.Minute), now.Add(2*day+10*time.Minute)
		}},
		{"cannot read revisions after 131000: there is a hole", func(_ *Facts, g *archive.GenerationContents) { g.Chains[0].PastEnd = errors.New("there is a hole") }},
		{"but revision 99999999 was uploaded", func(f *Facts, _ *archive.GenerationContents) { f.Known = 99999999 }},
	} {
		h := history(chain(hourly(5*day, 0)...))
		facts := Facts{History: h, Now: now, Store: now, Known: h.Generations[0].Chains[0].To}
		require.NotEmpty(t, Make(policy, facts).Deletes(), "as long as every check passes")
		failing.change(&facts, &h.Generations[0])
		p := Make(policy, facts)
		require.Len(t, p.Unsafe, 1, failing.sentence)
		assert.Contains(t, p.Unsafe[0], failing.sentence)
		assert.Empty(t, p.Deletes())
	}
}

// A full snapshot with a time in the past must not cause the deletion of earlier snapshots.
func TestPlan_clockWasBehind(t *testing.T) {
	fulls := hourly(5*day, 0)
	window := len(fulls) - 25 // oldest full snapshot in the point-in-time window
	fulls[window].Time = time.Unix(0, 0)
	p := plan(history(chain(fulls...)))
	require.Empty(t, p.Unsafe, "the one before it is older than points")
	require.NotEmpty(t, p.Deletes())
	assert.Contains(t, stay(p), 25, "the window begins with it")
	fulls[window+2].Time = time.Unix(0, 0)
	assert.Contains(t, plan(history(chain(fulls...))).Unsafe[0], "a clock was wrong")
}

// The folder store uses the local clock, so only the backup history reveals a clock that has jumped ahead.
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
	assert.Empty(t, p.Unsafe, "the machine was off for a year: that is over after a day")
	assert.NotEmpty(t, p.Deletes())
}

// A process that starts while the clock is wrong cannot notice the jump.
func TestCheckJump_keepsEverythingForAnHourAfterAPause(t *testing.T) {
	before := hourly(5*day, 8*time.Hour)
	h := history(chain(append(before, fullAt(now))...))
	for since, safe := range map[time.Duration]bool{59 * time.Minute: false, 61 * time.Minute: true} {
		p := Make(policy, Facts{History: h, Now: now.Add(since), Store: now.Add(since)})
		assert.Equal(t, safe, len(p.Unsafe) == 0, p.Unsafe)
		assert.Equal(t, safe, len(p.Deletes()) > 0)
	}
}

// An unverifiable full snapshot is deleted if it is old according to the store's clock.
func TestPlan_deletesAFullThatCannotBeVerified(t *testing.T) {
	h := history(chain(hourly(5*day, 0)...))
	g := &h.Generations[0]
	garbage := archive.StoredFull{Full: archive.Full{Generation: 1, Revision: 1 << 40, Time: now.Add(365 * day)}, Stored: now, Err: errors.New("garbage")}
	g.Fulls = append(g.Fulls, garbage)
	for after, goes := range map[time.Duration]bool{0: false, 30 * day: true} {
		p := Make(policy, Facts{History: h, Now: now.Add(after), Store: now.Add(after)})
		i := slices.IndexFunc(p.Items, func(i Item) bool { return i.Name == garbage.Name() })
		assert.Equal(t, goes, p.Items[i].Goes)
		assert.Contains(t, p.Items[i].Why, "cannot be verified")
	}
}

// shifted returns full snapshots with all times moved from now to another time.
func shifted(fulls []archive.StoredFull, to time.Time) (all []archive.StoredFull) {
	for _, full := range fulls {
		all = append(all, fullAt(full.Time.Add(to.Sub(now))))
	}
	return all
}
