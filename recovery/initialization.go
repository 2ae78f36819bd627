package recovery

import (
	"context"
	"errors"
	"time"

	"etcd-wrapper/bootstrap"
)

// This file answers the lifecycle in the sidecar's terms. Only one initialization runs at a time.

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
		return errors.New("cannot validate the data directory: the initialization is closed")
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
		config.YAML, err = r.bringBack(r.stopped, config, func(ctx context.Context) error {
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

// Config returns etcd's configuration as YAML. After an initialization it is the one that was validated, whatever
// happened to the file since, so that etcd opens no other directory. Errors name the file.
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
