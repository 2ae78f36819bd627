package shipper

import (
	"context"
	"errors"
	"time"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/segment"
	"etcd-wrapper/bootstrap/backup/store"
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

// isGone asks the store whether it has lost a full. Where it does not answer, the next upload will tell.
func isGone(ctx context.Context, from *archive.Archive, generation int, full string) bool {
	if full == "" {
		return false
	}
	_, err := from.Full(ctx, generation, full)
	return errors.Is(err, store.ErrNotFound)
}

// fullIsGone has it looked at what the store has, and whose it is.
func (s *Shipper) fullIsGone() { s.busy, s.stale, s.vetted = false, true, time.Time{} }

// beginAnew is for a store that had a chain and has none. Its birth certificate went with it: it must be written again, or a member
// that loses its volume would take the store for one that was never used.
func (s *Shipper) beginAnew() {
	s.options.Log.Warn().Msg("backups: the store was emptied, so they begin anew")
	s.generation, s.stored, s.last, s.newest, s.stale = archive.Generation{}, segment.Position{}, segment.Position{}, "", true
	s.reserving.revision = 0 // it went as well
}
