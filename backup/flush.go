package backup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"etcd-wrapper/backup/writer"
	"etcd-wrapper/backup/writer/capture"
)

const (
	// hanging is how long it takes, after its context has ended, until what goes on is taken to hang.
	hanging = 500 * time.Millisecond
	// secondChance is what a store has to answer that was in trouble before: a pod is not to stop slowly because of it.
	secondChance = 3 * time.Second
)

var errStillAway = errors.New("the store was in trouble before, and still is")

// Flush brings what etcd took on until it was closed into the store: everything that it acknowledged is there when the error
// is nil. It is for after End has returned; what had not ended then is waited for. Whoever wrote the backups may have ended before
// the last writes, so each member brings what it has and the store lacks; several at once do no harm. Only the one that wrote them
// copies the whole database where there is no chain to go on with: for others the error is shipper.ErrNoChain. shipper.ErrRowsOnly says
// that all revisions are there, and that another member goes on with the rest. ErrNotRunning says that backups had not begun. It
// returns soon after ctx has ended even if a volume or a network file system hangs, and leaves a goroutine behind then: the process
// is about to end.
func (b *Backups) Flush(ctx context.Context, database string) error {
	began := b.running.Load()
	if began == nil {
		return ErrNotRunning
	}
	flushed := make(chan error, 1)
	go func() {
		<-began.over
		flushed <- b.bring(ctx, began, database)
	}()
	select {
	case err := <-flushed:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-flushed:
		return err
	case <-time.After(hanging):
		return fmt.Errorf("%w: the store or the volume does not answer", context.Cause(ctx))
	}
}

// bring looks at the database that etcd has closed.
func (b *Backups) bring(ctx context.Context, r *running, database string) error {
	closed, err := capture.OpenClosed(database, capture.Identity{
		MemberID: r.etcd.MemberID(), ClusterID: r.etcd.ClusterID(), Leader: true, Term: r.etcd.Term(),
	})
	if err != nil {
		return err
	}
	defer closed.Close()
	is := r.facts()
	was := former{wrote: r.writes(), reconciled: is.Role == writer.Writing || is.Role == writer.Watching, troubled: is.Trouble != nil}
	if !was.troubled {
		was.shipper = r.shipper.Load()
	}
	return b.bringFrom(ctx, closed, was)
}

// former is what is known of the backups that were made while etcd ran.
type former struct {
	wrote      bool            // this member did, so that a full may be made where there is no chain
	reconciled bool            // its data were seen to be those of the chain
	troubled   bool            // something kept them from being made
	shipper    *writer.Writer // that made them, and has ended; nil if there is none, or it was in trouble
}

// bringFrom is for a database that nobody has open. No full is due there by any schedule.
func (b *Backups) bringFrom(ctx context.Context, closed *capture.Closed, was former) error {
	options := b.shipping(closed)
	options.Former = was.shipper
	options.Reconciled, options.SegmentsOnly, options.Schedule = was.reconciled, !was.wrote, func(string, time.Time) time.Time { return time.Time{} }
	last, err := writer.New(options)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	over := make(chan struct{})
	go func() {
		defer close(over)
		last.Run(running)
	}()
	err = flush(ctx, last, was.troubled)
	stop()
	<-over
	return err
}

// writes tells whether it is this member's to begin a chain. One that became the leader at the end may not have heard of it.
func (r *running) writes() bool {
	return r.facts().Role == writer.Writing || r.etcd.IsLeader()
}

// facts are the shipper's, if there is one.
func (r *running) facts() writer.Facts {
	if s := r.shipper.Load(); s != nil {
		return s.Facts()
	}
	return writer.Facts{Role: writer.Unknown}
}

// flush waits until everything is stored, but not for a store that was in trouble and has not recovered.
func flush(ctx context.Context, last *writer.Writer, troubled bool) error {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	if troubled {
		defer time.AfterFunc(secondChance, func() {
			if facts := last.Facts(); facts.Generation == 0 || facts.Trouble != nil {
				giveUp(errStillAway)
			}
		}).Stop()
	}
	return last.Flush(ctx)
}
