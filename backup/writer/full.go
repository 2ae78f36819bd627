package writer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/writer/capture"
	"etcd-wrapper/internal/steady"
)

// noTimeout allows any time for copies and uploads of a database, which may be large.
const noTimeout = time.Duration(math.MaxInt64)

// takeoverFactor multiplies the wait before a member that took over starts a new chain.
const takeoverFactor = 60

// full is a full snapshot in progress.
type full struct {
	archive.Full
	requests    []fullRequest
	opens       bool            // it starts a new chain
	previousEnd format.Position // end of the chain before; zero if there was none
	orphaned    bool            // no segment will start at its Next, so it can no longer be part of the chain
	doing       string
	started     time.Time     // by the monotonic clock
	since       time.Time     // by the wall clock
	copy        *databaseCopy // nil until the database is in the spool
	storing     bool
	tried       time.Time // start of the last attempt to copy or upload it, by the monotonic clock
	loggedAt    time.Time // when progress was last logged
	database    int64     // bytes
}

// requestFull queues a request for a full snapshot.
func (w *Writer) requestFull(request fullRequest) {
	w.fulls.due = append(w.fulls.due, request)
	w.dismissFulls()
}

// dismissFulls rejects the requests for full snapshots that this member no longer makes, and clears problems that are
// another member's now.
func (w *Writer) dismissFulls() {
	why := w.notWriterError()
	if why == nil {
		return
	}
	w.fulls.due = slices.DeleteFunc(w.fulls.due, func(d fullRequest) bool { return d.answer(fullResult{err: why}) })
	if f := w.fulls.making; f != nil && !f.storing {
		for i := range f.requests {
			f.requests[i].answer(fullResult{err: why})
			f.requests[i].done = nil
		}
	}
	if w.fulls.making == nil && len(w.spool.Entries()) == 0 {
		w.problems[opSegment], w.problems[opFull], w.problems[opReservation] = nil, nil, nil
	}
}

// answer sends the result and reports whether a caller was waiting.
func (d fullRequest) answer(result fullResult) bool {
	if d.done != nil {
		d.done <- result
	}
	return d.done != nil
}

// makeFull starts a full snapshot if one is due.
func (w *Writer) makeFull(ctx context.Context) {
	w.requestScheduled()
	if w.fulls.making != nil || len(w.fulls.due) == 0 || !w.readyForFull() {
		return
	}
	f := &full{requests: w.fulls.due, doing: "waits until nothing else holds the database", started: time.Now(), since: w.options.Now()}
	w.fulls.making, w.fulls.due = f, nil
	w.job(ctx, noTimeout, func(patient context.Context) func() {
		end, err := w.options.Gate.Begin(patient, "a full backup")
		return func() { w.startCopy(ctx, f, end, err) }
	})
}

// requestScheduled requests the full snapshot that is due by schedule.
func (w *Writer) requestScheduled() {
	now := w.options.Now().Round(0) // the monotonic reading would hide that the clock was set back
	if now.Before(w.fulls.wall) && !w.fulls.next.IsZero() {
		w.scheduleNext(now) // the clock was set back
	}
	w.fulls.wall = now
	if w.fulls.next.IsZero() || !w.isWriter() || now.Before(w.fulls.next) {
		return
	}
	w.scheduleNext(now)
	if w.isFullCurrent(now) {
		return
	}
	w.requestFull(fullRequest{reason: "schedule"})
}

// maxUnchangedAge is the age up to which the full snapshot of an unchanged database is not repeated: a second copy is
// made once a day, before the alert on missing snapshots fires.
const maxUnchangedAge = 23 * time.Hour

// isFullCurrent reports whether the newest full snapshot contains everything and is recent.
func (w *Writer) isFullCurrent(now time.Time) bool {
	newest := w.statistic.LastFull
	return newest != nil && now.Sub(newest.Time) < maxUnchangedAge && !w.fulls.lastNext.IsZero() && w.chain.last.Compare(w.fulls.lastNext) < 0 && w.isUnchanged()
}

