// Package report describes a run: in the status document, in the phase that /readyz shows, and in the termination
// message for Kubernetes. A Report takes its data from the lifecycle, the runtime and the readiness monitor.
//
// Package main creates one Report per run and serves it. The status page, the metrics and `etcd-wrapper status` are
// all based on the document of the Report. A Report changes nothing. It reads only from memory, except for the
// certificate files and, at the end of the run, the exit record.
package report

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/history"
	"etcd-wrapper/readiness/status"
)

// Lifecycle provides snapshots of the run's state machine.
type Lifecycle interface{ Snapshot() *lifecycle.Snapshot }

// Runtime provides the facts about the running member that a Report shows.
type Runtime interface {
	Document() status.Document // returns the document without the lifecycle, the checks and the timeline
	Progress() string          // returns the progress of starting or closing etcd as a clause, or ""
	RecoveryProgress() string  // returns what recovery is waiting for and since when, as a clause, or ""
	Readiness() *readiness.Report
	Requests() (writes, reads state.Requests)
	FlushError() error // returns the error of the final upload; nil before the stop or if everything has been uploaded
	Durations() (start, stop, drain time.Duration)
	Record() (exitcode.Word, error)
}

// Report describes one run. All methods of a Report are safe for concurrent use.
type Report struct {
	run       Lifecycle
	runtime   Runtime
	version   string
	pod       string
	started   time.Time
	readiness readinessHistory
	history   *history.History
}

// New returns a report on a run. version is the wrapper's version, and pod is the pod's name.
func New(run Lifecycle, runtime Runtime, version, pod string) *Report {
	started := runtime.Document().Started
	return &Report{
		run: run, runtime: runtime, version: version, pod: pod, started: started,
		history: history.New(prometheus.DefaultRegisterer), readiness: readinessHistory{since: started},
	}
}

// Source returns the source of the documents that GET /lifecycle serves.
func (r *Report) Source() status.Source {
	return status.Source{
		Document: r.Document,
		Changed:  func() <-chan struct{} { return r.run.Snapshot().Changed() },
	}
}

// Phase returns the phase that /readyz shows.
func (r *Report) Phase() readiness.Phase {
	now := r.run.Snapshot()
	return readiness.Phase{
		State: string(now.State), Since: now.PhaseSince, Serving: now.State == lifecycle.Serving, Reason: r.reason(now),
	}
}

// reason returns the reason for the state. While etcd is starting or stopping, the reason includes its progress.
// While recovery is running, the reason is its progress.
func (r *Report) reason(run *lifecycle.Snapshot) string {
	if run.State == lifecycle.StartEtcd || run.State == lifecycle.Terminating {
		if progress := r.runtime.Progress(); progress != "" {
			return run.Reason + "; etcd is " + progress
		}
	}
	if slices.Contains(lifecycle.BeforeResult, run.State) {
		if awaited := r.runtime.RecoveryProgress(); awaited != "" {
			return awaited // not appended to run.Reason, because users would overlook it at the end of a long sentence
		}
	}
	return run.Reason
}

// Document returns the status of the run.
func (r *Report) Document() status.Document {
	document := r.snapshot()
	run := r.run.Snapshot()
	document.Transitions, document.TransitionCounts = r.readiness.mergeInto(run.History), run.EdgeCounts
	document.Trends, document.Timeline = r.history.Trends(), r.history.Timeline()
	return document
}

// snapshot returns the document without transitions, trends and timeline. The watcher calls snapshot four times per
// second.
func (r *Report) snapshot() status.Document {
	run, found, now := r.run.Snapshot(), r.runtime.Readiness(), time.Now()
	document := r.runtime.Document()
	document.Pod, document.Versions.Wrapper = r.pod, r.version
	document.State, document.Reason, document.Attempt = string(run.State), r.reason(run), run.Attempt
	document.Since, document.PhaseSince, document.NextRetry = run.Since, run.PhaseSince, run.NextRetry
	document.Ready, document.ReadySince = run.State == lifecycle.Serving && found.Ready(now), r.readySince(run, found, now)
	document.LastError, document.Validation, document.Checks = lastError(run.Condition), validation(run.Validation), found.Checks(now)
	if !document.Standalone { // without a sidecar, Word is the status of the wrapper's own validation
		document.SidecarStatus = string(run.Word)
	}
	document.Headline = status.HeadlineOf(document)
	return document
}

// readySince returns the time at which the document's ready field last changed. The member is ready if the lifecycle
// is in state Serving and etcd is ready.
func (r *Report) readySince(run *lifecycle.Snapshot, found *readiness.Report, now time.Time) time.Time {
	ofEtcd := found.ReadySince(now)
	if run.State == lifecycle.Serving {
		if found.Ready(now) && ofEtcd.Before(run.Since) {
			return run.Since
		}
		return ofEtcd
	}
	notServing := r.started
	for _, step := range run.History {
		if step.From == lifecycle.Serving && step.To != step.From {
			notServing = step.At
		}
	}
	if !found.Ready(now) && ofEtcd.Before(notServing) {
		return ofEtcd
	}
	return notServing
}

func lastError(t lifecycle.Condition) *status.Error {
	if t == (lifecycle.Condition{}) {
		return nil
	}
	return &status.Error{At: t.At, Since: t.Since, Count: t.Times, Ended: t.Ended, Class: string(t.Class), Message: t.Text}
}

func validation(v lifecycle.Validation) *status.Validation {
	if v == (lifecycle.Validation{}) {
		return nil
	}
	return &status.Validation{Mode: string(v.Mode), Reason: v.Why}
}

// maxChanges is the maximum number of recorded readiness changes. It is well below maxSteps, so that a member whose
// readiness flaps does not push the lifecycle's transitions out of the document.
const maxChanges = 16

// maxSteps is the maximum number of transitions in a document, which is the number that the lifecycle keeps.
const maxSteps = 64

// readinessHistory records when and why readiness changed.
type readinessHistory struct {
	mu      sync.Mutex
	ready   bool
	since   time.Time
	changes []status.Transition
}

// note records a readiness change and returns true, or returns false if readiness has not changed.
func (h *readinessHistory) note(ready bool, reason string, state lifecycle.State, since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ready == h.ready {
		return false
	}
	event := map[bool]lifecycle.Event{true: "ready", false: "not ready"}[ready]
	h.changes = append(h.changes, status.Transition{
		At: since, From: state, To: state, Event: event, Reason: reason, Count: 1, AfterSeconds: since.Sub(h.since).Seconds(),
	})
	h.changes = h.changes[max(0, len(h.changes)-maxChanges):]
	h.ready, h.since = ready, since
	return true
}

// mergeInto returns the lifecycle's transitions and the readiness changes, sorted by time and limited to the newest
// maxSteps.
func (h *readinessHistory) mergeInto(steps []status.Transition) []status.Transition {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Concat(steps, h.changes)
	slices.SortStableFunc(all, func(a, b status.Transition) int { return a.At.Compare(b.At) })
	return all[max(0, len(all)-maxSteps):]
}

// notReadyReason returns a clause that explains why the member is not ready.
func notReadyReason(run *lifecycle.Snapshot, document status.Document) string {
	if run.State != lifecycle.Serving {
		return run.Reason
	}
	return status.NotReadyReason(document.Checks)
}
