package recovery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/seed"
)

// A Recovery decides what happens to a data directory. It answers the lifecycle in the sidecar's terms. Only one run is
// active at a time. Its exported methods may be called from any goroutine, except for RememberRefusal.
type Recovery struct {
	environment
	volume    datadir.Validator
	interrupt func(Action) error // for tests: an error ends the run before an action

	stopped context.Context // ends with Close; the parent of every run's context
	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	status bootstrap.InitializationStatus
	config etcdconf.Document // used by the last initialization; empty if there was none
	why    error             // why it failed; nil if it did not, or none has ended
}

// New returns a Recovery in status New, which has changed nothing yet. The caller must call Close.
func New(options Options) *Recovery {
	stillness, err := time.ParseDuration(stillness)
	if err != nil {
		panic("recovery: the linker has set no duration: " + err.Error())
	}
	r := &Recovery{volume: datadir.Validator{Run: options.Validate}, status: bootstrap.New, environment: environment{
		options: options, checkRoom: seed.Seed.CheckSpace, now: time.Now, wait: backOff,
		idleTime: stillness, serveAfter: comparing, lateMounts: settling,
	}}
	r.stopped, r.stop = context.WithCancel(context.Background())
	return r
}

// Progress returns the progress of the present or the last run.
func (r *Recovery) Progress() Progress { return r.progress.current() }

// prepare brings the data directory into a state in which etcd may open it. It returns the members of an existing
// cluster that the member joins, empty if its configuration applies, or a *RejectError if etcd may not open
// it. When ctx ends it returns the cause; the next run continues. It is called before etcd is opened, by the holder
// of the volume's lock. examine validates the data directory in use.
func (r *Recovery) prepare(ctx context.Context, member Member, examine func(context.Context) error) (initialCluster string, err error) {
	served := r.options.Lost != nil && r.options.Lost(member.DataDir)
	member.DataDir = seed.ResolvePath(member.DataDir)
	now := newRun(ctx, &r.environment, member, examine, served)
	now.interrupt = r.interrupt
	r.progress.change(func(p *Progress) { *p = Progress{State: Resume, Since: r.now()} })
	defer now.volume.release()
	err = now.process()
	now.job.finish(now.core.State == Refused)
	return now.members, err
}

// Close cancels a running initialization and waits for its end. Nothing can be triggered afterwards. It may be called
// more than once.
func (r *Recovery) Close() {
	r.mu.Lock()
	r.stop()
	r.mu.Unlock()
	r.running.Wait()
}

// Status returns the status of the initialization. Reading Successful or Failed resets it to New, as it does in the
// sidecar, so that each result is used once. The error is that of ctx; then a result is kept.
func (r *Recovery) Status(ctx context.Context) (bootstrap.InitializationStatus, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	status := r.status
	if status != bootstrap.Progress {
		r.status = bootstrap.New
	}
	return status, nil
}

// WhyFailed returns why the last initialization failed; nil if it did not, or none has ended.
func (r *Recovery) WhyFailed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why
}

// Trigger starts an initialization in the background, unless the status is not New. Like the sidecar it treats every
// mode other than Sanity as Full. ctx bounds the call, not the initialization, which runs until it is done or Close
// is called. The error is that of ctx, or reports that the Recovery is closed.
func (r *Recovery) Trigger(ctx context.Context, mode bootstrap.Mode) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if mode != bootstrap.Sanity {
		mode = bootstrap.Full
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped.Err() != nil {
		return errors.New("cannot validate the data directory: recovery is closed")
	}
	if r.status == bootstrap.New {
		r.status = bootstrap.Progress
		r.running.Go(func() { r.initialize(mode) })
	}
	return nil
}

