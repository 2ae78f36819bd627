package writer

import (
	"context"
	"errors"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/store"
)

// mergeBatch is the number of new segments that are merged soon. Fewer wait longer, since each run costs listings; an
// idle writer makes fewer in the time after which they are merged into one object.
const mergeBatch = 60

// merging merges small segments.
type merging struct {
	*driver
	health  *health
	merger  *retention.Merger
	running bool
	at      time.Time // time of the last run
	stored  int64     // number of segments stored by then
	left    bool      // the last run left work for later
	holes   int64     // found so far
}

// start merges small segments if there are new ones and it is time. stored is the number of segments that this process has stored.
func (m *merging) start(generation int, stored int64) {
	wait := m.pace.merge
	if stored-m.stored < mergeBatch {
		wait = m.pace.idleMerge
	}
	if m.running || !m.health.isHealthy() || time.Since(m.at) < wait || !m.left && m.stored == stored {
		return
	}
	m.running, m.at, m.stored = true, time.Now(), stored
	m.job(mergeTimeout, func(ctx context.Context) func() {
		done, err := m.merger.Run(ctx, generation)
		return func() {
			m.running, m.left = false, done.Left || err != nil
			m.holes += int64(done.Holes)
			if err != nil && !m.stopping {
				m.health.failures++
				m.options.Log.Warn().Err(err).Msg("backups: merging small segments failed; retrying later")
			}
		}
	})
}

// reserving keeps the store's reservation ahead of etcd's revisions: a restore continues above it.
type reserving struct {
	*driver
	health    *health
	running   bool
	revision  int64     // reserved, as far as known; 0 if unknown
	notBefore time.Time // no attempt is made earlier
}

// start renews the reservation when etcd's revision approaches its end, once in hundreds of millions of revisions.
func (r *reserving) start(generation archive.Generation, revision int64) {
	if r.running || r.options.SegmentsOnly || revision+archive.Renewal <= r.revision || time.Now().Before(r.notBefore) {
		return
	}
	r.running = true
	wanted := archive.Reservation{
		Cluster: generation.Cluster, Generation: generation.Number, Revision: revision + archive.Margin, Created: r.options.Now(),
	}
	r.job(requestTimeout, func(ctx context.Context) func() {
		reservation, err := r.options.Archive.Reserved(ctx)
		if errors.Is(err, store.ErrNotFound) || err == nil && revision+archive.Renewal > reservation.Revision {
			reservation, err = wanted, r.options.Archive.Reserve(ctx, wanted)
		}
		return func() {
			if r.running = false; err != nil && !errors.Is(err, store.ErrExists) {
				r.notBefore = time.Now().Add(r.health.failed(opReservation, "cannot reserve revisions for a restore", err))
				return
			}
			r.revision = reservation.Revision
			r.health.succeeded(opReservation)
		}
	})
}
