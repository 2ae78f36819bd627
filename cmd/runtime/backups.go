package runtime

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/lifecycle"
)

const (
	// stopTimeout limits how long stopping the backups may delay the close of etcd.
	stopTimeout = 2 * time.Second
	// flushReserve is the part of the stop budget that is reserved for the steps after the final upload.
	flushReserve = lifecycle.TakingDown + time.Second
)

// A closed records how this run closed etcd.
type closed struct {
	inOrder    bool      // etcd was opened and then closed without an error
	began      time.Time // time at which the close started
	flushError error     // Flush's error if some data was not uploaded
}

// beginBackups starts the backups once etcd is ready.
func (r *Runtime) beginBackups() {
	if r.parts.Backups != nil {
		etcd := r.config.Etcd
		r.parts.Backups.Begin(writer.Server(r.etcd.Load().Server()), etcd.Dir, r.flags.Recovery.Owner(etcd.InitialClusterToken))
	}
}

// endBackups stops the backups before etcd is closed.
func (r *Runtime) endBackups() {
	if r.parts.Backups == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := r.parts.Backups.End(ctx); err != nil {
		r.log.Warn().Err(err).Msg("the backups did not stop in time; closing etcd first and uploading the remaining writes afterwards")
	}
}

var errNoTimeLeft = errors.New("not finished by the stop deadline")

// Flush uploads the remaining acknowledged writes within the remaining stop budget. Flush must not be called before
// the lifecycle has ended and the exit record is final.
func (r *Runtime) Flush(ctx context.Context) {
	if r.parts.Backups == nil || !r.closed.inOrder {
		return
	}
	deadline := r.closed.began.Add(lifecycle.StopBudget - flushReserve)
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, errNoTimeLeft)
	defer cancel()
	began := time.Now()
	defer time.AfterFunc(time.Second, func() {
		r.log.Info().Msgf("backups: uploading the remaining acknowledged writes before the process stops, until %s at the latest", deadline.UTC().Format(time.TimeOnly))
	}).Stop()
	err := r.parts.Backups.Flush(ctx, filepath.Join(r.config.Etcd.Dir, "member", "snap", "db"))
	if errors.Is(err, backup.ErrNotRunning) {
		return // the backups were never started, so there is nothing to upload
	}
	if errors.Is(err, writer.ErrRowsOnly) {
		r.log.Info().Dur("took_ms", time.Since(began)).Msg("backups: " + err.Error())
		return
	}
	if r.closed.flushError = err; err != nil {
		r.log.Warn().Err(err).Msg("backups: some of etcd's latest writes are not in the store; the next start uploads them")
		return
	}
	r.log.Info().Dur("took_ms", time.Since(began)).Msg("backups: all acknowledged writes are in the store")
}

// FlushError returns the error that Flush returned, or nil if Flush has not been called. FlushError may only be
// called by the goroutine that calls Flush.
func (r *Runtime) FlushError() error { return r.closed.flushError }
