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

const (
	pollInterval = time.Second
	listEvery    = time.Hour
	pruneEvery   = time.Hour
	reserveEvery = time.Hour
	mergeEvery   = time.Minute
	daily        = 24 * time.Hour

	firstRetry   = 5 * time.Second
	longestRetry = time.Minute
)

// errBlocked is returned if a safety check prevents deletions. After errBlocked, the prune task does not retry early.
var errBlocked = errors.New("not deleting any backups because a safety check failed")

// tasks runs the maintenance tasks. Only the goroutine that calls run may use a tasks value.
type tasks struct {
	backups *Backups
	writer  *writer.Writer
	member  string // etcd member ID, hexadecimal

	listedFulls int64                     // full snapshots that the writer had stored when a listing was last requested
	due         map[string]time.Time      // time of the next run, by task name
	listing     *StoreContents            // nil if there is no listing or if it is older than the last test result
	testedFull  string                    // last full snapshot tested by this process, even if the result could not be read back
	failing     map[string]*facts.Problem // problems of the failing tasks, by task name

	replaced map[string]time.Time // time when a full snapshot was last replaced, by reason

	clock clock

	merger         *retention.Merger
	mergedAt       time.Time // time of the last merge
	mergedSegments int64     // number of segments that the writer had stored before the last merge
	unmerged       bool      // the last merge did not merge all segments that can be merged

	lossSuspected bool // objects needed to restore the latest revision may be missing from the store
}

func newTasks(b *Backups, s *writer.Writer, member string) *tasks {
	return &tasks{
		backups: b, writer: s, member: member, listedFulls: -1, due: map[string]time.Time{}, replaced: map[string]time.Time{},
		failing: map[string]*facts.Problem{}, clock: newClock(b.options.Now), merger: retention.NewMerger(b.archive, b.options.Now),
	}
}

// maxListingAge is the maximum age of a listing that prune uses. Backups made after the listing are never deleted.
const maxListingAge = time.Minute

// task is a maintenance task.
type task struct {
	name       string
	every      time.Duration // interval between runs that succeed
	writerOnly bool          // only the member that writes the backups runs the task
	do         func(*tasks, context.Context) error
}

// allTasks returns the tasks in the order in which they run if more than one is due.
func allTasks() []task {
	return []task{
		{"reserve", reserveEvery, true, (*tasks).reserve},
		{"list", listEvery, false, (*tasks).list},
		{"verify", pollInterval, true, (*tasks).verify},
		{"restore test", daily, true, (*tasks).testRestore},
		{"prune", pruneEvery, true, (*tasks).prune},
		{"sweep", daily, true, (*tasks).sweep},
		{"merge", pollInterval, true, (*tasks).merge},
	}
}

func (c *tasks) run(ctx context.Context) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.runTasks(ctx)
		}
	}
}

// runTasks runs all tasks that are due.
func (c *tasks) runTasks(ctx context.Context) {
	c.clock.check()
	state := c.writer.Facts()
	if state.Generation == 0 {
		return // the writer has not yet found its generation in the store, which may belong to another cluster
	}
	if state.Fulls != c.listedFulls {
		c.listedFulls = state.Fulls
		// List the new full snapshot. Reserve revisions again, because the store may have been emptied.
		c.due["list"], c.due["reserve"] = time.Time{}, time.Time{}
	}
	for _, task := range allTasks() {
		switch {
		case task.writerOnly && state.Role != facts.Writer:
			c.recordResult(task.name, nil, 0) // clear the problem, because another member runs the task now
		case ctx.Err() == nil && !time.Now().Before(c.due[task.name]):
			c.runTask(ctx, task)
		}
	}
}

