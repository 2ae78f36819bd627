package writer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/writer/capture"
	"etcd-wrapper/internal/steady"
)

// snapshots makes full snapshots on schedule, on request, and to start a chain.
type snapshots struct {
	base
	room func(size int64) error // returns an error if the volume has no room for size bytes

	making      *full // full snapshot in progress, if any
	due         []fullRequest
	notBefore   time.Time // no full snapshot is started or uploaded before this time
	next        time.Time // time of the next scheduled full snapshot; zero if there is none
	gapAfter    time.Time // a gap does not cause a full snapshot before this time
	brokenSince time.Time // time when the chain could no longer be extended; zero if there is a chain

	newest   *archive.Full // newest full snapshot made by this process; nil if there is none
	replaced string        // error of the last damaged full snapshot that was replaced, so that it is replaced only once
	stored   int64         // number of full snapshots stored by this process
	uploaded int64         // total bytes of full snapshots stored by this process
}

// full is a full snapshot in progress.
type full struct {
	archive.Full
	requests    []fullRequest   // requests that this full snapshot satisfies
	opens       bool            // the full snapshot starts a new chain
	previousEnd format.Position // end of the previous chain; zero if there is none
	orphaned    bool            // no segment will start at Next, so the full snapshot can no longer join the chain
	doing       string          // current step, for users
	since       time.Time
	copy        *snapshotCopy // nil until the database has been copied into the spool
	storing     bool          // the copy is being uploaded
	tried       time.Time     // monotonic start time of the last attempt to copy or upload the database; zero if none
	loggedAt    time.Time     // time of the last progress message
	cancel      context.CancelCauseFunc
}

// fullRequest is a request for a full snapshot.
type fullRequest struct {
	reason string
	answer chan<- fullResult // buffered; nil if no caller is waiting or the result has been sent
}

// fullResult is the result of a fullRequest.
type fullResult struct {
	full archive.Full
	err  error
}

const (
	// progressInterval is the time between progress messages about an upload.
	progressInterval = 30 * time.Second
	// maxUnchangedAge is the age at which the full snapshot of an unchanged database is repeated. The limit is below
	// one day because the alert for missing snapshots fires after a day.
	maxUnchangedAge = 23 * time.Hour
	// restFactor limits the time spent on full snapshots after gaps: the wait before the next one is restFactor times
	// as long as the last one took. Otherwise, frequent compactions at the current revision would cause one full
	// snapshot after another.
	restFactor = 10
	// maxFullRetry is the maximum wait before a failed full snapshot is retried unless the store requests a longer
	// one.
	maxFullRetry = 5 * time.Minute
)

var (
	// errOvertaken is returned if a full snapshot must not start a chain because another member has extended the
	// backups.
	errOvertaken = errors.New("another member has started writing backups")
	// errCanceled is the cancellation cause of a full snapshot that is no longer needed.
	errCanceled = errors.New("canceled")
)

// request queues a request for a full snapshot.
func (f *snapshots) request(reason string) {
	f.due = append(f.due, fullRequest{reason: reason})
}

// resolve sends the result to the callers that are waiting for the given requests.
func resolve(requests []fullRequest, result fullResult) {
	for i := range requests {
		if requests[i].answer != nil {
			requests[i].answer <- result
			requests[i].answer = nil
		}
	}
}

// rejectRequests fails the requests for full snapshots because this member no longer makes them. If a full snapshot is
// already being uploaded, its requests remain pending.
func (f *snapshots) rejectRequests(why error) {
	if f.making != nil && !f.making.storing {
		resolve(f.making.requests, fullResult{err: why})
	}
	f.due = slices.DeleteFunc(f.due, func(r fullRequest) bool {
		resolve([]fullRequest{r}, fullResult{err: why})
		return r.answer != nil
	})
}

