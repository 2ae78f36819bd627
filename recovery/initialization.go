package recovery

import (
	"context"
	"errors"
	"time"

	"etcd-wrapper/bootstrap"
)

// What the lifecycle asks of a Recovery in the sidecar's words: at most one initialization runs at a time.

// Close cancels what runs and waits until it has ended. Nothing can be triggered afterwards. It may be called more than once.
func (r *Recovery) Close() {
	r.mu.Lock()
	r.stop()
	r.mu.Unlock()
	r.running.Wait()
}

// Status says where the initialization stands. Reading Successful or Failed resets the status to New, as it does with the
// sidecar, so that each result is acted upon once. The error is that of ctx: a result that nobody waits for any more
// is kept.
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

// WhyFailed is why the last initialization failed, in a sentence; nil if it did not, or none has ended.
func (r *Recovery) WhyFailed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why
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
	r.mu.Lock()
	defer r.mu.Unlock()
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
	before := r.WhyFailed()
	result, line := bootstrap.Successful, log.Info()
	switch {
	case errors.Is(err, context.Canceled) && r.stopped.Err() != nil: // somebody has asked for it
		result, line = bootstrap.Failed, log.Info().Err(err)
	case err != nil && before != nil && before.Error() == err.Error(): // people have been told
		result, line = bootstrap.Failed, log.Debug()
	case err != nil:
		result, line = bootstrap.Failed, log.Error().Err(err)
	}
	line.Str("result", string(result)).Dur("took_ms", time.Since(began)).Msg("validation ended")
	r.mu.Lock() // the log line is there by then for whoever wonders about the status
	defer r.mu.Unlock()
	r.status, r.config, r.why = result, config, err
}

// Config returns etcd's configuration as YAML. After an initialization it is the configuration which that went by,
// whatever happened to the file since: etcd opens the directory that was validated and no other. Errors name the
// configuration file.
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
