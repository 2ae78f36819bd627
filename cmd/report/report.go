// Package report is what the wrapper tells about a run, put together from the lifecycle, the world and the readiness
// monitor: the status document, the phase that /readyz shows, and the last words that Kubernetes keeps.
//
// The command makes one Report for a run and serves it; the page, the metrics and `etcd-wrapper status` are made from its
// document. Nothing here changes anything, and every answer comes from memory but for what is read of certificates, and
// of the exit record at the end.
package report

import (
	"time"

	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/status"
)

// Lifecycle is the machine that drives the run.
type Lifecycle interface{ Snapshot() *lifecycle.Snapshot }

// World is what the lifecycle acts on, as far as it tells of itself.
type World interface {
	Began() time.Time
	LastExit() (class, reason string)
	MemberID() string
	Member() status.Member // its cluster, as etcd sees it; zero while etcd does not run
	Progress() string      // of etcd's start or close, a clause; empty before
	Readiness() *readiness.Report
	Certificates() []status.Certificate
	ConfigOddities() []string         // of etcd's configuration; nil before it was read
	EtcdVersion() string              // of the embedded etcd, whatever it announces
	DataVersion() *status.DataVersion // nil before etcd is ready
	Backup() *status.Backup           // nil without a store
	Unstored() error                  // what the stop could not bring into the store; nil before, and if there is nothing
	Recovery() *status.Recovery       // nil where nothing has to come back
	Awaits() string                   // whom recovery waits for, and since when, a clause; empty if it does not
	Upkeep() *status.Upkeep           // nil before etcd is opened
	Leases() []status.Lease           // nil without --leases
	Durations() (start, stop, drain time.Duration)
	Record() (exitcode.Word, error)
}

// Report tells about one run. Its methods may be called from any goroutine.
type Report struct {
	run       Lifecycle
	world     World
	version   string
	pod       string
	readiness readinessHistory
}

// New returns a report on a run. version is the wrapper's own, pod whom people know it by.
func New(run Lifecycle, world World, version, pod string) *Report {
	return &Report{run: run, world: world, version: version, pod: pod, readiness: readinessHistory{since: world.Began()}}
}

// Source is where the handler of GET /lifecycle gets its documents from.
func (r *Report) Source() status.Source {
	return status.Source{
		Document: r.Document,
		Changed:  func() <-chan struct{} { return r.run.Snapshot().Superseded() },
	}
}

// SaidReady reports whether the log has said that the member is ready, and has not taken it back.
func (r *Report) SaidReady() bool { return r.readiness.isReady() }

// Phase is what /readyz needs to know.
func (r *Report) Phase() readiness.Phase {
	now := r.run.Snapshot()
	return readiness.Phase{
		State: string(now.State), Since: now.PhaseSince, Serving: now.State == lifecycle.Serving, Reason: r.reason(now),
	}
}

// headline is the reason and, of an etcd that serves without being ready, what is wrong with it.
func (r *Report) headline(run *lifecycle.Snapshot, found *readiness.Report, now time.Time) string {
	if run.State == lifecycle.Serving {
		if wrong := unreadiness(run, found, now); wrong != "" {
			return run.Reason + ", but is not ready: " + wrong
		}
	}
	return r.reason(run)
}

// reason is what the state is about and, while etcd starts or closes, or data come back, what that waits for.
func (r *Report) reason(run *lifecycle.Snapshot) string {
	if run.State == lifecycle.StartEtcd || run.State == lifecycle.Terminating {
		if progress := r.world.Progress(); progress != "" {
			return run.Reason + "; etcd " + progress
		}
	}
	if run.State == lifecycle.Query || run.State == lifecycle.Wait {
		if awaited := r.world.Awaits(); awaited != "" {
			return awaited // nobody looks for it behind "a large database takes long"
		}
	}
	return run.Reason
}