// start starts a full snapshot if one is due.
func (f *snapshots) start() {
	f.requestScheduled()
	if f.making != nil || len(f.due) == 0 || !f.isReady() {
		return
	}
	m := &full{requests: f.due, doing: "waiting for another database operation to finish", since: f.options.Now()}
	f.making, f.due = m, nil
	var copied *snapshotCopy
	f.run(m, func(ctx context.Context) (err error) {
		copied, err = f.copy(ctx, m)
		return err
	}, func(err error) {
		if err != nil {
			f.drop(err)
			return
		}
		m.copy, m.Hash = copied, copied.hash
		f.options.Log.Debug().Int64("revision", m.Revision).Int64("bytes", m.Database.Bytes).Dur("paused_ms", copied.held).Msg("backups: copied the database")
	})
}

// run runs work for a full snapshot in a job, and then calls done with the error unless the full snapshot has been
// canceled in the meantime.
func (f *snapshots) run(m *full, work func(context.Context) error, done func(error)) {
	ctx, cancel := context.WithCancelCause(f.ctx)
	m.cancel = cancel
	f.job(noTimeout, func(context.Context) func() {
		err := work(ctx)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return func() {
			if cancel(nil); f.making == m {
				done(err)
			}
		}
	})
}

// requestScheduled requests a full snapshot if one is due on the schedule.
func (f *snapshots) requestScheduled() {
	now := f.options.Now().Round(0) // drop the monotonic reading to detect a clock that was set back
	if due := f.options.Schedule(f.remote.generation.Cluster, now); due.Before(f.next) {
		f.next = due // the clock was set back
	}
	if f.next.IsZero() || !f.isWriter() || now.Before(f.next) {
		return
	}
	f.scheduleNext(now)
	if !f.isCurrent(now) {
		f.request("schedule")
	}
}

// isCurrent reports whether the newest full snapshot is recent and contains all changes.
func (f *snapshots) isCurrent(now time.Time) bool {
	newest := f.remote.head.Full
	return f.newest != nil && newest != nil && newest.Name() == f.newest.Name() &&
		now.Sub(newest.Time) < maxUnchangedAge && f.chain.last.Compare(newest.Next) < 0 && f.chain.isUnchanged()
}

// scheduleNext schedules the next full snapshot after the last one. If a clock was ahead when the last one was made,
// its time may be in the future; scheduleNext then uses the current time instead.
func (f *snapshots) scheduleNext(last time.Time) {
	now := f.options.Now()
	if last.After(now) {
		last = now
	}
	f.next = f.options.Schedule(f.remote.generation.Cluster, last)
}

// isReady reports whether the store is reachable and a full snapshot can join or start a chain.
func (f *snapshots) isReady() bool {
	if !f.remote.isEndKnown() || f.health.isUnreachable() || time.Now().Before(f.notBefore) {
		return false
	}
	if f.isIn(opening) {
		return len(f.chain.spool.Entries()) == 0
	}
	return f.isIn(writing) && f.chain.gapSince.IsZero() && !f.chain.isStale(f.options.Etcd.AppliedIndex())
}

// open opens a read transaction, for which etcd first commits its pending writes. If there is a chain, open captures
// changes up to the revision of the transaction, so that a segment ends there and the full snapshot belongs to the
// chain. If there is no chain, the full snapshot starts one.
func (f *snapshots) open(m *full) (*capture.Snapshot, error) {
	opens := f.isIn(opening)
	if f.making != m || !opens && (!f.isWriter() || f.chain.tail == nil) {
		return nil, ErrNotWriter // this member lost its role before it acquired the gate
	}
	snapshot, err := f.chain.reader.Snapshot()
	if err == nil && !opens {
		err = f.chain.captureThrough(snapshot.Revision)
	}
	if err != nil {
		if snapshot != nil {
			err = errors.Join(err, snapshot.Close())
		}
		return nil, err
	}
	f.describe(m, snapshot)
	if opens {
		f.startChain(m, snapshot)
		f.options.Log.Info().Str("reason", m.Reason).Int64("database", m.Database.Bytes).Msg("backups: no chain of segments to extend; copying the database to start a new chain")
	} else {
		f.chain.branch(snapshot.Digests())
	}
	tail := f.chain.tail
	m.Chain, m.Last, m.Next = tail.Before, tail.Last, tail.Position
	m.tried, m.doing = time.Now(), "copying the database"
	return snapshot, nil
}

