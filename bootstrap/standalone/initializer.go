// Package standalone owns the initialization of etcd's data directory where no etcd-backup-restore sidecar runs next to
// the wrapper. An Initializer answers the lifecycle machine with the sidecar's four words, has the data directory
// validated (by datadir) before etcd may open it, and serves etcd's configuration. `etcd-wrapper start-etcd --standalone`
// creates one; its hidden validation subcommand runs RunChild.
//
// A validation only reads. It never repairs, moves or deletes: without a backup store there is nothing to put in the
// place of what would be lost.
package standalone

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
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
	Log        zerolog.Logger // told when a validation begins and how it ended
	Verify     VerifyFunc     // how a validation is run; nil runs datadir.Verify in this process
}

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
	looks := lookAt(config.dataDir, mode)
	if known := i.memory.recall(looks); err == nil && known != nil {
		i.conclude(bootstrap.Failed, config)
		return
	}
	if err == nil {
		log = log.With().Str("data-dir", config.dataDir).Logger()
		log.Info().Msg("validation begins")
		var warnings []string
		warnings, err = i.options.Verify(i.stopped, config.dataDir, mode)
		for _, warning := range warnings {
			log.Warn().Msg(warning)
		}
		i.memory.keep(looks, err)
		err = unfit(config.dataDir, err)
	}
	// A restore from backups would go here: after a failed validation, before the verdict.
	verdict, line := bootstrap.Successful, log.Info()
	if err != nil {
		verdict, line = bootstrap.Failed, log.Error().Err(err)
	}
	if news := i.why.set(err); !news {
		line = log.Debug()
	}
	line.Str("verdict", string(verdict)).Stringer("duration", time.Since(began).Round(time.Millisecond)).
		Msg("validation ended")
	i.conclude(verdict, config)
}

// unfit is a verdict against the data directory. What the operating system says is none.
func unfit(dataDir string, verdict error) error {
	var errno syscall.Errno
	if verdict == nil || errors.As(verdict, &errno) {
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
