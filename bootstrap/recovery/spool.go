package recovery

import (
	"context"
	"errors"
	"fmt"

	"etcd-wrapper/bootstrap/backup/store"
	"etcd-wrapper/bootstrap/datadir"
)

// flushSpool brings into the store what waits for it, beyond what a valid volume has itself. Where the store does not answer
// for a moment that is waited for, as for any answer of it: the restore would take what it has, and what waits could not be added
// to that any more.
func (r *run) flushSpool() (Event, Payload) {
	if r.options.FlushSpool == nil {
		return "", Payload{}
	}
	stands := r.stands
	if r.verdict != nil {
		stands = datadir.Standing{}
	}
	switch err := r.options.FlushSpool(r.ctx, stands); {
	case err == nil:
		return "", Payload{}
	case r.ctx.Err() != nil:
		return broke(r.ctx.Err())
	case mayAnswer(err), errors.Is(err, context.DeadlineExceeded):
		return StoreSilent, Payload{Err: fmt.Errorf("what waits for it on the volume: %w", err)}
	default:
		return broke(fmt.Errorf("what waits on the volume cannot be brought into the store: %w; to go on without it move %s away", err, r.options.SpoolDir))
	}
}

// mayAnswer tells whether the store may do later what it has not done.
func mayAnswer(err error) bool {
	return is(err, store.ErrUnavailable, store.ErrDenied, store.ErrNoBucket, store.ErrSkewed)
}
