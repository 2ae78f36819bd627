package writer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store"
)

// uploadPatience is how long one segment may take to be stored: it is small.
const uploadPatience = 2 * time.Minute

// ship stores the oldest segment that waits.
func (s *Shipper) ship(ctx context.Context) {
	if len(s.waiting) == 0 || !s.may() || !s.knows() || s.full.begins() {
		return
	}
	next, to, generation := s.waiting[0], s.archive, s.generation
	s.ask()
	open, newest, vet := s.opener(next), s.fullToCheck(), s.vet()
	s.job(func() func() {
		ctx, cancel := context.WithTimeout(ctx, uploadPatience)
		defer cancel()
		if isGone(ctx, to, generation, newest, vet) {
			return s.fullIsGone
		}
		size, err := put(ctx, to, generation.Number, next.position, open)
		if !errors.Is(err, store.ErrExists) {
			return func() { s.shipped(next, size, err) }
		}
		winner, err := to.Manifest(ctx, generation.Number, next.position)
		return func() { s.collided(next, winner, err) }
	})
}

// knows tells whether what this member knows of the end of the chain in the store is fresh enough to go on from there.
func (s *Shipper) knows() bool {
	return s.generation.Number != 0 && !s.foreign && !s.stale && time.Since(s.storedAt) < s.pace.knows
}

// opener returns what reads a segment that waits.
func (s *Shipper) opener(next waiting) func() (io.ReadCloser, int64, error) {
	if held := s.held; held != nil && held.Position == next.position {
		return func() (io.ReadCloser, int64, error) { return io.NopCloser(held.Reader()), held.Size(), nil }
	}
	return func() (io.ReadCloser, int64, error) {
		if err := s.spool.Examine(next.position, s.options.Keys); err != nil {
			return nil, 0, fmt.Errorf("%w: %w", errGone, err)
		}
		file, err := s.spool.Open(next.position)
		if err != nil {
			return nil, 0, err
		}
		information, err := file.Stat()
		if err != nil {
			return nil, 0, errors.Join(err, file.Close())
		}
		return file, information.Size(), nil
	}
}

// errGone says that what waited is not in the spool any more, or not as it was.
var errGone = errors.New("a segment is gone from the spool, or damaged")

func put(ctx context.Context, to *archive.Archive, generation int, position segment.Position, open func() (io.ReadCloser, int64, error)) (int64, error) {
	content, size, err := open()
	if err != nil {
		return 0, err
	}
	defer content.Close()
	return size, to.PutStored(ctx, generation, position, content)
}

// shipped notes how an upload went.
func (s *Shipper) shipped(which waiting, size int64, err error) {
	s.busy = false
	if errors.Is(err, errGone) {
		s.forget(err)
		return
	}
	if err != nil {
		s.failed(aboutSegment, "cannot store segment "+which.position.String(), err)
		return
	}
	s.succeeded(aboutSegment)
	s.statistic.Segments++
	s.statistic.Uploaded += size
	s.advance(which)
}

// forget takes everything that is not stored from the database again.
func (s *Shipper) forget(err error) {
	s.options.Log.Warn().Err(err).Msg("backups: what waited for the store is gone, and is taken from the database again")
	s.tail, s.stale = nil, true
	s.discard()
}

// discard drops all that waits.
func (s *Shipper) discard() {
	s.waiting, s.held = nil, nil
	if err := s.spool.Clear(); err != nil {
		s.options.Log.Warn().Err(err).Msg("backups: the spool keeps more than it should")
	}
}

// advance drops a segment that is in the store. The spool keeps the last one: should the store be away at the next start, it
// says where to go on.
func (s *Shipper) advance(which waiting) {
	s.stored, s.storedAt, s.last = which.next, time.Now(), which.position
	if len(s.waiting) > 0 && s.waiting[0].position == which.position {
		s.waiting = s.waiting[1:]
	}
	if s.held != nil && s.held.Position == which.position {
		s.held = nil
	}
	if err := s.spool.Remove(which.position); err != nil {
		s.options.Log.Warn().Err(err).Msg("backups: the spool keeps more than it should")
	}
}

// collided goes on behind another member's segment of the same position. If it ends where ours does with the same rows, ours
// is as good as stored, but for what it has beside them; unless the other member knew of newer leases and users.
func (s *Shipper) collided(which waiting, winner segment.Manifest, err error) {
	s.busy = false
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		s.failed(aboutSegment, "cannot read who stored segment "+which.position.String(), err)
		return
	}
	s.succeeded(aboutSegment)
	own, known := s.manifest(which)
	if err == nil && known && winner.Cluster == own.Cluster && winner.Next() == which.next && winner.After == own.After && winner.Term <= own.Term && winner.Applied <= own.Applied {
		s.advance(which)
		s.secondTo(own)
		return
	}
	s.statistic.Yielded++
	s.options.Log.Debug().Str("segment", which.position.String()).Str("member", winner.Member).
		Msg("backups: another member was first; this one goes on behind its segment")
	s.stale = true
}

// manifest is that of a segment that waits.
func (s *Shipper) manifest(of waiting) (segment.Manifest, bool) {
	if s.held != nil && s.held.Position == of.position {
		return s.held.Manifest, true
	}
	own, err := s.spool.Manifest(of.position, s.options.Keys)
	return own, err == nil
}

// secondTo makes good what a segment would have brought beside its rows: whoever was first with these may have looked earlier.
func (s *Shipper) secondTo(own segment.Manifest) {
	if len(own.Buckets) == 0 {
		return
	}
	s.retake()
	for i := range s.flushes {
		s.flushes[i].target, s.flushes[i].at, s.hurry = segment.Position{}, time.Now(), true
	}
}
