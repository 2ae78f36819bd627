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

// uploadPatience is how long one segment may take to be stored: it is small.
const uploadPatience = 2 * time.Minute

// storeSegment stores the oldest segment that waits, at the position where the chain ends.
func (w *Writer) storeSegment(ctx context.Context) {
	waits := w.spool.Entries()
	if len(waits) == 0 || !w.mayAsk() || !w.settled() {
		return
	}
	next, generation := waits[0], w.remote.generation
	w.remote.asked = time.Now()
	known := found{Options: w.options, generation: generation, vet: time.Since(w.remote.vetted) >= w.pace.vet}
	if known.vet { // who stores all the time looks for nothing else
		w.remote.vetted = time.Now()
	}
	if time.Since(w.remote.checked) >= w.pace.watch { // often enough to notice that somebody has emptied the store
		w.remote.checked, known.full = time.Now(), w.remote.newest
	}
	w.job(ctx, uploadPatience, func(patient context.Context) func() {
		if known.isGone(patient) {
			return func() { w.remote.asked = time.Time{}; w.take(ctx, storeLost, payload{}) }
		}
		err := w.put(patient, generation.Number, next)
		if !errors.Is(err, store.ErrExists) {
			return func() { w.storedSegment(ctx, next, err) }
		}
		winner, err := w.options.Archive.Manifest(patient, generation.Number, next.Position)
		return func() { w.collided(ctx, next, winner, err) }
	})
}

// errGone says that a segment can no longer be read from the spool, or is not what was written.
var errGone = errors.New("it cannot be read back from the volume, and is captured from the database again")

func (w *Writer) put(ctx context.Context, generation int, next Spooled) error {
	content, err := w.spool.Open(next)
	if err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	defer content.Close()
	return w.options.Archive.PutStored(ctx, generation, next.Position, content)
}

// storedSegment notes how an upload went.
func (w *Writer) storedSegment(ctx context.Context, which Spooled, err error) {
	w.remote.asked = time.Time{}
	if err != nil {
		w.failed(aboutSegment, "cannot store segment "+which.Position.String(), err)
		if errors.Is(err, errGone) {
			w.take(ctx, spoolLost, payload{err: err})
		}
		return
	}
	w.succeeded(aboutSegment)
	w.statistic.Segments++
	w.statistic.Uploaded += which.Size
	w.advance(which)
}

// dropSpool takes everything that is not stored from the database again.
func (w *Writer) dropSpool(err error) {
	w.options.Log.Debug().Err(err).Msg("backups: the spool is dropped")
	w.chain.tail = nil
	w.discard()
}

// discard drops all that waits.
func (w *Writer) discard() {
	if err := w.spool.Clear(); err != nil {
		w.options.Log.Warn().Err(err).Msg("backups: the spool keeps more than it should")
	}
}

// advance goes on behind a segment that is in the store.
func (w *Writer) advance(which Spooled) {
	w.remote.stored, w.remote.storedAt, w.remote.last = which.Next(), time.Now(), which.Position
	if err := w.spool.Stored(which.Position); err != nil {
		w.options.Log.Warn().Err(err).Msg("backups: the spool keeps more than it should")
	}
}

// collided goes on behind another member's segment of the same position. If it ends where ours does with the same rows, ours
// is as good as stored, but for what it has beside them; unless the other member knew of newer leases and users, or another chain begins
// there, or the generation ends: the next look finds that.
func (w *Writer) collided(ctx context.Context, which Spooled, winner format.Manifest, err error) {
	w.remote.asked = time.Time{}
	if err != nil && !archive.Unusable(err) { // what cannot be used the next look finds
		w.failed(aboutSegment, "cannot read who stored segment "+which.Position.String(), err)
		return
	}
	w.succeeded(aboutSegment)
	alike := err == nil && winner.Cluster == which.Cluster && winner.Next() == which.Next() && winner.After == which.After
	if alike && winner.Ends == nil && winner.Opens.IsZero() && winner.Term <= which.Term && winner.Applied <= which.Applied {
		w.advance(which)
		w.secondTo(which)
		return
	}
	w.options.Log.Debug().Err(err).Str("segment", which.Position.String()).Str("member", winner.Member).
		Msg("backups: somebody else was first")
	w.take(ctx, collided, payload{})
}