func (c *tasks) runTask(ctx context.Context, task task) {
	pause := task.every
	err := task.do(c, ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil && !errors.Is(err, errBlocked) {
		pause = firstRetry
		if before := c.failing[task.name]; before != nil {
			pause = min(firstRetry<<min(before.Count, 10), longestRetry)
		}
	}
	c.due[task.name] = archive.MaxTime(c.due[task.name], time.Now().Add(pause))
	c.recordResult(task.name, err, pause)
}

// recordResult records the result of a task. pause is the time until the next run. An error is only logged if it
// differs from the previous one.
func (c *tasks) recordResult(name string, err error, pause time.Duration) {
	previous := c.failing[name]
	delete(c.failing, name)
	if err != nil {
		if previous == nil || previous.Message != err.Error() {
			c.backups.options.Log.Warn().Str("task", name).Dur("next_retry_ms", pause).Msgf("backups: %v; retrying", err)
		}
		c.failing[name] = addFailure(previous, err, pause)
	}
	var shown *facts.Problem
	for _, task := range allTasks() {
		shown = cmp.Or(shown, c.failing[task.name])
	}
	c.backups.taskProblem.Store(shown)
}

// prune deletes backups that the retention policy no longer requires.
func (c *tasks) prune(ctx context.Context) error {
	if c.listing == nil || time.Since(c.listing.At) >= maxListingAge {
		if err := c.list(ctx); err != nil {
			return err
		}
	}
	if c.lastFull() == nil {
		return nil // without a full snapshot, nothing can be deleted; prune runs again once one is stored and tested
	}
	plan, err := retention.NewPlan(ctx, c.backups.archive, c.listing.history, c.backups.options.Policy, c.backups.options.Now(), c.listing.stored)
	if err != nil {
		return err
	}
	if why := c.clock.check(); why != "" {
		plan.Unsafe = append(plan.Unsafe, why)
	}
	done, err := plan.Execute(ctx, c.backups.archive, nil)
	if done.Objects > 0 {
		c.backups.options.Log.Info().Int("objects", done.Objects).Int64("bytes", done.Bytes).Msg("backups: deleted backups that the retention policy no longer requires")
	}
	if err == nil && len(plan.Unsafe) > 0 {
		return fmt.Errorf("%w: %s", errBlocked, strings.Join(plan.Unsafe, "; "))
	}
	return err
}

// sweep deletes incomplete uploads.
func (c *tasks) sweep(ctx context.Context) error {
	removed, err := store.Sweep(ctx, c.backups.options.Store)
	if removed > 0 {
		c.backups.options.Log.Info().Int("uploads", removed).Msg("backups: removed incomplete uploads")
	}
	return err
}

// list lists the backups and reads the results of recent restore tests.
func (c *tasks) list(ctx context.Context) error {
	stored, at := c.writer.Facts().Revision, time.Now()
	history, err := c.backups.archive.History(ctx) // object names alone do not reveal missing segments
	if err != nil {
		return err
	}
	listed := newContents(history)
	listed.At, listed.stored = at, stored
	if newest := history.Newest(); newest != nil {
		restoreTests, err := c.backups.archive.RestoreTests(ctx, newest.Number, time.Now().Add(-daily))
		if err != nil {
			return err
		}
		for _, test := range restoreTests {
			listed.addResult(&test)
			if test.At.Before(listed.At) { // ignore times in the future, which are due to a wrong clock
				c.due["restore test"] = archive.MaxTime(c.due["restore test"], test.At.Add(daily))
			}
		}
	}
	if listed.Cut != nil && listed.window().ToRevision < stored {
		c.lossSuspected, c.due["restore test"] = true, time.Time{}
	}
	c.listing, c.due["list"] = listed, at.Add(listEvery)
	c.backups.listed.Store(listed)
	c.recordResult("list", nil, 0) // clear an error of the list task, even if another task called list
	return nil
}

// replaceEvery is the minimum time between two full snapshots that are made for the same reason.
const replaceEvery = time.Hour

// Reasons for making a full snapshot, which are recorded in its manifest.
const (
	failedTest   = "the last full snapshot failed its restore test"
	lostSegments = "segments are missing from the store"
)

// verify runs a restore test of the newest full snapshot unless it has already been tested. If the newest full
// snapshot failed an earlier test, verify makes another full snapshot.
func (c *tasks) verify(ctx context.Context) error {
	full := c.lastFull()
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

// errNoIdentities is returned if backups are encrypted and the wrapper has no identity to decrypt them.
var errNoIdentities = errors.New("--backup-identities is not set, so encrypted backups can be neither tested nor deleted")

// errInTheClear is returned if the last full snapshot is encrypted but new backups are not, because
// --backup-recipients was probably forgotten. The next full snapshot clears the error, because the flag may have been
// removed on purpose.
var errInTheClear = errors.New("--backup-recipients is not set: earlier backups are encrypted, but new backups are not")

// canOpen reports whether this process can decrypt its own backups.
func (c *tasks) canOpen() bool {
	keys := c.backups.options.Keys
	return !keys.Encrypts() || keys.Opens()
}

// lastFull returns the newest generation's last full snapshot with a valid manifest according to the last listing, or
// nil if there is none.
func (c *tasks) lastFull() *archive.StoredFull {
	if c.listing == nil || c.listing.history.Newest() == nil {
		return nil
	}
	for _, full := range slices.Backward(c.listing.history.Newest().Fulls) {
		if full.Err == nil {
			return &full
		}
	}
	return nil
}

// testPath runs a restore test of a path, stores the result, and makes a new full snapshot if the restore fails.
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
		log.Info().Int64("revision", result.Revision).Float64("seconds", result.Seconds).Msg("backups: restore test passed")
		c.due["prune"] = time.Time{}
	} else {
		log.Error().Int64("revision", result.Revision).Str("error", result.Why).Msg("backups: restore test failed; making a new full snapshot and keeping all backups")
	}
	c.listing, c.due["list"] = nil, time.Time{} // the last listing does not include this result
	if err := c.list(ctx); err != nil && ctx.Err() == nil {
		// The error is recorded for the list task, because an error of this task would repeat the test.
		c.recordResult("list", err, pollInterval)
	}
	if result.Outcome == archive.Verified {
		return nil
	}
	_, err = c.replace(ctx, failedTest) // after the listing, because a full snapshot can take a while
	return err
}