// scheduleNext sets when the next full snapshot is due after the given time, which may come from a clock that was
// ahead.
func (w *Writer) scheduleNext(last time.Time) {
	now := w.options.Now()
	if last.After(now) {
		last = now
	}
	w.fulls.next = w.options.Schedule(w.remote.generation.Cluster, last)
}

// readyForFull reports whether the store answers and the chain is in a state to add a full snapshot.
func (w *Writer) readyForFull() bool {
	if !w.isEndKnown() || w.isUnreachable() || time.Now().Before(w.fulls.notBefore) {
		return false
	}
	if w.core.State == opening {
		return len(w.spool.Entries()) == 0
	}
	return w.core.State == writing && w.chain.gapSince.IsZero() && !w.isOutdated(w.options.Etcd.AppliedIndex())
}

// startCopy opens the read transaction, which takes as long as a commit of etcd, and captures up to its revision: a
// segment ends there, so the full snapshot is part of the chain. Then it copies the database.
func (w *Writer) startCopy(ctx context.Context, f *full, end func(), err error) {
	if w.fulls.making != f { // canceled meanwhile
		if err == nil {
			end()
		}
		return
	}
	var snapshot *capture.Snapshot
	if err == nil {
		if snapshot, err = w.open(ctx); err != nil {
			end()
		}
	}
	if err != nil {
		w.dropFull(ctx, err)
		return
	}
	f.tried, f.doing = time.Now(), "copies the database"
	if f.opens {
		w.options.Log.Info().Str("reason", f.Reason).Int64("database", f.database).Msg("backups: there is no chain to extend; copying the database")
	}
	w.job(ctx, noTimeout, func(patient context.Context) func() {
		var copied *databaseCopy
		err := w.runWithRoom(patient, func(ctx context.Context) (err error) {
			copied, err = w.copy(ctx, snapshot)
			return err
		})
		end()
		return func() {
			if w.fulls.making != f {
				return // canceled meanwhile
			}
			if err != nil {
				w.dropFull(ctx, err)
				return
			}
			f.copy, f.Hash = copied, copied.hash
			w.options.Log.Debug().Int64("revision", f.Revision).Int64("bytes", f.database).Dur("paused_ms", copied.held).Msg("backups: the database was copied")
		}
	})
}

// open returns the database at the revision at which the chain ends.
func (w *Writer) open(ctx context.Context) (*capture.Snapshot, error) {
	if w.core.State != opening && (!w.isWriter() || w.chain.tail == nil) {
		return nil, ErrNotWriter // no longer the writer once the gate opened
	}
	snapshot, err := w.reader.Snapshot()
	if err != nil {
		return nil, err
	}
	if w.core.State != opening {
		err = w.catchUp(snapshot.Revision)
	}
	if err != nil {
		return nil, errors.Join(err, snapshot.Close())
	}
	w.nameFull(ctx, snapshot)
	return snapshot, nil
}

// catchUp captures up to the revision of an open snapshot.
func (w *Writer) catchUp(revision int64) error {
	for w.chain.tail.Position.Revision <= revision {
		if w.spool.holdsInMemory() {
			return errors.New("a segment is still held in memory for lack of space")
		}
		if _, err := w.captureUpTo(revision, false, false); err != nil {
			return err
		}
	}
	if w.chain.tail.Position.Revision != revision+1 {
		return fmt.Errorf("the chain goes up to revision %d, and the database to %d", w.chain.tail.Position.Revision-1, revision)
	}
	return nil
}

// fullTime returns the time in the name of a full snapshot. Two of one revision never share it.
func (w *Writer) fullTime() time.Time {
	now := w.time().Truncate(time.Second)
	if last := w.statistic.LastFull; last != nil && last.Name == w.remote.newestFull && !now.After(last.Time) {
		return last.Time.Add(time.Second)
	}
	return now
}

