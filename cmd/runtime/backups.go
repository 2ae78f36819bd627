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
	// endPatience bounds how long the backups may take to end before etcd is closed.
	endPatience = 2 * time.Second
	// flushReserve is the part of a stop's budget that the last upload must leave.
	flushReserve = lifecycle.TakingDown + time.Second
)

// A closed describes how etcd was closed in this run.
type closed struct {
	inOrder  bool
	began    time.Time // when the close started
	unstored error     // what Flush could not upload
}

// beforeCompaction returns what backups do before a client's compaction.
func (r *Runtime) beforeCompaction() func(context.Context) {
	if r.parts.Backups == nil {
		return nil
	}
	return r.parts.Backups.BeforeCompaction
}

// beginBackups starts the backups of an etcd that has become ready.
func (r *Runtime) beginBackups() {
	if r.parts.Backups != nil {
		etcd := r.config.Etcd
		r.parts.Backups.Begin(writer.Server(r.etcd.Load().Server()), backup.Data{Dir: etcd.Dir, Owner: r.flags.Recovery.Owner(etcd.InitialClusterToken)})
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
		r.log.Warn().Err(err).Msg("etcd is closed all the same; what is missing comes into the store then")
	}
}

var errNoTimeLeft = errors.New("the time for a stop is over")

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
		r.log.Info().Msgf("backups: the stop waits until the store has everything that etcd took on, at most until %s", deadline.UTC().Format(time.TimeOnly))
	}).Stop()
	err := r.parts.Backups.Flush(ctx, filepath.Join(r.config.Etcd.Dir, "member", "snap", "db"))
	if errors.Is(err, backup.ErrNotRunning) {
		return // etcd has not served
	}
	if errors.Is(err, writer.ErrRowsOnly) {
		r.log.Info().Dur("took_ms", time.Since(began)).Msg("backups: " + err.Error())
		return
	}
	if r.closed.unstored = err; err != nil {
		r.log.Warn().Err(err).Msg("backups: the store lacks some of etcd's last changes; the next start brings them there")
		return
	}
	r.log.Info().Dur("took_ms", time.Since(began)).Msg("backups: everything that etcd took on is in the store")
}

// Unstored returns what Flush could not upload; nil if there is nothing, and before Flush. Only the caller of Flush
// may call it.
func (r *Runtime) Unstored() error { return r.closed.unstored }