// replace makes a new full snapshot because of the given reason, unless it has already tried to within replaceEvery.
// made reports whether the full snapshot is stored.
func (c *tasks) replace(ctx context.Context, reason string) (made bool, err error) {
	if time.Since(c.replaced[reason]) < replaceEvery {
		return false, nil
	}
	c.replaced[reason] = time.Now()
	_, err = c.writer.FullNow(ctx, reason)
	return err == nil, err
}

// testRestore tests the restore of a random revision between full snapshots. If objects may be missing, testRestore
// tests the latest revision instead.
func (c *tasks) testRestore(ctx context.Context) error {
	if c.lossSuspected {
		return c.testLatest(ctx)
	}
	window := c.backups.listed.Load().window()
	if window.ToRevision <= window.FromRevision || !c.canOpen() {
		return nil
	}
	for range restoreTries {
		revision := window.FromRevision + 1 + rand.Int64N(window.ToRevision-window.FromRevision)
		path, err := c.backups.archive.Find(ctx, archive.Target{Revision: revision})
		switch {
		case errors.Is(err, archive.ErrNotKept), err == nil && path.Revision == path.Full.Revision:
			continue // full snapshots are tested by verify
		case err != nil:
			return err
		default:
			return c.testPath(ctx, path)
		}
	}
	return nil
}

// testLatest checks whether the latest revision can be restored, because the writer does not read back its uploads.
// If the listing ends before the latest revision, testLatest makes a full snapshot; otherwise, it runs a restore
// test, which also detects damaged segments.
func (c *tasks) testLatest(ctx context.Context) error {
	facts := c.writer.Facts()
	if err := c.list(ctx); err != nil {
		return err
	}
	if listed := c.backups.listed.Load(); listed.window().ToRevision < facts.Revision {
		lost := fmt.Errorf("%s: the last restorable revision is %d, but revision %d had been stored", lostSegments, listed.window().ToRevision, facts.Revision)
		if listed.Cut != nil {
			lost = fmt.Errorf("%w: %w", lost, listed.Cut)
		}
		c.recordResult("restore test", lost, 0) // before the full snapshot, which can take a while
		if made, err := c.replace(ctx, lostSegments); !made {
			return errors.Join(lost, err)
		}
		return c.testLatest(ctx)
	}
	path, err := c.backups.archive.Find(ctx, archive.Target{Generation: facts.Generation, Revision: facts.Revision})
	switch {
	case err != nil:
		return err
	case path.Revision == path.Full.Revision, !c.canOpen(): // no segment is needed, or this process cannot decrypt segments
		c.lossSuspected = false
		return nil
	default:
		return c.testPath(ctx, path)
	}
}

// restoreTries is the maximum number of random revisions to try until one is found that needs segments to be restored.
const restoreTries = 20

// maxScratchAge is the age at which a command's scratch directory is considered abandoned.
const maxScratchAge = 24 * time.Hour

