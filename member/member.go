// Package member runs the embedded etcd. It opens etcd once, reports when etcd has joined its cluster, when it
// stops on its own and when it reports a fatal failure, and closes it cleanly. Its methods implement the interfaces
// of the lifecycle and the readiness monitor; only the command connects them.
package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage"
	layout "go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/grpc"

	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/member/dataversion"
	"etcd-wrapper/member/maintenance"
)

// Options configure a Member. All fields are required except DataVersion, Maintenance, FindsPlace, AskForVote,
// AwaitPeers, Unwanted, BeforeCompaction, RootPassword and Confirmation.
type Options struct {
	Log zerolog.Logger
	// Crash is called once, for a failure that etcd reports as fatal or that made it panic. The failed goroutine
	// never continues, so the process must exit.
	Crash func(reason error)
	// ClosePatience bounds a clean close; after it, etcd's server is stopped hard. etcd waits its request timeout,
	// 7 s by default, once for each client listener and once for the transfer of its leadership.
	ClosePatience time.Duration
	// DataVersion is the oldest version of etcd that must be able to read the data. The zero value leaves the
	// version to etcd.
	DataVersion dataversion.Version
	// Maintenance configures when the database is defragmented: Threshold, MaxPause, Interval, and the Gate for
	// readers of the whole database. New sets the other fields.
	Maintenance maintenance.Options
	// FindsPlace makes the member report changed peer URLs to the cluster, and request its promotion while it is a
	// learner. A backup-restore sidecar does both itself.
	FindsPlace bool
	// AskForVote asks the other members, as a client, to promote this one. A learner needs it if authentication is
	// enabled. It is nil if the members cannot be asked.
	AskForVote func(ctx context.Context, cluster, member types.ID, members []membership.Member) error
	// AwaitPeers waits until etcd would admit this member to the cluster that it joins, and returns the cluster
	// version. It calls report with the reason for waiting. It may be nil.
	AwaitPeers func(ctx context.Context, report func(reason string)) (dataversion.Version, error)
	// Unwanted reports whether the cluster was scaled down so that this member is no longer wanted. The member then
	// leaves its cluster before it closes. It may be nil.
	Unwanted func(ctx context.Context) bool
	// DataInUse is called once if another process has the database open for writing, before Open waits for that
	// process.
	DataInUse func()
	// BeforeCompaction reads the revisions that a compaction by a client or by etcd is about to remove. It is
	// called with a short deadline in the goroutine that requests the compaction. It may be nil.
	BeforeCompaction func(context.Context)
	// RootPassword makes the member create the root user in an empty cluster and enable authentication. Clients are
	// rejected until then. If it is empty, the member does not change users.
	RootPassword string
	// Confirmation holds back each reply until the store has the data that the reply depends on. It requires a
	// single-member cluster. It may be nil.
	Confirmation Confirmation
}

// streamWorkers is the number of goroutines that gRPC keeps for requests. Plain etcd starts a goroutine for each
// request. In profiles of puts and gets by 100 clients, these goroutines spend up to a fifth of the CPU time
// growing their stacks. Requests beyond the workers still get their own goroutine, so watches, which occupy
// workers, only reduce this gain.
const streamWorkers = 256

// A Member is one embedded etcd. Open, Watch and Close are called in this order, each at most once.
type Member struct {
	// Maintainer keeps the database small. Its methods State, Volume and Trigger may be called from any goroutine.
	Maintainer *maintenance.Maintainer

	config     *embed.Config
	configured types.URLsMap // initial-cluster; nil if it cannot be parsed
	options    Options
	drain      *drain
	requests   requests
	compaction autoCompaction // etcd's auto-compaction, if the member runs it
	root       rootAuth

	doing  atomic.Value // progress of the start or the close, as a string for users
	opened bool
	opening

	starting    sync.WaitGroup     // goroutines that run from etcd's start to its end
	serving     sync.WaitGroup     // goroutines that run from readiness to the start of the close
	stopServing context.CancelFunc // ends the goroutines in serving
	keeper      atomic.Pointer[dataversion.Keeper]

	files     dataFiles
	crashOnce sync.Once
	crashed   chan struct{}
	stopped   atomic.Pointer[error] // why etcd stopped on its own
}

