package writer

import (
	"context"
	"time"
)

// While a copy of the database is on the volume, there must always be room for segments beside what etcd needs: they are small, and
// without them the chain ends. So the copy gives way to them, however long the store takes for it.

// inTheWay is the error that says that a copy has to go; nil as long as it may stay.
func (s *Shipper) inTheWay() error { return s.room(most) }

// whileThereIsRoom does something that has a copy on the volume, and cuts it off when the volume runs short.
func (s *Shipper) whileThereIsRoom(ctx context.Context, work func(context.Context) error) error {
	ctx, cut := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.watchRoom(ctx, cut)
	}()
	err := work(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	cut(nil)
	<-watched
	return err
}

// watchRoom looks often enough that no disk writes more than the spool's reserve in between.
func (s *Shipper) watchRoom(ctx context.Context, cut context.CancelCauseFunc) {
	ticker := time.NewTicker(s.pace.tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := s.inTheWay(); err != nil {
				cut(err)
				return
			}
		}
	}
}
