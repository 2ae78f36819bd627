// Package standalone owns the initialization of etcd's data directory where no etcd-backup-restore sidecar runs next to
// the wrapper. An Initializer answers the lifecycle machine with the sidecar's four words, has the data directory
// validated (by datadir) before etcd may open it, and serves etcd's configuration. `etcd-wrapper start-etcd --standalone`
// creates one; its hidden validation subcommand runs RunChild.
//
// A validation only reads. It never repairs, moves or deletes. What becomes of data that are broken or lost is decided by
// recovery, which asks for the validation itself.
package standalone

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
)

// VerifyFunc validates the etcd data directory at dataDir as deeply as mode asks for. It returns nil if etcd may open
// the directory and otherwise says what is broken. Warnings are of what is damaged and etcd can do without. It has to end
// soon after ctx does.
type VerifyFunc = func(ctx context.Context, dataDir string, mode bootstrap.Mode) (warnings []string, err error)

// Options are what an Initializer works with.
type Options struct {
	DataDir    string         // absolute path of etcd's data directory, unless ConfigFile names another
	ConfigFile string         // etcd's YAML configuration; "" serves that of a single member on loopback
	PodName    string         // which member this is, where ConfigFile is for several; "" if nobody knows
	Namespace  string         // of the pod; "" if nobody knows
	Log        zerolog.Logger // told when a validation begins and how it ended
	Verify     VerifyFunc     // how a validation is run; nil runs datadir.Verify in this process
	Recover    RecoverFunc    // what decides after a validation; nil takes its verdict
}

// RecoverFunc brings the data directory into a state in which etcd may open it with that configuration, a YAML document, and
// returns the configuration that it is to be opened with, which is another one for a member that joins a cluster; or it says
// why that cannot be. It calls examine for a validation of what is there. It has to end soon after ctx does.
type RecoverFunc = func(ctx context.Context, yaml []byte, dataDir string, examine func(context.Context) error) ([]byte, error)

// Initializer stands in for the sidecar: it holds the status of the one validation that may run at a time. Its methods
// may be called from several goroutines.
type Initializer struct {
	options Options
	stop    context.CancelFunc
	stopped context.Context // ends with Close; the context of every validation
	running sync.WaitGroup

	memory memory    // of the one validation that may run
	why    explained // the last verdict's reason

	mu     sync.Mutex
	status bootstrap.InitializationStatus
	config etcdConfig // what the last validation went by; empty if there was none
}

// New returns an Initializer in status New. Whoever calls it calls Close.
func New(options Options) *Initializer {
	if options.Verify == nil {
		options.Verify = datadir.Verify
	}
	stopped, stop := context.WithCancel(context.Background())
	return &Initializer{options: options, stop: stop, stopped: stopped, status: bootstrap.New}
}

// Close cancels a running validation and waits until it has ended. Nothing can be triggered afterwards. It may be called
// more than once.
func (i *Initializer) Close() {
	i.mu.Lock()
	i.stop()
	i.mu.Unlock()
	i.running.Wait()
}

// Status says where the validation stands. Reading Successful or Failed resets the status to New, as it does with the
// sidecar, so that each verdict is acted upon once. The error is that of ctx: a verdict that nobody waits for any more
// is kept.
func (i *Initializer) Status(ctx context.Context) (bootstrap.InitializationStatus, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	status := i.status
	if status != bootstrap.Progress {
		i.status = bootstrap.New
	}
	return status, nil
}

// Trigger starts a validation in the background, and does nothing unless the status is New. Like the sidecar it takes
// every mode but Sanity for Full. ctx bounds the call, not the validation, which lasts until it is done or Close is
// called. The error is that of ctx, or says that the Initializer is closed.
func (i *Initializer) Trigger(ctx context.Context, mode bootstrap.Mode) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if mode != bootstrap.Sanity {
		mode = bootstrap.Full
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.stopped.Err() != nil {
		return errors.New("cannot validate the data directory: the initializer is closed")
	}
	if i.status == bootstrap.New {
		i.status = bootstrap.Progress
		i.running.Go(func() { i.validate(mode) })
	}
	return nil
}

