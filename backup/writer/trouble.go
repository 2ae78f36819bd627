package writer

import (
	"cmp"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/store"
)

// operation is a kind of work that can fail.
type operation int

const (
	opInspect     operation = iota // inspecting the store
	opSegment                      // uploading a segment
	opFull                         // making or uploading a full snapshot
	opReservation                  // renewing the reservation
	opCapture                      // capturing and spooling, which do not involve the store
	opCount
)

// problem is why an operation does not succeed.
type problem struct {
	facts.Problem
	started time.Time // by the monotonic clock
	backoff *backoff.ExponentialBackOff
}

const (
	// maxRetryWait is the longest wait between retries, unless the store asks for more.
	maxRetryWait = 30 * time.Second
	// responseLimit is how long a response may take before it is reported as a problem.
	responseLimit = 5 * time.Second
)

// failed records a failure and returns how long to wait before a retry. It logs the first failure of a series, and
// each with a new message.
func (w *Writer) failed(about operation, doing string, err error) time.Duration {
	if w.stopping {
		return 0 // the operation was canceled
	}
	if w.problems[about] == nil { // queued segments may now stay in the spool for long, and must survive a power failure
		if err := w.spool.Sync(); err != nil {
			w.options.Log.Warn().Err(err).Msg("backups: queued segments may not survive a power failure")
		}
	}
	t := w.recordProblem(about)
	w.statistic.Failures++
	wait := max(t.backoff.NextBackOff(), store.RetryAfter(err))
	if len(w.flushes) > 0 {
		wait = min(wait, time.Second) // there may be no later attempt
	}
	text := doing + ": " + err.Error()
	if t.Message != text {
		w.options.Log.Warn().Msgf("backups: %s; retrying, etcd keeps serving", text)
	}
	t.Message, t.NextRetry = text, w.options.Now().Add(wait)
	if about == opInspect || about == opSegment {
		w.delayRequests(wait)
	}
	return wait
}

// recordProblem counts a failure of an operation.
func (w *Writer) recordProblem(about operation) *problem {
	if w.problems[about] == nil {
		waits := backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(w.pace.retry), backoff.WithMaxInterval(maxRetryWait), backoff.WithMaxElapsedTime(0))
		w.problems[about] = &problem{Problem: facts.Problem{Since: w.options.Now()}, started: time.Now(), backoff: waits}
	}
	w.problems[about].Count++
	return w.problems[about]
}

// succeeded clears the problem of an operation, and of those that need less of the store: if writes succeed, reads do
// too.
func (w *Writer) succeeded(operation operation) {
	var began time.Time
	for about := range operation + 1 {
		if w.problems[about] != nil && (about == operation || operation != opReservation) {
			began = w.problems[about].started
			w.problems[about] = nil
		}
	}
	if began.IsZero() {
		return
	}
	w.remote.notBefore = time.Time{}
	if w.isHealthy() {
		w.options.Log.Info().Dur("after_ms", time.Since(began)).Msg("backups: recovered")
	}
}

// isHealthy reports whether the store has no problem.
func (w *Writer) isHealthy() bool {
	return [opCapture]*problem(w.problems[:]) == [opCapture]*problem{}
}

// isUnreachable reports whether requests to the store have failed, or not returned, for a while.
func (w *Writer) isUnreachable() bool {
	for _, about := range []operation{opInspect, opSegment} {
		if t := w.problems[about]; t != nil && time.Since(t.started) > cmp.Or(w.options.Interval, time.Second) {
			return true
		}
	}
	return w.isUnresponsive()
}

// isUnresponsive reports whether a response is overdue.
func (w *Writer) isUnresponsive() bool {
	return !w.remote.requestedAt.IsZero() && time.Since(w.remote.requestedAt) > responseLimit
}

// captureFailed records that nothing can be captured. etcd keeps the rows until it is compacted.
func (w *Writer) captureFailed(err error) {
	text := "changes cannot be captured and will be missing from backups once etcd compacts them: " + err.Error()
	if w.problems[opCapture] == nil {
		w.options.Log.Warn().Msg("backups: " + text)
	}
	w.recordProblem(opCapture).Message = text
}

// currentProblem combines all problems into one.
func (w *Writer) currentProblem() *facts.Problem {
	var all []facts.Problem
	for _, t := range w.problems {
		if t != nil {
			all = append(all, t.Problem)
		}
	}
	if w.isUnresponsive() {
		waited := time.Since(w.remote.requestedAt).Truncate(time.Second)
		text := fmt.Sprintf("the store has not answered for %s", waited)
		all = append(all, facts.Problem{Message: text, Since: w.options.Now().Add(-waited), Count: 1})
	}
	if len(all) == 0 && w.isOverdue() {
		waited := time.Since(w.unstored[0].at).Truncate(time.Second)
		text := fmt.Sprintf("revision %d is not stored after %s, although no request failed (the writer is %s)", w.storedRevision()+1, waited, w.core.State)
		all = append(all, facts.Problem{Message: text, Since: w.options.Now().Add(-waited), Count: 1})
	}
	if len(all) == 0 {
		return nil
	}
	combined := all[0]
	for _, t := range all[1:] {
		combined.Message, combined.Count = combined.Message+"; "+t.Message, max(combined.Count, t.Count)
		if t.Since.Before(combined.Since) {
			combined.Since = t.Since
		}
		if combined.NextRetry.IsZero() || t.NextRetry.Before(combined.NextRetry) && !t.NextRetry.IsZero() {
			combined.NextRetry = t.NextRetry
		}
	}
	return &combined
}

// isOverdue reports whether a revision should have been stored long ago: the writer may be busy without making progress. There is no
// limit while a full snapshot is in progress.
func (w *Writer) isOverdue() bool {
	return w.role() == Writing && len(w.unstored) > 0 && w.fulls.making == nil && time.Since(w.unstored[0].at) > w.pace.overdue+2*w.interval()
}

// timing holds the intervals and limits of a writer.
type timing struct {
	tick         time.Duration // between observations of etcd's revision, hence between time markers
	gap          time.Duration // time for another member to upload its spool before a gap counts
	rest         time.Duration // minimum between a full snapshot and one for a gap; see restFactor
	ahead        time.Duration // time for a new leader to apply what was acknowledged before
	foreignStore time.Duration // between inspections of a store that must not be written
	watch        time.Duration // minimum between growth checks by a member that does not lead
	emptyStore   time.Duration // the same without a chain
	headValid    time.Duration // how long the end of the chain counts as known
	verifyOwner  time.Duration // between checks that the store is still this cluster's, in addition to each upload
	merge        time.Duration // between merges
	idleMerge    time.Duration // the same while few segments are new
	successor    time.Duration // between checks for a successor
	heartbeat    time.Duration // between empty segments of an idle writer
	fullPatience time.Duration // how long FullNow waits while there is a problem
	retry        time.Duration // first wait after a failure; it grows with further failures
	check        time.Duration // between checks that the store still has what was stored
	overdue      time.Duration // beyond two intervals, until an unstored revision is a problem of its own
}

var defaultTiming = timing{
	tick: 100 * time.Millisecond, gap: 2 * time.Second, rest: 10 * time.Second, ahead: 10 * time.Second,
	foreignStore: time.Minute, headValid: archive.Grace, watch: 10 * time.Second, emptyStore: time.Second, merge: time.Minute, idleMerge: 30 * time.Minute, retry: 500 * time.Millisecond, fullPatience: 30 * time.Second,
	successor: 10 * time.Second, heartbeat: 40 * time.Second, verifyOwner: 30 * time.Minute, overdue: 10 * time.Second, check: 10 * time.Second,
}
