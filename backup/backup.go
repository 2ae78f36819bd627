// Package backup backs up a member while its etcd is running, and uploads the remaining changes after etcd is closed.
// The writer (package writer) stores changes. Maintenance tasks test restores, list the backups and delete backups
// that are no longer needed.
//
// Unless Options.Ack is set, backups never delay etcd's clients: only this package's goroutines wait for the store. A
// Backups value is used for one run, from the start of etcd until its end.
package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/backup/writer/ack"
)

// Options configures Backups. Gate, Ack, ScratchDir and Now are optional.
type Options struct {
	Store      store.Store
	Keys       *format.Keys
	Interval   time.Duration // --backup-interval
	Schedule   Schedule
	Policy     retention.Policy
	SpoolDir   string // directory on the volume; used only for the spool
	SpoolLimit int64  // maximum size of all queued segments in bytes
	// Verify runs a restore test of a path in a separate process. It returns an error if the test could not run, and a
	// result with Outcome Failed if the restore failed.
	Verify func(ctx context.Context, path archive.Path) (archive.Result, error)
	// ScratchDir is the directory that Verify restores to. Commands use directories with the same name plus a dash and
	// a suffix. Begin removes ScratchDir, and the directories of commands that are older than a day, because a killed
	// process may have left them behind.
	ScratchDir string

	Gate writer.Gate
	Ack  *ack.Gate // set with --backup-ack=stored
	Log  zerolog.Logger
	Now  func() time.Time // current wall-clock time; defaults to time.Now
}

// Backups manages the backups of one run. Begin, End and Flush must be called in this order, each at most once. All
// other methods are safe for concurrent use.
type Backups struct {
	options      Options
	archive      *archive.Archive
	running      atomic.Pointer[running]
	listed       atomic.Pointer[StoreContents]
	startProblem atomic.Pointer[facts.Problem] // see Facts.StartProblem
	taskProblem  atomic.Pointer[facts.Problem] // see Facts.TaskProblem

	session    string
	superseded chan error
}

// running holds state that exists only while etcd is running.
type running struct {
	etcd   writer.Etcd
	dir    string // etcd's data directory
	owner  string
	writer atomic.Pointer[writer.Writer] // nil until the spool is usable
	opened chan struct{}                 // closed after the first attempt to open the spool
	stop   context.CancelFunc
	done   chan struct{} // closed when the writer has stopped
}

// ErrNotRunning is returned if etcd is not running or backups have not started.
var ErrNotRunning = errors.New(`backups are not running; run "etcd-wrapper status" to see why`)

// retryInterval is the time between attempts to open the spool.
const retryInterval = 30 * time.Second

// New returns Backups for one run. New does not access the store.
func New(options Options) *Backups {
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Backups{
		options: options, archive: archive.New(options.Store, options.Keys), session: archive.NewID(), superseded: make(chan error, 1),
	}
}

// Begin starts backing up etcd and must not be called before etcd is ready. Backups continue until End is called. An
// unused store is initialized for the given owner (NAMESPACE/NAME).
func (b *Backups) Begin(etcd writer.Etcd, dataDir, owner string) {
	ctx, stop := context.WithCancel(context.Background())
	r := &running{etcd: etcd, dir: dataDir, owner: owner, stop: stop, opened: make(chan struct{}), done: make(chan struct{})}
	b.running.Store(r)
	go func() {
		defer close(r.done)
		b.run(ctx, r)
	}()
}

// run opens the spool, retrying on errors, and then makes backups.
func (b *Backups) run(ctx context.Context, r *running) {
	b.removeTemporaryFiles()
	options := b.writerOptions(r.etcd, r.dir, r.owner)
	options.Ack = b.options.Ack
	options.Superseded = func(reason error) { b.supersede(ctx, reason) }
	w, err := writer.New(options)
	r.writer.Store(w)
	close(r.opened)
	for ; err != nil; w, err = writer.New(options) {
		b.recordFailure(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryInterval):
		}
	}
	b.startProblem.Store(nil)
	r.writer.Store(w)
	// End does not wait for the maintenance tasks, because they do not read from etcd, and a restore test process can
	// take seconds to exit after it is killed.
	go newTasks(b, w, r.etcd.Identity().MemberID).run(ctx)
	w.Run(ctx)
}

