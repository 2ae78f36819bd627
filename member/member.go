// Package member runs the embedded etcd. A Member starts etcd once, reports when etcd joins the cluster, stops
// unexpectedly or crashes, and closes etcd cleanly. The package implements interfaces defined by the lifecycle and
// the readiness monitor; package main wires them together.
package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strings"
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
	"etcd-wrapper/internal/clock"
	"etcd-wrapper/member/dataversion"
	"etcd-wrapper/member/maintenance"
)

// Options configure a Member. Log, Crash, CloseTimeout and DataInUse are required.
type Options struct {
	Log zerolog.Logger
	// Crash is called once if etcd logs a fatal error or panics. The goroutine that failed never resumes, so the
	// process must exit.
	Crash func(reason error)
	// CloseTimeout limits how long a clean close may take before etcd is stopped uncleanly. etcd may wait for its
	// request timeout (7 s by default) once per client listener, and once more for the leadership transfer.
	CloseTimeout time.Duration
	// DataVersion is the oldest etcd version that must be able to read the data. If DataVersion is zero, etcd uses its
	// own version.
	DataVersion dataversion.Version
	// Maintenance configures defragmentation: Threshold, MaxPause, Interval, and the Gate for readers of the whole
	// database. New sets the other fields.
	Maintenance maintenance.Options
	// UpdateMembership makes the member update its peer URLs in the cluster and, if recovery added it as a learner,
	// request its promotion. It must be false if there is a backup-restore sidecar, because the sidecar does both.
	UpdateMembership bool
	// RequestPromotion sends a promotion request to the other members as a client, which a learner needs if
	// authentication is enabled. RequestPromotion is nil if there is no client.
	RequestPromotion func(ctx context.Context, cluster, member types.ID, members []membership.Member) error
	// AwaitPeers waits until the cluster can admit this member, and returns the cluster version. While waiting,
	// AwaitPeers reports why, for example "waiting for etcd-1". AwaitPeers may be nil.
	AwaitPeers func(ctx context.Context, report func(reason string)) (dataversion.Version, error)
	// Unwanted reports whether this member must leave the cluster because the cluster was scaled down. Unwanted may
	// be nil.
	Unwanted func(ctx context.Context) bool
	// DataInUse is called once if Open has to wait because another process has the database open for writing.
	DataInUse func()
	// BeforeCompaction reads the revisions that a compaction is about to remove. BeforeCompaction is called with a
	// short deadline, in the goroutine that performs the compaction. BeforeCompaction may be nil.
	BeforeCompaction func(context.Context)
	// RootPassword makes the member create the root user in an empty cluster and enable authentication. Clients are
	// rejected until then. If RootPassword is empty, the member does not change users or authentication.
	RootPassword string
	// Confirmation delays each reply until the data it depends on is in the store. Confirmation requires a
	// single-member cluster. Confirmation may be nil.
	Confirmation Confirmation
}

// streamWorkers is the number of goroutines that gRPC reuses for requests. Plain etcd starts a goroutine for each
// request; in profiles of puts and gets by 100 clients, growing the stacks of these goroutines takes up to a fifth of
// the CPU time. Each watch occupies a worker, but gRPC starts an extra goroutine if all workers are busy.
const streamWorkers = 256

// A Member is an embedded etcd. Open, Watch and Close must be called in this order, each at most once.
type Member struct {
	// Maintainer defragments the database. The Maintainer's methods State, Volume and Trigger are safe for
	// concurrent use.
	Maintainer *maintenance.Maintainer

	config     *embed.Config
	configured types.URLsMap // initial-cluster; nil if it cannot be parsed
	options    Options
	drain      *drain
	requests   requests
	compaction autoCompaction // zero unless the member itself runs auto-compaction
	root       rootAuth

	doing  atomic.Value // current step of the start or the close, as a string
	opened bool         // etcd was started, or the data was rejected; see Close
	opening

	starting    sync.WaitGroup     // goroutines that run from before etcd starts until it has stopped
	serving     sync.WaitGroup     // goroutines that run from when the member is ready until the close begins
	stopServing context.CancelFunc // stops the goroutines in serving
	keeper      atomic.Pointer[dataversion.Keeper]

	files     dataFiles
	crashOnce sync.Once
	crashed   chan struct{}
	stopped   atomic.Pointer[error] // why etcd stopped unexpectedly
}