// nameFull fills in the manifest of the full snapshot, and starts a chain with it if there is none.
func (w *Writer) nameFull(ctx context.Context, snapshot *capture.Snapshot) {
	f := w.fulls.making
	f.Cluster, f.Generation = w.remote.generation.Cluster, w.remote.generation.Number
	f.Revision, f.Compacted, f.Time = snapshot.Revision, snapshot.Compacted, w.fullTime()
	identity := w.options.Etcd.Identity()
	f.Term, f.Member, f.Buckets = identity.Term, identity.MemberID, capture.SmallBuckets()
	f.Applied = w.options.Etcd.AppliedIndex()
	f.Reason, f.Session = f.requests[0].reason, w.options.Session
	f.database = snapshot.Size
	if w.core.State == opening {
		w.discard() // segments of the previous chain
		f.opens, f.previousEnd = true, w.remote.stored
		w.chain.tail = &format.Start{
			Cluster: f.Cluster, Generation: f.Generation, Position: format.After(f.Revision),
			Before: format.Seed(f.Cluster, f.Generation, f.Revision), Applied: f.Applied,
		}
		w.chain.tail.Last, _, _ = w.digest(f.Revision) // lets later inspections compare rows
		if w.remote.damagedEnd.Compare(w.chain.tail.Position) > 0 {
			w.chain.tail.Position = w.remote.damagedEnd
		}
		if f.Behind = w.remote.link; f.Behind != nil && f.Behind.Compare(w.chain.tail.Position) >= 0 {
			w.chain.tail.Position = format.Position{Revision: f.Behind.Revision, Part: f.Behind.Part + 1}
		}
		w.chain.markers, w.chain.buckets = nil, snapshot.Digests()
		w.take(ctx, named, payload{})
	}
	f.Chain, f.Last, f.Next = w.chain.tail.Before, w.chain.tail.Last, w.chain.tail.Position
}

// openChain requests a full snapshot, since there is no chain to extend.
func (w *Writer) openChain(reason string) {
	w.chain.tail, w.chain.markers, w.chain.gapSince = nil, nil, time.Time{}
	if broken := w.statistic.Broken; broken == nil || broken.Reason != reason {
		w.statistic.Broken = &Broken{Since: w.options.Now(), Reason: reason}
	}
	pending := w.fulls.making != nil && w.fulls.making.copy == nil && w.fulls.making.requests[0].reason == reason
	if !pending && !slices.ContainsFunc(w.fulls.due, func(d fullRequest) bool { return d.reason == reason }) {
		w.fulls.due = append([]fullRequest{{reason: reason}}, w.fulls.due...)
	}
	w.resetFlushTargets()
}

// replaceDamaged requests, once, a full snapshot within the chain if the newest one is damaged: no restore could
// start from that.
func (w *Writer) replaceDamaged(damaged error) {
	if !errors.Is(damaged, format.ErrDamaged) || damaged.Error() == w.fulls.replaced || !w.isWriter() || len(w.flushes) > 0 {
		return
	}
	w.fulls.replaced = damaged.Error()
	w.options.Log.Error().Err(damaged).Msg("backups: the newest full snapshot is damaged and left as it is; making another one")
	w.requestFull(fullRequest{reason: "damaged: " + w.fulls.replaced})
}

// progressInterval is the time between two log messages about an upload.
const progressInterval = 30 * time.Second

