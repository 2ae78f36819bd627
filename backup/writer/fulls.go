package writer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/writer/capture"
)

// guest is how much longer than the leader a member that took over waits before it begins a new chain.
const guest = 60

// due is a full that was asked for.
type due struct {
	reason string
	done   chan fullResult // nil if nobody waits
}

type fullResult struct {
	FullDone
	err error
}

// gap is that compaction has passed the tail.
type gap struct {
	at  time.Time // zero if there is none
	err error
}

var noGap gap

// full is one in the making.
type full struct {
	archive.Full
	asked    []due
	opens    bool             // a new chain
	behind   segment.Position // where the one before ended then; zero if there was none
	adrift   bool             // no segment begins any longer where this one would be gone on from
	doing    string
	begun    time.Time // by the monotonic clock
	since    time.Time // for people
	held     time.Duration
	copied   *copied // nil until the database is in the spool
	storing  bool
	tried    time.Time // when it was last begun to copy or to store it, by the monotonic clock
	told     time.Time // when the log last said how far the upload is
	database int64     // bytes
}

// begins tells whether the chain begins with the full: then nothing is stored behind it before it is.
func (f *full) begins() bool { return f != nil && f.opens && !f.Time.IsZero() }

// askForFull remembers that a full is due.
func (s *Shipper) askForFull(asked due) {
	s.fullsDue = append(s.fullsDue, asked)
	s.leaveToOthers()
}

// leaveToOthers answers those who wait for a full that this member does not make any longer, and forgets the trouble it had with what
// is another's now.
func (s *Shipper) leaveToOthers() {
	var why error
	switch {
	case s.foreign:
		why = errors.New(s.troubles[aboutLook].text)
	case s.generation.Number != 0 && !s.writes():
		why = ErrNotWriter
	default:
		return
	}
	s.fullsDue = slices.DeleteFunc(s.fullsDue, func(d due) bool { return d.refused(why) })
	if f := s.full; f != nil && !f.storing {
		for i := range f.asked {
			f.asked[i].refused(why)
			f.asked[i].done = nil
		}
	}
	if s.full == nil && len(s.waiting) == 0 {
		s.troubles[aboutSegment], s.troubles[aboutFull], s.troubles[aboutReservation] = nil, nil, nil
	}
}

// refused tells whoever waits why there will be no full; false if nobody does.
func (d due) refused(why error) bool {
	if d.done == nil {
		return false
	}
	d.done <- fullResult{err: why}
	return true
}

// begin starts a full if one is due.
func (s *Shipper) begin(ctx context.Context) {
	s.scheduled()
	if s.full != nil {
		s.store(ctx)
		return
	}
	if len(s.fullsDue) == 0 || !s.readyForFull() {
		return
	}
	s.full = &full{asked: s.fullsDue, doing: "waits until nothing else holds the database", begun: time.Now(), since: s.options.Now()}
	s.fullsDue = nil
	s.job(func() func() {
		end, err := s.options.Gate.Begin(ctx, "a full backup")
		return func() { s.passed(ctx, end, err) }
	})
}

// scheduled asks for the full that the schedule wants.
func (s *Shipper) scheduled() {
	now := s.options.Now().Round(0) // by its monotonic reading it would never be before an earlier one
	if now.Before(s.wall) && !s.nextFull.IsZero() {
		s.plan(now) // the clock was set back
	}
	s.wall = now
	if s.nextFull.IsZero() || !s.writes() || now.Before(s.nextFull) {
		return
	}
	s.plan(now)
	s.askForFull(due{reason: "schedule"})
}

// plan says when the next full is due, after one at a time. That may have been written by a clock that was ahead.
func (s *Shipper) plan(last time.Time) {
	now := s.options.Now()
	if last.After(now) {
		last = now
	}
	s.nextFull = s.options.Schedule(s.generation.Cluster, last)
}