// opening describes the data before etcd starts, and the result of starting etcd. The fields of opening are valid once
// started is closed.
type opening struct {
	creates  bool                // this run creates a new cluster
	before   datadir.Fingerprint // fingerprint of the data immediately before etcd opens it
	inert    bool                // etcd failed without opening the data
	started  chan struct{}       // closed once embed.StartEtcd has returned
	etcd     *embed.Etcd         // nil if the start failed
	startErr error
}

// opensData is the value of doing while etcd is reading the database.
const opensData = "opening the data directory"

// awaitsQuorum is the value of doing until etcd has joined the cluster.
const awaitsQuorum = "waiting for a leader, which requires a quorum"

// awaitsRoot is the value of doing until authentication is enabled.
const awaitsRoot = "waiting for authentication to be enabled with the password in --root-password-file"

// errCrashed is returned after etcd has crashed. Options.Crash receives the reason.
var errCrashed = errors.New("etcd crashed")

var errStopped = errors.New("etcd stopped; the member may have been removed from the cluster")

// New returns a member without starting it. The member takes ownership of config.
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
		streams = append(streams, held.stream)          // nested inside drain, so that a blocked send counts as stalled
		unaries = slices.Insert(unaries, 1, held.unary) // wraps drain and the Maintainer, so that it runs after etcd has finished the request
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

// quota returns the database quota in bytes, or 0 if there is no limit.
func (m *Member) quota() int64 {
	if m.config.QuotaBackendBytes == 0 {
		return storage.DefaultQuotaBytes
	}
	return max(0, m.config.QuotaBackendBytes)
}

// Open starts etcd and returns nil once etcd has joined the cluster, or an error if it cannot join. Without a quorum,
// Open blocks until ctx is done. If Open fails after etcd was started, the caller must call Close to stop etcd.
func (m *Member) Open(ctx context.Context) error {
	if err := m.prepare(ctx); err != nil {
		return err
	}
	m.opened = true
	m.configured, _ = types.NewURLsMap(m.config.InitialCluster) // etcd reports an invalid value
	m.defragmentAtStart()
	m.doing.Store(opensData)
	go m.start()
	select {
	case <-m.started:
	case <-m.crashed:
		return errCrashed
	case <-ctx.Done():
		return fmt.Errorf("gave up while etcd was opening the data directory: %w", ctx.Err())
	}
	if m.startErr != nil {
		return m.startErr
	}
	m.doing.Store(awaitsQuorum)
	m.starting.Go(func() { electSelf(m.etcd.Server) })
	m.starting.Go(func() { proposeAfterSnapshot(m.etcd.Server, m.config, m.options.Log) })
	if err := m.wait(ctx, m.etcd.Server.ReadyNotify()); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("gave up while etcd was joining the cluster: %w", err)
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

// prepare waits until no other process has the data open, and then inspects the data before etcd opens it.
func (m *Member) prepare(ctx context.Context) error {
	m.doing.Store("waiting for another process to release the database")
	if err := datadir.Await(ctx, m.config.Dir, m.options.Log, sync.OnceFunc(m.options.DataInUse)); err != nil {
		return err
	}
	m.doing.Store("waiting for the data to be inspected")
	findings := datadir.Look(m.config.Dir, m.config.WalDir)
	recorded, unread := maxVersion(findings)
	others := findings.Members() > 1 && !findings.OnlyRestored() && !m.config.ForceNewCluster
	if err := dataversion.CheckUpgrade(recorded, others); err != nil { // ignores unread, because Inspect reports unreadable data
		return err
	}
	if m.options.Confirmation != nil && findings.Members() > 1 && !m.config.ForceNewCluster {
		return ErrSeveralMembers
	}
	if err := findings.Inspect(datadir.Identity{ // Inspect also rejects data that etcd would silently accept
		Name: m.config.Name, PeerURLs: types.URLs(m.config.AdvertisePeerUrls).StringSlice(), InitialCluster: m.config.InitialCluster,
	}, m.options.Log); err != nil {
		m.opened = true // otherwise, the next start would treat the data as valid
		m.startErr = err
		close(m.started)
		return err
	}
	if entries, committed := findings.Uncommitted(); m.config.ForceNewCluster && entries > 0 {
		m.options.Log.Warn().Uint64("entries", entries).Uint64("committed", committed).
			Msg("force-new-cluster discards log entries that are not recorded as committed, even if they were acknowledged to clients; " +
				"to keep them, stop the member gracefully before you force a new cluster")
	}
	if m.creates = findings.Empty() && m.config.ClusterState == embed.ClusterStateFlagNew; m.creates {
		m.options.Log.Info().Msgf("the data directory %s is empty; creating a new cluster", m.config.Dir)
	}
	if err := m.announce(ctx, recorded, unread); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("gave up before etcd was started: %w", err)
	}
	datadir.SetPermissions(m.config.Dir, m.options.Log)
	m.before, _ = datadir.TakeFingerprint(m.config.Dir, m.config.WalDir) // without a fingerprint, the data is treated as changed
	return nil
}