// supersede sends the reason why another generation has superseded this one to the channel returned by Superseded,
// unless the run has ended.
func (b *Backups) supersede(run context.Context, reason error) {
	if run.Err() != nil {
		return
	}
	select {
	case b.superseded <- reason:
	default: // an earlier reason has not been received yet
	}
}

func (b *Backups) recordFailure(err error) {
	previous := b.startProblem.Load()
	if previous == nil || previous.Message != err.Error() {
		b.options.Log.Error().Err(err).Dur("next_retry_ms", retryInterval).Msg("backups: cannot start")
	}
	b.startProblem.Store(addFailure(previous, err, retryInterval))
}

// addFailure returns the problem of an operation that has failed again. previous is the problem before this failure,
// or nil if this is the first one.
func addFailure(previous *facts.Problem, err error, next time.Duration) *facts.Problem {
	now := &facts.Problem{Since: time.Now(), Count: 1, Message: err.Error(), NextRetry: time.Now().Add(next)}
	if previous != nil {
		now.Since, now.Count = previous.Since, previous.Count+1
	}
	return now
}

func (b *Backups) writerOptions(etcd writer.Etcd, dataDir, owner string) writer.Options {
	return writer.Options{
		Archive: b.archive, Etcd: etcd, Interval: b.options.Interval, Schedule: b.nextFull,
		SpoolDir: b.options.SpoolDir, SpoolLimit: b.options.SpoolLimit, DataDir: dataDir, Owner: owner, Session: b.session,
		Gate: b.options.Gate, Log: b.options.Log, Now: b.options.Now,
	}
}

// nextFull returns the time of the next scheduled full snapshot, including the cluster's offset.
func (b *Backups) nextFull(cluster string, after time.Time) time.Time {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(cluster)) // a hash never returns an error
	return b.options.Schedule.For(hash.Sum64()).Next(after)
}

// errStopping is returned to clients that are still waiting for the store when etcd is closed.
var errStopping = errors.New("etcd is stopping")

// End stops the writer so that etcd can be closed. End returns an error if a request to the store is still pending
// when ctx is done. When End returns, the writer no longer reads from etcd, even if End returns an error. Maintenance
// tasks may still be running when End returns.
func (b *Backups) End(ctx context.Context) error {
	r := b.running.Load()
	if r == nil {
		return nil
	}
	r.stop()
	if b.options.Ack != nil {
		b.options.Ack.Close(errStopping)
	}
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return errors.New("backups: timed out waiting for the store")
	}
}

// currentWriter returns the writer, or nil if it has not been started.
func (b *Backups) currentWriter() *writer.Writer {
	if r := b.running.Load(); r != nil {
		return r.writer.Load()
	}
	return nil
}

// Superseded returns a channel that receives an error, worded for users, when another cluster has been restored from
// this cluster's backups. The caller must then close etcd, because later writes would not be backed up.
func (b *Backups) Superseded() <-chan error { return b.superseded }

// Ack returns the gate that delays replies if --backup-ack=stored is set, and nil otherwise.
func (b *Backups) Ack() *ack.Gate { return b.options.Ack }

// confirmLimit limits how long a change may wait for the store before the member becomes unready.
const confirmLimit = 2 * time.Second

// Unconfirmed returns why clients are waiting for the store, or an empty string if the gate is open and no change has
// been waiting for confirmLimit or longer.
func (b *Backups) Unconfirmed() string {
	if b.options.Ack == nil {
		return ""
	}
	known := b.Facts()
	behind := known.Writer.Lag
	if b.options.Ack.IsOpen() && behind < confirmLimit {
		return ""
	}
	reason := "no upload has succeeded in the last minute"
	if behind >= confirmLimit {
		reason = fmt.Sprintf("no response for %s", behind.Truncate(time.Second))
	}
	if problem := cmp.Or(known.StartProblem, known.Writer.Problem); problem != nil {
		reason = problem.Message
	}
	return "clients are waiting because the backup store is not confirming writes: " + reason
}