// opening contains the findings before etcd's start and the result of the start. Its fields are valid once started
// is closed.
type opening struct {
	founds   bool                // this run starts a new cluster
	before   datadir.Fingerprint // fingerprint of the data just before etcd could open it
	inert    bool                // etcd failed without opening the data
	started  chan struct{}       // closed when embed.StartEtcd has returned
	etcd     *embed.Etcd         // nil if the start failed
	startErr error
}

// opensData describes a start that is reading the database.
const opensData = "opens its data"

// awaitsQuorum describes a start that only other members can complete.
const awaitsQuorum = "waits for a leader, which needs a quorum of its cluster, and to join it"

// awaitsRoot describes a start that clients cannot use yet.
const awaitsRoot = "waits until authentication is enabled, with the password in --root-password-file"

// errCrashed ends calls that wait for an etcd that has crashed; the reason went to Options.Crash.
var errCrashed = errors.New("etcd crashed")

var errStopped = errors.New("etcd stopped by itself; a member that was removed from its cluster does that")

// New returns a member for a configuration, which it then owns. It does not start anything.
func New(config *embed.Config, options Options) *Member {
	m := &Member{
		config:  config,
		options: options,
		drain:   newDrain(),
		opening: opening{started: make(chan struct{})},
		crashed: make(chan struct{}),
	}
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(m.logger(config.LogLevel))
	m.files.dir, m.files.wal = config.Dir, cmp.Or(config.WalDir, layout.ToWALDir(config.Dir))
	kept := options.Maintenance
	kept.Log, kept.Name, kept.Quota, kept.Active, kept.Sending = options.Log, config.Name, m.quota(), activePeers, sendsSnapshot
	m.Maintainer = maintenance.New(kept)
	config.ServiceRegister = m.drain.register
	streams := []grpc.StreamServerInterceptor{m.drain.stream, m.Maintainer.Stream}
	unaries := []grpc.UnaryServerInterceptor{m.requests.unary, m.drain.unary, m.Maintainer.Unary, retryDropped}
	if held := (confirmed{options.Confirmation}); held.Confirmation != nil {
		streams = append(streams, held.stream)          // runs inside drain, which holds the client responsible for a blocked send
		unaries = slices.Insert(unaries, 1, held.unary) // runs outside drain and Maintainer, after etcd has responded
	}
	config.GRPCAdditionalServerOptions = append(config.GRPCAdditionalServerOptions, grpc.NumStreamWorkers(streamWorkers),
		grpc.ChainStreamInterceptor(streams...), grpc.ChainUnaryInterceptor(unaries...))
	if options.RootPassword != "" {
		m.root.password, m.root.log = options.RootPassword, options.Log
		config.GRPCAdditionalServerOptions = append(config.GRPCAdditionalServerOptions,
			grpc.ChainStreamInterceptor(m.root.stream), grpc.ChainUnaryInterceptor(m.root.unary))
	}
	if options.BeforeCompaction != nil {
		m.compaction = takeAutoCompaction(config)
		config.GRPCAdditionalServerOptions = append(config.GRPCAdditionalServerOptions,
			grpc.ChainUnaryInterceptor(beforeCompaction(options.BeforeCompaction)))
	}
	return m
}

// quota returns the quota of the database in bytes, or 0 if there is none.
func (m *Member) quota() int64 {
	if m.config.QuotaBackendBytes == 0 {
		return storage.DefaultQuotaBytes
	}
	return max(0, m.config.QuotaBackendBytes)
}

