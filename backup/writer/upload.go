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

// uploadTimeout bounds the upload of one segment, which is small.
const uploadTimeout = 2 * time.Minute

// storeSegment uploads the oldest queued segment at the end of the chain.
func (w *Writer) storeSegment(ctx context.Context) {
	queued := w.spool.Entries()
	if len(queued) == 0 || !w.canRequest() || !w.isEndKnown() {
		return
	}
	next, generation := queued[0], w.remote.generation
	w.remote.requestedAt = time.Now()
	check := inspection{Options: w.options, generation: generation, verifyOwner: time.Since(w.remote.ownerVerified) >= w.pace.verifyOwner}
	if check.verifyOwner { // a busy writer makes no other inspection
		w.remote.ownerVerified = time.Now()
	}
	if time.Since(w.remote.checked) >= w.pace.watch { // often enough to notice an emptied store
		w.remote.checked, check.newestFull = time.Now(), w.remote.newestFull
	}
	w.job(ctx, uploadTimeout, func(patient context.Context) func() {
		if check.isGone(patient) {
			return func() { w.remote.requestedAt = time.Time{}; w.take(ctx, storeLost, payload{}) }
		}
		err := w.put(patient, generation.Number, next)
		if !errors.Is(err, store.ErrExists) {
			return func() { w.storedSegment(ctx, next, err) }
		}
		winner, err := w.options.Archive.Manifest(patient, generation.Number, next.Position)
		return func() { w.handleConflict(ctx, next, winner, err) }
	})
}

// errGone reports that a segment in the spool can no longer be read, or differs from what was written.
var errGone = errors.New("the segment cannot be read back from the volume; capturing it again")

func (w *Writer) put(ctx context.Context, generation int, next Spooled) error {
	content, err := w.spool.Open(next)
	if err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	defer content.Close()
	return w.options.Archive.PutStored(ctx, generation, next.Position, content)
}

// storedSegment handles the result of an upload.
func (w *Writer) storedSegment(ctx context.Context, segment Spooled, err error) {
	w.remote.requestedAt = time.Time{}
	if err != nil {
		w.failed(opSegment, "cannot store segment "+segment.Position.String(), err)
		if errors.Is(err, errGone) {
			w.take(ctx, spoolLost, payload{err: err})
		}
		return
	}
	w.succeeded(opSegment)
	w.statistic.Segments++
	w.statistic.Uploaded += segment.Size
	w.advance(segment)
}

// dropSpool discards the spool: the database is captured again from the end of the chain.
func (w *Writer) dropSpool(err error) {
	w.options.Log.Debug().Err(err).Msg("backups: the spool is dropped")
	w.chain.tail = nil
	w.discard()
}

// discard drops all queued segments.
func (w *Writer) discard() {
	if err := w.spool.Clear(); err != nil {
		w.options.Log.Warn().Err(err).Msg("backups: cannot clean up the spool")
	}
}

// advance records that a segment is stored.
func (w *Writer) advance(segment Spooled) {
	w.remote.stored, w.remote.storedAt, w.remote.last = segment.Next(), time.Now(), segment.Position
	if err := w.spool.Stored(segment.Position); err != nil {
		w.options.Log.Warn().Err(err).Msg("backups: cannot clean up the spool")
	}
}

// handleConflict handles another member's segment at the same position. If both end at the same position with the
// same rows, ours counts as stored, except for its buckets. Otherwise the next inspection decides: the other member
// knew newer leases and users, or another chain starts there, or the generation ends.
func (w *Writer) handleConflict(ctx context.Context, segment Spooled, winner format.Manifest, err error) {
	w.remote.requestedAt = time.Time{}
	if err != nil && !archive.Unusable(err) { // the next inspection finds what is unusable
		w.failed(opSegment, "cannot read who stored segment "+segment.Position.String(), err)
		return
	}
	w.succeeded(opSegment)
	alike := err == nil && winner.Cluster == segment.Cluster && winner.Next() == segment.Next() && winner.After == segment.After
	if alike && winner.Ends == nil && winner.Opens.IsZero() && winner.Term <= segment.Term && winner.Applied <= segment.Applied {
		w.advance(segment)
		w.afterConflict(segment)
		return
	}
	w.options.Log.Debug().Err(err).Str("segment", segment.Position.String()).Str("member", winner.Member).
		Msg("backups: another member stored the segment first")
	w.take(ctx, collided, payload{})
}