// maxVersion returns the highest cluster version in the data.
func maxVersion(findings *datadir.Inspection) (highest dataversion.Version, err error) {
	versions, err := findings.ClusterVersions()
	for _, text := range versions {
		if version := dataversion.Parse(text); highest.Less(version) {
			highest = version
		}
	}
	return highest, err
}

// announce sets the version that etcd announces, based on the cluster version recorded in the data or, for a joining
// member, reported by the cluster. A new cluster has no version yet. announce must be called before etcd is started.
func (m *Member) announce(ctx context.Context, recorded dataversion.Version, unread error) (err error) {
	wanted := m.options.DataVersion
	hasLog := wal.Exist(m.files.wal)
	switch {
	case wanted == (dataversion.Version{}):
		return nil
	case hasLog && unread != nil:
		m.options.Log.Warn().Err(unread).Msg("cannot read the cluster version from the data; announcing the embedded etcd's own version")
		recorded = dataversion.Of3_6 // must not be older than the data
	case !hasLog && m.config.ClusterState == embed.ClusterStateFlagExisting && m.options.AwaitPeers != nil:
		recorded, err = m.options.AwaitPeers(ctx, func(reason string) {
			m.doing.Store(reason)
			m.options.Log.Warn().Msg("etcd is " + reason)
		})
		if err != nil {
			return err
		}
	}
	name := dataversion.Announce(wanted, recorded)
	m.options.Log.Info().Str("announced", name).Stringer("wanted", wanted).Stringer("recorded", recorded).
		Msg("announcing the etcd version to the cluster")
	return nil
}

// defragmentAtStart makes etcd defragment the database at startup if that is worth the time, unless the configuration
// sets etcd's own threshold.
func (m *Member) defragmentAtStart() {
	info, err := os.Stat(layout.ToBackendFileName(m.config.Dir))
	if err == nil && m.config.BootstrapDefragThresholdMegabytes == 0 {
		m.config.BootstrapDefragThresholdMegabytes = m.Maintainer.AtStart(layout.ToSnapDir(m.config.Dir), info.Size())
	}
}

// start runs embed.StartEtcd. Close must wait for this goroutine, because it cannot be interrupted.
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

// isListenError reports whether etcd failed to bind an address. etcd binds its peer and client addresses before it
// opens the data, and its metrics address afterwards.
func isListenError(err error) bool {
	failed, ok := errors.AsType[*net.OpError](err)
	return ok && failed.Op == "listen"
}

