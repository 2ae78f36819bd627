package runtime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness/status"
)

const (
	// endPatience is how long the backups may take to end before etcd is closed.
	endPatience = 2 * time.Second
	// flushReserve is what is left of a stop's budget for whoever comes after the last backup.
	flushReserve = lifecycle.TakingDown + time.Second
)

// closed is how etcd was closed in this run.
type closed struct {
	inOrder bool
	began   time.Time // when the close began
}

func (c *closed) settle(inOrder bool, began time.Time) { c.inOrder, c.began = inOrder, began }

// beforeCompaction is what backups do before a client's compaction.
func (r *Runtime) beforeCompaction() func(context.Context) {
	if r.backups == nil {
		return nil
	}
	return r.backups.BeforeCompaction
}

// beginBackups makes backups of an etcd that has become ready.
func (r *Runtime) beginBackups() {
	if r.backups != nil {
		r.backups.Begin(writer.Server(r.etcd.Server()))
	}
}

// endBackups lets go of an etcd that is about to be closed.
func (r *Runtime) endBackups() {
	if r.backups == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	if err := r.backups.End(ctx); err != nil {
		r.log.Warn().Err(err).Msg("etcd is closed all the same; what is missing comes into the store then")
	}
}

var errNoTimeLeft = errors.New("the time for a stop is over")

// Flush brings what etcd took on until it was closed into the store, in what is left of the stop's budget. It is for after
// the lifecycle has ended, when the exit record is settled.
func (r *Runtime) Flush(ctx context.Context) {
	if r.backups == nil || !r.closed.inOrder {
		return
	}
	deadline := r.closed.began.Add(lifecycle.StopBudget - flushReserve)
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, errNoTimeLeft)
	defer cancel()
	began := time.Now()
	err := r.backups.Flush(ctx, filepath.Join(r.config.Etcd.Dir, "member", "snap", "db"))
	if errors.Is(err, backup.ErrNotRunning) {
		return // etcd has not served
	}
	if errors.Is(err, writer.ErrRowsOnly) {
		r.log.Info().Dur("took_ms", time.Since(began)).Msg("backups: " + err.Error())
		return
	}
	if r.unstored = err; err != nil {
		r.log.Warn().Err(err).Msg("backups: the store has not everything that etcd took on; the next start goes on from there")
		return
	}
	r.log.Info().Dur("took_ms", time.Since(began)).Msg("backups: everything that etcd took on is in the store")
}

// Unstored is what Flush could not bring into the store; nil before, and if there is nothing. Whoever calls Flush may ask.
func (r *Runtime) Unstored() error { return r.unstored }

// Backup is how far the backups are; nil without a store.
func (r *Runtime) Backup() *status.Backup {
	if r.backups == nil {
		return nil
	}
	return told(r.backups.Facts())
}

// roles are what a member is said to do.
var roles = map[writer.Role]string{writer.Unknown: "waits", writer.Writing: "writes", writer.Watching: "watches"}

// told is what is told of the backups.
func told(facts backup.Facts) *status.Backup {
	is, kept := facts.Shipped, facts.Kept
	about := &status.Backup{
		Store: facts.Store, Role: roles[is.Role], Revision: is.Stored, BehindRevisions: is.Behind, BehindSeconds: is.BehindFor.Seconds(),
		NextFull: is.NextFull, StoredBytes: kept.Bytes, UploadedBytes: is.Uploaded, SpoolBytes: is.SpoolBytes, SpoolLimit: is.SpoolLimit,
		Trouble: trouble(facts),
	}
	if kept.To > 0 {
		about.Window = window(facts)
	}
	if run := is.FullRunning; run != nil {
		about.FullRunning = &status.BackupRun{
			Reason: run.Reason, Since: run.Since, Doing: run.Doing, Sent: run.Sent, Of: run.Of, LeftSeconds: run.Left.Seconds(),
		}
	}
	about.LastFull, about.LastVerified = lastFull(facts), lastVerified(facts)
	return about
}

// window is what can be gone back to: up to now, but for what the store has not yet.
func window(facts backup.Facts) *status.BackupWindow {
	kept := facts.Kept
	listed := &status.BackupWindow{FromRevision: kept.From, ToRevision: kept.To, From: kept.Begin, To: kept.End}
	if kept.Cut == nil && facts.Shipped.Stored >= kept.To { // otherwise another member writes, or this one does not know yet
		listed.ToRevision, listed.To = facts.Shipped.Stored, time.Now().Add(-facts.Shipped.BehindFor).Truncate(time.Second)
	}
	return listed
}

// lastFull is the newer one of the listing's and of the one that this process has made.
func lastFull(facts backup.Facts) *status.BackupFull {
	listed, made := facts.Kept.LastFull, facts.Shipped.LastFull
	switch {
	case made != nil && (listed == nil || made.Time.After(listed.Time)):
		return &status.BackupFull{Revision: made.Revision, At: made.Time, Bytes: made.Bytes, Reason: made.Reason}
	case listed != nil:
		return &status.BackupFull{Revision: listed.Revision, At: listed.Time, Bytes: listed.Size, Reason: listed.Reason}
	default:
		return nil
	}
}

func lastVerified(facts backup.Facts) *status.BackupProof {
	verdict := facts.Kept.Verdict
	if verdict == nil {
		return nil
	}
	proof := &status.BackupProof{Revision: verdict.Revision, At: verdict.At, Passed: verdict.Outcome == archive.Verified, Reason: verdict.Why}
	if proof.Passed {
		proof.Reason = "restored in " + time.Duration(verdict.Seconds*float64(time.Second)).Round(100*time.Millisecond).String()
		if verdict.Hash != nil {
			proof.Reason += fmt.Sprintf("; the hash of its rows up to revision %d is etcd's own, %d", verdict.Hash.Revision, verdict.Hash.Hash)
		}
	}
	return proof
}

// trouble is what keeps backups from being made, or from being tested or deleted.
func trouble(facts backup.Facts) *status.BackupError {
	unable := facts.Unable
	if is := facts.Shipped.Trouble; unable == nil && is != nil {
		return &status.BackupError{Since: is.Since, Times: is.Times, Message: is.Text, NextTry: is.NextTry}
	}
	if unable == nil {
		unable = facts.Undone
	}
	if unable == nil {
		return nil
	}
	return &status.BackupError{Since: unable.Since, Times: unable.Times, Message: unable.Text, NextTry: unable.NextTry}
}
