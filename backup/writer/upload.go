package writer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
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
		if !errors.Is(err, store.ErrExists) {
			return func() { u.finish(next, err) }
		}
		winner, err := u.options.Archive.Manifest(ctx, generation, next.Position)
		return func() { u.resolveConflict(next, winner, err) }
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

// finish handles the result of an upload.
func (u *uploads) finish(segment Spooled, err error) {
	u.health.requestedAt = time.Time{}
	if err != nil {
		u.health.failed(opSegment, "cannot store segment "+segment.Position.String(), err)
		if errors.Is(err, errUnreadable) {
			u.take(spoolLost, payload{err: err})
		}
		return
	}
	u.health.succeeded(opSegment)
	u.stored++
	u.bytes += segment.Size
	u.advance(segment)
}

// advance records that a segment is stored.
func (u *uploads) advance(segment Spooled) {
	u.remote.setHead(archive.Head{Start: segment.Start(), Full: u.remote.head.Full, Segment: &segment.Manifest})
	if err := u.chain.spool.Stored(segment.Position); err != nil {
		u.options.Log.Warn().Err(err).Msg("backups: cannot clean up the spool")
	}
}

// resolveConflict handles another member's segment at the same position. If both end at the same position with the
// same rows, ours counts as stored, except for its buckets, of which the other member may have read older ones. Otherwise the next
// inspection decides: the other member knew newer leases and users, or another chain starts there, or the generation ends.
func (u *uploads) resolveConflict(segment Spooled, winner format.Manifest, err error) {
	u.health.requestedAt = time.Time{}
	if err != nil && !archive.Unusable(err) { // the next inspection finds what is unusable
		u.health.failed(opSegment, "cannot read who stored segment "+segment.Position.String(), err)
		return
	}
	u.health.succeeded(opSegment)
	alike := err == nil && winner.Cluster == segment.Cluster && winner.Next() == segment.Next() && winner.After == segment.After
	if alike && winner.Ends == nil && winner.Opens.IsZero() && winner.Term <= segment.Term && winner.Applied <= segment.Applied {
		u.advance(segment)
		if len(segment.Buckets) > 0 {
			u.chain.captureBuckets()
		}
		return
	}
	u.options.Log.Debug().Err(err).Str("segment", segment.Position.String()).Str("member", winner.Member).
		Msg("backups: another member stored the segment first")
	u.take(collided, payload{})
}