// describe fills in the manifest of a full snapshot.
func (f *snapshots) describe(m *full, snapshot *capture.Snapshot) {
	identity, generation := f.options.Etcd.Identity(), f.remote.generation
	m.Cluster, m.Generation = generation.Cluster, generation.Number
	m.Revision, m.Compacted, m.Database.Bytes = snapshot.Revision, snapshot.Compacted, snapshot.Size
	m.Term, m.Member, m.Applied = identity.Term, identity.MemberID, f.options.Etcd.AppliedIndex()
	m.Reason, m.Session, m.Buckets = m.requests[0].reason, f.options.Session, capture.SmallBuckets()
	m.Time = f.chain.time().Truncate(time.Second)
	if last := f.remote.head.Full; last != nil && !m.Time.After(last.Time) {
		m.Time = last.Time.Add(time.Second) // the name, which contains the time, must be unique
	}
}

// startChain makes a full snapshot the start of a chain.
func (f *snapshots) startChain(m *full, snapshot *capture.Snapshot) {
	f.chain.drop() // discard segments from the previous chain
	m.opens, m.previousEnd = true, f.remote.head.Position
	start := &format.Start{
		Cluster: m.Cluster, Generation: m.Generation, Position: format.After(m.Revision),
		Before: format.Seed(m.Cluster, m.Generation, m.Revision), Applied: m.Applied,
	}
	start.Last, _, _ = f.chain.digest(m.Revision) // later inspections compare this digest with etcd's rows
	if f.remote.damagedEnd.Compare(start.Position) > 0 {
		start.Position = f.remote.damagedEnd
	}
	if m.Behind = f.remote.link; m.Behind != nil && m.Behind.Compare(start.Position) >= 0 {
		start.Position = format.Position{Revision: m.Behind.Revision, Part: m.Behind.Part + 1}
	}
	f.chain.tail, f.chain.markers, f.chain.small.digests = start, nil, snapshot.Digests()
	f.take(copyStarted, payload{})
}

// openChain requests a full snapshot because there is no chain to extend.
func (f *snapshots) openChain(reason string) {
	f.chain.reset()
	if f.brokenSince.IsZero() {
		f.brokenSince = f.options.Now()
	}
	pending := f.making != nil && f.making.copy == nil && f.making.requests[0].reason == reason
	if !pending && !slices.ContainsFunc(f.due, func(r fullRequest) bool { return r.reason == reason }) {
		f.due = append([]fullRequest{{reason: reason}}, f.due...)
	}
}

// replaceCorrupt requests a full snapshot within the chain if the newest one is damaged, but only once per damaged
// full snapshot.
func (f *snapshots) replaceCorrupt(damaged error) {
	if !errors.Is(damaged, format.ErrDamaged) || damaged.Error() == f.replaced || !f.isWriter() || f.health.flushing {
		return
	}
	f.replaced = damaged.Error()
	f.options.Log.Error().Err(damaged).Msg("backups: the newest full snapshot is damaged; leaving it in place and making a new one")
	f.request("the newest backups are unusable: " + f.replaced)
}

// store uploads the copy of the database, retrying until it succeeds. Segments before a full snapshot are uploaded
// first: other members would never upload them, because they continue from the newest full snapshot.
func (f *snapshots) store() {
	m := f.making
	switch {
	case m == nil || m.copy == nil:
	case m.storing:
		f.logProgress()
	case !m.opens && (f.isIn(opening) || m.orphaned || !f.isWriter()): // the full snapshot can no longer be stored
		if f.forget(); f.isWriter() {
			f.due = append(f.due, m.requests...)
		}
	case time.Now().Before(f.notBefore) || !m.opens && !f.remote.isEndKnown():
	case !m.opens && f.remote.head.Position.Compare(m.Next) < 0:
		m.doing = "waiting for earlier segments to be uploaded"
	default:
		f.startUpload()
	}
}

