package recovery

import (
	"context"
	"errors"
	"sync"
	"time"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/etcdconf"
)

// initialization is what the lifecycle asks of a Recovery in the sidecar's words: at most one runs at a time. Its methods may be
// called from any goroutine.
type initialization struct {
	stopped context.Context // ends with Close; the context of every run
	stop    context.CancelFunc
	running sync.WaitGroup

	guard  sync.Mutex // of what follows
	status bootstrap.InitializationStatus
	config etcdconf.Document // what the last run went by; empty if there was none
	why    error             // why the last run failed; nil if it did not, or none has ended
}

func newInitialization() *initialization {
	stopped, stop := context.WithCancel(context.Background())
	return &initialization{stopped: stopped, stop: stop, status: bootstrap.New}
}

// Close cancels what runs and waits until it has ended. Nothing can be triggered afterwards. It may be called more than once.
func (i *initialization) Close() {
	i.guard.Lock()
	i.stop()
	i.guard.Unlock()
	i.running.Wait()
}

// Status says where the initialization stands. Reading Successful or Failed resets the status to New, as it does with the
// sidecar, so that each result is acted upon once. The error is that of ctx: a result that nobody waits for any more
// is kept.
func (i *initialization) Status(ctx context.Context) (bootstrap.InitializationStatus, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	i.guard.Lock()
	defer i.guard.Unlock()
	status := i.status
	if status != bootstrap.Progress {
		i.status = bootstrap.New
	}
	return status, nil
}

// WhyFailed is why the last initialization failed, in a sentence; nil if it did not, or none has ended.
func (i *initialization) WhyFailed() error {
	i.guard.Lock()
	defer i.guard.Unlock()
	return i.why
}

// conclude ends a run. It comes after the log line, which is then there for whoever wonders about the status.
func (i *initialization) conclude(result bootstrap.InitializationStatus, config etcdconf.Document) {
	i.guard.Lock()
	defer i.guard.Unlock()
	i.status, i.config = result, config
}

// explain keeps the reason of a run, and returns false if it is the one that people have been told.
func (i *initialization) explain(reason error) (news bool) {
	i.guard.Lock()
	defer i.guard.Unlock()
	news = i.why == nil || reason == nil || i.why.Error() != reason.Error()
	i.why = reason
	return news
}

// Trigger starts an initialization in the background, and does nothing unless the status is New. Like the sidecar it takes
// every mode but Sanity for Full. ctx bounds the call, not the initialization, which lasts until it is done or Close is
// called. The error is that of ctx, or says that the Recovery is closed.
func (r *Recovery) Trigger(ctx context.Context, mode bootstrap.Mode) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if mode != bootstrap.Sanity {
		mode = bootstrap.Full
	}
	r.guard.Lock()
	defer r.guard.Unlock()
	if r.stopped.Err() != nil {
		return errors.New("cannot validate the data directory: the initialization is closed")
	}
	if r.status == bootstrap.New {
		r.status = bootstrap.Progress
		r.running.Go(func() { r.initialize(mode) })
	}
	return nil
}

// initialize validates the data directory, has data that are broken or lost brought back, and leaves the result behind.
func (r *Recovery) initialize(mode bootstrap.Mode) {
	began, log := time.Now(), r.options.Log.With().Str("mode", string(mode)).Logger()
	config, err := r.options.Config.Load()
	if err == nil {
		log = log.With().Str("data-dir", config.DataDir).Logger()
		config.YAML, err = r.bringBack(r.stopped, config, func(ctx context.Context) error {
			return r.volume.Validate(ctx, config.DataDir, mode, log)
		})
	}
	result, line := bootstrap.Successful, log.Info()
	if err != nil {
		result, line = bootstrap.Failed, log.Error().Err(err)
	}
	if !r.explain(err) {
		line = log.Debug()
	}
	if errors.Is(err, context.Canceled) && r.stopped.Err() != nil { // somebody has asked for it
		line = log.Info().Err(err)
	}
	line.Str("result", string(result)).Dur("took_ms", time.Since(began)).Msg("validation ended")
	r.conclude(result, config)
}

// Config returns etcd's configuration as YAML. After an initialization it is the configuration which that went by,
// whatever happened to the file since: etcd opens the directory that was validated and no other. Errors name the
// configuration file.
func (r *Recovery) Config(ctx context.Context) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.guard.Lock()
	validated := r.config
	r.guard.Unlock()
	if validated.YAML != nil {
		return validated.YAML, nil
	}
	config, err := r.options.Config.Load()
	return config.YAML, err
}
