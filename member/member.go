// Package member runs the embedded etcd: it opens it once, reports when it has joined its cluster, when it stops by
// itself and when it calls a failure fatal, and closes it in order. Its methods fit the interfaces of the lifecycle
// and the readiness monitor; only the command connects them.
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

// Options configure a Member. All fields are required, except DataVersion, Maintenance, FindsPlace, AskForVote,
// AwaitPeers, Unwanted and BeforeCompaction.
type Options struct {
	Log zerolog.Logger
	// Crash is called once for a failure that etcd calls fatal or that made it panic. The goroutine in which it
	// happened never continues, so the process must end.
	Crash func(reason error)
	// ClosePatience bounds an orderly close before etcd's server is stopped. etcd waits its request timeout, 7 s by
	// default, once for each client listener and once for handing over its leadership.
	ClosePatience time.Duration
	// DataVersion is the version of etcd that has to be able to read the data. The zero value leaves that to etcd.
	DataVersion dataversion.Version
	// Maintenance says when the database is defragmented.
	Maintenance Maintenance
	// FindsPlace makes the member report changed peer URLs to the cluster, and ask for a vote while it is a learner.
	// A backup-restore sidecar does that itself.
	FindsPlace bool
	// User and Password are root's, for FindsPlace with authentication; empty without.
	User, Password string
	// AskForVote asks the others, as a client, to promote a member of a cluster. A learner uses it with
	// authentication and without a User; nil if it cannot be asked.
	AskForVote func(ctx context.Context, cluster, member types.ID, members []membership.Member) error
	// AwaitPeers waits until etcd would admit this member to the cluster that it joins, and returns the cluster's version.
	// It calls report with the reason for a wait. It may be nil.
	AwaitPeers func(ctx context.Context, report func(reason string)) (dataversion.Version, error)
	// Unwanted reports whether fewer members are wanted, without this one: then it leaves its cluster before it
	// closes. It may be nil.
	Unwanted func(ctx context.Context) bool
	// DataInUse is called once if another process has the database open for writing, before Open waits for it.
	DataInUse func()
	// BeforeCompaction reads what a compaction by a client or etcd is about to remove. It is called where the
	// compaction is requested, and its context ends soon. It may be nil.
	BeforeCompaction func(context.Context)
}

// streamWorkers is the number of goroutines that gRPC keeps for requests. In profiles of puts and gets by 100
// clients, the new goroutine that plain etcd has for each spends up to a fifth of the CPU time on growing its stack.
// Further requests still get one of their own, so watches, which occupy workers, cost only this gain.
const streamWorkers = 256

// A Member is one embedded etcd. Open, Watch and Close are called in this order, each at most once.
type Member struct {
	config     *embed.Config
	configured types.URLsMap // initial-cluster; nil if it cannot be parsed
	options    Options
	drain      *drain

	doing    atomic.Value // a string: the progress of the start or the close, for users
	opened   bool
	founds   bool                // it starts a new cluster; valid once started is closed
	before   datadir.Fingerprint // the data just before etcd could open them
	inert    bool                // etcd failed without opening them; valid once started is closed
	started  chan struct{}       // closed when embed.StartEtcd has returned
	etcd     *embed.Etcd         // nil if it failed; valid once started is closed
	startErr error               // valid once started is closed

	requests   requests
	maintainer *maintenance.Maintainer
	compaction autoCompaction // etcd's own, if the member runs it
	keeping    keeping
	catchingUp sync.WaitGroup // from etcd's start to its end
	crashOnce  sync.Once
	crashed    chan struct{}
	lost       atomic.Pointer[error] // why etcd stopped by itself
	files      dataFiles             // set once etcd is ready
	lostData   atomic.Pointer[error] // why they are gone
}

// opensData describes a start that reads the database.
const opensData = "opens its data"

// awaitsQuorum describes a start that only other members can complete.
const awaitsQuorum = "waits for a leader, which needs a quorum of its cluster, and to join it"

// errCrashed ends calls that wait for an etcd that has crashed; the reason went to Options.Crash.
var errCrashed = errors.New("etcd crashed")

var errStopped = errors.New("etcd stopped by itself; a member that was removed from its cluster does that")

// New returns a member that will run with a configuration, which it then owns. It starts nothing.
func New(config *embed.Config, options Options) *Member {
	m := &Member{
		config:  config,
		options: options,
		drain:   newDrain(),
		started: make(chan struct{}),
		crashed: make(chan struct{}),
	}
	m.configured, _ = types.NewURLsMap(config.InitialCluster) // etcd reports the error
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

// Open starts etcd and returns once it has joined its cluster, which without a quorum is never, or the reason why it
// will not. When ctx ends it returns: before etcd was opened nothing remains, afterwards Close ends etcd.
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

// approach checks, just before etcd opens the data, that no other process has them open, and inspects them.
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
		m.opened = true // the next start must not take unfit data for good
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
	m.before, _ = datadir.TakeFingerprint(m.config.Dir, m.config.WalDir) // nothing equals what cannot be inspected
	return nil
}

// Doing describes the progress of the start or the close, as a clause about etcd; empty if neither is in progress. It
// may be called from any goroutine.
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

// start runs embed.StartEtcd, which cannot be interrupted. Close waits for it.
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

// cannotListen reports whether etcd failed to bind an address. It opens its data after it has bound those of peers
// and clients, but before that of metrics.
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

// Watch returns the reason when etcd has stopped by itself, or when ctx ends.
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

// crash reports a failure beyond repair, once. It publishes the reason first, so that no waiting call ends without
// it.
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

// orStopped returns why a listener ended: because etcd stops, if it does.
func (m *Member) orStopped(err error) error {
	select {
	case <-m.etcd.Server.StoppingNotify():
		return errStopped
	default:
		return fmt.Errorf("an etcd listener ended: %w", orClosed(err))
	}
}

// orClosed returns the cause of a listener's end; etcd reports none for a listener that was simply closed.
func orClosed(err error) error {
	if err == nil {
		return errors.New("closed")
	}
	return err
}
