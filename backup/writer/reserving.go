package writer

import (
	"context"
	"errors"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
)

// reservePatience is how long it may take to look at a reservation and make one.
const reservePatience = time.Minute

// reserving is what this member does to keep the store's reservation ahead of what etcd hands out: a restore goes on above it.
type reserving struct {
	running  bool
	revision int64     // that is reserved, as far as is known; 0 if that is unknown
	after    time.Time // it is not tried before
}

// reserve makes a reservation when etcd comes near the last one. It is a request in hundreds of millions of revisions.
func (s *Shipper) reserve(ctx context.Context) {
	r := &s.reserving
	if r.running || s.options.SegmentsOnly || !s.writes() || s.generation.Number == 0 || s.revision+archive.Renewal <= r.revision || time.Now().Before(r.after) {
		return
	}
	r.running = true
	to, wanted := s.archive, archive.Reservation{
		Cluster: s.generation.Cluster, Generation: s.generation.Number, Revision: s.revision + archive.Margin, Created: s.options.Now(),
	}
	s.job(func() func() {
		ctx, cancel := context.WithTimeout(ctx, reservePatience)
		defer cancel()
		revision, err := reserve(ctx, to, wanted)
		return func() { s.reserved(revision, err) }
	})
}

// reserve returns the revision that is reserved then, by whomever.
func reserve(ctx context.Context, to *archive.Archive, wanted archive.Reservation) (int64, error) {
	there, err := to.Reserved(ctx)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return 0, err
	}
	if wanted.Revision-archive.Margin+archive.Renewal <= there.Revision {
		return there.Revision, nil
	}
	if err := to.Reserve(ctx, wanted); err != nil && !errors.Is(err, store.ErrExists) {
		return 0, err
	}
	return wanted.Revision, nil
}

func (s *Shipper) reserved(revision int64, err error) {
	r := &s.reserving
	r.running = false
	if err != nil {
		r.after = time.Now().Add(s.failed(aboutReservation, "cannot reserve revisions for after a restore", err))
		return
	}
	r.revision = revision
	s.succeeded(aboutReservation)
}
