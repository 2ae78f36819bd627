package writer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/writer/spool"
)

// silentUpload is how long nothing is told of an upload.
const silentUpload = 30 * time.Second

// copied goes on once the database is in the spool.
func (s *Shipper) copied(copied *copied, err error) {
	if err != nil {
		s.dropFull(err)
		return
	}
	f := s.full
	f.copied, f.held, f.Hash = copied, copied.held, copied.hash
	s.options.Log.Debug().Int64("revision", f.Revision).Int64("bytes", f.database).Dur("held_ms", f.held).Msg("backups: the database was copied")
}

// store uploads the copy, again and again until it succeeds. The transaction is closed since long. Within a chain the segments
// before it come first: the head that others go on from is the newest full, and nobody would bring what is missing before it.
func (s *Shipper) store(ctx context.Context) {
	f := s.full
	if f.copied == nil {
		return
	}
	if f.storing {
		s.tellProgress(f)
		return
	}
	if !f.opens && (s.chainless || f.adrift || !s.writes()) { // what it waits for never comes
		s.full = nil
		if s.writes() {
			s.fullsDue = append(s.fullsDue, f.asked...)
		}
		_ = os.Remove(f.copied.path)
		return
	}
	if short := s.inTheWay(); short != nil {
		s.dropFull(short)
		return
	}
	if time.Now().Before(s.fullAfter) || !f.opens && !s.knows() || s.foreign {
		return
	}
	if !f.opens && s.stored.Compare(f.Next) < 0 {
		f.doing = "waits until what is before it is stored"
		return
	}
	f.storing, f.doing, f.tried = true, "stores the copy", time.Now()
	f.told = f.tried
	if f.opens {
		s.goAlong() // nothing else would tell if the process were killed once the store has it
	}
	to, making, copied, may := s.archive, f.Full, f.copied, s.mayCount(f)
	s.job(func() func() {
		var stored archive.Full
		err := s.whileThereIsRoom(ctx, func(ctx context.Context) (err error) {
			stored, err = copied.put(ctx, to, making, may)
			return err
		})
		return func() { s.storedFull(stored, err) }
	})
}

// tellProgress has the log say how far an upload is that takes long.
func (s *Shipper) tellProgress(f *full) {
	if time.Since(f.told) < silentUpload {
		return
	}
	f.told = time.Now()
	is := f.running()
	s.options.Log.Info().Int64("revision", f.Revision).Int64("sent", is.Sent).Int64("of", is.Of).
		Stringer("left", is.Left.Round(time.Second)).Msg("backups: a full is being stored")
}

func (s *Shipper) storedFull(stored archive.Full, err error) {
	f := s.full
	f.storing = false
	if errors.Is(err, spool.ErrFull) {
		s.dropFull(err)
		return
	}
	if errors.Is(err, errOvertaken) {
		s.leaveChain(err)
		return
	}
	if err != nil {
		f.Time = f.Time.Add(time.Second) // what may be there of it stays there, under its own name
		wait := s.rest(f, s.failed(aboutFull, "cannot store the full of revision "+fmt.Sprint(f.Revision), err))
		s.fullAfter = time.Now().Add(wait)
		return
	}
	s.succeeded(aboutFull)
	f.Full = stored
	s.finished(f.done())
	s.options.Log.Info().Int64("revision", f.Revision).Str("reason", f.Reason).Int64("bytes", stored.Data.Bytes).Int64("database", f.database).
		Dur("held_ms", f.held).Dur("took_ms", time.Since(f.begun)).Msg("backups: a full is in the store")
}

// done is what is to be told of it.
func (f *full) done() FullDone {
	return FullDone{
		Name: f.Name(), Revision: f.Revision, Time: f.Time, Bytes: f.Data.Bytes, Database: f.database, Held: f.held,
		Took: time.Since(f.begun), Reason: f.Reason,
	}
}

// finished notes a full that is in the store.
func (s *Shipper) finished(done FullDone) {
	f := s.full
	s.full = nil
	s.statistic.LastFull, s.newest = &done, done.Name
	if !s.chainless {
		s.statistic.Broken = nil
	}
	s.statistic.Fulls++
	s.statistic.Uploaded += done.Bytes
	s.plan(s.options.Now())
	s.rested = time.Now().Add(max(s.pace.rest, restFactor*done.Took))
	if f.opens {
		s.stored, s.storedAt, s.last = f.Next, time.Now(), segment.Position{}
		s.stale = true // should another member have begun a chain as well, the newest one counts
	}
	s.publish()
	s.tellAsked(f, fullResult{FullDone: done})
	_ = os.Remove(f.copied.path)
}

// dropFull gives a full up that could not be copied, or whose copy cannot stay until it is stored.
func (s *Shipper) dropFull(err error) {
	f, doing := s.full, "cannot copy the database"
	if f.copied != nil {
		doing = "cannot keep a copy of the database until it is stored"
	}
	s.full = nil
	s.fullAfter = time.Now().Add(s.rest(f, s.failed(aboutFull, doing, err)))
	s.tellAsked(f, fullResult{err: fmt.Errorf("%s: %w", doing, err)})
	if f.copied != nil {
		_ = os.Remove(f.copied.path)
	}
	if f.opens { // what was to come behind it leads nowhere
		s.discard()
	}
	if f.opens || s.chainless {
		s.tail, s.chainless = nil, false
		s.startChain(f.asked[0].reason)
	}
}

func (s *Shipper) tellAsked(f *full, result fullResult) {
	for _, asked := range f.asked {
		if asked.done != nil {
			asked.done <- result
		}
	}
}