// startUpload starts a job that uploads the copy.
func (f *snapshots) startUpload() {
	m := f.making
	m.storing, m.doing, m.tried, m.loggedAt = true, "uploading", time.Now(), time.Now()
	if m.opens {
		f.remote.recordIdentity() // before the upload, so that the record is correct even if the process is killed
	}
	manifest, copied, generation := m.Full, m.copy, f.remote.generation
	f.run(m, func(ctx context.Context) (err error) {
		if manifest, err = copied.put(ctx, f.options.Archive, manifest); err == nil && m.opens { // the state may have changed during a long upload
			err = f.checkStart(ctx, manifest, m.previousEnd)
		}
		if err == nil {
			err = f.options.Archive.Commit(ctx, manifest)
		}
		if err == nil {
			err = f.options.Archive.Open(ctx, generation, manifest, manifest.Session)
		}
		if err == nil {
			_ = steady.Remove(ctx, copied.path) // on failure, forget removes the file
		}
		return err
	}, func(err error) {
		m.storing = false
		if err != nil {
			f.uploadFailed(err)
			return
		}
		m.Full = manifest
		f.finish()
	})
}

// logProgress logs the progress of a long upload.
func (f *snapshots) logProgress() {
	if time.Since(f.making.loggedAt) < progressInterval {
		return
	}
	f.making.loggedAt = time.Now()
	progress := f.progress()
	f.options.Log.Info().Int64("revision", f.making.Revision).Int64("sent_bytes", progress.SentBytes).Int64("total_bytes", progress.TotalBytes).
		Float64("remaining_seconds", progress.RemainingSeconds).Msg("backups: uploading a full snapshot")
}

// uploadFailed decides whether to retry a failed upload.
func (f *snapshots) uploadFailed(err error) {
	m := f.making
	switch {
	case errors.Is(err, ErrSpoolFull):
		f.drop(err)
	case errors.Is(err, archive.ErrEnded):
		f.take(superseded, payload{err: f.remote.succeededBy(m.Generation + 1)})
	case errors.Is(err, errOvertaken), errors.Is(err, archive.ErrMoved):
		f.take(overtaken, payload{err: err})
	default:
		m.Time = m.Time.Add(time.Second) // retry under a new name; part of the upload may be stored under this one
		wait := f.health.failed(opFull, fmt.Sprintf("cannot upload the full snapshot at revision %d", m.Revision), err)
		f.notBefore = time.Now().Add(f.backoff(wait))
	}
}

// finish records that the current full snapshot is stored.
func (f *snapshots) finish() {
	m, took := f.making, f.options.Now().Sub(f.making.since)
	f.health.succeeded(opFull)
	f.newest, f.remote.head.Full = &m.Full, &m.Full
	if !f.isIn(opening) {
		f.brokenSince = time.Time{}
	}
	f.stored++
	f.uploaded += m.Data.Bytes
	f.scheduleNext(f.options.Now())
	f.gapAfter = time.Now().Add(max(f.pace.rest, restFactor*took))
	if m.opens {
		f.remote.setHead(archive.Head{Start: m.Start(), Full: &m.Full})
		f.take(chainStarted, payload{})
	}
	resolve(f.forget().requests, fullResult{full: m.Full})
	f.options.Log.Info().Int64("revision", m.Revision).Str("reason", m.Reason).Int64("bytes", m.Data.Bytes).Int64("database", m.Database.Bytes).
		Dur("paused_ms", m.copy.held).Dur("took_ms", took).Msg("backups: full snapshot stored")
}

