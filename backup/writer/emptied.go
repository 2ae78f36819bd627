package writer

import (
	"context"
	"errors"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store"
)

// fullToCheck is the full that the store must still have when segments follow it; empty if it is not asked this time: a request
// now and then is enough to notice that somebody has emptied the store.
func (s *Shipper) fullToCheck() (name string) {
	if time.Since(s.checked) < s.pace.watch {
		return ""
	}
	s.checked = time.Now()
	return s.newest
}

// vet tells whether it is time to see that the store is still this cluster's. Whoever stores all the time looks for nothing else.
func (s *Shipper) vet() bool {
	due := time.Since(s.vetted) >= s.pace.knows
	if due {
		s.vetted = time.Now()
	}
	return due
}

// isGone asks the store whether it has lost a full, and if vet is set, whether the generation is there, and the newest. Where it
// does not answer, the next upload will tell.
func isGone(ctx context.Context, from *archive.Archive, generation archive.Generation, full string, vet bool) bool {
	var err error
	if full != "" {
		_, err = from.Full(ctx, generation.Number, full)
	}
	if err == nil && vet {
		err = (&found{archive: from, generation: generation}).ours(ctx)
	}
	return errors.Is(err, store.ErrNotFound) || errors.Is(err, archive.ErrForeign) || errors.Is(err, errSuperseded)
}

// fullIsGone has it looked at what the store has, and whose it is.
func (s *Shipper) fullIsGone() { s.busy, s.stale, s.vetted = false, true, time.Time{} }

// beginAnew is for a store that had a chain and has none. Its birth certificate went with it: it must be written again, or a member
// that loses its volume would take the store for one that was never used.
func (s *Shipper) beginAnew() {
	s.options.Log.Warn().Msg("backups: the store was emptied, so they begin anew")
	s.beyond = s.stored // what was stored before that was noticed is left alone
	s.generation, s.stored, s.last, s.newest, s.stale = archive.Generation{}, segment.Position{}, segment.Position{}, "", true
	s.reserving.revision = 0 // it went as well
}