// Open starts etcd and returns nil once it has joined its cluster, or the reason why it cannot join. Without a
// quorum it waits forever. It returns when ctx is done: if etcd was not opened yet, nothing is left running;
// otherwise Close must stop etcd.
func (m *Member) Open(ctx context.Context) error {
	if err := m.prepare(ctx); err != nil {
		return err
	}
	m.opened = true
	m.configured, _ = types.NewURLsMap(m.config.InitialCluster) // etcd reports the error
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
	m.doing.Store(awaitsQuorum)
	m.starting.Go(func() { electSelf(m.etcd.Server) })
	m.starting.Go(func() { proposeAfterSnapshot(m.etcd.Server, m.config, m.options.Log) })
	if err := m.wait(ctx, m.etcd.Server.ReadyNotify()); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("gave up while etcd joins its cluster: %w", err)
		}
		return err
	}
	if m.options.RootPassword != "" {
		m.doing.Store(awaitsRoot)
		if err := m.awaitRoot(ctx); err != nil {
			return err
		}
	}
	m.doing.Store("")
	m.serve()
	return nil
}

// prepare inspects the data just before etcd opens it, and checks that no other process has it open.
func (m *Member) prepare(ctx context.Context) error {
	m.doing.Store("waits until no other process holds its database")
	if err := datadir.Await(ctx, m.config.Dir, m.options.Log, sync.OnceFunc(m.options.DataInUse)); err != nil {
		return err
	}
	m.doing.Store("has its data inspected")
	findings := datadir.Look(m.config.Dir, m.config.WalDir)
	recorded, unread := maxVersion(findings)
	others := findings.Members() > 1 && !findings.OnlyRestored() && !m.config.ForceNewCluster
	if err := dataversion.CheckUpgrade(recorded, others); err != nil { // the checks below report unreadable data
		return err
	}
	if m.options.Confirmation != nil && findings.Members() > 1 && !m.config.ForceNewCluster {
		return ErrSeveralMembers
	}
	if err := findings.Inspect(datadir.Identity{ // Inspect rejects some data that etcd would silently accept
		Name: m.config.Name, PeerURLs: types.URLs(m.config.AdvertisePeerUrls).StringSlice(), InitialCluster: m.config.InitialCluster,
	}, m.options.Log); err != nil {
		m.opened = true // from here on, the next start must not treat the data as valid
		m.startErr = err
		close(m.started)
		return err
	}
	if entries, committed := findings.Uncommitted(); m.config.ForceNewCluster && entries > 0 {
		m.options.Log.Warn().Uint64("entries", entries).Uint64("committed", committed).
			Msg("force-new-cluster drops log entries that are not recorded as committed, some of which may have been acknowledged to clients. " +
				"To lose none, stop the member gracefully before forcing a new cluster, which records the last committed entry")
	}
	if m.founds = findings.Empty() && m.config.ClusterState == embed.ClusterStateFlagNew; m.founds {
		m.options.Log.Info().Msgf("the data directory %s is empty: etcd creates a new cluster", m.config.Dir)
	}
	if err := m.announce(ctx, recorded, unread); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("gave up before etcd was opened: %w", err)
	}
	datadir.SetPermissions(m.config.Dir, m.options.Log)
	m.before, _ = datadir.TakeFingerprint(m.config.Dir, m.config.WalDir) // without a fingerprint, all data counts as changed
	return nil
}

// maxVersion returns the highest cluster version that the data records.
func maxVersion(findings *datadir.Inspection) (highest dataversion.Version, err error) {
	versions, err := findings.ClusterVersions()
	for _, text := range versions {
		if version := dataversion.Parse(text); highest.Less(version) {
			highest = version
		}
	}
	return highest, err
}

// announce sets the version that etcd announces. It must be called before etcd is opened. The version is that of
// the data or, for a member that joins, that of its cluster. A new cluster has no version.
func (m *Member) announce(ctx context.Context, recorded dataversion.Version, unread error) (err error) {
	wanted := m.options.DataVersion
	hasLog := wal.Exist(m.files.wal)
	switch {
	case wanted == (dataversion.Version{}):
		return nil
	case hasLog && unread != nil:
		m.options.Log.Warn().Err(unread).Msg("the cluster's version could not be read from the data; etcd announces its own")
		recorded = dataversion.Of3_6 // never older than the version of the data
	case !hasLog && m.config.ClusterState == embed.ClusterStateFlagExisting && m.options.AwaitPeers != nil:
		recorded, err = m.options.AwaitPeers(ctx, func(reason string) {
			m.doing.Store(reason)
			m.options.Log.Warn().Msg("etcd " + reason)
		})
		if err != nil {
			return err
		}
	}
	name := dataversion.Announce(wanted, recorded)
	m.options.Log.Info().Str("announced", name).Stringer("wanted", wanted).Stringer("recorded", recorded).
		Msg("etcd announces this version to its cluster")
	return nil
}