// storeFull uploads the copy and retries until it succeeds; the read transaction was closed before. Within a chain
// the segments before it are stored first: other members continue from the newest full snapshot, so no member would
// upload segments that are missing before it.
func (w *Writer) storeFull(ctx context.Context) {
	f := w.fulls.making
	if f == nil || f.copy == nil {
		return
	}
	if f.storing {
		w.logProgress(f)
		return
	}
	if !f.opens && (w.core.State == opening || f.orphaned || !w.isWriter()) { // it can never be stored
		if w.forgetFull(); w.isWriter() {
			w.fulls.due = append(w.fulls.due, f.requests...)
		}
		return
	}
	if short := w.checkRoom(); short != nil {
		w.dropFull(ctx, short)
		return
	}
	if time.Now().Before(w.fulls.notBefore) || !f.opens && !w.isEndKnown() {
		return
	}
	if !f.opens && w.remote.stored.Compare(f.Next) < 0 {
		f.doing = "waits until what is before it is stored"
		return
	}
	f.storing, f.doing, f.tried, f.loggedAt = true, "stores the copy", time.Now(), time.Now()
	if f.opens {
		w.recordIdentity() // must precede the upload
	}
	making, copied, opens, behind, generation := f.Full, f.copy, f.opens, f.previousEnd, w.remote.generation
	w.job(ctx, noTimeout, func(patient context.Context) func() {
		var stored archive.Full
		err := w.runWithRoom(patient, func(ctx context.Context) (err error) {
			if stored, err = copied.put(ctx, w.options.Archive, making); err == nil && opens { // the upload takes long
				err = w.mayOpen(ctx, stored, behind)
			}
			if err == nil {
				err = w.options.Archive.Commit(ctx, stored)
			}
			if err == nil {
				err = w.options.Archive.Open(ctx, generation, stored, stored.Session)
			}
			if err == nil {
				_ = steady.Remove(ctx, copied.path) // forgetFull removes it otherwise
			}
			return err
		})
		return func() { w.storedFull(ctx, f, stored, err) }
	})
}

// logProgress logs the progress of a long upload.
func (w *Writer) logProgress(f *full) {
	if time.Since(f.loggedAt) < progressInterval {
		return
	}
	f.loggedAt = time.Now()
	progress := f.running()
	w.options.Log.Info().Int64("revision", f.Revision).Int64("sent_bytes", progress.SentBytes).Int64("total_bytes", progress.TotalBytes).
		Float64("remaining_seconds", progress.RemainingSeconds).Msg("backups: uploading a full snapshot")
}

func (w *Writer) storedFull(ctx context.Context, f *full, stored archive.Full, err error) {
	f.storing = false
	if w.fulls.making != f {
		return // canceled meanwhile
	}
	switch {
	case errors.Is(err, ErrSpoolFull):
		w.dropFull(ctx, err)
		return
	case errors.Is(err, archive.ErrEnded):
		w.take(ctx, succeeded, payload{err: w.successor(f.Generation + 1)})
		return
	case errors.Is(err, errOvertaken), errors.Is(err, archive.ErrMoved):
		w.take(ctx, overtaken, payload{err: err})
		return
	case err != nil:
		f.Time = f.Time.Add(time.Second) // leave a partial upload alone under its own name
		wait := w.fullBackoff(f, w.failed(opFull, "cannot store the full snapshot of revision "+fmt.Sprint(f.Revision), err))
		w.fulls.notBefore = time.Now().Add(wait)
		return
	}
	w.succeeded(opFull)
	f.Full = stored
	took := time.Since(f.started)
	done := FullDone{Name: f.Name(), Revision: f.Revision, Time: f.Time, Bytes: f.Data.Bytes, Database: f.database, Reason: f.Reason}
	w.statistic.LastFull, w.remote.newestFull, w.fulls.lastNext = &done, done.Name, f.Next
	if w.core.State != opening {
		w.statistic.Broken = nil
	}
	w.statistic.Fulls++
	w.statistic.Uploaded += done.Bytes
	w.scheduleNext(w.options.Now())
	w.fulls.gapAfter = time.Now().Add(max(w.pace.rest, restFactor*took))
	if f.opens {
		w.remote.stored, w.remote.storedAt, w.remote.last = f.Next, time.Now(), format.Position{}
		w.take(ctx, chainBegun, payload{})
	}
	w.endFull(fullResult{FullDone: done})
	w.options.Log.Info().Int64("revision", f.Revision).Str("reason", f.Reason).Int64("bytes", f.Data.Bytes).Int64("database", f.database).
		Dur("paused_ms", f.copy.held).Dur("took_ms", took).Msg("backups: full snapshot stored")
}

