package writer

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/store"
)

type operation int

const (
	opInspect operation = iota // reading the store
	opSegment                  // uploading a segment
	opFull                     // making or uploading a full snapshot
	opCapture                  // capturing changes into the spool, without accessing the store
	opCount
)

// health records failing operations, and determines when the next request for the chain may start so that only one
// runs at a time.
type health struct {
	*driver
	spool    *Spool
	problems [opCount]*problem // nil if the operation is not failing
	failures int64             // number of failed requests to the store
	flushing bool              // Flush is waiting, so the process may exit before a delayed retry

	requestedAt time.Time // start of the request in progress; zero if there is none
	notBefore   time.Time // no request may start before this time
}

// problem describes a failing operation.
type problem struct {
	facts.Problem
	backoff *backoff.ExponentialBackOff
}

const (
	// maxRetryWait is the maximum wait between retries unless the store requests a longer one.
	maxRetryWait = 30 * time.Second
	// firstUploadTimeout is the timeout for the first attempt to upload a segment that clients are waiting for.
	firstUploadTimeout = 10 * time.Second
	// responseLimit is the time after which a request without a response is reported as a problem.
	responseLimit = 5 * time.Second
)

// canRequest reports whether a request for the chain may start now.
func (h *health) canRequest() bool {
	return h.requestedAt.IsZero() && !time.Now().Before(h.notBefore)
}

func (h *health) delayRequests(wait time.Duration) { h.notBefore = time.Now().Add(wait) }

// record records a failed operation and logs it, unless the previous failure had the same message. If retries is set,
// the log states that the operation will be retried.
func (h *health) record(about operation, text string, retries bool) *problem {
	p := h.problems[about]
	if p == nil {
		waits := backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(h.pace.retry), backoff.WithMaxInterval(maxRetryWait), backoff.WithMaxElapsedTime(0))
		p = &problem{Problem: facts.Problem{Since: h.options.Now()}, backoff: waits}
		h.problems[about] = p
	}
	p.Count++
	switch {
	case p.Message == text:
	case retries:
		h.options.Log.Warn().Msgf("backups: %s; retrying, etcd keeps serving", text)
	default:
		h.options.Log.Error().Msg("backups: " + text)
	}
	p.Message = text
	return p
}

// failed records a failed request to the store and returns how long to wait before the next attempt.
func (h *health) failed(about operation, doing string, err error) time.Duration {
	if h.stopping {
		return 0 // the operation was canceled
	}
	if h.problems[about] == nil { // at the first failure, because queued segments may now remain in the spool for long
		if err := h.spool.Sync(); err != nil {
			h.options.Log.Warn().Err(err).Msg("backups: cannot sync the spool; queued segments may not survive a power failure")
		}
	}
	p := h.record(about, fmt.Sprintf("%s: %s", doing, err), true)
	h.failures++
	wait := max(p.backoff.NextBackOff(), store.RetryAfter(err))
	if h.flushing || h.options.Ack != nil {
		wait = min(wait, time.Second)
	}
	p.NextRetry = h.options.Now().Add(wait)
	if about == opInspect || about == opSegment {
		h.delayRequests(wait)
	}
	return wait
}

// uploadTimeout returns the timeout for uploading a segment. If clients wait for uploads (Options.Ack), the first
// timeout is short so that a request lost by the network is soon retried. Each failure doubles the timeout because the
// network may be slow.
func (h *health) uploadTimeout() time.Duration {
	limit := requestTimeout
	if h.options.Ack == nil {
		return limit
	}
	if p := h.problems[opSegment]; p != nil {
		return min(limit, firstUploadTimeout<<min(p.Count, 4))
	}
	return firstUploadTimeout
}

// succeeded clears the problems of the operation and of all operations declared before it. For example, an upload of a
// segment that succeeds shows that the store can be read again.
func (h *health) succeeded(operation operation) {
	var solved *problem
	for about := range operation + 1 {
		solved = cmp.Or(h.problems[about], solved)
		h.problems[about] = nil
	}
	if solved == nil {
		return
	}
	h.notBefore = time.Time{}
	if h.isHealthy() {
		h.options.Log.Info().Dur("after_ms", h.options.Now().Sub(solved.Since)).Msg("backups: recovered")
	}
}

// isHealthy reports whether no operation that uses the store is failing.
func (h *health) isHealthy() bool {
	return [opCapture]*problem(h.problems[:]) == [opCapture]*problem{}
}

// isUnreachable reports whether reads or segment uploads have been failing for longer than the capture interval, or a
// response is overdue.
func (h *health) isUnreachable() bool {
	for _, p := range h.problems[:opFull] {
		if p != nil && h.options.Now().Sub(p.Since) > cmp.Or(h.options.Interval, time.Second) {
			return true
		}
	}
	return h.isTimedOut()
}

// isTimedOut reports whether the request in progress has been waiting for a response for longer than responseLimit.
func (h *health) isTimedOut() bool {
	return !h.requestedAt.IsZero() && time.Since(h.requestedAt) > responseLimit
}

// lasting returns a problem that is not caused by a failed request but has existed since the given time. text must
// contain one formatting verb, which is replaced with the duration of the problem.
func (h *health) lasting(text string, since time.Time) facts.Problem {
	waited := time.Since(since).Truncate(time.Second)
	return facts.Problem{Message: fmt.Sprintf(text, waited), Since: h.options.Now().Add(-waited), Count: 1}
}

// current combines the problems of all operations into one, or returns nil if there is none.
func (h *health) current() *facts.Problem {
	all := slices.DeleteFunc(slices.Clone(h.problems[:]), func(p *problem) bool { return p == nil })
	if h.isTimedOut() {
		all = append(all, &problem{Problem: h.lasting("the store has not responded for %s", h.requestedAt)})
	}
	if len(all) == 0 {
		return nil
	}
	combined := all[0].Problem
	for _, p := range all[1:] {
		combined.Message, combined.Count = combined.Message+"; "+p.Message, max(combined.Count, p.Count)
		if p.Since.Before(combined.Since) {
			combined.Since = p.Since
		}
		if combined.NextRetry.IsZero() || p.NextRetry.Before(combined.NextRetry) && !p.NextRetry.IsZero() {
			combined.NextRetry = p.NextRetry
		}
	}
	return &combined
}
