package writer

import (
	"context"
	"errors"
	"fmt"
	"os"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
)

// errOvertaken says that a full must not begin a chain any longer.
var errOvertaken = errors.New("another member goes on with the backups")

// mayCount returns what looks, in a job, whether a full may count. One that begins a chain must not stand in the way of another one,
// which readers would take for the older of the two: while it was made, another member may have begun one, or gone on with the one
// before.
func (s *Shipper) mayCount(f *full) func(context.Context, archive.Full) error {
	if !f.opens {
		return func(context.Context, archive.Full) error { return nil }
	}
	in, behind := s.archive, f.behind
	return func(ctx context.Context, full archive.Full) error {
		head, err := in.Head(ctx, full.Generation)
		switch {
		case errors.Is(err, seal.ErrDamaged), err == nil && head.Damaged != nil: // nobody goes on from there
			return nil
		case err != nil || head.Empty() || head.Full.Name() == full.Name(): // or it was stored, and the answer lost
			return err
		case head.Position.Compare(behind) > 0:
			return fmt.Errorf("%w: they have revision %d by now", errOvertaken, head.Revision())
		default:
			return s.mayEnd(ctx)
		}
	}
}

// mayEnd asks the owner whether this member may still end a chain, which is for the one that writes.
func (s *Shipper) mayEnd(ctx context.Context) error {
	writes := make(chan bool, 1)
	if err := s.tell(ctx, func() { s.observe(); writes <- s.writes() }); err != nil {
		return err
	}
	if !<-writes {
		return errOvertaken
	}
	return nil
}

// leaveChain gives up a full that was to begin a chain, and all that was to come behind it.
func (s *Shipper) leaveChain(why error) {
	f := s.full
	s.options.Log.Warn().Err(why).Int64("revision", f.Revision).Msg("backups: a full is given up that was to begin a chain")
	s.full, s.tail, s.stale, s.statistic.Broken = nil, nil, true, nil
	s.discard()
	_ = os.Remove(f.copied.path)
	for i := range s.flushes {
		s.flushes[i].target = segment.Position{}
	}
	for _, asked := range f.asked {
		if asked.done != nil {
			s.askForFull(asked)
		}
	}
}
