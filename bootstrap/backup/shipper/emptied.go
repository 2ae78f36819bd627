package shipper

import (
	"context"
	"errors"
	"time"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/segment"
	"etcd-wrapper/bootstrap/backup/store"
)

// lastToCheck is the segment that the store must still have when another one follows it; zero if it is not asked this time: a
// request now and then is enough to notice that somebody has emptied the store.
func (s *Shipper) lastToCheck() segment.Position {
	if time.Since(s.checked) < s.pace.watch {
		return segment.Position{}
	}
	s.checked = time.Now()
	return s.last
}

// isGone asks the store whether it has lost a segment. Where it does not answer, the next upload will tell.
func isGone(ctx context.Context, from *archive.Archive, generation int, last segment.Position) bool {
	if last.IsZero() {
		return false
	}
	_, err := from.Manifest(ctx, generation, last)
	return errors.Is(err, store.ErrNotFound)
}

// lastIsGone has it looked at what the store has.
func (s *Shipper) lastIsGone() { s.busy, s.stale = false, true }

// beginAnew is for a store that had a chain and has none. Its birth certificate went with it: it must be written again, or a member
// that loses its volume would take the store for one that was never used.
func (s *Shipper) beginAnew() {
	s.options.Log.Warn().Msg("backups: the store was emptied, so they begin anew")
	s.generation, s.stored, s.last, s.stale = archive.Generation{}, segment.Position{}, segment.Position{}, true
}