// serve starts a ready member's background jobs: database maintenance, auto-compaction, data version upkeep, data
// file checks, and updates to the member's entry in the cluster.
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
	if m.options.UpdateMembership {
		m.serving.Go(func() { membershipUpdater{server, m.config, &m.options}.run(ctx) })
	}
	if wanted := m.options.DataVersion; wanted != (dataversion.Version{}) {
		keeper := dataversion.New(wanted, server, m.options.Log)
		m.keeper.Store(keeper)
		m.serving.Go(func() { keeper.Run(ctx) })
	}
}

// Watch waits until etcd stops unexpectedly and returns the reason. Watch also returns when ctx is done.
func (m *Member) Watch(ctx context.Context) error { return m.wait(ctx, nil) }

// wait returns nil once ready is closed, or an error if etcd stops unexpectedly or ctx is done first.
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
		err = errStopped // listeners also fail when etcd stops
		if !isClosed(m.etcd.Server.StoppingNotify()) {
			err = fmt.Errorf("an etcd listener failed: %w", cmp.Or(failed, errors.New("closed"))) // failed may be nil
		}
	}
	m.stopped.Store(&err)
	return err
}

// crash reports the first crash to Options.Crash, before Open, Watch and Close return errCrashed.
func (m *Member) crash(reason error) {
	m.crashOnce.Do(func() {
		m.options.Crash(reason)
		close(m.crashed)
	})
}

// dataPoll is the interval between checks of the data files.
const dataPoll = 5 * time.Second

// dataFiles tracks the files that etcd has open. If they are unlinked, etcd keeps running without an error, and all
// data is lost when it stops.
type dataFiles struct {
	dir, wal string
	opened   map[string]os.FileInfo // the directories that etcd opened; nothing may replace them while etcd is running
	lost     atomic.Pointer[error]  // result of the first check that found lost data; nil if there was none
}

// open records which files etcd has open. It must be called after etcd has opened its data.
func (f *dataFiles) open() {
	f.opened = map[string]os.FileInfo{}
	for _, path := range []string{layout.ToSnapDir(f.dir), f.wal} {
		if info, err := os.Stat(path); err == nil {
			f.opened[path] = info
		}
	}
}

// findLost returns an error if files were removed or replaced. A file that cannot be inspected is not considered
// lost.
func (f *dataFiles) findLost() error {
	for path, opened := range f.opened {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(info, opened) {
			return lostError(path)
		}
	}
	if _, err := os.Lstat(layout.ToBackendFileName(f.dir)); errors.Is(err, fs.ErrNotExist) {
		return lostError(layout.ToBackendFileName(f.dir))
	}
	isSegment := func(entry os.DirEntry) bool { return strings.HasSuffix(entry.Name(), ".wal") }
	if entries, err := os.ReadDir(f.wal); err == nil && !slices.ContainsFunc(entries, isSegment) {
		return lostError(f.wal)
	}
	return nil
}

func lostError(path string) error {
	return fmt.Errorf("%s was removed or replaced while etcd was running: etcd is serving from memory and loses all data when it stops; "+
		"run \"etcdctl snapshot save\" now, and restore the data from that snapshot", path)
}

// watch checks the files at intervals of dataPoll until ctx is done.
func (f *dataFiles) watch(ctx context.Context, log zerolog.Logger) {
	f.check(log)
	for clock.Sleep(ctx, dataPoll) == nil {
		f.check(log)
	}
}

// check checks the files, unless lost is already set: even if files reappear later, etcd does not write to them.
func (f *dataFiles) check(log zerolog.Logger) {
	if f.lost.Load() != nil || len(f.opened) == 0 {
		return
	}
	if err := f.findLost(); err != nil {
		f.lost.Store(&err)
		log.Error().Msg("data: " + err.Error())
	}
}
