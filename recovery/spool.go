package recovery

import (
	"context"
	"errors"
	"fmt"
	"math"
	"syscall"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/identity"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/store"
)

// flushSpool brings into the store what waits for it, beyond what a valid volume has itself. Where the store does not answer
// for a moment that is waited for, as for any answer of it: the restore would take what it has, and what waits could not be added
// to that any more.
func (r *run) flushSpool() (Event, Payload) {
	if r.options.FlushSpool == nil {
		return "", Payload{}
	}
	data := r.identity
	if r.verdict != nil {
		data = identity.Identity{}
	}
	ctx, cancel := r.beforeServing(math.MaxInt64)
	defer cancel()
	err := r.options.FlushSpool(ctx, data, r.stands.HighestRevision)
	switch {
	case err == nil:
		return "", Payload{}
	case r.ctx.Err() != nil:
		return broke(r.ctx.Err())
	case mayAnswer(err), errors.Is(err, context.DeadlineExceeded):
		return StoreSilent, Payload{Err: fmt.Errorf("what waits for it on the volume: %w", err)}
	case is(err, seal.ErrUntrusted, seal.ErrNoIdentity, archive.ErrUnsigned):
		return KeysLacking, Payload{Err: err}
	case errors.Is(err, archive.ErrNameless): // it can be put back, and takes what waits then
		return Disbelieved, Payload{Err: err}
	}
	err = fmt.Errorf("what waits on the volume cannot be brought into the store: %w; to go on without it move %s away", err, r.options.SpoolDir)
	if mayPass(err) {
		return broke(err)
	}
	return Stuck, Payload{Err: err}
}

// mayPass tells whether it was the disk, or another member that has stored, or merged, something at that moment.
func mayPass(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) || is(err, store.ErrExists, store.ErrNotFound)
}

// mayAnswer tells whether the store may do later what it has not done.
func mayAnswer(err error) bool {
	return is(err, store.ErrUnavailable, store.ErrDenied, store.ErrNoBucket, store.ErrSkewed)
}
