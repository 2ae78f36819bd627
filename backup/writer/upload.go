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

// base contains the parts of a writer that the other parts share.
type base struct {
	*driver
	health *health
	remote *remote
	chain  *chain
}

// uploads uploads queued segments.
type uploads struct {
	base
	stored int64           // number of segments stored by this process
	bytes  int64           // total bytes of segments stored by this process
	trying format.Position // position of the segment in the current or last attempt to upload
	tried  time.Time       // start of the first attempt, because even a failed attempt may have created the object
}

// errUnreadable is returned if a segment in the spool cannot be read or has been modified.
var errUnreadable = errors.New("the queued segment is unreadable and must be captured again")

// start uploads the oldest queued segment to the end of the chain.
func (u *uploads) start() {
	queued := u.chain.spool.Entries()
	if len(queued) == 0 || !u.health.canRequest() || !u.remote.isEndKnown() {
		return
	}
	next, generation := queued[0], u.remote.generation.Number
	u.health.requestedAt = time.Now()
	if next.Position != u.trying {
		u.trying, u.tried = next.Position, u.health.requestedAt
	}
	u.job(u.health.uploadTimeout(), func(ctx context.Context) func() {
		content, err := u.chain.spool.Open(next)
		if err != nil {
			err = fmt.Errorf("%w: %w", errUnreadable, err)
		} else {
			err = errors.Join(u.options.Archive.PutStored(ctx, generation, next.Position, content), content.Close())
		}
		return func() { u.finish(next, err) }
	})
}

// finish handles the result of an upload. If another member has stored a segment at the same position, the next
// inspection finds the new end of the chain. Rows captured by both members are considered stored. The small buckets
// are captured again because the other member may have read older ones.
func (u *uploads) finish(segment Spooled, err error) {
	started := u.health.requestedAt
	u.health.requestedAt = time.Time{}
	switch {
	case errors.Is(err, store.ErrExists):
		u.health.succeeded(opSegment)
		u.take(collided, payload{})
		return
	case err != nil:
		u.health.failed(opSegment, "cannot upload segment "+segment.Position.String(), err)
		if errors.Is(err, errUnreadable) {
			u.take(spoolLost, payload{err: err})
		}
		return
	}
	u.health.succeeded(opSegment)
	u.stored++
	u.bytes += segment.Size
	u.remote.setHead(archive.Head{Start: segment.Start(), Full: u.remote.head.Full, Segment: &segment.Manifest})
	u.remote.uploadedAt = u.tried
	u.remote.storedAt = started // other members may have stored segments since the request was sent
	if err := u.chain.spool.Stored(segment.Position); err != nil {
		u.options.Log.Warn().Err(err).Msg("backups: cannot clean up the spool")
	}
}

// flushQueue contains the pending calls of Flush.
type flushQueue struct {
	base
	waiting []flush
	result  error // result of Flush in the states drained and ended
}

// flush is a pending call of Flush.
type flush struct {
	revision int64           // etcd's revision when Flush was called
	at       time.Time       // time when Flush was called
	target   format.Position // position after the last segment that Flush waits for; zero until all changes are captured
	epoch    int             // epoch of the chain that contains target
	done     chan<- error
}

// add adds a flush and cancels all delays whose only purpose is to reduce the number of requests.
func (f *flushQueue) add(done chan<- error) {
	f.waiting = append(f.waiting, flush{revision: f.options.Etcd.Revision(), at: time.Now(), done: done})
	f.health.flushing, f.chain.urgent, f.health.notBefore = true, true, time.Time{}
}

// complete ends the pending calls of Flush that are done or that this member cannot complete. notWriter is the reason
// why this member does not make backups, or nil if it does.
func (f *flushQueue) complete(notWriter error) {
	waiting := f.waiting[:0]
	for _, flush := range f.waiting {
		if done, err := f.check(&flush, notWriter); done {
			flush.done <- err
		} else {
			waiting = append(waiting, flush)
		}
	}
	f.waiting, f.health.flushing = waiting, len(waiting) > 0
}

// check reports whether a call of Flush can return, and its result.
func (f *flushQueue) check(flush *flush, notWriter error) (done bool, result error) {
	c := f.chain
	if flush.epoch != c.epoch {
		flush.target, flush.epoch = format.Position{}, c.epoch
	}
	if flush.target.IsZero() && c.tail != nil && c.tail.Position.Revision > flush.revision && c.examined.After(flush.at) {
		flush.target = c.tail.Position
	}
	switch {
	case f.isIn(drained, ended):
		return true, f.result
	case f.isStored(c.released):
		return true, nil
	case f.isStored(flush.target) && !f.remote.storedAt.IsZero():
		if c.release() {
			flush.target = c.released
			return false, nil
		}
		return true, nil
	case notWriter != nil && (!errors.Is(notWriter, ErrNotWriter) || len(c.spool.Entries()) == 0):
		return true, notWriter
	}
	return false, nil
}

func (f *flushQueue) isStored(position format.Position) bool {
	return !position.IsZero() && f.remote.head.Position.Compare(position) >= 0
}
