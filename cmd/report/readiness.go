package report

import (
	"slices"
	"strings"
	"sync"
	"time"

	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/status"
)

// maxChanges bounds the changes of readiness that are kept, so that a member that comes and goes leaves room for the
// lifecycle's own steps.
const maxChanges = 16

// maxSteps bounds the steps that a document lists, as the lifecycle does.
const maxSteps = 64

// readinessHistory keeps when the member became ready and unready, and why.
type readinessHistory struct {
	mu      sync.Mutex
	ready   bool
	since   time.Time
	changes []status.Transition
}

// changed is since when the member is ready, or is not.
func (h *readinessHistory) changed() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.since
}

func (h *readinessHistory) isReady() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ready
}

// note keeps a change, and since when it is one (readySince). It returns false if there is none.
func (h *readinessHistory) note(ready bool, reason string, state lifecycle.State, since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ready == h.ready {
		return false
	}
	event := map[bool]string{true: "ready", false: "not ready"}[ready]
	h.changes = append(h.changes, status.Transition{
		At: since, From: string(state), To: string(state), Event: event, Reason: reason, Times: 1, After: since.Sub(h.since).Seconds(),
	})
	h.changes = h.changes[max(0, len(h.changes)-maxChanges):]
	h.ready, h.since = ready, since
	return true
}

// among puts the changes between the lifecycle's steps, in the order of time.
func (h *readinessHistory) among(steps []status.Transition) []status.Transition {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Concat(steps, h.changes)
	slices.SortStableFunc(all, func(a, b status.Transition) int { return a.At.Compare(b.At) })
	return all[max(0, len(all)-maxSteps):]
}

// unreadiness says in a clause why the member is not ready.
func unreadiness(run *lifecycle.Snapshot, found *readiness.Report, now time.Time) string {
	if run.State != lifecycle.Serving {
		return run.Reason
	}
	var reasons []string
	said := map[string]bool{}
	for _, check := range found.Checks(now) {
		if check.Verdict == readiness.Failed && !said[check.Reason] {
			said[check.Reason] = true
			reasons = append(reasons, check.Name+": "+check.Reason)
		}
	}
	return strings.Join(reasons, "; ")
}
