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
	// endPatience limits how long backups may take to end before etcd is closed.
	endPatience = 2 * time.Second
	// flushReserve is the part of a stop's budget that remains after the last upload.
	flushReserve = lifecycle.TakingDown + time.Second
)

// A closed describes how etcd was closed in this run.
type closed struct {
	inOrder    bool
	began      time.Time // start of the close
	flushError error     // data that Flush could not upload
}

// beginBackups starts the backups of an etcd that has become ready.
func (r *Runtime) beginBackups() {
	if r.parts.Backups != nil {
		etcd := r.config.Etcd
		r.parts.Backups.Begin(writer.Server(r.etcd.Load().Server()), etcd.Dir, r.flags.Recovery.Owner(etcd.InitialClusterToken))
	}
}

// endBackups stops the backups of an etcd that is about to be closed.
func (r *Runtime) endBackups() {
	if r.parts.Backups == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	if err := r.parts.Backups.End(ctx); err != nil {
		r.log.Warn().Err(err).Msg("the backups did not end in time: etcd is closed, and the rest is uploaded afterwards")
	}
}

var errNoTimeLeft = errors.New("the time for the stop has run out")

// Flush uploads what etcd acknowledged before it was closed, in the rest of the stop's budget. Call it after the
// lifecycle has ended and the exit record is settled.
func (r *Runtime) Flush(ctx context.Context) {
	if r.parts.Backups == nil || !r.closed.inOrder {
		return
	}
	deadline := r.closed.began.Add(lifecycle.StopBudget - flushReserve)
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, errNoTimeLeft)
	defer cancel()
	began := time.Now()
	defer time.AfterFunc(time.Second, func() {
		r.log.Info().Msgf("backups: the stop waits until all acknowledged writes are in the store, until %s at the latest", deadline.UTC().Format(time.TimeOnly))
	}).Stop()
	err := r.parts.Backups.Flush(ctx, filepath.Join(r.config.Etcd.Dir, "member", "snap", "db"))
	if errors.Is(err, backup.ErrNotRunning) {
		return // etcd has not served yet
	}
	if errors.Is(err, writer.ErrRowsOnly) {
		r.log.Info().Dur("took_ms", time.Since(began)).Msg("backups: " + err.Error())
		return
	}
	if r.closed.flushError = err; err != nil {
		r.log.Warn().Err(err).Msg("backups: the store lacks some of etcd's last writes; the next start uploads them")
		return
	}
	r.log.Info().Dur("took_ms", time.Since(began)).Msg("backups: all acknowledged writes are in the store")
}

// FlushError returns the error of Flush; nil before Flush. Only the caller of Flush
// may call it.
func (r *Runtime) FlushError() error { return r.closed.flushError }
