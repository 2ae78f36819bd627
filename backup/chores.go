package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/writer"
)

// How often the chores are looked at and done. None of them is urgent, and each listing costs requests.
const (
	pollInterval = time.Second
	listEvery    = time.Hour
	pruneEvery   = time.Hour
	daily        = 24 * time.Hour

	// A chore that failed is tried again sooner than that: its trouble is told until then.
	firstRetry   = 5 * time.Second
	longestRetry = time.Minute
)

const deletionBlocked = "nothing is deleted while something is in doubt"

// chores are what is done beside writing. One goroutine owns them, the one that calls run.
type tasks struct {
	backups *Backups
	writer  *writer.Writer
	member  string // etcd's id, hexadecimal

	listed     int64 // fulls that were stored when the last listing was made
	due        map[string]time.Time
	listing    listing
	testedFull string             // the full that this process has a result of, whether or not the store gives that back
	unsafe     *Unable            // that kept everything from being deleted when it was last looked at; nil if there was none
	failing    map[string]*Unable // chores that are not done, by their names

	replaced map[string]time.Time // when a full was last made for a reason

	clock clock

	holes         int64 // that the writer had found when it was last looked
	lossSuspected bool  // the store may have lost something that the latest revision needs
}

func newTasks(b *Backups, s *writer.Writer, member string) *tasks {
	return &tasks{backups: b, writer: s, member: member, listed: -1, due: map[string]time.Time{}, replaced: map[string]time.Time{}, failing: map[string]*Unable{}, clock: newClock(b.options.Now)}
}

// listing is one of all that is kept.
type listing struct {
	history *archive.History // nil before the first
	stored  int64            // the revision that was stored before
	at      time.Time
}

// fresh is how old a listing may be by which something is let go. Each costs requests, and nothing as young as that goes.
const maxListingAge = time.Minute

// chore is one of them, with what has to be so for it to be done.
type task struct {
	name       string
	every      time.Duration
	writerOnly bool // only the member that writes the backups does it
	do         func(*tasks, context.Context) error
}

// all are the chores in the order in which they are done when several are due.
func allTasks() []task {
	return []task{
		{"list", listEvery, false, (*tasks).list},
		{"verify", pollInterval, true, (*tasks).verify},
		{"restore test", daily, true, (*tasks).testRestore},
		{"prune", pruneEvery, true, (*tasks).prune},
		{"sweep", daily, true, (*tasks).sweep},
	}
}

// run does the chores until ctx ends.
func (c *tasks) run(ctx context.Context) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.runDue(ctx)
		}
	}
}

// look does what is due.
func (c *tasks) runDue(ctx context.Context) {
	c.clock.check()
	facts := c.writer.Facts()
	if facts.Generation == 0 {
		return // the store is not known to be ours
	}
	if facts.Fulls != c.listed {
		c.listed = facts.Fulls
		c.due["list"] = time.Time{}
	}
	if facts.Holes != c.holes {
		c.holes, c.lossSuspected, c.due["list"], c.due["restore test"] = facts.Holes, true, time.Time{}, time.Time{}
	}
	for _, chore := range allTasks() {
		switch {
		case chore.writerOnly && facts.Role != writer.Writing:
			c.recordResult(chore.name, nil, 0) // it is another member's now
		case ctx.Err() == nil && !time.Now().Before(c.due[chore.name]):
			c.runTask(ctx, chore)
		}
	}
}

func (c *tasks) runTask(ctx context.Context, chore task) {
	pause := chore.every
	err := chore.do(c, ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		pause = c.retryDelay(chore.name)
	}
	c.due[chore.name] = archive.Later(c.due[chore.name], time.Now().Add(pause))
	c.recordResult(chore.name, err, pause)
}

// soon is how long a chore that has failed once more waits.
func (c *tasks) retryDelay(name string) time.Duration {
	wait := firstRetry
	if before := c.failing[name]; before != nil {
		wait <<= min(before.Times, 10)
	}
	return min(wait, longestRetry)
}

// note has everybody told of a chore that is not done, and when it is tried again. The log has it once.
func (c *tasks) recordResult(name string, err error, pause time.Duration) {
	before := c.failing[name]
	delete(c.failing, name)
	if err != nil {
		if before == nil || before.Text != err.Error() {
			c.backups.options.Log.Warn().Str("task", name).Dur("next_retry_ms", pause).Msgf("backups: %v; it is tried again", err)
		}
		c.failing[name] = before.addFailure(err, pause)
	}
	var shown *Unable
	for _, chore := range allTasks() {
		if shown == nil {
			shown = c.failing[chore.name]
		}
	}
	c.backups.undone.Store(cmp.Or(shown, c.unsafe))
}

