package maintenance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"etcd-wrapper/member/state"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
)

const (
	// defaultInterval is the default interval between checks of the database size.
	defaultInterval = 10 * time.Second
	// waitingFactor is the divisor of the interval between checks while a member is waiting for its turn.
	waitingFactor = 5
	// drainTime is the time that active requests have to finish before the database is blocked.
	drainTime = 250 * time.Millisecond
	// catchUpTimeout limits how long clients are redirected after a defragmentation, while the member applies the
	// entries that were committed in the meantime.
	catchUpTimeout = time.Minute
)

// Options configure a Maintainer. All fields except Interval and Gate are required.
type Options struct {
	Threshold Threshold
	MaxPause  time.Duration // longer defragmentations are not started, unless a client requests them
	Log       zerolog.Logger
	Gate      *Gate                                 // shared by all readers of the whole database; may be nil if only clients read it
	Name      string                                // member name
	Quota     int64                                 // database quota in bytes; 0 if there is no limit
	Active    func(self types.ID) map[types.ID]bool // returns the members to which self is connected; must not block
	Interval  time.Duration                         // time between checks; 0 means 10 s
	Sending   func() bool                           // reports whether a snapshot is being sent to another member; must not block
}

// Maintainer keeps one member's database small. Its interceptors must be added to etcd's gRPC server. They let all
// requests through unless Run is running. State, RedirectReason and Trigger are safe for concurrent use.
type Maintainer struct {
	options     Options
	estimator   estimator
	triggered   chan struct{} // receives a value if Trigger was called; capacity 1
	redirecting pause         // set while clients are redirected to other members
	writePause  pause         // set while writes have to wait for a leadership transfer
	writes      atomic.Int64  // number of client writes in progress
	moving      atomic.Bool   // a client is transferring leadership

	serving atomic.Pointer[service] // nil while Run is not running
	volume  atomic.Pointer[Volume]  // result of the last check

	mu          sync.Mutex
	state       state.Maintenance
	size, inUse int64 // last values returned by Sizes
}

// service provides access to the embedded etcd while it is serving clients.
type service struct {
	cluster     cluster
	newSchedule func() schedule // returns a schedule without claims
}

// New returns a Maintainer that is idle until Run is called.
func New(options Options) *Maintainer {
	options.Interval, options.Gate = cmp.Or(options.Interval, defaultInterval), cmp.Or(options.Gate, &Gate{})
	return &Maintainer{options: options, triggered: make(chan struct{}, 1), state: state.Maintenance{Phase: Idle, Since: time.Now()}}
}

// Run maintains the database until ctx is done, and then transfers leadership. The server must have joined its
// cluster. Run must be called only once, and must return before etcd is closed, because a defragmentation cannot be
// interrupted.
func (k *Maintainer) Run(ctx context.Context, server *etcdserver.EtcdServer) {
	listenCtx, stopListening := context.WithCancel(context.WithoutCancel(ctx))
	var listening sync.WaitGroup
	defer listening.Wait()
	defer stopListening()
	listening.Go(func() { k.listen(listenCtx, server) })
	s := &service{
		cluster:     embedded{server, &k.options},
		newSchedule: func() schedule { return newClaimSchedule(server, &k.options) },
	}
	k.run(ctx, s)
	k.leave(context.WithoutCancel(ctx), s)
}

func (k *Maintainer) run(ctx context.Context, s *service) {
	k.serving.Store(s)
	defer k.serving.Store(nil)
	w := &worker{Maintainer: k, service: s, schedule: s.newSchedule()}
	defer w.schedule.release(ctx)
	for {
		pause := w.check(ctx)
		select {
		case <-ctx.Done():
			return
		case <-k.triggered:
			w.runCommand(ctx)
		case <-time.After(pause):
		}
	}
}

// Errors that Trigger returns.
var (
	errNotServing = errors.New("etcd is not serving")
	errUnderWay   = errors.New("a defragmentation of this member is in progress; wait for it to finish")
)

