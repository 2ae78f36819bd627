package shipper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/capture"
	"etcd-wrapper/bootstrap/backup/segment"
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
	doing    string
	begun    time.Time // by the monotonic clock
	since    time.Time // for people
	held     time.Duration
	copied   *copied // nil until the database is in the spool
	storing  bool
	tried    time.Time // when it was last begun to copy or to store it, by the monotonic clock
	database int64     // bytes
}

// begins tells whether the chain begins with the full: then nothing is stored behind it before it is.
func (f *full) begins() bool { return f != nil && f.opens && !f.Time.IsZero() }

// askForFull remembers that a full is due.
func (s *Shipper) askForFull(asked due) {
	switch {
	case asked.done == nil:
	case s.foreign:
		asked.done <- fullResult{err: errors.New(s.troubles[aboutLook].text)}
		return
	case s.generation.Number != 0 && !s.writes():
		asked.done <- fullResult{err: ErrNotWriter}
		return
	}
	s.fullsDue = append(s.fullsDue, asked)
}

// startChain has a full made, since there is no chain to go on with.
func (s *Shipper) startChain(reason string) {
	if s.options.SegmentsOnly {
		s.left = &brought{ErrNoChain}
		return
	}
	if !s.writes() || s.chainless {
		return
	}
	s.tail, s.markers, s.gap, s.chainless = nil, nil, noGap, true
	s.statistic.Broken = &Broken{Since: s.options.Now(), Reason: reason}
	s.fullsDue = append([]due{{reason: reason}}, s.fullsDue...)
	for i := range s.flushes {
		s.flushes[i].target = segment.Position{} // was one of the chain that ends
	}
}

// gapped notes that rows behind the tail may be missing. Unless another member extends the chain meanwhile, it ends.
func (s *Shipper) gapped(found *capture.GapError) {
	if s.gap.at.IsZero() {
		s.gap, s.stale = gap{at: time.Now(), err: found}, true
		return
	}
	patience := s.pace.gap
	if s.tookOver {
		patience *= guest // the leader may be about to store its own full
	}
	if time.Since(s.gap.at) < patience || len(s.waiting) > 0 || time.Now().Before(s.rested) {
		return
	}
	if !s.storedAt.After(s.gap.at) || time.Since(s.storedAt) > 2*s.pace.gap {
		s.stale = true
		return
	}
	reason := "gap: " + found.Error()
	s.options.Log.Warn().Msgf("backups: %s, so what comes behind it cannot be added to the backups before; a full is made", found)
	s.startChain(reason)
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
		end, err := s.options.Gate.Begin(ctx, "a full backup copies the database")
		return func() { s.passed(ctx, end, err) }
	})
}

// scheduled asks for the full that the schedule wants.
func (s *Shipper) scheduled() {
	now := s.options.Now()
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
	return s.tail != nil && s.gap.at.IsZero()
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
	if last := s.statistic.LastFull; last != nil && !now.After(last.Time) {
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
	f.Reason = f.asked[0].reason
	f.database = snapshot.Size
	if s.chainless {
		f.opens, f.behind = true, s.stored
		s.tail = &segment.Start{
			Cluster: f.Cluster, Generation: f.Generation, Position: segment.After(f.Revision),
			Before: segment.Seed(f.Cluster, f.Generation, f.Revision),
		}
		s.chainless, s.markers, s.buckets = false, nil, snapshot.Digests()
	}
	f.Chain, f.Last, f.Next = s.tail.Before, s.tail.Last, s.tail.Position
}