// dropFull cancels a full snapshot that could not be copied, or whose copy cannot be kept until it is stored.
func (w *Writer) dropFull(ctx context.Context, err error) {
	f, doing := w.fulls.making, "cannot copy the database"
	if f.copy != nil {
		doing = "cannot keep a copy of the database until it is stored"
	}
	w.fulls.notBefore = time.Now().Add(w.fullBackoff(f, w.failed(opFull, doing, err)))
	w.endFull(fullResult{err: fmt.Errorf("%s: %w", doing, err)})
	if f.opens { // segments after it lead nowhere
		w.discard()
	}
	if f.opens || w.core.State == opening {
		w.take(ctx, fullLost, payload{err: errors.New(f.requests[0].reason)})
		return
	}
	w.fulls.due = append(w.fulls.due, fullRequest{reason: f.requests[0].reason})
}

// endFull answers the callers that wait for the full snapshot in progress, after the facts are published.
func (w *Writer) endFull(result fullResult) {
	f := w.forgetFull()
	w.publish()
	for _, request := range f.requests {
		request.answer(result)
	}
}

// forgetFull removes the full snapshot in progress and its copy.
func (w *Writer) forgetFull() *full {
	f := w.fulls.making
	if w.fulls.making = nil; f.copy != nil {
		_ = os.Remove(f.copy.path)
	}
	return f
}

// errOvertaken reports that a full snapshot must no longer start a chain.
var errOvertaken = errors.New("another member extends the backups")

// mayOpen returns an error unless a full snapshot may start a chain. It runs in a job. While the full snapshot was
// made, another member may have started a chain, which readers would take for the newer one, or extended the previous
// chain, which only the writer may end.
func (w *Writer) mayOpen(ctx context.Context, full archive.Full, behind format.Position) error {
	head, err := w.options.Archive.Head(ctx, full.Generation)
	switch {
	case archive.NotVerified(err), err == nil && head.Damaged != nil: // no member can continue from there
		return nil
	case err != nil || head.Empty() || head.Full.Name() == full.Name(): // or it was stored, and the response was lost
		return err
	case head.Position.Compare(behind) > 0:
		return fmt.Errorf("%w: they have revision %d by now", errOvertaken, head.Revision())
	}
	writes, err := ask(ctx, w, func(writes chan<- bool) { w.observe(ctx); writes <- w.isWriter() })
	if err == nil && !writes {
		err = errOvertaken
	}
	return err
}

// leaveChain cancels a full snapshot that was to start a chain, and discards the segments after it.
func (w *Writer) leaveChain(why error) {
	f := w.forgetFull()
	w.options.Log.Warn().Err(why).Int64("revision", f.Revision).Msg("backups: canceled the full snapshot of a new chain")
	w.chain.tail, w.statistic.Broken = nil, nil
	w.discard()
	w.resetFlushTargets()
	for _, request := range f.requests {
		if request.done != nil {
			w.requestFull(request)
		}
	}
}

// restFactor bounds the share of time spent on full snapshots for gaps: frequent compactions at the current revision
// end each chain soon.
const restFactor = 10

// maxFullRetry is the longest wait before a failed full snapshot is retried, unless the store asks for more.
const maxFullRetry = 5 * time.Minute

// fullBackoff returns how long to wait before a failed full snapshot is retried, at least the given time. The longer
// the attempt took, the longer the wait, so that a large database is not copied or uploaded continuously.
func (w *Writer) fullBackoff(f *full, wait time.Duration) time.Duration {
	if f.tried.IsZero() || len(w.flushes) > 0 || w.problems[opFull] == nil {
		return wait
	}
	wait = max(wait, min(restFactor*time.Since(f.tried), maxFullRetry))
	w.problems[opFull].NextRetry = w.options.Now().Add(wait)
	return wait
}