// Trigger requests a defragmentation regardless of the threshold and returns immediately; State shows the result.
// Trigger returns an error if a defragmentation cannot start now.
func (k *Maintainer) Trigger() error {
	s := k.serving.Load()
	if s == nil {
		return errNotServing
	}
	if k.busy() {
		return errUnderWay
	}
	if obstacle := k.blockReason(s.cluster.facts()); obstacle != "" {
		return errors.New(obstacle)
	}
	select {
	case k.triggered <- struct{}{}:
	default: // a defragmentation has already been requested
	}
	return nil
}

// Sizes returns the size of a server's database and the number of bytes in use. During a defragmentation, it returns
// the previous sizes.
func (k *Maintainer) Sizes(server *etcdserver.EtcdServer) (size, inUse int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.state.Busy() {
		k.size, k.inUse = server.Backend().Size(), server.Backend().SizeInUse()
	}
	return k.size, k.inUse
}

// Volume describes the data volume as of the last check: its free space, its size, and the space needed for a copy of
// the database, all in bytes. All fields are 0 if unknown, for example before the first check.
type Volume struct{ Free, Size, Copy int64 }

// Volume returns the state of the data volume as of the last check.
func (k *Maintainer) Volume() Volume {
	if volume := k.volume.Load(); volume != nil {
		return *volume
	}
	return Volume{}
}

// busy reports whether a defragmentation is in progress. If so, calls that read the database block.
func (k *Maintainer) busy() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.Busy()
}

// blockReason returns why a defragmentation that no client requested cannot start now, or "" if it can.
func (k *Maintainer) blockReason(f facts) string {
	return f.blockReason(k.estimator.expected(f.inUse), k.options.MaxPause)
}

// Phases of a Maintainer, in order.
const (
	Idle       = "idle"
	Waiting    = "waiting"     // a defragmentation is due but blocked
	HandingOff = "handing off" // clients are being redirected and, on the leader, leadership is being transferred
	Running    = "running"     // etcd is defragmenting the database
	CatchingUp = "catching up" // committed entries are being applied
)

// Origins of a defragmentation.
const (
	ByThreshold = "threshold" // the threshold was reached, or the NOSPACE alarm is raised
	ByCommand   = "command"   // requested through Trigger
	ByClient    = "client"    // requested through etcd's API
)

// worker contains the state of Run.
type worker struct {
	*Maintainer
	*service
	schedule schedule
	since    time.Time // start of the current period in which a defragmentation is due and not blocked; zero otherwise
}

// check defragments the database if that is worthwhile and possible, and returns how long to wait before the next
// check.
func (w *worker) check(ctx context.Context) time.Duration {
	f := w.cluster.facts()
	w.volume.Store(&Volume{Free: max(0, f.room), Size: max(0, f.volume), Copy: f.inUse})
	f = w.disarmAlarms(ctx, f)
	worth := f.reason(w.options.Threshold)
	if worth == "" {
		w.setIdle(ctx, Idle, "", f)
		return w.nextCheck(w.options.Interval, f)
	}
	if obstacle := w.blockReason(f); obstacle != "" {
		w.setIdle(ctx, Waiting, worth+", but "+obstacle, f)
		return w.options.Interval
	}
	if w.since.IsZero() {
		w.since = time.Now()
	}
	err := w.tryDefragment(ctx, f)
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		w.enter(Waiting, worth+", but "+err.Error(), f)
	}
	return w.nextCheck(w.options.Interval/waitingFactor, f)
}

// nextCheck returns how long to wait before the next check. While the NOSPACE alarm is raised, the wait is short, so
// that the member does not miss its time slot.
func (w *worker) nextCheck(usual time.Duration, f facts) time.Duration {
	if f.noSpace() {
		return min(usual, shortestSlot/3)
	}
	return usual
}

