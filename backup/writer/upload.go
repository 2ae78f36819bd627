package writer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// uploadPatience is how long one segment may take to be stored: it is small.
const uploadPatience = 2 * time.Minute

// storeSegment stores the oldest segment that waits, at the position where the chain ends.
func (w *Writer) storeSegment(ctx context.Context) {
	if len(w.chain.waiting) == 0 || !w.mayAsk() || !w.settled() {
		return
	}
	next, generation, held := w.chain.waiting[0], w.remote.generation, w.heldAt(w.chain.waiting[0])
	w.remote.asked = time.Now()
	known := found{Options: w.options, generation: generation, vet: time.Since(w.remote.vetted) >= w.pace.vet}
	if known.vet { // who stores all the time looks for nothing else
		w.remote.vetted = time.Now()
	}
	if time.Since(w.remote.checked) >= w.pace.watch { // often enough to notice that somebody has emptied the store
		w.remote.checked, known.full = time.Now(), w.remote.newest
	}
	w.job(func() func() {
		patient, cancel := context.WithTimeout(ctx, uploadPatience)
		defer cancel()
		if known.isGone(patient) {
			return func() { w.remote.asked = time.Time{}; w.take(ctx, storeLost, payload{}) }
		}
		err := w.put(patient, generation.Number, next.position, held)
		if !errors.Is(err, store.ErrExists) {
			return func() { w.storedSegment(ctx, next, err) }
		}
		winner, err := w.archive.Manifest(patient, generation.Number, next.position)
		return func() { w.collided(ctx, next, winner, err) }
	})
}

// heldAt is a segment that waits in memory; nil if it waits in the spool.
func (w *Writer) heldAt(which waiting) *format.Object {
	if held := w.chain.held; held != nil && held.Position == which.position {
		return held
	}
	return nil
}

// errGone says that what waited is not in the spool any more, or not as it was.
var errGone = errors.New("a segment is gone from the spool, or damaged")

func (w *Writer) put(ctx context.Context, generation int, position format.Position, held *format.Object) error {
	if held != nil {
		return w.archive.PutStored(ctx, generation, position, held.Reader())
	}
	if err := w.spool.Examine(position, w.keys); err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	content, err := w.spool.Open(position)
	if err != nil {
		return err
	}
	defer content.Close()
	return w.archive.PutStored(ctx, generation, position, content)
}

// storedSegment notes how an upload went.
func (w *Writer) storedSegment(ctx context.Context, which waiting, err error) {
	w.remote.asked = time.Time{}
	if errors.Is(err, errGone) {
		w.take(ctx, spoolLost, payload{err: err})
		return
	}
	if err != nil {
		w.failed(aboutSegment, "cannot store segment "+which.position.String(), err)
		return
	}
	w.succeeded(aboutSegment)
	w.statistic.Segments++
	w.statistic.Uploaded += which.size
	w.advance(which)
}

// dropSpool takes everything that is not stored from the database again.
func (w *Writer) dropSpool(err error) {
	w.options.Log.Warn().Err(err).Msg("backups: what waited for the store is gone, and is taken from the database again")
	w.chain.tail = nil
	w.discard()
}

// discard drops all that waits.
func (w *Writer) discard() {
	w.chain.waiting, w.chain.held = nil, nil
	if err := w.spool.Clear(); err != nil {
		w.options.Log.Warn().Err(err).Msg("backups: the spool keeps more than it should")
	}
}

// advance drops a segment that is in the store. The spool keeps the last one: should the store be away at the next start, it
// says where to go on.
func (w *Writer) advance(which waiting) {
	w.remote.stored, w.remote.storedAt, w.remote.last = which.next, time.Now(), which.position
	if len(w.chain.waiting) > 0 && w.chain.waiting[0].position == which.position {
		w.chain.waiting = w.chain.waiting[1:]
	}
	if w.heldAt(which) != nil {
		w.chain.held = nil
	}
	if err := w.spool.Remove(which.position); err != nil {
		w.options.Log.Warn().Err(err).Msg("backups: the spool keeps more than it should")
	}
}

// collided goes on behind another member's segment of the same position. If it ends where ours does with the same rows, ours
// is as good as stored, but for what it has beside them; unless the other member knew of newer leases and users, or another chain begins
// there, or the generation ends: the next look finds that.
func (w *Writer) collided(ctx context.Context, which waiting, winner format.Manifest, err error) {
	w.remote.asked = time.Time{}
	if err != nil && !archive.Unusable(err) { // what cannot be used the next look finds
		w.failed(aboutSegment, "cannot read who stored segment "+which.position.String(), err)
		return
	}
	w.succeeded(aboutSegment)
	own, known := w.manifest(which)
	alike := err == nil && known && winner.Cluster == own.Cluster && winner.Next() == which.next && winner.After == own.After
	if alike && winner.Ends == nil && winner.Opens.IsZero() && winner.Term <= own.Term && winner.Applied <= own.Applied {
		w.advance(which)
		w.secondTo(own)
		return
	}
	w.options.Log.Debug().Err(err).Str("segment", which.position.String()).Str("member", winner.Member).
		Msg("backups: somebody else was first")
	w.take(ctx, collided, payload{})
}

// manifest is that of a segment that waits.
func (w *Writer) manifest(of waiting) (format.Manifest, bool) {
	if held := w.heldAt(of); held != nil {
		return held.Manifest, true
	}
	own, err := w.spool.Manifest(of.position, w.keys)
	return own, err == nil
}

// secondTo makes good what a segment would have brought beside its rows: whoever was first with these may have looked earlier.
func (w *Writer) secondTo(own format.Manifest) {
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
	w.job(func() func() {
		ctx, cancel := context.WithTimeout(ctx, mergePatience)
		defer cancel()
		done, err := m.merger.Run(ctx, generation)
		return func() { w.merged(done, err) }
	})
}

func (w *Writer) merged(done retention.Merged, err error) {
	w.merging.running, w.merging.left = false, done.Left || err != nil
	w.statistic.Holes += int64(done.Holes)
	if err != nil && !w.stopping {
		w.statistic.Failures++
		w.options.Log.Warn().Err(err).Msg("backups: small segments stay as they are for now")
	}
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
	w.job(func() func() {
		ctx, cancel := context.WithTimeout(ctx, reservePatience)
		defer cancel()
		there, err := w.archive.Reserved(ctx)
		if errors.Is(err, store.ErrNotFound) {
			err = nil
		}
		if err == nil && wanted.Revision-archive.Margin+archive.Renewal > there.Revision {
			if err = w.archive.Reserve(ctx, wanted); errors.Is(err, store.ErrExists) {
				err = nil
			}
			there = wanted
		}
		return func() { w.reserved(there.Revision, err) }
	})
}

func (w *Writer) reserved(revision int64, err error) {
	r := &w.reserving
	r.running = false
	if err != nil {
		r.after = time.Now().Add(w.failed(aboutReservation, "cannot reserve revisions for after a restore", err))
		return
	}
	r.revision = revision
	w.succeeded(aboutReservation)
}
