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

// about is what failed.
type operation int

const (
	opInspect     operation = iota // finding out what the store has
	opSegment                      // storing a segment
	opFull                         // making or storing a full
	opReservation                  // keeping the reservation ahead
	opCapture                      // reading what changes, or keeping it on the volume, which the store has no part in
	opCount
)

// trouble is why something does not go on.
type problem struct {
	facts.Problem
	started time.Time // by the monotonic clock
	backoff *backoff.ExponentialBackOff
}

const (
	// longestWait is how long the store is left alone at most, unless it asks for more.
	maxRetryWait = 30 * time.Second
	// silence is how long an answer may take before it is told.
	responseLimit = 5 * time.Second
)

// failed notes that something did not succeed, and returns how long it is to be left alone. The log has the first of a row
// of failures, and each that is another.
func (w *Writer) failed(about operation, doing string, err error) time.Duration {
	if w.stopping {
		return 0 // it was given up
	}
	if w.problems[about] == nil { // what waits may have to wait for long now, and survive a machine that is switched off
		if err := w.spool.Sync(); err != nil {
			w.options.Log.Warn().Err(err).Msg("backups: what waits for the store may not survive the machine")
		}
	}
	t := w.recordProblem(about)
	w.statistic.Failures++
	wait := max(t.backoff.NextBackOff(), store.RetryAfter(err))
	if len(w.flushes) > 0 {
		wait = min(wait, time.Second) // there may be no later
	}
	text := doing + ": " + err.Error()
	if t.Message != text {
		w.options.Log.Warn().Msgf("backups: %s; it is tried again, and etcd serves all the same", text)
	}
	t.Message, t.NextRetry = text, w.options.Now().Add(wait)
	if about == opInspect || about == opSegment {
		w.delayRequests(wait)
	}
	return wait
}

// trouble adds to a row of failures, or begins one.
func (w *Writer) recordProblem(about operation) *problem {
	if w.problems[about] == nil {
		waits := backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(w.pace.retry), backoff.WithMaxInterval(maxRetryWait), backoff.WithMaxElapsedTime(0))
		w.problems[about] = &problem{Problem: facts.Problem{Since: w.options.Now()}, started: time.Now(), backoff: waits}
	}
	w.problems[about].Count++
	return w.problems[about]
}

// succeeded notes that something went well. Who can write can read as well, but not the other way round.
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
		w.options.Log.Info().Dur("after_ms", time.Since(began)).Msg("backups: they go on")
	}
}

// well tells whether nothing is wrong with the store.
func (w *Writer) isHealthy() bool {
	return [opCapture]*problem(w.problems[:]) == [opCapture]*problem{}
}

// away is whether the store has not answered well for a while.
func (w *Writer) isUnreachable() bool {
	for _, about := range []operation{opInspect, opSegment} {
		if t := w.problems[about]; t != nil && time.Since(t.started) > cmp.Or(w.options.Interval, time.Second) {
			return true
		}
	}
	return w.isUnresponsive()
}

// silent is whether an answer is overdue.
func (w *Writer) isUnresponsive() bool {
	return !w.remote.requestedAt.IsZero() && time.Since(w.remote.requestedAt) > responseLimit
}

// stuck notes that nothing can be captured. etcd has what is not captured, until it is compacted.
func (w *Writer) captureFailed(err error) {
	text := "what changes cannot be captured, and will be lost to backups when etcd compacts it: " + err.Error()
	if w.problems[opCapture] == nil {
		w.options.Log.Warn().Msg("backups: " + text)
	}
	w.recordProblem(opCapture).Message = text
}

// troubleNow puts together all that is wrong.
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

// overdue reports whether a revision should have been stored long ago: the writer may be busy without getting anywhere. A full snapshot
// that begins a chain takes as long as it takes.
func (w *Writer) isOverdue() bool {
	return w.role() == Writing && len(w.unstored) > 0 && w.fulls.making == nil && time.Since(w.unstored[0].at) > w.pace.overdue+2*w.interval()
}

// pace is how long is waited for what.
type timing struct {
	tick         time.Duration // between looks at etcd's revision: markers of the time are that far apart at least
	gap          time.Duration // another member has so long to bring what it has in its spool, before a gap counts
	rest         time.Duration // at least between a full and one for a gap; see restFactor
	ahead        time.Duration // a leader may take so long to apply what was acknowledged before it led
	foreignStore time.Duration // a store that must not be written is left alone
	watch        time.Duration // at least between looks of a member that does not lead at whether the chain grows
	emptyStore   time.Duration // the same where there is no chain yet
	headValid    time.Duration // what is known of the end of the chain is good for so long
	verifyOwner  time.Duration // between looks at whether the store is still this cluster's, beside what each upload shows
	merge        time.Duration // between merges
	idleMerge    time.Duration // the same while few segments are new
	successor    time.Duration // between questions whether another cluster goes on in this one's place
	heartbeat    time.Duration // an idle writer shows that it lives
	fullPatience time.Duration // whoever waits for a full waits no longer while there is trouble
	retry        time.Duration // about so long after a failure it is tried again first, then later and later
	check        time.Duration // between checks that the store still has what was stored
	overdue      time.Duration // beyond two intervals, until a revision that is not stored is a trouble of its own
}

var defaultTiming = timing{
	tick: 100 * time.Millisecond, gap: 2 * time.Second, rest: 10 * time.Second, ahead: 10 * time.Second,
	foreignStore: time.Minute, headValid: archive.Grace, watch: 10 * time.Second, emptyStore: time.Second, merge: time.Minute, idleMerge: 30 * time.Minute, retry: 500 * time.Millisecond, fullPatience: 30 * time.Second,
	successor: 10 * time.Second, heartbeat: 40 * time.Second, verifyOwner: 30 * time.Minute, overdue: 10 * time.Second, check: 10 * time.Second,
}