// validate runs one validation and leaves its verdict behind.
func (i *Initializer) validate(mode bootstrap.Mode) {
	began, log := time.Now(), i.options.Log.With().Str("mode", string(mode)).Logger()
	config, err := i.options.loadConfig()
	known := false
	if err == nil {
		known, err = i.judge(&config, mode, log)
	}
	if known && i.options.Recover == nil {
		i.conclude(bootstrap.Failed, config)
		return
	}
	if config.dataDir != "" {
		log = log.With().Str("data-dir", config.dataDir).Logger()
	}
	verdict, line := bootstrap.Successful, log.Info()
	if err != nil {
		verdict, line = bootstrap.Failed, log.Error().Err(err)
	}
	if news := i.why.set(err); !news {
		line = log.Debug()
	}
	if errors.Is(err, context.Canceled) && i.stopped.Err() != nil { // somebody has asked for it
		line = log.Info().Err(err)
	}
	line.Str("verdict", string(verdict)).Dur("took_ms", time.Since(began)).
		Msg("validation ended")
	i.conclude(verdict, config)
}

// judge examines the data directory, and has data that are broken or lost brought back, if there is somebody who does that.
// known says that the verdict of the examination is an earlier one.
func (i *Initializer) judge(config *etcdConfig, mode bootstrap.Mode, log zerolog.Logger) (known bool, err error) {
	examine := func(ctx context.Context) (err error) {
		known, err = i.examine(ctx, config.dataDir, mode, log)
		return err
	}
	if i.options.Recover == nil {
		err = examine(i.stopped)
	} else {
		config.yaml, err = i.options.Recover(i.stopped, config.yaml, config.dataDir, examine)
	}
	return known, err
}

// examine validates what is there. known says that the verdict is an earlier one, since nothing has changed.
func (i *Initializer) examine(ctx context.Context, dataDir string, mode bootstrap.Mode, log zerolog.Logger) (known bool, verdict error) {
	looks := lookAt(dataDir, mode)
	if before := i.memory.recall(looks); before != nil {
		return true, unfit(dataDir, before)
	}
	log = log.With().Str("data-dir", dataDir).Logger()
	log.Info().Msg("validation begins")
	warnings, err := i.options.Verify(ctx, dataDir, mode)
	for _, warning := range warnings {
		log.Warn().Msg(warning)
	}
	i.memory.keep(looks, err)
	return false, unfit(dataDir, err)
}

// unfit is a verdict against the data directory, if it is one.
func unfit(dataDir string, verdict error) error {
	if verdict == nil || datadir.SaysNothing(verdict) {
		return verdict
	}
	return fmt.Errorf("data directory %s is corrupt or cannot be used: %w", dataDir, verdict)
}

// WhyFailed is why the last validation failed, in a sentence; nil if it did not, or none has ended. Any goroutine may
// call it.
func (i *Initializer) WhyFailed() error { return i.why.get() }

// CheckConfig says whether etcd's configuration can be read: what is wrong with it at the start is a mistake of whoever
// named it, and no wait makes it right. The error is ErrConfig if the file could be read and is none.
func (i *Initializer) CheckConfig() error {
	_, err := i.options.loadConfig()
	return err
}

// conclude comes after the log line, which is then there for whoever wonders about the status.
func (i *Initializer) conclude(verdict bootstrap.InitializationStatus, config etcdConfig) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.status, i.config = verdict, config
}

// Config returns etcd's configuration as YAML. After a validation it is the configuration which that validation went by,
// whatever happened to the file since: etcd opens the directory that was validated and no other. Errors name the
// configuration file.
func (i *Initializer) Config(ctx context.Context) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	i.mu.Lock()
	validated := i.config
	i.mu.Unlock()
	if validated.yaml != nil {
		return validated.yaml, nil
	}
	config, err := i.options.loadConfig()
	return config.yaml, err
}
