// Package backup makes the backups of a member as long as its etcd runs, and brings what is missing into the store when it
// has been closed. It ties together what the packages below it do: the shipper stores what changes, and the chores restore
// it to see whether that works, count what is kept and let go what need not be.
//
// Nothing here touches serving, and nothing waits for the store but goroutines of its own. The command makes one Backups
// for a run.
package backup

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/atrest"
	"etcd-wrapper/bootstrap/backup/keep"
	"etcd-wrapper/bootstrap/backup/schedule"
	"etcd-wrapper/bootstrap/backup/seal"
	"etcd-wrapper/bootstrap/backup/shipper"
	"etcd-wrapper/bootstrap/backup/store"
)

// Options configure Backups. All fields are required but Gate.
type Options struct {
	Store      store.Store
	Keys       *seal.Keys
	Interval   time.Duration // --backup-interval
	Schedule   schedule.Schedule
	Policy     keep.Policy
	SpoolDir   string // a directory of its own on the volume
	SpoolLimit int64  // bytes
	// Verify restores a path in a process of its own and says what that showed. Its error is about what kept it from finding
	// out.
	Verify func(ctx context.Context, path archive.Path) (archive.Verdict, error)
	Gate   shipper.Gate // nil if there is nobody to keep apart from
	Log    zerolog.Logger
}

// Backups are those of one run. Begin, End and Flush are called one after the other, each at most once; the other methods
// may be called from any goroutine at any time.
type Backups struct {
	options Options
	archive *archive.Archive
	running atomic.Pointer[running]
	kept    atomic.Pointer[Kept]
	broken  atomic.Pointer[Unable]
	led     atomic.Bool // when it ended, etcd was the leader
}

// running is what goes on while etcd runs.
type running struct {
	etcd    shipper.Etcd
	shipper *shipper.Shipper
	stop    context.CancelFunc
	over    chan struct{}
}

// Unable is why no backups can be made at all for now.
type Unable struct {
	Since   time.Time
	Times   int
	Text    string // a sentence
	NextTry time.Time
}

// ErrNotRunning says that etcd does not run, or that backups have not begun.
var ErrNotRunning = errors.New("no backups are made now")

// again is how long it takes until a spool that could not be used is tried again.
const again = 30 * time.Second

// New returns the backups of a run and asks nobody for anything.
func New(options Options) *Backups {
	return &Backups{options: options, archive: archive.New(options.Store, options.Keys)}
}

// Begin makes backups of an etcd that has just become ready, until End.
func (b *Backups) Begin(etcd shipper.Etcd) {
	ctx, stop := context.WithCancel(context.Background())
	r := &running{etcd: etcd, stop: stop, over: make(chan struct{})}
	b.running.Store(r)
	go func() {
		defer close(r.over)
		b.run(ctx, r)
	}()
}

// run waits until the spool can be used, and then makes backups.
func (b *Backups) run(ctx context.Context, r *running) {
	made, err := b.ship(r.etcd)
	for ; err != nil; made, err = b.ship(r.etcd) {
		b.options.Log.Error().Err(err).Stringer("next_try", again).Msg("backups: none can be made")
		b.unable(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(again):
		}
	}
	b.broken.Store(nil)
	with := &running{etcd: r.etcd, shipper: made, stop: r.stop, over: r.over}
	b.running.Store(with)
	var all sync.WaitGroup
	all.Go(func() { made.Run(ctx) })
	all.Go(func() { newChores(b, made, r.etcd.MemberID()).run(ctx) })
	all.Wait()
}

func (b *Backups) unable(err error) {
	now := Unable{Since: time.Now(), Text: err.Error(), NextTry: time.Now().Add(again), Times: 1}
	if before := b.broken.Load(); before != nil {
		now.Since, now.Times = before.Since, before.Times+1
	}
	b.broken.Store(&now)
}

func (b *Backups) ship(etcd shipper.Etcd) (*shipper.Shipper, error) {
	return shipper.New(shipper.Options{
		Open: func(context.Context) (*archive.Archive, error) { return b.archive, nil },
		Keys: b.options.Keys, Etcd: etcd, Interval: b.options.Interval, Schedule: b.due,
		SpoolDir: b.options.SpoolDir, SpoolLimit: b.options.SpoolLimit, Gate: b.options.Gate, Log: b.options.Log,
	})
}