// defragmentAtStart makes etcd defragment its database before it serves, if that is worth the time and not already
// configured in etcd.
func (m *Member) defragmentAtStart() {
	info, err := os.Stat(layout.ToBackendFileName(m.config.Dir))
	if err == nil && m.config.BootstrapDefragThresholdMegabytes == 0 {
		m.config.BootstrapDefragThresholdMegabytes = m.Maintainer.AtStart(layout.ToSnapDir(m.config.Dir), info.Size())
	}
}

// start runs embed.StartEtcd, which cannot be interrupted, so Close waits for it.
func (m *Member) start() {
	defer close(m.started)
	defer func() {
		if cause := recover(); cause != nil {
			m.startErr = datadir.PanicError(cause)
			m.crash(fmt.Errorf("%w\n%s", m.startErr, debug.Stack()))
		}
	}()
	etcd, err := embed.StartEtcd(m.config)
	if err != nil {
		m.startErr = fmt.Errorf("cannot start etcd: %w", err)
		m.inert = isListenError(err) && m.before.Changed() == nil
		return
	}
	m.etcd = etcd
}

// isListenError reports whether etcd failed to bind an address. etcd opens its data after binding the addresses for
// peers and clients, but before binding the one for metrics.
func isListenError(err error) bool {
	failed, ok := errors.AsType[*net.OpError](err)
	return ok && failed.Op == "listen"
}

// serve starts the background goroutines of a ready member: they maintain the database, compact, keep the data at the
// wanted version, check that the data is still on the volume, and update the member's entry in the cluster.
func (m *Member) serve() {
	server := m.etcd.Server
	ctx, stop := context.WithCancel(context.Background())
	m.stopServing = stop
	m.files.open()
	m.serving.Go(func() { m.files.watch(ctx, m.options.Log) })
	m.serving.Go(func() { m.Maintainer.Run(ctx, server) })
	if m.compaction.retention > 0 {
		m.serving.Go(func() { m.compaction.run(ctx, server, m.options) })
	}
	if m.options.FindsPlace {
		m.serving.Go(func() { placement{server, m.config, &m.options}.run(ctx) })
	}
	if wanted := m.options.DataVersion; wanted != (dataversion.Version{}) {
		keeper := dataversion.New(wanted, server, m.options.Log)
		m.keeper.Store(keeper)
		m.serving.Go(func() { keeper.Run(ctx) })
	}
}

// Watch returns the reason when etcd stops on its own. It also returns when ctx is done.
func (m *Member) Watch(ctx context.Context) error { return m.wait(ctx, nil) }

// wait returns nil once ready is closed. Otherwise it returns the reason why etcd has stopped on its own, or ctx's
// error.
func (m *Member) wait(ctx context.Context, ready <-chan struct{}) (err error) {
	select {
	case <-ready:
		return nil
	case <-m.crashed:
		return errCrashed
	case <-ctx.Done():
		return ctx.Err()
	case <-m.etcd.Server.StopNotify():
		err = errStopped
	case failed := <-m.etcd.Err():
		err = errStopped // a listener also fails when etcd stops
		if !isClosed(m.etcd.Server.StoppingNotify()) {
			err = fmt.Errorf("an etcd listener ended: %w", cmp.Or(failed, errors.New("closed"))) // etcd may not report a cause
		}
	}
	m.stopped.Store(&err)
	return err
}

// crash reports an unrecoverable failure once. It publishes the reason first, so that every waiting call returns
// it.
func (m *Member) crash(reason error) {
	m.crashOnce.Do(func() {
		m.options.Crash(reason)
		close(m.crashed)
	})
}
