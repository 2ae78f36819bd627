// Package backup makes the backups of a member as long as its etcd runs, and brings what is missing into the store when it
// has been closed. It ties together what the packages below it do: the writer stores what changes, and the chores restore
// it to see whether that works, count what is kept and let go what need not be.
//
// Nothing here touches serving, and nothing waits for the store but goroutines of its own. The command makes one Backups
// for a run.
package backup

import (
	"context"
	"errors"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/writer"
)

// Options configure Backups. All fields are required but Gate and ScratchDir.
type Options struct {
	Store      store.Store
	Keys       *format.Keys
	Interval   time.Duration // --backup-interval
	Schedule   Schedule
	Policy     retention.Policy
	SpoolDir   string // a directory of its own on the volume
	SpoolLimit int64  // bytes
	// Verify restores a path in a process of its own and says what that showed. Its error is about what kept it from finding
	// out.
	Verify func(ctx context.Context, path archive.Path) (archive.Result, error)
	// ScratchDir is where Verify restores to; a command beside it adds a dash and something else. What is there at the beginning
	// was left by a process that was killed.
	ScratchDir string

	Gate writer.Gate
	Log  zerolog.Logger
	Now  func() time.Time // the wall clock; time.Now if it is nil
}

// Backups are those of one run. Begin, End and Flush are called one after the other, each at most once; the other methods
// may be called from any goroutine at any time.
type Backups struct {
	options Options
	archive *archive.Archive
	running atomic.Pointer[running]
	kept    atomic.Pointer[Kept]
	broken  atomic.Pointer[Unable]
	undone  atomic.Pointer[Unable]

	session    string
	superseded chan error
}

// running is what goes on while etcd runs.
type running struct {
	etcd   writer.Etcd
	data   Data
	writer atomic.Pointer[writer.Writer] // nil until the spool can be used
	stop   context.CancelFunc
	done   chan struct{} // the writer has ended
}

// Unable is why no backups can be made at all for now, or why what is done beside making them is not.
type Unable struct {
	Since   time.Time
	Times   int
	Text    string // a sentence
	NextTry time.Time
}

// ErrNotRunning says that etcd does not run, or that backups have not begun.
var ErrNotRunning = errors.New("no backups are made now; etcd-wrapper status says why")

// again is how long it takes until a spool that could not be used is tried again.
const retryInterval = 30 * time.Second

// New returns the backups of a run and asks nobody for anything.
func New(options Options) *Backups {
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Backups{
		options: options, archive: archive.New(options.Store, options.Keys), session: archive.NewID(), superseded: make(chan error, 1),
	}
}

// Data are what is backed up.
type Data struct {
	Dir   string // etcd's data directory
	Owner string // whom a store is founded for, NAMESPACE/NAME
}

// Begin makes backups of an etcd that has just become ready, until End.
func (b *Backups) Begin(etcd writer.Etcd, data Data) {
	ctx, stop := context.WithCancel(context.Background())
	r := &running{etcd: etcd, data: data, stop: stop, done: make(chan struct{})}
	b.running.Store(r)
	go func() {
		defer close(r.done)
		b.run(ctx, r)
	}()
}

// run waits until the spool can be used, and then makes backups.
func (b *Backups) run(ctx context.Context, r *running) {
	b.removeScratch()
	w, err := writer.New(b.writerOptions(r.etcd, r.data))
	for ; err != nil; w, err = writer.New(b.writerOptions(r.etcd, r.data)) {
		b.reportUnable(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryInterval):
		}
	}
	b.broken.Store(nil)
	r.writer.Store(w)
	var all sync.WaitGroup
	all.Go(func() { w.Run(ctx) })
	all.Go(func() {
		select {
		case why := <-w.Superseded():
			b.superseded <- why
		case <-ctx.Done():
		}
	})
	// Nobody waits for the chores, which read nothing of etcd: a test restore that was killed is gone only when its process gets a
	// processor, and others may keep those busy for seconds.
	go newTasks(b, w, r.etcd.Identity().MemberID).run(ctx)
	all.Wait()
}

func (b *Backups) reportUnable(err error) {
	before := b.broken.Load()
	if before == nil || before.Text != err.Error() {
		b.options.Log.Error().Err(err).Dur("next_retry_ms", retryInterval).Msg("backups: none can be made")
	}
	b.broken.Store(before.addFailure(err, retryInterval))
}

// again is u, which may be nil, once it has failed once more.
func (u *Unable) addFailure(err error, next time.Duration) *Unable {
	now := &Unable{Since: time.Now(), Times: 1, Text: err.Error(), NextTry: time.Now().Add(next)}
	if u != nil {
		now.Since, now.Times = u.Since, u.Times+1
	}
	return now
}

func (b *Backups) writerOptions(etcd writer.Etcd, data Data) writer.Options {
	return writer.Options{
		Archive: b.archive, Etcd: etcd, Interval: b.options.Interval, Schedule: b.nextFull,
		SpoolDir: b.options.SpoolDir, SpoolLimit: b.options.SpoolLimit, DataDir: data.Dir, Owner: data.Owner, Session: b.session, Gate: b.options.Gate, Log: b.options.Log,
		Now: b.options.Now,
	}
}

// due is the schedule with the shift of a cluster.
func (b *Backups) nextFull(cluster string, after time.Time) time.Time {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(cluster)) // it never fails
	return b.options.Schedule.For(hash.Sum64()).Next(after)
}

// End ends what goes on beside etcd, which may be closed then. The error says that the writer did not end within ctx; it
// reads nothing of etcd any more. A chore may end later than that.
func (b *Backups) End(ctx context.Context) error {
	r := b.running.Load()
	if r == nil {
		return nil
	}
	r.stop()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return errors.New("backups: the store has not answered in time")
	}
}

// writing is what makes them now; nil if nothing does.
func (b *Backups) currentWriter() *writer.Writer {
	if r := b.running.Load(); r != nil {
		return r.writer.Load()
	}
	return nil
}

// Superseded has one error, a sentence, once another cluster was restored from the backups of this one and goes on: then etcd must be
// closed, since what it acknowledges from here on is in no backup.
func (b *Backups) Superseded() <-chan error { return b.superseded }

// BeforeCompaction reads what a compaction is about to remove. It takes as long as the volume does, and ends early with ctx.
func (b *Backups) BeforeCompaction(ctx context.Context) {
	if s := b.currentWriter(); s != nil {
		s.BeforeCompaction(ctx)
	}
}

// Now makes a full backup and waits until it is in the store. ErrNotRunning and the errors of writer.FullNow say why not.
func (b *Backups) Now(ctx context.Context) (writer.FullDone, error) {
	s := b.currentWriter()
	if s == nil {
		return writer.FullDone{}, ErrNotRunning
	}
	return s.FullNow(ctx, "asked for")
}

// Facts is everything there is to know about backups at one moment.
type Facts struct {
	Store   string // for people
	Shipped writer.Facts
	Kept    Kept
	Unable  *Unable // nil while backups can be made
	Undone  *Unable // a chore that is not done: listing, a test restore, deleting, or a doubt that keeps old backups; nil if all are
}

// Facts returns what is known now, from memory.
func (b *Backups) Facts() Facts {
	facts := Facts{Store: b.options.Store.String(), Shipped: writer.Facts{Role: writer.Unknown, SpoolLimit: b.options.SpoolLimit}}
	if s := b.currentWriter(); s != nil {
		facts.Shipped = s.Facts()
	}
	if kept := b.kept.Load(); kept != nil {
		facts.Kept = *kept
	}
	facts.Unable, facts.Undone = b.broken.Load(), b.undone.Load()
	return facts
}