// checkStart returns an error if a full snapshot must not start a chain. While the full snapshot was being made,
// another member may have started a chain or extended the previous one. If the chain was extended, only the writer
// may end it.
func (f *snapshots) checkStart(ctx context.Context, made archive.Full, previousEnd format.Position) error {
	head, err := f.options.Archive.Head(ctx, made.Generation)
	switch {
	case archive.NotVerified(err), err == nil && head.Damaged != nil: // no member can extend the previous chain
		return nil
	case err != nil || head.Empty() || head.Full.Name() == made.Name():
		// If the full snapshot itself is the head, an earlier attempt has stored it.
		return err
	case head.Position.Compare(previousEnd) > 0:
		return fmt.Errorf("%w: the backups now end at revision %d", errOvertaken, head.Revision())
	}
	f.wait(func() {
		if f.remote.observeLeader(); !f.isWriter() {
			err = errOvertaken
		}
	})
	return err
}

// drop cancels the current full snapshot because the database could not be copied or the volume has no room for the
// copy, and requests it again.
func (f *snapshots) drop(err error) {
	m, doing := f.making, "cannot copy the database"
	if m.copy != nil {
		doing = "cannot keep the database copy until it is uploaded"
	}
	f.notBefore = time.Now().Add(f.backoff(f.health.failed(opFull, doing, err)))
	resolve(f.forget().requests, fullResult{err: fmt.Errorf("%s: %w", doing, err)})
	if m.opens { // segments after a missing full snapshot cannot be restored
		f.chain.drop()
	}
	if m.opens || f.isIn(opening) {
		f.take(fullLost, payload{err: errors.New(m.requests[0].reason)})
		return
	}
	f.request(m.requests[0].reason)
}

// forget cancels the current full snapshot and removes its copy.
func (f *snapshots) forget() *full {
	m := f.making
	f.making = nil
	if m.cancel != nil {
		m.cancel(errCanceled)
	}
	if m.copy != nil {
		_ = os.Remove(m.copy.path)
	}
	return m
}

// leaveChain cancels a full snapshot that was to start a chain, and discards the segments after it.
func (f *snapshots) leaveChain(why error) {
	m := f.forget()
	f.options.Log.Warn().Err(why).Int64("revision", m.Revision).Msg("backups: canceled the full snapshot that would have started a new chain")
	f.brokenSince = time.Time{}
	f.chain.reset()
	f.chain.drop()
	f.due = append(f.due, slices.DeleteFunc(m.requests, func(r fullRequest) bool { return r.answer == nil })...)
}

// backoff returns how long to wait before a failed full snapshot is retried. The result is at least wait, and grows
// with the duration of the attempt so that a large database is not constantly copied or uploaded.
func (f *snapshots) backoff(wait time.Duration) time.Duration {
	problem := f.health.problems[opFull]
	if f.making.tried.IsZero() || f.health.flushing || problem == nil {
		return wait
	}
	wait = max(wait, min(restFactor*time.Since(f.making.tried), maxFullRetry))
	problem.NextRetry = f.options.Now().Add(wait)
	return wait
}

// checkSpace cancels the current full snapshot if the copy of the database does not leave enough room for segments.
// The chain would end if segments could not be queued. A check on every tick is enough because no disk can fill the
// spool's reserve within a tick.
func (f *snapshots) checkSpace() {
	if f.making == nil || f.making.tried.IsZero() {
		return
	}
	switch err := f.room(maxSegment); {
	case err == nil:
	case f.making.copy == nil || f.making.storing:
		f.making.cancel(err)
	default:
		f.drop(err)
	}
}

// progress describes the current full snapshot, or returns nil if there is none.
func (f *snapshots) progress() *facts.SnapshotProgress {
	m := f.making
	if m == nil {
		return nil
	}
	progress := &facts.SnapshotProgress{Reason: m.requests[0].reason, Since: m.since, Step: m.doing}
	if m.copy != nil {
		progress.SentBytes, progress.TotalBytes = m.copy.sent.Load(), m.copy.size
	}
	if m.storing && progress.SentBytes > 0 {
		progress.RemainingSeconds = time.Since(m.tried).Seconds() * float64(progress.TotalBytes-progress.SentBytes) / float64(progress.SentBytes)
	}
	return progress
}
