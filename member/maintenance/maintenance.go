package maintenance

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"etcd-wrapper/member/state"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
)

const (
	// defaultInterval is the interval between two checks of the database's size.
	defaultInterval = 10 * time.Second
	// waitingFactor divides the interval between checks while a member waits for its turn.
	waitingFactor = 5
	// drainTime is the time that running requests have to finish before the database blocks.
	drainTime = 250 * time.Millisecond
	// catchUpTimeout bounds how long clients are redirected after a defragmentation.
	catchUpTimeout = time.Minute
)

// Options configure a Maintainer. All fields but Interval and Gate are required.
type Options struct {
	Threshold Threshold
	MaxPause  time.Duration // longer ones start only for a client
	Log       zerolog.Logger
	Gate      *Gate                                 // shared with all readers of the whole database; nil if only clients' snapshots are
	Name      string                                // of the member
	Quota     int64                                 // of the database in bytes; 0 if there is none
	Active    func(self types.ID) map[types.ID]bool // the connected members; answers from memory
	Interval  time.Duration                         // between two checks; 0 means 10 s
	Sending   func() bool                           // reports whether a snapshot is being sent to another member; answers from memory
}

// Maintainer keeps one member's database small. Its interceptors are for etcd's gRPC server; they pass all requests
// on while Run is not running. State, Away and Trigger are safe for concurrent use.
type Maintainer struct {
	options     Options
	pace        pace
	asked       chan struct{} // buffered, capacity 1
	redirecting pause         // set while clients are redirected to other members
	writePause  pause         // set while leadership moves
	writes      atomic.Int64  // number of running client writes
	moving      atomic.Bool   // a client is moving leadership

	mu          sync.Mutex
	state       state.Maintenance
	size, inUse int64    // as Sizes last returned them
	volume      Volume   // as of the last check
	serving     *service // nil while Run is not running
}

// service gives access to an etcd that serves.
type service struct {
	cluster cluster
	seat    func() seat // returns a new one
}

// New returns a Maintainer that is idle until Run.
func New(options Options) *Maintainer {
	options.Interval, options.Gate = cmp.Or(options.Interval, defaultInterval), cmp.Or(options.Gate, &Gate{})
	return &Maintainer{options: options, asked: make(chan struct{}, 1), state: state.Maintenance{Phase: Idle, Since: time.Now()}}
}

// Run maintains the database of a server that has joined its cluster until ctx ends, and then moves its leadership.
// Call it once, and wait for it before closing etcd: a running defragmentation cannot be interrupted.
func (k *Maintainer) Run(ctx context.Context, server *etcdserver.EtcdServer) {
	hearing, deaf := context.WithCancel(context.WithoutCancel(ctx))
	var listening sync.WaitGroup
	defer listening.Wait()
	defer deaf()
	listening.Go(func() { k.listen(hearing, server) })
	s := &service{
		cluster: embedded{server, &k.options},
		seat:    func() seat { return newPlace(server, &k.options) },
	}
	k.run(ctx, s)
	k.leave(context.WithoutCancel(ctx), s)
}

func (k *Maintainer) run(ctx context.Context, s *service) {
	k.serve(s)
	defer k.serve(nil)
	w := &worker{Maintainer: k, service: s, seat: s.seat()}
	defer w.seat.release(ctx)
	for {
		pause := w.check(ctx)
		select {
		case <-ctx.Done():
			return
		case <-k.asked:
			w.runCommand(ctx)
		case <-time.After(pause):
		}
	}
}

func (k *Maintainer) serve(s *service) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.serving = s
}

func (k *Maintainer) served() *service {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.serving
}

// Why a defragmentation cannot be triggered.
var (
	errNotServing = errors.New("etcd does not serve")
	errUnderWay   = errors.New("a defragmentation of this member is under way: wait for its end")
)

// Trigger requests a defragmentation regardless of the threshold and returns at once; State shows its result. The
// error is why it cannot run now.
func (k *Maintainer) Trigger() error {
	s := k.served()
	if s == nil {
		return errNotServing
	}
	if k.busy() {
		return errUnderWay
	}
	if obstacle := s.cluster.facts().blocker(k.limits()); obstacle != "" {
		return errors.New(obstacle)
	}
	select {
	case k.asked <- struct{}{}:
	default: // already requested and not started yet
	}
	return nil
}

// Sizes returns the size of a server's database and the bytes in use. During a defragmentation it returns the sizes
// before it.
func (k *Maintainer) Sizes(server *etcdserver.EtcdServer) (size, inUse int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.state.Busy() {
		k.size, k.inUse = server.Backend().Size(), server.Backend().SizeInUse()
	}
	return k.size, k.inUse
}

// Volume describes, in bytes, the volume of the database as of the last check: its free bytes, its size, and what a
// copy of the database needs. All are 0 before the first check, or if unknown.
type Volume struct{ Free, Size, Copy int64 }

// Volume returns the volume from memory.
func (k *Maintainer) Volume() Volume {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.volume
}

func (k *Maintainer) setVolume(f facts) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.volume = Volume{Free: max(0, f.room), Size: max(0, f.volume), Copy: f.inUse}
}

// busy reports whether a defragmentation is running. Calls that read the database block meanwhile.
func (k *Maintainer) busy() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.Busy()
}

func (k *Maintainer) limits() limits {
	return limits{maxPause: k.options.MaxPause, expected: k.pace.expected}
}

// The phases of a Maintainer, in order.
const (
	Idle       = "idle"
	Waiting    = "waiting"     // a defragmentation is due, but blocked
	HandingOff = "handing off" // clients are redirected and, on the leader, leadership is moved
	Running    = "running"     // etcd defragments
	CatchingUp = "catching up" // entries committed meanwhile are applied
)

// The origins of a defragmentation.
const (
	ByThreshold = "threshold"
	ByCommand   = "command"
	ByClient    = "client"
)
