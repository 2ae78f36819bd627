package writer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
)

// uploads stores the queued segments.
type uploads struct {
	base
	stored int64 // segments that this process has stored
	bytes  int64 // of these segments
}

// errUnreadable reports that a segment in the spool can no longer be read, or differs from what was written.
var errUnreadable = errors.New("the segment cannot be read back from the volume; capturing it again")

// start uploads the oldest queued segment at the end of the chain.
func (u *uploads) start() {
	queued := u.chain.spool.Entries()
	if len(queued) == 0 || !u.health.canRequest() || !u.remote.isEndKnown() {
		return
	}
	next, generation := queued[0], u.remote.generation.Number
	u.health.requestedAt = time.Now()
	u.job(requestTimeout, func(ctx context.Context) func() {
		err := u.put(ctx, generation, next)
		return func() { u.finish(next, err) }
	})
}

func (u *uploads) put(ctx context.Context, generation int, next Spooled) error {
	content, err := u.chain.spool.Open(next)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	defer content.Close()
	return u.options.Archive.PutStored(ctx, generation, next.Position, content)
}

// finish handles the result of an upload. If another member has stored a segment at the position, the next inspection finds what follows: rows
// that both have captured count as stored, and small buckets are captured again, as the other member may have read older ones.
func (u *uploads) finish(segment Spooled, err error) {
	u.health.requestedAt = time.Time{}
	switch {
	case errors.Is(err, store.ErrExists):
		u.health.succeeded(opSegment)
		u.take(collided, payload{})
		return
	case err != nil:
		u.health.failed(opSegment, "cannot store segment "+segment.Position.String(), err)
		if errors.Is(err, errUnreadable) {
			u.take(spoolLost, payload{err: err})
		}
		return
	}
	u.health.succeeded(opSegment)
	u.stored++
	u.bytes += segment.Size
	u.remote.setHead(archive.Head{Start: segment.Start(), Full: u.remote.head.Full, Segment: &segment.Manifest})
	if err := u.chain.spool.Stored(segment.Position); err != nil {
		u.options.Log.Warn().Err(err).Msg("backups: cannot clean up the spool")
	}
}
