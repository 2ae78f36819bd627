package retention

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
)

// Deletion describes what the execution of a plan deleted.
type Deletion struct {
	Objects int   `json:"objects"` // number of deleted objects
	Bytes   int64 `json:"bytes"`   // deleted bytes, if known
	Locked  int   `json:"locked"`  // number of items that could not be deleted because they are locked
}

// Execute deletes the items of the plan, oldest first, and calls deleted (unless nil) for each deleted item. Before
// the first deletion, Execute reads the full snapshots on which the deletions depend. The error is store.ErrDenied if
// deletions are not permitted. A plan may be executed again after a crash, and concurrently by multiple processes.
func (p Plan) Execute(ctx context.Context, a *archive.Archive, deleted func(Item)) (done Deletion, err error) {
	items := p.Deletes()
	if len(items) == 0 {
		return done, nil
	}
	if err := p.checkRequired(ctx, a); err != nil {
		return done, fmt.Errorf("nothing was deleted: %w", err)
	}
	run := execution{ctx: ctx, store: a.Store(), done: &done}
	for _, item := range items {
		names, err := run.names(item)
		if err == nil {
			err = run.delete(names...)
		}
		switch {
		case errors.Is(err, store.ErrLocked):
			done.Locked++
			continue
		case err != nil:
			return done, err
		}
		done.Bytes += item.Bytes
		if item.Kind == Full {
			run.fulls = append(run.fulls, item.Name)
		}
		if deleted != nil {
			deleted(item)
		}
	}
	newest := archive.GenerationPrefix(p.Items[len(p.Items)-1].Generation) // the newest generation comes last
	isOrphaned := func(name string) bool { return run.isOrphaned(name, p) }
	return done, errors.Join(run.sweep(newest+"verified/", isOrphaned), run.sweep(newest+"tested/", p.isOldTest))
}

// checkRequired returns an error unless the full snapshots on which the deletions depend can be read.
func (p Plan) checkRequired(ctx context.Context, a *archive.Archive) error {
	for _, item := range p.Items {
		if !item.proof || item.Goes {
			continue
		}
		full, err := a.Full(ctx, item.Generation, item.Name)
		if err == nil {
			err = checkPresent(ctx, a.Store(), archive.DataName(item.Generation, item.Name), full.Data.Bytes)
		}
		if err != nil {
			return fmt.Errorf("cannot read required full snapshot %s: %w", item.Name, err)
		}
	}
	return nil
}

// checkPresent checks that an object is complete by reading its last byte.
func checkPresent(ctx context.Context, s store.Store, name string, size int64) error {
	reader, err := s.Get(ctx, name, max(size-1, 0), 1)
	if err != nil {
		return err
	}
	defer reader.Close()
	if _, err := io.ReadFull(reader, make([]byte, 1)); err != nil && size > 0 {
		return fmt.Errorf("cannot read the last byte of %s in %s: %w", name, s, err)
	}
	return nil
}

// execution holds the state of one call to Execute.
type execution struct {
	ctx   context.Context
	store store.Store
	done  *Deletion
	fulls []string // names of deleted full snapshots
}

// names returns the object names of an item in the order of deletion. Manifests come first, because data without a
// manifest is ignored, and generation.json comes last.
func (e *execution) names(item Item) ([]string, error) {
	switch item.Kind { //nolint:exhaustive // items of other kinds list their object names
	case Full:
		return []string{archive.ManifestName(item.Generation, item.Name), archive.DataName(item.Generation, item.Name)}, nil
	case Generation:
		var manifests, others []string
		for object, err := range e.store.List(e.ctx, item.Name, "") {
			switch {
			case err != nil:
				return nil, err
			case strings.HasSuffix(object.Name, "/manifest.json"):
				manifests = append(manifests, object.Name)
			case object.Name != item.Name+"generation.json":
				others = append(others, object.Name)
			}
		}
		return slices.Concat(manifests, others, []string{item.Name + "generation.json"}), nil
	default:
		return item.names, nil
	}
}

// delete deletes objects and stops at the first error.
func (e *execution) delete(names ...string) error {
	for _, name := range names {
		if err := e.store.Delete(e.ctx, name); err != nil {
			return err
		}
		e.done.Objects++
	}
	return nil
}