// due is the schedule with the shift of a cluster.
func (b *Backups) due(cluster string, after time.Time) time.Time {
	var id uint64
	if _, err := fmt.Sscanf(cluster, "%x", &id); err != nil {
		return b.options.Schedule.Next(after)
	}
	return b.options.Schedule.For(id).Next(after)
}

// End ends what goes on beside etcd, which may be closed then. The error says that something did not end within ctx; it
// reads nothing of etcd any more.
func (b *Backups) End(ctx context.Context) error {
	r := b.running.Load()
	if r == nil {
		return nil
	}
	b.led.Store(r.etcd.IsLeader())
	r.stop()
	select {
	case <-r.over:
		return nil
	case <-ctx.Done():
		return errors.New("backups: the store has not answered in time")
	}
}

// Flush brings what etcd took on until it was closed into the store: everything that it acknowledged is there when the error
// is nil. It is for after End has returned without an error. A member that another one writes the backups for has nothing to
// bring.
func (b *Backups) Flush(ctx context.Context, database string) error {
	r := b.running.Load()
	if r == nil {
		return nil
	}
	role := shipper.Unknown // a stop may come before the store was first looked at
	if r.shipper != nil {
		role = r.shipper.Facts().Role
	}
	if role == shipper.Watching {
		return nil
	}
	closed, err := atrest.Open(database, atrest.Identity{
		MemberID: r.etcd.MemberID(), ClusterID: r.etcd.ClusterID(), Leader: role == shipper.Writing || b.led.Load(), Term: r.etcd.Term(),
	})
	if err != nil {
		return err
	}
	defer closed.Close()
	return b.flush(ctx, closed)
}

func (b *Backups) flush(ctx context.Context, closed *atrest.Etcd) error {
	last, err := b.ship(closed)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		last.Run(running)
	}()
	err = last.Flush(ctx)
	stop()
	<-over
	return err
}

// FlushAtRest brings what the database of a data directory has into the store, for a cluster of one whose etcd does not run
// and will not run again on these data. The error says what is missing.
func (b *Backups) FlushAtRest(ctx context.Context, dataDir string, member, cluster uint64) error {
	closed, err := atrest.Open(filepath.Join(dataDir, "member", "snap", "db"), atrest.Identity{
		MemberID: fmt.Sprintf("%x", member), ClusterID: fmt.Sprintf("%x", cluster), Leader: true, Term: 1,
	})
	if err != nil {
		return err
	}
	defer closed.Close()
	return b.flush(ctx, closed)
}

// BeforeCompaction reads what a compaction is about to remove. It returns within a tenth of a second.
func (b *Backups) BeforeCompaction(ctx context.Context) {
	if r := b.running.Load(); r != nil && r.shipper != nil {
		r.shipper.BeforeCompaction(ctx)
	}
}

// Now makes a full backup and waits until it is in the store. ErrNotRunning and the errors of shipper.FullNow say why not.
func (b *Backups) Now(ctx context.Context) (shipper.FullDone, error) {
	r := b.running.Load()
	if r == nil || r.shipper == nil {
		return shipper.FullDone{}, ErrNotRunning
	}
	return r.shipper.FullNow(ctx, "asked for")
}

// Facts is everything there is to know about backups at one moment.
type Facts struct {
	Store   string // for people
	Shipped shipper.Facts
	Kept    Kept
	Unable  *Unable // nil while backups can be made
}

// Facts returns what is known now, from memory.
func (b *Backups) Facts() Facts {
	facts := Facts{Store: b.options.Store.String(), Shipped: shipper.Facts{Role: shipper.Unknown, SpoolLimit: b.options.SpoolLimit}}
	if r := b.running.Load(); r != nil && r.shipper != nil {
		facts.Shipped = r.shipper.Facts()
	}
	if kept := b.kept.Load(); kept != nil {
		facts.Kept = *kept
	}
	facts.Unable = b.broken.Load()
	return facts
}
