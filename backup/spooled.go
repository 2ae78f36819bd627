package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/writer/spool"
)

const (
	// segmentPatience is how long the store may take for one segment, which is small.
	segmentPatience = 2 * time.Minute
	// overtakings is how often another member may store a segment first, before that is an error.
	overtakings = 10
)

// errApart says that what waits cannot be added to what the store has.
var errApart = errors.New("it does not go on from there")

// spooled is what an earlier run has left in the spool.
type spooled struct {
	*Backups
	waiting *spool.Spool
	torn    bool          // some of it cannot be read
	same    bool          // the store has gone the same way
	head    *archive.Head // of the store; nil if it must be looked at
	mine    int           // the generation that this process may add to; 0 if it was not asked yet
}

// FlushSpool brings what an earlier run has left in the spool into the store, and empties the spool when the store has it. What data
// have as well that are cluster's and reach a revision stays where it is; a cluster of 0 says that there are no data of use. It is for the
// time before Begin, and may be repeated: it goes on where it ended. What lies behind a part that cannot be read, or belongs to
// a generation that a restore has ended, is set aside with a warning. Of the errors, those that a store gets over are
// store.ErrUnavailable and the like, and context.DeadlineExceeded after two minutes for one segment.
func (b *Backups) FlushSpool(ctx context.Context, cluster uint64, reach int64) error {
	inData := func(last segment.Manifest) bool {
		return cluster != 0 && (last.Cluster != strconv.FormatUint(cluster, 16) || last.End <= reach)
	}
	if last, known := spool.Last(b.options.SpoolDir, b.options.Keys); known && inData(last) {
		return nil // so that a start need not read all of it
	}
	waiting, torn, err := spool.Open(b.options.SpoolDir, b.options.SpoolLimit, b.options.Keys)
	if err != nil {
		return err
	}
	for _, reason := range torn {
		b.options.Log.Warn().Err(reason).Msg("backups: what waited for the store cannot be read, and is set aside")
	}
	s := &spooled{Backups: b, waiting: waiting, torn: len(torn) > 0}
	entries := waiting.Entries()
	if len(entries) == 0 {
		return nil
	}
	last, err := waiting.Manifest(entries[len(entries)-1].Position, b.options.Keys)
	if err != nil || inData(last) {
		return err
	}
	for i, entry := range entries {
		err := s.bring(ctx, entry)
		if errors.Is(err, errApart) {
			return s.leave(ctx, entries[i], err)
		}
		if err != nil {
			return err
		}
	}
	if !s.same {
		return nil // the store goes further, but that it has these rows is not known
	}
	return waiting.Clear()
}

// bring stores a segment, or what the store lacks of it.
func (s *spooled) bring(ctx context.Context, entry spool.Entry) error {
	manifest, err := s.waiting.Manifest(entry.Position, s.options.Keys)
	for range overtakings {
		if err == nil {
			err = s.store(ctx, manifest)
		}
		if !errors.Is(err, store.ErrExists) {
			return err
		}
		s.head, err = nil, nil // another member was first, whose segment may have all of it, or a part
	}
	return fmt.Errorf("segment %s: %w", entry.Position, store.ErrExists)
}

func (s *spooled) store(ctx context.Context, manifest segment.Manifest) error {
	ctx, cancel := context.WithTimeout(ctx, segmentPatience)
	defer cancel()
	if err := s.look(ctx, manifest.Generation); err != nil {
		return err
	}
	switch manifest.Next().Compare(s.head.Position) {
	case -1:
		return nil // the store has it
	case 0:
		if manifest.After != s.head.Before {
			return s.apart(manifest)
		}
		s.same = true
		return nil
	}
	content, end, err := s.beyond(manifest)
	if err != nil {
		return err
	}
	defer content.Close() // nothing was written
	if manifest.Before == s.head.Before && s.head.Outdates(manifest) {
		s.same = true
		return nil // the store knows better
	}
	if err := s.mayAdd(ctx, manifest.Generation); err != nil {
		return err
	}
	if err := s.archive.PutStored(ctx, manifest.Generation, s.head.Position, content); err != nil {
		return err
	}
	s.head.Start, s.head.Segment, s.same = end.Start(), &end, true
	return nil
}

// look finds out where the backups end, unless that is known.
func (s *spooled) look(ctx context.Context, generation int) error {
	if s.head != nil && s.head.Generation == generation {
		return nil
	}
	found, err := s.archive.Head(ctx, generation)
	if err := errors.Join(err, found.Damaged); err != nil {
		return err
	}
	s.head = &found
	return nil
}

// mayAdd asks whether this process may add to a generation. Where that cannot be read, others say so, and what waits is kept all the same.
func (s *spooled) mayAdd(ctx context.Context, generation int) error {
	if s.mine == generation {
		return nil
	}
	all, _ := s.archive.Generations(ctx) // see above
	for _, there := range all {
		if there.Number != generation {
			continue
		}
		if err := s.archive.MayAdd(there); err != nil {
			return err
		}
		s.mine = generation
	}
	return nil
}

// beyond is what the store lacks of a segment, as it is stored, and what the next one goes on from.
func (s *spooled) beyond(manifest segment.Manifest) (content io.ReadCloser, end segment.Manifest, err error) {
	switch from := s.head; {
	case manifest.Cluster != from.Cluster || manifest.Position.Revision > from.Position.Revision:
		return nil, end, s.apart(manifest)
	case manifest.Position != from.Position:
		rest, err := s.rest(manifest)
		if err != nil {
			return nil, end, err
		}
		return io.NopCloser(rest.Reader()), rest.Manifest, nil
	case manifest.Before != from.Before:
		return nil, end, s.apart(manifest)
	}
	file, err := s.waiting.Open(manifest.Position)
	return file, manifest, err
}

func (s *spooled) apart(manifest segment.Manifest) error {
	return fmt.Errorf("what waits for %s from revision %d of cluster %s on, while its backups end at revision %d: %w",
		s.archive, manifest.Position.Revision, manifest.Cluster, max(0, s.head.Revision()), errApart)
}

// leave sets aside what cannot be added to what the store has and never will be, from one segment on, and what came before it. It
// leaves everything where it is if that waits for another store. Otherwise people have to say what is to become of it.
func (s *spooled) leave(ctx context.Context, from spool.Entry, why error) error {
	over, known, err := s.outlived(ctx, from)
	switch {
	case err != nil:
		return err
	case !known:
		s.options.Log.Warn().Err(why).Msg("backups: what waits on the volume is not for this store, and stays there")
		return nil
	case !over && !s.torn:
		return why
	}
	where, err := s.waiting.SetAside(func(spool.Entry) bool { return true })
	if err == nil {
		s.options.Log.Warn().Err(why).Str("aside", where).Int64("from_revision", from.Position.Revision).
			Msg("backups: what waited for the store is set aside: it cannot be brought there any more")
	}
	return err
}

// outlived tells whether the store knows the generation that a segment is of, and whether a restore has ended that.
func (s *spooled) outlived(ctx context.Context, entry spool.Entry) (over, known bool, err error) {
	manifest, err := s.waiting.Manifest(entry.Position, s.options.Keys)
	if err != nil {
		return false, false, err
	}
	generations, err := s.archive.Generations(ctx)
	at := slices.IndexFunc(generations, func(g archive.Generation) bool {
		return g.Number == manifest.Generation && g.Cluster == manifest.Cluster
	})
	return at < len(generations)-1, at >= 0, err
}
