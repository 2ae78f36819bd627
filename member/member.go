// Package member runs the embedded etcd: it opens it once, tells when it has joined its cluster, when it stopped by
// itself and when it called a failure fatal, and closes it in order. Its methods fit the interfaces that the lifecycle
// and the readiness monitor declare; only the command puts them together.
package member

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"google.golang.org/grpc"

	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/member/dataversion"
	"etcd-wrapper/member/maintenance"
)

// Options configure a Member. All fields but DataVersion, Maintenance, FindsPlace, AskForVote, Unwanted and BeforeCompaction are required.
type Options struct {
	Log zerolog.Logger
	// Crash is told, once, of a failure that etcd calls fatal or that made it panic. The goroutine that it came from
	// never goes on, so the process must end.
	Crash func(reason error)
	// ClosePatience is how long an orderly close may take before etcd's server is stopped under it. etcd waits its request
	// timeout, 7 s by default, once for each client listener and once for handing its leadership over.
	ClosePatience time.Duration
	// DataVersion is the version of etcd that has to be able to read the data. The zero value leaves that to etcd.
	DataVersion dataversion.Version
	// Maintenance is when the database is defragmented.
	Maintenance Maintenance
	// FindsPlace has the member tell the cluster its peer URLs, if they have changed, and ask for a vote while it is a
	// learner. A backup-restore sidecar does that itself.
	FindsPlace bool
	// User and Password are root's, for a member that finds its place where authentication is on; empty if it is off.
	User, Password string
	// AskForVote asks the others, as a client of theirs, to promote that member of that cluster. It is for a learner where
	// authentication is on and no User is given; nil if nobody can.
	AskForVote func(ctx context.Context, cluster, member types.ID, members []membership.Member) error
	// Unwanted tells whether whoever runs the members wants fewer of them, and not this one: it leaves its cluster then before it
	// closes. nil if nobody says so.
	Unwanted func(ctx context.Context) bool
	// DataInUse is told, once, that another process has the database open for writing, before Open waits for it.
	DataInUse func()
	// BeforeCompaction reads what a compaction is about to remove, be it a client's or etcd's own; nil if nobody cares. It is
	// called where the compaction is asked for, and its context ends soon.
	BeforeCompaction func(context.Context)
}

// streamWorkers are goroutines that gRPC keeps for requests. In profiles of puts and gets by 100 clients, a new goroutine
// for each, as plain etcd has it, spends up to a fifth of the server's CPU time on growing its stack. Requests beyond
// this number still get one of their own, so that watches, which keep a worker busy, take nothing from others but the
// gain.
const streamWorkers = 256

// Member is one embedded etcd. Open, Watch and Close are called one after the other, each at most once.
type Member struct {
	config  *embed.Config
	options Options
	drain   *drain

	doing    atomic.Value // a string: how far the start or the close has come, for people
	opened   bool
	founds   bool                // it begins a new cluster; valid once started is closed
	before   datadir.Fingerprint // the data, right before etcd could open them
	inert    bool                // etcd failed and has not opened them; valid once started is closed
	started  chan struct{}       // closed when embed.StartEtcd has returned
	etcd     *embed.Etcd         // nil if it failed; valid once started is closed
	startErr error               // valid once started is closed

	requests   requests
	maintainer *maintenance.Maintainer
	compaction autoCompaction // etcd's own, if the member runs it
	keeping    keeping
	catchingUp sync.WaitGroup // from when etcd runs until it stops
	crashOnce  sync.Once
	crashed    chan struct{}
	lost       atomic.Pointer[error] // why etcd stopped by itself
	files      dataFiles             // set once etcd is ready
	lostData   atomic.Pointer[error] // why they are gone
}

// opensData is how far a start has come that reads the database.
const opensData = "opens its data"

// awaitsQuorum is how far a start has come that only other members can help.
const awaitsQuorum = "waits for a leader, which needs a quorum of its cluster, and to join it"

// errCrashed is what waits for an etcd that has crashed end with; the reason went to Options.Crash.
var errCrashed = errors.New("etcd crashed")

var errStopped = errors.New("etcd stopped by itself; a member that was removed from its cluster does that")

// New returns a member that will run with the configuration, which it makes its own. It starts nothing.
func New(config *embed.Config, options Options) *Member {
	m := &Member{
		config:  config,
		options: options,
		drain:   newDrain(),
		started: make(chan struct{}),
		crashed: make(chan struct{}),
	}
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(m.logger(config.LogLevel))
	m.maintainer = m.newMaintainer()
	config.ServiceRegister = m.drain.register
	config.GRPCAdditionalServerOptions = append(config.GRPCAdditionalServerOptions, grpc.NumStreamWorkers(streamWorkers),
		grpc.ChainStreamInterceptor(m.drain.stream, m.maintainer.Stream), grpc.ChainUnaryInterceptor(m.requests.unary, m.drain.unary, m.maintainer.Unary, again))
	if options.BeforeCompaction != nil {
		m.compaction = takeAutoCompaction(config)
		config.GRPCAdditionalServerOptions = append(config.GRPCAdditionalServerOptions,
			grpc.ChainUnaryInterceptor(beforeCompaction(options.BeforeCompaction)))
	}
	return m
}