// prune lets go what need not be kept.
func (c *tasks) prune(ctx context.Context) error {
	if time.Since(c.listing.at) >= maxListingAge {
		if err := c.list(ctx); err != nil {
			return err
		}
	}
	if c.newestFull() == nil {
		c.reportUnsafe("")
		return nil // nothing can be spared before a full is stored; once it is verified, this is due again
	}
	plan, err := retention.Of(ctx, c.backups.archive, c.listing.history, c.backups.options.Policy, c.backups.options.Now(), c.listing.stored)
	if err != nil {
		return err
	}
	if why := c.clock.check(); why != "" {
		plan.Unsafe = append(plan.Unsafe, why)
	}
	c.reportUnsafe(strings.Join(plan.Unsafe, "; "))
	done, err := plan.Execute(ctx, c.backups.archive, nil)
	if done.Objects > 0 {
		c.backups.options.Log.Info().Int("objects", done.Objects).Int64("bytes", done.Bytes).Msg("backups: what need not be kept is deleted")
	}
	return err
}

// reportUnsafe has everybody told what keeps old backups, or that nothing does. The log has it once.
func (c *tasks) reportUnsafe(text string) {
	before := c.unsafe
	if c.unsafe = nil; text == "" {
		return
	}
	c.unsafe = before.addFailure(errors.New(deletionBlocked+": "+text), pruneEvery)
	if before == nil || before.Text != c.unsafe.Text {
		c.backups.options.Log.Warn().Str("reason", text).Msg("backups: " + deletionBlocked)
	}
}

// sweep removes the remains of uploads that were cut off.
func (c *tasks) sweep(ctx context.Context) error {
	removed, err := store.Sweep(ctx, c.backups.options.Store)
	if removed > 0 {
		c.backups.options.Log.Info().Int("uploads", removed).Msg("backups: the remains of uploads that were cut off are removed")
	}
	return err
}

// Kept is what lies in the store, as of the last listing.
type Kept struct {
	At       time.Time                // of the listing; zero if there was none
	Bytes    int64                    // of all objects of this cluster
	From, To int64                    // the revisions that can be gone back to without a hole; 0 if there are none
	Begin    time.Time                // when From was the present
	End      time.Time                // when To was
	Spans    []facts.GenerationWindow // of all generations, oldest first; at most maxSpans
	Cut      error                    // why what the store has behind To cannot be gone back to; nil if what is stored next can
	LastFull *archive.KeptFull        // the newest that is believed
	Result   *archive.Result          // of the newest restore test
}

// list looks at what is kept, and when the last restore test was.
func (c *tasks) list(ctx context.Context) error {
	stored, at := c.writer.Facts().Stored, time.Now()
	history, err := c.backups.archive.History(ctx) // by names alone a segment that is lost would not be missed
	if err != nil {
		return err
	}
	kept := summarize(history)
	if newest := history.Newest(); newest != nil {
		restoreTests, err := c.backups.archive.RestoreTests(ctx, newest.Number, time.Now().Add(-daily))
		if err != nil {
			return err
		}
		for _, test := range restoreTests {
			kept.addResult(&test)
			if test.At.Before(kept.At) { // otherwise a clock was wrong
				c.due["restore test"] = archive.Later(c.due["restore test"], test.At.Add(daily))
			}
		}
	}
	if kept.Cut != nil && kept.To < stored {
		c.lossSuspected, c.due["restore test"] = true, time.Time{}
	}
	c.listing, c.due["list"] = listing{history, stored, at}, at.Add(listEvery)
	c.backups.kept.Store(&kept)
	c.recordResult("list", nil, 0) // also where another chore needed it
	return nil
}

// judge notes a result if it is the newest. Of two within the same second, a failure is the one to tell.
func (k *Kept) addResult(result *archive.Result) {
	previous := k.Result
	if previous == nil || result.At.After(previous.At) || result.At.Equal(previous.At) && previous.Outcome == archive.Verified {
		k.Result = result
	}
}

