package backup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"etcd-wrapper/bootstrap/backup/atrest"
	"etcd-wrapper/bootstrap/backup/shipper"
)

const (
	// hanging is how long it takes, after its context has ended, until what goes on is taken to hang.
	hanging = 500 * time.Millisecond
	// secondChance is what a store has to answer that was in trouble before: a pod is not to stop slowly because of it.
	secondChance = 3 * time.Second
)

var errStillAway = errors.New("the store was in trouble before, and still is")

// Flush brings what etcd took on until it was closed into the store: everything that it acknowledged is there when the error
// is nil. It is for after End has returned; what had not ended then is waited for. A member that another one writes the backups
// for has nothing to bring. It returns soon after ctx has ended even if a volume or a network file system hangs, and leaves a goroutine behind
// then: the process is about to end.
func (b *Backups) Flush(ctx context.Context, database string) error {
	began := b.running.Load()
	if began == nil {
		return nil
	}
	flushed := make(chan error, 1)
	go func() {
		<-began.over
		flushed <- b.bring(ctx, database)
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
func (b *Backups) bring(ctx context.Context, database string) error {
	r := b.running.Load()
	if !r.writes() {
		return nil
	}
	closed, err := atrest.Open(database, atrest.Identity{
		MemberID: r.etcd.MemberID(), ClusterID: r.etcd.ClusterID(), Leader: true, Term: r.etcd.Term(),
	})
	if err != nil {
		return err
	}
	defer closed.Close()
	return b.bringFrom(ctx, closed, r.facts().Trouble != nil)
}

// bringFrom is for a database that nobody has open.
func (b *Backups) bringFrom(ctx context.Context, closed *atrest.Etcd, troubled bool) error {
	last, err := b.ship(closed)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	over := make(chan struct{})
	go func() {
		defer close(over)
		last.Run(running)
	}()
	err = flush(ctx, last, troubled)
	stop()
	<-over
	return err
}

// writes tells whether it was this member's to bring what is missing. One that is closed before it has looked at the store goes
// by whether it led.
func (r *running) writes() bool {
	role := r.facts().Role
	return role == shipper.Writing || role == shipper.Unknown && r.etcd.IsLeader()
}

// facts are the shipper's, if there is one.
func (r *running) facts() shipper.Facts {
	if r.shipper == nil {
		return shipper.Facts{Role: shipper.Unknown}
	}
	return r.shipper.Facts()
}

// flush waits until everything is stored, but not for a store that was in trouble and has not recovered.
func flush(ctx context.Context, last *shipper.Shipper, troubled bool) error {
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
