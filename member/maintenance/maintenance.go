// Package maintenance keeps a member's database small without anybody noticing: it defragments it when that is worth the pause,
// one member of the cluster at a time, and lifts the alarm NOSPACE when there is room again.
//
// etcd's defragmentation copies the database while every read and write of that member waits, a few seconds for each
// gigabyte in use. So a Maintainer asks, in this order: is it worth it (decide.go), does anybody read the whole database
// (gate.go), is it this member's turn in the cluster (turn.go), and can somebody else lead (handover.go). While it runs, the
// member is not ready, and clients that know how to try again are sent to another member (requests.go). A defragmentation
// that a client asks for goes the same way, as far as that is the cluster's business and not the client's own.
//
// Package member makes one Maintainer for each etcd, hands its interceptors to etcd, and runs it between the member's being
// ready and its close.
package maintenance

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
)

const (
	// usualInterval is how often the database's size is looked at.
	usualInterval = 10 * time.Second
	// waiting is how much more often another member's turn is looked at while this one waits for its own.
	waiting = 5
	// breath is how long clients' requests that are under way have to end before the database stands still.
	breath = 250 * time.Millisecond
	// catchingUp bounds how long clients are kept away afterwards.
	catchingUp = time.Minute
)

// Options configure a Maintainer. All fields but Interval are required.
type Options struct {
	Threshold Threshold
	MaxPause  time.Duration // a defragmentation that is expected to take longer is not begun, but by a client
	Log       zerolog.Logger
	Gate      *Gate                                 // where whoever reads the whole database tells of it
	Name      string                                // of the member
	Quota     int64                                 // of the database in bytes; 0 if there is none
	Active    func(self types.ID) map[types.ID]bool // the members that there is a connection to; answers from memory
	Interval  time.Duration                         // how often the database's size is looked at; 0 stands for 10 s
	Sending   func() bool                           // a snapshot is on its way to another member; answers from memory
}

// Maintainer keeps one member's database small. Its interceptors are for etcd's gRPC server; they let everything through
// before Run and after its end. State, Away and Ask may be called from any goroutine.
type Maintainer struct {
	options Options
	pace    pace
	asked   chan struct{} // holds one
	away    away          // other members serve better
	quiet   away          // leadership moves
	writes  atomic.Int64  // of clients, that are under way
	moving  atomic.Bool   // a client moves leadership

	mu          sync.Mutex
	state       State
	size, inUse int64    // as Sizes told last
	volume      Volume   // as it was last looked at
	serving     *service // nil unless Run runs
}

// service is what a Maintainer has of an etcd that serves.
type service struct {
	cluster cluster
	seat    func() seat // a new one
}

// New returns a Maintainer that does nothing before Run.
func New(options Options) *Maintainer {
	options.Interval = cmp.Or(options.Interval, usualInterval)
	return &Maintainer{options: options, asked: make(chan struct{}, 1), state: State{Phase: Idle, Since: time.Now()}}
}

// Run keeps the database of a server that has joined its cluster small until ctx ends, and gives its leadership away then.
// Call it once, and let it return before etcd is closed: a defragmentation that runs can't be interrupted.
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
	w := &want{Maintainer: k, service: s, seat: s.seat()}
	defer w.seat.end(ctx)
	for {
		pause := w.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-k.asked:
			w.obey(ctx)
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

// Why nothing can be asked for.
var (
	errNotServing = errors.New("etcd does not serve")
	errUnderWay   = errors.New("a defragmentation of this member is under way: wait for its end")
)

// Ask has the database defragmented now, whatever the threshold says, and returns at once; State tells how it ends. The
// error says why it cannot be now.
func (k *Maintainer) Ask() error {
	s := k.served()
	if s == nil {
		return errNotServing
	}
	if k.busy() {
		return errUnderWay
	}
	if obstacle := s.cluster.facts().obstacle(k.limits()); obstacle != "" {
		return errors.New(obstacle)
	}
	select {
	case k.asked <- struct{}{}:
	default: // somebody else has asked, and it has not begun
	}
	return nil
}

// Sizes are the bytes of a server's database and those of them that are in use. While a defragmentation is under way they
// are those before it.
func (k *Maintainer) Sizes(server *etcdserver.EtcdServer) (size, inUse int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.state.Phase.busy() {
		k.size, k.inUse = server.Backend().Size(), server.Backend().SizeInUse()
	}
	return k.size, k.inUse
}

// Volume is what the last look showed of the volume that the database lies on, in bytes: what is free of it, how many it has, and how
// many the database needs for a copy of itself. All are 0 before the first look, and where it cannot be told.
type Volume struct{ Free, Size, Copy int64 }

// Volume answers from memory.
func (k *Maintainer) Volume() Volume {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.volume
}

func (k *Maintainer) notice(f facts) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.volume = Volume{Free: max(0, f.room), Size: max(0, f.volume), Copy: f.inUse}
}

// busy reports whether a defragmentation is under way. While the database stands still, etcd's answers to what is in it
// have to wait.
func (k *Maintainer) busy() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.Phase.busy()
}

func (k *Maintainer) limits() limits {
	return limits{maxPause: k.options.MaxPause, expected: k.pace.expected}
}

// Phase is what a Maintainer is about.
type Phase string

// The phases, in their order.
const (
	Idle       Phase = "idle"
	Waiting    Phase = "waiting"     // a defragmentation is wanted, and something is in its way
	HandingOff Phase = "handing off" // clients are sent to others and, if it leads, leadership is moved
	Running    Phase = "running"     // etcd defragments
	CatchingUp Phase = "catching up" // what was committed meanwhile is applied
)

// busy reports whether a defragmentation is under way.
func (p Phase) busy() bool { return p == HandingOff || p == Running || p == CatchingUp }

// State is what there is to know about maintenance at one moment.
type State struct {
	Phase    Phase
	Since    time.Time     // when the phase began
	Reason   string        // of the phase, a clause for people; empty if there is nothing to say
	Expected time.Duration // how long a defragmentation would take now, or is expected to take, if it runs
	Progress float64       // of one that runs, from 0 to 1
	Readers  []Reader      // who reads the whole database
	Last     *Outcome      // nil if there was none since the process started
	Done     int           // how many were done since the process started
	Failed   int           // how many failed
	Freed    int64         // bytes that those which were done gave back to the volume
	Lifted   int           // how often the alarm NOSPACE was lifted
}

// Outcome is how a defragmentation ended.
type Outcome struct {
	At     time.Time     // when it ended
	Took   time.Duration // of it, how long the database stood still
	Origin string        // who wanted it: the threshold, a person, or a client
	Before int64         // bytes of the file before
	After  int64         // bytes of the file after
	Error  string        // why it failed; empty if it did not
}

// Origins of a defragmentation.
const (
	ByThreshold = "threshold"
	ByCommand   = "command"
	ByClient    = "client"
)