// BeforeCompaction captures the rows that a compaction is about to remove. It returns when the rows are in the spool,
// the capture has failed, or ctx is done.
func (b *Backups) BeforeCompaction(ctx context.Context) {
	if r := b.running.Load(); r != nil {
		select {
		case <-r.opened:
		case <-ctx.Done():
		}
	}
	if s := b.currentWriter(); s != nil {
		s.BeforeCompaction(ctx)
	}
}

// Now makes a full snapshot and waits until it is stored. Now returns ErrNotRunning or an error from writer.FullNow.
func (b *Backups) Now(ctx context.Context) (archive.Full, error) {
	s := b.currentWriter()
	if s == nil {
		return archive.Full{}, ErrNotRunning
	}
	return s.FullNow(ctx, "requested")
}

// Facts describes the backups at a point in time: what the writer has stored, what the last listing has found, and
// what is failing.
type Facts struct {
	Writer       writer.Facts
	Listed       StoreContents
	StartProblem *facts.Problem // why the writer cannot be started; nil if it can
	TaskProblem  *facts.Problem // failure of a maintenance task or a safety check; nil if there is none
}

// Facts returns the current state without accessing the store.
func (b *Backups) Facts() Facts {
	known := Facts{
		Writer:       writer.Facts{Backups: facts.Backups{Role: facts.Waiting, SpoolLimit: b.options.SpoolLimit}},
		StartProblem: b.startProblem.Load(), TaskProblem: b.taskProblem.Load(),
	}
	if w := b.currentWriter(); w != nil {
		known.Writer = w.Facts()
	}
	if listed := b.listed.Load(); listed != nil {
		known.Listed = *listed
	}
	known.Listed.Store = b.options.Store.String()
	return known
}

// Published returns the current state for the status document.
func (b *Backups) Published() *facts.Backups { return b.Facts().document() }

func (f Facts) document() *facts.Backups {
	document, listed := f.Writer.Backups, f.Listed.Backups
	document.Store, document.StoredBytes, document.LastVerification = listed.Store, listed.StoredBytes, listed.LastVerification
	document.Window, document.Windows, document.LastFullSnapshot = listed.Window, listed.Windows, listed.LastFullSnapshot
	document.Problem = cmp.Or(f.StartProblem, document.Problem, f.TaskProblem)
	if document.Window != nil {
		window := f.window()
		document.Window, document.Windows = &window, f.windowsUpTo(window)
	}
	if made, listed := f.Writer.LastFull, document.LastFullSnapshot; made != nil && (listed == nil || made.Time.After(listed.At)) {
		document.LastFullSnapshot = &facts.FullSnapshot{Revision: made.Revision, At: made.Time, Bytes: made.Data.Bytes, Reason: made.Reason}
	}
	return &document
}

// window returns the restorable revisions, including those stored by this writer since the last listing.
func (f Facts) window() facts.Window {
	window := f.Listed.window()
	// If the listing is newer, another member is the writer, or this member has not read the store yet.
	if f.Listed.Cut == nil && f.Writer.Revision >= window.ToRevision {
		window.ToRevision, window.To = f.Writer.Revision, time.Now().Add(-f.Writer.Lag).Truncate(time.Second)
	}
	return window
}

// windowsUpTo returns the windows from the last listing, with the last window extended to end. If a full snapshot was
// made since the listing, windowsUpTo adds it to the last window.
func (f Facts) windowsUpTo(end facts.Window) []facts.GenerationWindow {
	windows := slices.Clone(f.Listed.Windows) // cloned, because the listing is shared
	last := &windows[len(windows)-1]
	last.ToRevision, last.To = end.ToRevision, end.To
	if made := f.Writer.LastFull; made != nil && made.Revision <= last.ToRevision &&
		!slices.ContainsFunc(last.FullSnapshots, func(m facts.SnapshotMark) bool { return m.Revision >= made.Revision }) {
		last.FullSnapshots = append(slices.Clone(last.FullSnapshots), facts.SnapshotMark{Revision: made.Revision, At: made.Time})
	}
	return windows
}