// afterConflict captures again the buckets of a segment that another member stored first: that member may have read
// older ones.
func (w *Writer) afterConflict(own Spooled) {
	if len(own.Buckets) == 0 {
		return
	}
	w.recaptureBuckets()
	for i := range w.flushes {
		w.flushes[i].target, w.flushes[i].at, w.chain.captureNow = format.Position{}, time.Now(), true
	}
}

// isGone asks the store whether it has lost the newest full snapshot, if one is known, and, if verifyOwner is set,
// whether the generation is gone. An unverifiable manifest counts as gone. If the store does not answer, the next
// upload will show it.
func (f *inspection) isGone(ctx context.Context) bool {
	var err error
	if f.newestFull != "" {
		_, err = f.Archive.Full(ctx, f.generation.Number, f.newestFull)
	}
	if err == nil && f.verifyOwner {
		if err = f.checkOwner(ctx); archive.NotVerified(err) {
			return true
		}
	}
	return errors.Is(err, store.ErrNotFound) || errors.Is(err, archive.ErrForeign) || errors.Is(err, ErrSucceeded)
}

// mergeTimeout bounds one run.
const mergeTimeout = 15 * time.Minute

// mergeBatch is the number of new segments that are merged soon. Fewer wait longer, since each run costs listings; an
// idle writer makes fewer in the time after which they are merged into one object.
const mergeBatch = 60

// mayMerge reports whether there is something to merge and it is time.
func (w *Writer) mayMerge() bool {
	m := &w.merging
	wait := w.pace.merge
	if w.statistic.Segments-m.stored < mergeBatch {
		wait = w.pace.idleMerge
	}
	return !m.running && w.isHealthy() && w.fulls.making == nil && time.Since(m.at) >= wait &&
		(m.left || m.stored != w.statistic.Segments)
}

// merge merges small segments, if there are new ones.
func (w *Writer) merge(ctx context.Context) {
	m := &w.merging
	if !w.mayMerge() {
		return
	}
	m.running, m.at, m.stored = true, time.Now(), w.statistic.Segments
	generation := w.remote.generation.Number
	w.job(ctx, mergeTimeout, func(ctx context.Context) func() {
		done, err := m.merger.Run(ctx, generation)
		return func() {
			m.running, m.left = false, done.Left || err != nil
			w.statistic.Holes += int64(done.Holes)
			if err != nil && !w.stopping {
				w.statistic.Failures++
				w.options.Log.Warn().Err(err).Msg("backups: merging small segments failed; retrying later")
			}
		}
	})
}

// reserveTimeout bounds reading a reservation and making one.
const reserveTimeout = time.Minute

// reserve renews the reservation when etcd approaches its end, once in hundreds of millions of revisions.
func (w *Writer) reserve(ctx context.Context) {
	r := &w.reserving
	if r.running || w.options.SegmentsOnly || w.revision+archive.Renewal <= r.revision || time.Now().Before(r.notBefore) {
		return
	}
	r.running = true
	wanted := archive.Reservation{
		Cluster: w.remote.generation.Cluster, Generation: w.remote.generation.Number, Revision: w.revision + archive.Margin, Created: w.options.Now(),
	}
	w.job(ctx, reserveTimeout, func(ctx context.Context) func() {
		reservation, err := w.options.Archive.Reserved(ctx)
		if errors.Is(err, store.ErrNotFound) || err == nil && wanted.Revision-archive.Margin+archive.Renewal > reservation.Revision {
			reservation, err = wanted, w.options.Archive.Reserve(ctx, wanted)
		}
		return func() {
			if r.running = false; err != nil && !errors.Is(err, store.ErrExists) {
				r.notBefore = time.Now().Add(w.failed(opReservation, "cannot reserve revisions for a restore", err))
				return
			}
			r.revision = reservation.Revision
			w.succeeded(opReservation)
		}
	})
}