// removeTemporaryFiles removes ScratchDir and the old scratch directories of commands. Killed restore tests leave them
// behind, and each may be as large as the database.
func (b *Backups) removeTemporaryFiles() {
	own := b.options.ScratchDir
	if own == "" {
		return
	}
	paths := []string{own}
	siblings, _ := os.ReadDir(filepath.Dir(own)) // ignore errors, because etcd has just read the volume
	for _, entry := range siblings {
		info, err := entry.Info()
		if err == nil && strings.HasPrefix(entry.Name(), filepath.Base(own)+"-") && time.Since(info.ModTime()) > maxScratchAge {
			paths = append(paths, filepath.Join(filepath.Dir(own), entry.Name()))
		}
	}
	for _, path := range paths {
		if err := os.RemoveAll(path); err != nil {
			b.options.Log.Warn().Err(err).Msg("backups: cannot remove the files of an earlier restore test")
		}
	}
}

// reserve keeps the reserved revision in the store well ahead of etcd's revision. A restored cluster continues from
// the reserved revision, so that clients never see the same revision twice.
func (c *tasks) reserve(ctx context.Context) error {
	facts := c.writer.Facts()
	reservation, err := c.backups.archive.Reserved(ctx)
	if errors.Is(err, store.ErrNotFound) || err == nil && facts.EtcdRevision+archive.Renewal > reservation.Revision {
		err = c.backups.archive.Reserve(ctx, archive.Reservation{
			Cluster: facts.Cluster, Generation: facts.Generation, Revision: facts.EtcdRevision + archive.Margin, Created: c.backups.options.Now(),
		})
	}
	if err == nil || errors.Is(err, store.ErrExists) {
		return nil
	}
	return fmt.Errorf("cannot reserve revisions for a restore: %w", err)
}

const (
	// mergeTimeout is the timeout for one merge.
	mergeTimeout = 15 * time.Minute
	// mergeBatch is the number of new segments that triggers a merge. Smaller batches are merged only every
	// idleMergeEvery, because each merge lists the store.
	mergeBatch     = 60
	idleMergeEvery = 30 * time.Minute
)

// merge merges small segments if there are enough new ones or the last merge was long ago.
func (c *tasks) merge(ctx context.Context) error {
	facts := c.writer.Facts()
	count := facts.Segments - c.mergedSegments
	wait := mergeEvery
	if count < mergeBatch {
		wait = idleMergeEvery
	}
	if facts.Problem != nil || facts.RunningFullSnapshot != nil || time.Since(c.mergedAt) < wait || count == 0 && !c.unmerged {
		return nil
	}
	c.mergedAt, c.mergedSegments = time.Now(), facts.Segments
	limited, cancel := context.WithTimeout(ctx, mergeTimeout)
	defer cancel()
	done, err := c.merger.Run(limited, facts.Generation)
	if c.unmerged = done.Left || err != nil; done.Holes > 0 {
		c.lossSuspected, c.due["list"], c.due["restore test"] = true, time.Time{}, time.Time{}
	}
	if err != nil && ctx.Err() == nil { // only logged, because no data is missing from the store
		c.backups.options.Log.Warn().Err(err).Msg("backups: cannot merge small segments; retrying later")
	}
	return nil
}

const (
	// maxDrift is the maximum drift between the wall clock and the monotonic clock. Any larger drift is considered a
	// jump of the wall clock.
	maxDrift = time.Minute
	// afterJump is the time after a jump during which no backups are deleted. If the clock is wrong now, even the
	// newest backups may seem old enough to be deleted.
	afterJump = time.Hour
)

// A clock detects jumps of the wall clock. Suspending the machine looks like a jump, but that only delays deletions.
type clock struct {
	now     func() time.Time
	first   time.Time     // wall-clock time when the clock was created
	started time.Time     // monotonic time when the clock was created
	drift   time.Duration // offset between the two clocks after the last jump
	jump    time.Duration // size of the last jump; 0 if there was none
	jumped  time.Time     // monotonic time when the last jump was detected
}

func newClock(now func() time.Time) clock { return clock{now: now, first: now(), started: time.Now()} }

// check returns why backups must not be deleted now, or an empty string if the wall clock has not jumped within the
// last hour.
func (c *clock) check() string {
	drift := c.now().Round(0).Sub(c.first.Round(0)) - time.Since(c.started)
	if jump := drift - c.drift; jump.Abs() > maxDrift {
		c.drift, c.jump, c.jumped = drift, jump, time.Now()
	}
	if c.jump == 0 || time.Since(c.jumped) >= afterJump {
		return ""
	}
	return fmt.Sprintf("the system clock jumped by %s (%s ago); no backups are deleted for %s after a jump",
		c.jump.Round(time.Second), time.Since(c.jumped).Round(time.Minute), afterJump)
}