// StoreContents describes the backups found by the last listing of the store.
type StoreContents struct {
	facts.Backups
	At  time.Time // time of the listing; zero if there is none
	Cut error     // why revisions stored after the window cannot be restored; nil if they extend the window

	history *archive.History
	stored  int64 // last revision that the writer had stored when the listing started
}

// window returns the restorable revisions, or the zero value if there are none.
func (l *StoreContents) window() facts.Window {
	if l == nil || l.Window == nil {
		return facts.Window{}
	}
	return *l.Window
}

// addResult records the result of a restore test unless a newer result is known. If two tests finished in the same
// second, a failure takes precedence.
func (l *StoreContents) addResult(result *archive.Result) {
	previous := l.LastVerification
	if previous != nil && (result.At.Before(previous.At) || result.At.Equal(previous.At) && !previous.Passed) {
		return
	}
	l.LastVerification = &facts.Verification{
		Revision: result.Revision, At: result.At, Passed: result.Outcome == archive.Verified, Reason: result.Why,
	}
	if result.Outcome != archive.Verified {
		return
	}
	reason := "restored in " + time.Duration(result.Seconds*float64(time.Second)).Round(time.Millisecond).String()
	if result.Hash != nil {
		reason += fmt.Sprintf("; its hash at revision %d matches the one that etcd computed, %d", result.Hash.Revision, result.Hash.Hash)
	}
	l.LastVerification.Reason = reason
}

// newContents summarizes the backups found by a listing.
func newContents(history *archive.History) *StoreContents {
	listed := &StoreContents{history: history}
	for _, generation := range history.Generations {
		for _, full := range generation.Fulls {
			listed.StoredBytes += full.Size
		}
		for _, object := range generation.Objects {
			listed.StoredBytes += object.Size
		}
	}
	newest := history.Newest()
	if newest == nil {
		return listed
	}
	if windows := windows(history); len(newest.Chains) > 0 {
		listed.Windows, listed.Window = windows, &windows[len(windows)-1].Window
		listed.Cut = newest.Chains[len(newest.Chains)-1].PastEnd
	}
	for _, full := range newest.Fulls {
		if full.Err == nil {
			listed.LastFullSnapshot = &facts.FullSnapshot{Revision: full.Revision, At: full.Time, Bytes: full.Size, Reason: full.Reason}
		}
		if full.Result != nil {
			listed.addResult(full.Result)
		}
	}
	return listed
}

// Limits for the status document. If there are more entries, the oldest ones are omitted.
const (
	maxWindows = 16 // restorable windows
	maxMarks   = 64 // full snapshots per window
)

// testResults maps the outcome of a restore test to its value in the status document.
var testResults = map[archive.Outcome]string{archive.Verified: "passed", archive.Failed: "failed"}

// windows returns the newest restorable windows of all generations, in chronological order.
func windows(history *archive.History) (all []facts.GenerationWindow) {
	for _, generation := range history.Generations {
		for _, chain := range generation.Chains {
			window := facts.GenerationWindow{Generation: generation.Number, Window: facts.Window{
				FromRevision: chain.From, ToRevision: chain.To, From: chain.Begin, To: chain.End,
			}}
			for _, full := range generation.Fulls {
				if full.Err == nil && full.Revision >= chain.From && full.Revision <= chain.To {
					mark := facts.SnapshotMark{Revision: full.Revision, At: full.Time}
					if full.Result != nil {
						mark.RestoreTest = testResults[full.Result.Outcome]
					}
					window.FullSnapshots = append(window.FullSnapshots, mark)
				}
			}
			window.FullSnapshots = window.FullSnapshots[max(0, len(window.FullSnapshots)-maxMarks):]
			all = append(all, window)
		}
	}
	return all[max(0, len(all)-maxWindows):]
}