// setIdle sets the phase and releases this member's claims. It is called if no defragmentation is due, or if the one
// that is due is blocked.
func (w *worker) setIdle(ctx context.Context, phase, reason string, f facts) {
	w.since = time.Time{}
	w.schedule.release(ctx)
	w.enter(phase, reason, f)
}

// tryDefragment defragments the database if it is this member's turn. Otherwise, it returns an error that describes
// what the member is waiting for.
func (w *worker) tryDefragment(ctx context.Context, f facts) error {
	r := request{origin: ByThreshold}
	switch {
	case f.isSingle():
	case f.noSpace():
		if !byClock(time.Now(), f) {
			return errors.New("this member is waiting for its time slot because turns cannot be claimed while an alarm is raised")
		}
	default:
		if err := w.schedule.request(ctx); err != nil {
			return err
		}
		if err := w.checkPrecedence(f); err != nil {
			return err
		}
		r.schedule = w.schedule
	}
	return w.defragment(ctx, f, r)
}

// checkPrecedence returns an error if another member should go first. The leader also waits for a while, because it
// may take other members longer to notice that they should defragment.
func (w *worker) checkPrecedence(f facts) error {
	leads := f.leader == f.self
	if leads && time.Since(w.since) < 2*w.options.Interval {
		return errors.New("this member is the leader and lets the other members go first")
	}
	var names []string
	for _, p := range w.schedule.candidates(f.members) {
		if leads || p.id != f.leader && p.id < f.self {
			names = append(names, p.name)
		}
	}
	switch {
	case len(names) == 0:
		return nil
	case leads:
		return fmt.Errorf("this member is the leader and defragments after %s", strings.Join(names, " and "))
	default:
		return fmt.Errorf("%s must defragment first", strings.Join(names, " and "))
	}
}

// runCommand runs a defragmentation requested through Trigger, and records any error as the result.
func (w *worker) runCommand(ctx context.Context) {
	f := w.cluster.facts()
	r := request{origin: ByCommand}
	if !f.isSingle() && !f.noSpace() {
		r.schedule = w.schedule
	}
	var err error
	if obstacle := w.blockReason(f); obstacle != "" {
		err = errors.New(obstacle)
	} else {
		err = w.defragment(ctx, f, r)
	}
	if _, recorded := errors.AsType[failure](err); err != nil && !recorded {
		w.record(state.Defragmentation{At: time.Now(), Origin: ByCommand, BytesBefore: f.size, BytesAfter: f.size, Error: err.Error()})
	}
}

// disarmAlarms disarms the NOSPACE alarm of this member once its database file is small enough, and returns the
// updated facts. The leader also disarms alarms of members that have left the cluster. A compaction alone is not
// enough, because etcd compares the quota with the size of the file rather than the bytes in use.
func (w *worker) disarmAlarms(ctx context.Context, f facts) facts {
	if !f.noSpace() {
		return f
	}
	if f.raisedNoSpace() && f.canDisarm(f.size) {
		w.disarm(ctx, f.self, fmt.Sprintf("the database size is %s, below %.0f%% of the %s quota", formatSize(f.size), 100*reliefRatio, formatSize(f.quota)))
	}
	for _, id := range f.full {
		if f.leader == f.self && !f.isMember(id) {
			w.disarm(ctx, id, fmt.Sprintf("member %s, which raised the alarm, has left the cluster", id))
		}
	}
	return w.cluster.facts()
}

func (w *worker) disarm(ctx context.Context, member types.ID, why string) {
	within, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	switch err := w.cluster.disarm(within, member); {
	case err == nil:
		w.options.Log.Info().Msg("disarmed the NOSPACE alarm: " + why)
		w.mu.Lock()
		w.state.NoSpaceDisarmed++
		w.mu.Unlock()
	case ctx.Err() == nil:
		w.options.Log.Warn().Err(err).Msg("cannot disarm the NOSPACE alarm even though " + why)
	}
}