// secondTo makes good what a segment would have brought beside its rows: whoever was first with these may have looked earlier.
func (w *Writer) secondTo(own Spooled) {
	if len(own.Buckets) == 0 {
		return
	}
	w.retake()
	for i := range w.flushes {
		w.flushes[i].target, w.flushes[i].at, w.chain.hurry = format.Position{}, time.Now(), true
	}
}

// isGone asks the store whether it has lost the full, if there is one, and if vet is set, whether the generation is there, and the
// newest: one that cannot be verified may be. Where it does not answer, the next upload will tell.
func (f *found) isGone(ctx context.Context) bool {
	var err error
	if f.full != "" {
		_, err = f.Archive.Full(ctx, f.generation.Number, f.full)
	}
	if err == nil && f.vet {
		if err = f.ours(ctx); archive.NotVerified(err) {
			return true
		}
	}
	return errors.Is(err, store.ErrNotFound) || errors.Is(err, archive.ErrForeign) || errors.Is(err, ErrSucceeded)
}

// mergePatience is how long one round may take.
const mergePatience = 15 * time.Minute

// enough are so many new segments that they are merged soon; fewer wait, since each look at what there is costs listings. An idle writer
// makes fewer in the time after which they become one object.
const enough = 60

// mayMerge tells whether there is something to merge, and time for it.
func (w *Writer) mayMerge() bool {
	m := &w.merging
	wait := w.pace.merge
	if w.statistic.Segments-m.stored < enough {
		wait = w.pace.rare
	}
	return !m.running && w.well() && w.fulls.making == nil && time.Since(m.at) >= wait &&
		(m.left || m.stored != w.statistic.Segments)
}

// merge has small objects merged once in a while, if there are new ones.
func (w *Writer) merge(ctx context.Context) {
	m := &w.merging
	if !w.mayMerge() {
		return
	}
	m.running, m.at, m.stored = true, time.Now(), w.statistic.Segments
	generation := w.remote.generation.Number
	w.job(ctx, mergePatience, func(ctx context.Context) func() {
		done, err := m.merger.Run(ctx, generation)
		return func() {
			m.running, m.left = false, done.Left || err != nil
			w.statistic.Holes += int64(done.Holes)
			if err != nil && !w.stopping {
				w.statistic.Failures++
				w.options.Log.Warn().Err(err).Msg("backups: small segments stay as they are for now")
			}
		}
	})
}

// reservePatience is how long it may take to look at a reservation and make one.
const reservePatience = time.Minute

// reserve makes a reservation when etcd comes near the last one. It is a request in hundreds of millions of revisions.
func (w *Writer) reserve(ctx context.Context) {
	r := &w.reserving
	if r.running || w.options.SegmentsOnly || w.revision+archive.Renewal <= r.revision || time.Now().Before(r.after) {
		return
	}
	r.running = true
	wanted := archive.Reservation{
		Cluster: w.remote.generation.Cluster, Generation: w.remote.generation.Number, Revision: w.revision + archive.Margin, Created: w.options.Now(),
	}
	w.job(ctx, reservePatience, func(ctx context.Context) func() {
		there, err := w.options.Archive.Reserved(ctx)
		if errors.Is(err, store.ErrNotFound) || err == nil && wanted.Revision-archive.Margin+archive.Renewal > there.Revision {
			there, err = wanted, w.options.Archive.Reserve(ctx, wanted)
		}
		return func() {
			if r.running = false; err != nil && !errors.Is(err, store.ErrExists) {
				r.after = time.Now().Add(w.failed(aboutReservation, "cannot reserve revisions for after a restore", err))
				return
			}
			r.revision = there.Revision
			w.succeeded(aboutReservation)
		}
	})
}