// Open starts etcd and returns once it has joined its cluster, which without a quorum is never, or with the reason why
// it will not. When ctx ends it returns at once: before etcd was opened that leaves nothing behind, afterwards etcd is
// Close's to end.
func (m *Member) Open(ctx context.Context) error {
	if err := m.approach(ctx); err != nil {
		return err
	}
	m.opened = true
	m.defragmentAtStart()
	m.doing.Store(opensData)
	go m.start()
	select {
	case <-m.started:
	case <-m.crashed:
		return errCrashed
	case <-ctx.Done():
		return fmt.Errorf("gave up while etcd opens its data: %w", ctx.Err())
	}
	if m.startErr != nil {
		return m.startErr
	}
	return m.awaitReady(ctx)
}

// approach is what comes right before etcd opens the data: nobody else may have them open, and they are looked at once more.
func (m *Member) approach(ctx context.Context) error {
	m.doing.Store("waits until no other process holds its database")
	if err := datadir.Await(ctx, m.config.Dir, m.options.Log, sync.OnceFunc(m.options.DataInUse)); err != nil {
		return err
	}
	m.doing.Store("has its data looked at")
	found := datadir.Look(m.config.Dir, m.config.WalDir)
	if err := m.checkUpgrade(found); err != nil {
		return err
	}
	if err := m.inspect(found); err != nil {
		m.opened = true // what is unfit must not be taken for good by the next start
		m.startErr = err
		close(m.started)
		return err
	}
	if entries, committed := found.Uncommitted(); m.config.ForceNewCluster && entries > 0 {
		m.options.Log.Warn().Uint64("entries", entries).Uint64("committed", committed).
			Msg("force-new-cluster drops the entries that follow the last one that the log records as committed; clients may have had them acknowledged. " +
				"To lose none, stop a member in order before its cluster is made anew: that records what is committed")
	}
	if m.founds = found.Empty() && m.config.ClusterState == embed.ClusterStateFlagNew; m.founds {
		m.options.Log.Info().Msgf("the data directory %s is empty: etcd begins a new cluster", m.config.Dir)
	}
	if err := m.announce(ctx, found); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("gave up before etcd was opened: %w", err)
	}
	datadir.Tighten(m.config.Dir, m.options.Log)
	m.before, _ = datadir.TakeFingerprint(m.config.Dir, m.config.WalDir) // nothing is equal to what can't be looked at
	return nil
}

// Doing says how far the start or the close has come, as a clause about etcd; empty where neither goes on. It may be
// called from any goroutine.
func (m *Member) Doing() string {
	doing, _ := m.doing.Load().(string)
	if doing == opensData {
		return m.orDefragments(doing)
	}
	if doing == awaitsQuorum {
		if names := m.Missing(); len(names) > 0 {
			return doing + "; it has no connection to " + strings.Join(names, ", ") + ": see that they run and can be reached"
		}
	}
	return doing
}

// start runs embed.StartEtcd, which can't be interrupted. Close waits for it.
func (m *Member) start() {
	defer close(m.started)
	defer func() {
		if cause := recover(); cause != nil {
			m.startErr = datadir.Panicked(cause)
			m.crash(fmt.Errorf("%w\n%s", m.startErr, debug.Stack()))
		}
	}()
	etcd, err := embed.StartEtcd(m.config)
	if err != nil {
		m.startErr = fmt.Errorf("cannot start etcd: %w", err)
		m.inert = cannotListen(err) && m.before.Changed() == nil
		return
	}
	m.etcd = etcd
}

// cannotListen says that etcd failed over an address. It opens its data after it has bound those of peers and clients, but
// before that of metrics.
func cannotListen(err error) bool {
	var failed *net.OpError
	return errors.As(err, &failed) && failed.Op == "listen"
}

func (m *Member) awaitReady(ctx context.Context) error {
	m.doing.Store(awaitsQuorum)
	m.catchingUp.Go(m.electItself)
	m.catchingUp.Go(m.catchUp)
	select {
	case <-m.etcd.Server.ReadyNotify():
		m.doing.Store("")
		m.keep()
		return nil
	case <-m.crashed:
		return errCrashed
	case <-ctx.Done():
		return fmt.Errorf("gave up while etcd joins its cluster: %w", ctx.Err())
	case <-m.etcd.Server.StopNotify():
		return m.lose(errStopped)
	case err := <-m.etcd.Err():
		return m.lose(m.orStopped(err))
	}
}

// Watch returns when etcd has stopped by itself, with the reason, or when ctx ends.
func (m *Member) Watch(ctx context.Context) error {
	select {
	case <-m.crashed:
		return errCrashed
	case <-ctx.Done():
		return ctx.Err()
	case <-m.etcd.Server.StopNotify():
		return m.lose(errStopped)
	case err := <-m.etcd.Err():
		return m.lose(m.orStopped(err))
	}
}

// crash reports a failure beyond repair, once. The reason goes first: what waits for etcd must not end, and be taken for
// a failure without a reason, before it is known.
func (m *Member) crash(reason error) {
	m.crashOnce.Do(func() {
		m.options.Crash(reason)
		close(m.crashed)
	})
}

func (m *Member) lose(err error) error {
	m.lost.Store(&err)
	return err
}

// orStopped is why a listener ended: that etcd stops, if it does.
func (m *Member) orStopped(err error) error {
	select {
	case <-m.etcd.Server.StoppingNotify():
		return errStopped
	default:
		return fmt.Errorf("an etcd listener ended: %w", orClosed(err))
	}
}

// orClosed is the cause of a listener's end; etcd reports none when a listener was simply closed.
func orClosed(err error) error {
	if err == nil {
		return errors.New("closed")
	}
	return err
}
