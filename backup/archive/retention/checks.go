package retention

import (
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
)

const (
	// skew is the maximum tolerated difference between this machine's clock and the store's clock. Timestamps may be
	// up to skew in the future.
	skew = 15 * time.Minute
	// quiet is the time without new backups after which nothing is deleted.
	quiet = day
)

// check returns the messages of failed safety checks. If any check fails, nothing is deleted.
func check(policy Policy, facts Facts) (failed []string) {
	history := facts.History
	if history == nil || history.Newest() == nil {
		return []string{"no backups found"}
	}
	newest := *history.Newest()
	all := []string{
		checkClock(facts), checkOrder(newest, facts.Now.Add(-policy.Points)), checkPause(policy, facts, newest),
		checkJump(policy, facts, newest), checkList(facts, newest), checkVerification(facts, newest),
	}
	return slices.DeleteFunc(all, func(why string) bool { return why == "" })
}

// checkClock compares the clocks of this machine, the store and the writers of the backups.
func checkClock(facts Facts) string {
	if facts.Store.IsZero() {
		return "cannot check this machine's clock: the store's time is unknown"
	}
	if apart := facts.Now.Sub(facts.Store).Abs(); apart > skew {
		return fmt.Sprintf("clock skew between this machine and the store is %v; correct this machine's clock", apart.Round(time.Second))
	}
	for _, g := range facts.History.Generations {
		for _, at := range timestamps(g) {
			if ahead := at.Sub(facts.Now); ahead > skew {
				return fmt.Sprintf("timestamp of %s in generation %d is %v in the future; check the clocks of the members", at.of, g.Number, ahead.Round(time.Second))
			}
		}
	}
	return ""
}

// checkOrder reports full snapshots that are older than a snapshot with a lower revision, if one of the two is in the
// point-in-time window.
func checkOrder(g archive.GenerationContents, from time.Time) string {
	var before archive.StoredFull
	for _, full := range g.Fulls {
		if full.Err != nil {
			continue
		}
		if !before.Time.IsZero() && before.Time.Sub(full.Time) > skew && before.Time.After(from.Add(-slack)) {
			return fmt.Sprintf("full snapshot %s is %v older than %s, which has a lower revision; a clock was wrong", full.Name(),
				before.Time.Sub(full.Time), before.Name())
		}
		before = full
	}
	return ""
}

// checkPause reports that no backups are being made, so existing backups must be kept.
func checkPause(policy Policy, facts Facts, g archive.GenerationContents) string {
	if since := endOf(g); facts.Now.Sub(since) > max(policy.Points, quiet) {
		return fmt.Sprintf("no new backups for %s", formatSince(facts.Now, since))
	}
	return ""
}

// downtime is the length of a pause after which a clock may have jumped ahead. Merging leaves pauses of up to an hour
// while nothing changes.
const downtime = 2 * time.Hour

// checkJump reports a pause that has just ended. A clock may have jumped ahead during the pause, which makes recent
// backups look old. A folder has no clock of its own to reveal the jump. After a pause that is longer than the
// retention period, nothing is deleted for the same period; after a shorter pause, nothing is deleted for an hour.
// Pauses before the first full snapshot of the point-in-time window do not count, because retention deletes many of
// the earlier backups.
func checkJump(policy Policy, facts Facts, g archive.GenerationContents) string {
	from := Plan{From: facts.Now.Add(-policy.Points)}.base(g).Time
	all := slices.DeleteFunc(timestamps(g), func(at timestamp) bool { return at.IsZero() || at.Before(from) })
	slices.SortFunc(all, byTime)
	long := max(policy.Points, quiet)
	for i := 1; i < len(all); i++ {
		begin, end := all[i-1].Time, all[i].Time
		pause, since := end.Sub(begin), facts.Now.Sub(end)
		if pause > long && since < long || pause > downtime && since < time.Hour {
			return fmt.Sprintf("no backups were made for %s before %s, or a clock jumped", formatSince(end, begin), end.UTC().Format(time.RFC3339))
		}
	}
	return ""
}

// checkList reports that the store has more backups than are listed or readable.
func checkList(facts Facts, g archive.GenerationContents) string {
	last := archive.Chain{}
	if len(g.Chains) > 0 {
		last = g.Chains[len(g.Chains)-1]
	}
	switch {
	case last.PastEnd != nil: // a gap before a later chain is permanent
		return fmt.Sprintf("cannot read revisions after %d: %s", last.To, last.PastEnd)
	case last.To < facts.Known:
		return fmt.Sprintf("the listing ends at revision %d, but revision %d was uploaded", last.To, facts.Known)
	}
	return ""
}

// checkVerification reports that the last restore test (of a full snapshot with or without segments) failed.
func checkVerification(facts Facts, g archive.GenerationContents) string {
	if !slices.ContainsFunc(g.Fulls, verified) {
		return fmt.Sprintf("no backup of generation %d has been verified yet", g.Number)
	}
	last := archive.Result{}
	results := slices.Clone(facts.RestoreTests)
	for _, full := range g.Fulls {
		if full.Result != nil {
			results = append(results, *full.Result)
		}
	}
	for _, result := range results {
		if result.Generation == g.Number && (result.At.After(last.At) || result.At.Equal(last.At) && result.Outcome == archive.Failed) {
			last = result
		}
	}
	if last.Outcome == archive.Failed {
		return fmt.Sprintf("the last restore test (revision %d) failed: %s", last.Revision, last.Why)
	}
	return ""
}