// readyForFull waits for a store that answers well, and for the chain to be where it can be gone on from.
func (s *Shipper) readyForFull() bool {
	if !s.writes() || !s.knows() || s.away() || time.Now().Before(s.fullAfter) {
		return false
	}
	if s.chainless {
		return len(s.waiting) == 0
	}
	return s.tail != nil && s.gap.at.IsZero() && !s.outdated(s.options.Etcd.AppliedIndex())
}

// passed opens the read transaction, which takes as long as a commit of etcd's, and captures up to its revision: there a
// segment ends, so the full is part of the chain. Then the database is copied.
func (s *Shipper) passed(ctx context.Context, end func(), err error) {
	if err != nil {
		s.dropFull(err)
		return
	}
	snapshot, err := s.open()
	if err != nil {
		end()
		s.dropFull(err)
		return
	}
	f := s.full
	f.tried = time.Now()
	f.doing = "copies the database"
	if f.opens {
		s.options.Log.Info().Str("reason", f.Reason).Int64("database", f.database).Msg("backups: there is no chain to go on with, so the whole database is copied")
	}
	s.job(func() func() {
		var made *copied
		err := s.whileThereIsRoom(ctx, func(ctx context.Context) (err error) {
			made, err = s.copy(ctx, snapshot)
			return err
		})
		end()
		return func() { s.copied(made, err) }
	})
}

// open returns the database at the revision that the chain ends with.
func (s *Shipper) open() (*capture.Snapshot, error) {
	if !s.writes() || s.tail == nil && !s.chainless {
		return nil, ErrNotWriter // while the gate was waited for
	}
	snapshot, err := s.reader.Snapshot()
	if err != nil {
		return nil, err
	}
	if !s.chainless {
		err = s.catchUp(snapshot.Revision)
	}
	if err != nil {
		return nil, errors.Join(err, snapshot.Close())
	}
	s.name(snapshot)
	return snapshot, nil
}

// catchUp captures up to the revision of an open snapshot.
func (s *Shipper) catchUp(revision int64) error {
	for s.tail.Position.Revision <= revision {
		if s.held != nil {
			return errors.New("a segment still waits in memory for room")
		}
		if _, err := s.captureUpTo(revision, false); err != nil {
			return err
		}
	}
	if s.tail.Position.Revision != revision+1 {
		return fmt.Errorf("the chain goes up to revision %d, and the database to %d", s.tail.Position.Revision-1, revision)
	}
	return nil
}

// second is the time that names a full: two of one revision must not share it.
func (s *Shipper) second() time.Time {
	now := s.time().Truncate(time.Second)
	if last := s.statistic.LastFull; last != nil && last.Name == s.newest && !now.After(last.Time) {
		return last.Time.Add(time.Second)
	}
	return now
}

// name says what the full is of, and begins a chain with it if there is none.
func (s *Shipper) name(snapshot *capture.Snapshot) {
	f := s.full
	f.Cluster, f.Generation = s.generation.Cluster, s.generation.Number
	f.Revision, f.Compacted, f.Time = snapshot.Revision, snapshot.Compacted, s.second()
	f.Term, f.Member, f.Buckets = s.options.Etcd.Term(), s.options.Etcd.MemberID(), capture.SmallBuckets()
	f.Applied = s.options.Etcd.AppliedIndex()
	f.Reason = f.asked[0].reason
	f.database = snapshot.Size
	if s.chainless {
		s.discard() // what is kept of the chain before
		f.opens, f.behind = true, s.stored
		s.tail = &segment.Start{
			Cluster: f.Cluster, Generation: f.Generation, Position: segment.After(f.Revision),
			Before: segment.Seed(f.Cluster, f.Generation, f.Revision), Applied: f.Applied,
		}
		s.tail.Last, _, _ = s.digest(f.Revision) // for those who look later whether these are their rows
		if s.beyond.Compare(s.tail.Position) > 0 {
			s.tail.Position = s.beyond
		}
		s.chainless, s.markers, s.buckets = false, nil, snapshot.Digests()
	}
	f.Chain, f.Last, f.Next = s.tail.Before, s.tail.Last, s.tail.Position
}