// initialize validates the data directory, restores damaged or lost data, and stores the result.
func (r *Recovery) initialize(mode bootstrap.Mode) {
	began, log := time.Now(), r.options.Log.With().Str("mode", string(mode)).Logger()
	config, err := r.options.Config.Load()
	if err == nil {
		log = log.With().Str("data-dir", config.DataDir).Logger()
		config.YAML, err = r.initializeMember(r.stopped, config, func(ctx context.Context) error {
			return r.volume.Validate(ctx, config.DataDir, mode, log)
		})
	}
	before := r.WhyFailed()
	result, line := bootstrap.Successful, log.Info()
	switch {
	case errors.Is(err, context.Canceled) && r.stopped.Err() != nil: // Close was called
		result, line = bootstrap.Failed, log.Info().Err(err)
	case err != nil && before != nil && before.Error() == err.Error(): // it was logged before
		result, line = bootstrap.Failed, log.Debug()
	case err != nil:
		result, line = bootstrap.Failed, log.Error().Err(err)
	}
	line.Str("result", string(result)).Dur("took_ms", time.Since(began)).Msg("validation ended")
	r.mu.Lock() // the log line comes before the status
	defer r.mu.Unlock()
	r.status, r.config, r.why = result, config, err
}

// Config returns etcd's configuration as YAML. After an initialization it is the one that was validated, even if
// the file has changed since, so that etcd opens no other directory. Errors name the file.
func (r *Recovery) Config(ctx context.Context) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	validated := r.config
	r.mu.Unlock()
	if validated.YAML != nil {
		return validated.YAML, nil
	}
	config, err := r.options.Config.Load()
	return config.YAML, err
}

// initializeMember prepares the data directory of a configuration and returns the YAML to start etcd with, which differs for
// a member that joins a cluster. For a configuration that etcd cannot use only the data are examined; the lifecycle
// reports what is wrong with it.
func (r *Recovery) initializeMember(ctx context.Context, config etcdconf.Document, examine func(context.Context) error) ([]byte, error) {
	yaml := config.YAML
	checked, err := etcdconf.Parse(yaml)
	switch {
	case errors.Is(err, bootstrap.ErrCertificates):
		return yaml, err // they may be about to be replaced
	case err != nil:
		return yaml, examine(ctx)
	}
	member := memberOf(checked, config.DataDir)
	others, err := peers.New(checked.Etcd, r.options.Reach)
	if err != nil {
		return yaml, err
	}
	if others != nil {
		defer others.Close()
		member.Peers = others
	}
	initialCluster, err := r.prepare(ctx, member, examine)
	if err != nil || initialCluster == "" {
		return yaml, err
	}
	return etcdconf.ForNewMember(yaml, initialCluster)
}

// memberOf returns the member that etcd's configuration describes.
func memberOf(checked *etcdconf.Checked, dataDir string) Member {
	etcd := checked.Etcd
	member := Member{
		DataDir: dataDir, Name: etcd.Name, PeerURLs: etcd.AdvertisePeerUrls, Token: etcd.InitialClusterToken,
		Joins: etcd.ClusterState == embed.ClusterStateFlagExisting, Forced: etcd.ForceNewCluster,
	}
	cluster, err := types.NewURLsMap(etcd.InitialCluster)
	member.Members = cluster
	if err == nil && len(cluster) == 1 && cluster[etcd.Name] != nil {
		// etcd computes IDs from this; the advertised URLs may differ.
		member.PeerURLs = cluster[etcd.Name]
		member.Alone = true
	}
	return member
}

// SeedOf returns the data directory of a restored cluster with all members that etcd's configuration names.
func SeedOf(yaml []byte, dataDir, token string) (seed.Seed, error) {
	checked, err := etcdconf.Parse(yaml)
	if err != nil {
		return seed.Seed{}, err
	}
	cluster, err := types.NewURLsMap(checked.Etcd.InitialCluster)
	if err != nil {
		return seed.Seed{}, fmt.Errorf("initial-cluster: %w", err)
	}
	return seed.Seed{DataDir: dataDir, Name: checked.Etcd.Name, Token: token, Members: cluster}, nil
}