// summary is what people are told of a history.
func summarize(history *archive.History) Kept {
	kept := Kept{At: time.Now()}
	for _, generation := range history.Generations {
		for _, full := range generation.Fulls {
			kept.Bytes += full.Size
		}
		for _, object := range generation.Objects {
			kept.Bytes += object.Size
		}
	}
	newest := history.Newest()
	if newest == nil {
		return kept
	}
	kept.Spans = spans(history)
	if count := len(newest.Chains); count > 0 {
		chain := newest.Chains[count-1]
		kept.From, kept.To, kept.Begin, kept.End, kept.Cut = chain.From, chain.To, chain.Begin, chain.End, chain.PastEnd
	}
	for i := range newest.Fulls {
		full := &newest.Fulls[i]
		if full.Err == nil {
			kept.LastFull = full
		}
		if full.Result != nil {
			kept.addResult(full.Result)
		}
	}
	return kept
}

// maxSpans and maxMarks bound what is published of a long history. The newest is kept.
const (
	maxSpans = 16
	maxMarks = 64 // of a span
)

// spans are what can be gone back to, in all generations.
func spans(history *archive.History) (all []facts.GenerationWindow) {
	for _, generation := range history.Generations {
		for _, chain := range generation.Chains {
			span := facts.GenerationWindow{Generation: generation.Number, Window: facts.Window{
				FromRevision: chain.From, ToRevision: chain.To, From: chain.Begin, To: chain.End,
			}}
			for _, full := range generation.Fulls {
				if full.Err == nil && full.Revision >= chain.From && full.Revision <= chain.To {
					span.FullSnapshots = append(span.FullSnapshots, facts.SnapshotMark{Revision: full.Revision, At: full.Time, RestoreTest: outcome(full.Result)})
				}
			}
			span.FullSnapshots = span.FullSnapshots[max(0, len(span.FullSnapshots)-maxMarks):]
			all = append(all, span)
		}
	}
	return all[max(0, len(all)-maxSpans):]
}

func outcome(result *archive.Result) string {
	switch {
	case result == nil:
		return ""
	case result.Outcome == archive.Verified:
		return "passed"
	default:
		return "failed"
	}
}

// replaceEvery bounds how often what could not be restored is replaced.
const replaceEvery = time.Hour

// Why a full is made then.
const (
	failedTest   = "the test restore of the last one failed"
	lostSegments = "the store has lost segments"
)

// verify restores the newest full that was not restored yet. One that failed elsewhere, by a command or before this process was
// started, is replaced.
func (c *tasks) verify(ctx context.Context) error {
	full := c.newestFull()
	switch {
	case full == nil:
		return nil
	case full.Result != nil && full.Result.Outcome == archive.Failed:
		_, err := c.replace(ctx, failedTest)
		return err
	case full.Encrypted && !c.backups.options.Keys.Encrypts():
		return errInTheClear
	case full.Result != nil || full.Name() == c.testedFull:
		return nil
	}
	if !c.canOpen() {
		return errNoIdentities
	}
	return c.testPath(ctx, archive.Path{
		Generation: c.listing.history.Newest().Generation, Full: full.Full, Revision: full.Revision, Time: full.Time,
	})
}

// errNoIdentities is what whoever encrypts has to live with who gives the wrapper nothing to open it with.
var errNoIdentities = errors.New("--backup-identities is missing, so what is encrypted is never restored to test it, and nothing is ever deleted")

// errInTheClear is for who has forgotten the flags. It is over with the next full, as it may be meant.
var errInTheClear = errors.New("--backup-recipients is missing: what is stored now is not encrypted, though what was stored before is")

// canOpen tells whether what is written can be read again: without an identity what is encrypted can't.
func (c *tasks) canOpen() bool {
	keys := c.backups.options.Keys
	return !keys.Encrypts() || keys.Opens()
}

// newestFull returns the last full snapshot of the newest generation whose manifest can be verified; nil if there is none.
func (c *tasks) newestFull() *archive.KeptFull {
	if c.listing.history == nil || c.listing.history.Newest() == nil {
		return nil
	}
	for _, full := range slices.Backward(c.listing.history.Newest().Fulls) {
		if full.Err == nil {
			return &full
		}
	}
	return nil
}