// isOrphaned reports whether a test result belongs to a deleted full snapshot. The result for a locked snapshot is
// kept, because the snapshot would look usable without it. A result for a full snapshot that is newer than the plan
// is kept as well.
func (e *execution) isOrphaned(name string, p Plan) bool {
	full, _, _ := strings.Cut(name, "_")
	_, at, err := archive.ParseFullName(full)
	known := func(i Item) bool { return i.Kind == Full && i.Name == full }
	return slices.Contains(e.fulls, full) || err == nil && at.Before(p.From) && !slices.ContainsFunc(p.Items, known)
}

// isOldTest reports whether a result belongs to a restore test from more than a week before the point-in-time window.
func (p Plan) isOldTest(name string) bool {
	at, err := time.Parse("20060102T150405Z.json", name)
	return err == nil && at.Before(p.From.Add(-week))
}

// sweep deletes the objects with the given prefix whose names satisfy fits, except locked objects.
func (e *execution) sweep(prefix string, fits func(name string) bool) error {
	for object, err := range e.store.List(e.ctx, prefix, "") {
		if err == nil && fits(strings.TrimPrefix(object.Name, prefix)) {
			err = e.delete(object.Name)
		}
		if err != nil && !errors.Is(err, store.ErrLocked) {
			return err
		}
	}
	return nil
}

const (
	// skew is the maximum tolerated difference between this machine's clock and the store's clock. Timestamps may
	// be up to skew in the future.
	skew = 15 * time.Minute
	// quiet is the time without new backups after which nothing is deleted.
	quiet = day // unless the point-in-time window is longer
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

// checkClock compares the clocks of this machine, the store and the backup writers.
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

// checkOrder returns a message if a full snapshot is older than a snapshot with a lower revision and either
// snapshot is in the point-in-time window.
func checkOrder(g archive.GenerationContents, from time.Time) string {
	var before archive.StoredFull
	for _, full := range g.Fulls {
		if full.Err != nil {
			continue
		}
		if !before.Time.IsZero() && before.Time.Sub(full.Time) > skew && before.Time.After(from.Add(-slack)) {
			return fmt.Sprintf("full snapshot %s is %v older than %s, which has a lower revision; a member's clock was wrong", full.Name(),
				before.Time.Sub(full.Time), before.Name())
		}
		before = full
	}
	return ""
}

// checkPause returns a message if no new backups are being made, in which case existing backups must be kept.
func checkPause(policy Policy, facts Facts, g archive.GenerationContents) string {
	if since := endOf(g); facts.Now.Sub(since) > max(policy.Points, quiet) {
		return fmt.Sprintf("no new backups for %s", formatSince(facts.Now, since))
	}
	return ""
}

// downtime is the length of the shortest pause without backups during which a clock may have jumped ahead. Shorter
// pauses are normal: in an idle cluster, merging leaves pauses of up to an hour.
const downtime = 2 * time.Hour

// checkJump returns a message if a pause without backups has just ended, because a clock may have jumped ahead
// during the pause, and recent backups may look old. A folder has no clock of its own that would reveal the jump.
// Nothing is deleted for an hour after such a pause, or for the length of the point-in-time window if the pause was
// longer than the window. Pauses before the first full snapshot of the window are ignored, because many of the
// earlier backups have been deleted.
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

// checkList returns a message if the store has backups that are not listed or cannot be read.
func checkList(facts Facts, g archive.GenerationContents) string {
	last := archive.Chain{}
	if len(g.Chains) > 0 {
		last = g.Chains[len(g.Chains)-1]
	}
	switch {
	case last.PastEnd != nil: // earlier chains are not checked, because gaps between chains are permanent
		return fmt.Sprintf("cannot read revisions after %d: %s", last.To, last.PastEnd)
	case last.To < facts.Known:
		return fmt.Sprintf("the listing ends at revision %d, but revision %d was uploaded", last.To, facts.Known)
	}
	return ""
}

// checkVerification returns a message if no full snapshot has been verified yet, or if the last restore test (of a
// full snapshot with or without segments) failed.
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