// judge restores a path, keeps the result, and answers a failed one with a full.
func (c *tasks) testPath(ctx context.Context, path archive.Path) error {
	result, err := c.backups.options.Verify(ctx, path)
	if err != nil {
		return err
	}
	result.Member = c.member
	if err := c.backups.archive.PutResult(ctx, result); err != nil {
		return err
	}
	if result.Segments {
		c.lossSuspected = false
	} else {
		c.testedFull = result.Full
	}
	log := c.backups.options.Log
	if result.Outcome == archive.Verified {
		log.Info().Int64("revision", result.Revision).Float64("seconds", result.Seconds).Msg("backups: a restore test gave back what etcd had")
		c.due["prune"] = time.Time{}
	} else {
		log.Error().Int64("revision", result.Revision).Str("error", result.Why).Msg("backups: a restore test has failed; a new full is made, and nothing is deleted")
	}
	c.listing.at, c.due["list"] = time.Time{}, time.Time{} // what was listed before lacks the result
	if err := c.list(ctx); err != nil && ctx.Err() == nil {
		c.recordResult("list", err, pollInterval) // what was tested need not be tested again for that
	}
	if result.Outcome == archive.Verified {
		return nil
	}
	_, err = c.replace(ctx, failedTest) // behind the listing: a full may take long
	return err
}

// replace makes a full in the place of what could not be restored, but not one after the other.
func (c *tasks) replace(ctx context.Context, reason string) (made bool, err error) {
	if time.Since(c.replaced[reason]) < replaceEvery {
		return false, nil
	}
	c.replaced[reason] = time.Now()
	_, err = c.writer.FullNow(ctx, reason)
	return err == nil, err
}

// testRestore restores a random revision of the window, with segments; the latest one if something may be missing.
func (c *tasks) testRestore(ctx context.Context) error {
	if c.lossSuspected {
		return c.testLatest(ctx)
	}
	kept := c.backups.kept.Load()
	if kept == nil || kept.To <= kept.From || !c.canOpen() {
		return nil
	}
	for range restoreTries {
		revision := kept.From + 1 + rand.Int64N(kept.To-kept.From)
		path, err := c.backups.archive.Find(ctx, archive.Target{Revision: revision})
		switch {
		case errors.Is(err, archive.ErrNotKept), err == nil && path.Revision == path.Full.Revision:
			continue // a full alone was restored before
		case err != nil:
			return err
		default:
			return c.testPath(ctx, path)
		}
	}
	return nil
}

// examine looks whether the latest revision can be gone back to, since whoever writes does not look back. Where a chain just ended and
// another one began, it can. What a listing does not show, such as a segment that is damaged, a test restore does.
func (c *tasks) testLatest(ctx context.Context) error {
	facts := c.writer.Facts()
	if err := c.list(ctx); err != nil {
		return err
	}
	if kept := c.backups.kept.Load(); kept.To < facts.Stored {
		lost := fmt.Errorf("%s: revision %d is the last one that can be gone back to, and %d was stored", lostSegments, kept.To, facts.Stored)
		if kept.Cut != nil {
			lost = fmt.Errorf("%w: %w", lost, kept.Cut)
		}
		c.recordResult("restore test", lost, 0) // before the full, which may take long
		if made, err := c.replace(ctx, lostSegments); !made {
			return errors.Join(lost, err)
		}
		return c.testLatest(ctx)
	}
	path, err := c.backups.archive.Find(ctx, archive.Target{Generation: facts.Generation, Revision: facts.Stored})
	switch {
	case err != nil:
		return err
	case path.Revision == path.Full.Revision, !c.canOpen(): // nothing is needed but the full, or nobody can tell here, as verify says
		c.lossSuspected = false
		return nil
	default:
		return c.testPath(ctx, path)
	}
}

// restoreTries is how often a revision is drawn until one needs segments.
const restoreTries = 20

// abandoned is how old the directory of a command must be for nobody to be restoring to it any longer.
const maxScratchAge = 24 * time.Hour

// clear removes what test restores that were killed have left on the volume: each may be as large as the database.
func (b *Backups) removeScratch() {
	own := b.options.ScratchDir
	if own == "" {
		return
	}
	paths := []string{own}
	siblings, _ := os.ReadDir(filepath.Dir(own)) // the volume, which etcd has just been started on
	for _, entry := range siblings {
		info, err := entry.Info()
		if err == nil && strings.HasPrefix(entry.Name(), filepath.Base(own)+"-") && time.Since(info.ModTime()) > maxScratchAge {
			paths = append(paths, filepath.Join(filepath.Dir(own), entry.Name()))
		}
	}
	for _, path := range paths {
		if err := os.RemoveAll(path); err != nil {
			b.options.Log.Warn().Err(err).Msg("backups: the files of a restore test could not be removed from the volume")
		}
	}
}
