package main

import (
	"net/http"
	"runtime"
	"time"

	etcd "go.etcd.io/etcd/api/v3/version"

	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/page"
	"etcd-wrapper/readiness/status"
)

// account is what the wrapper tells about itself, put together from the lifecycle and the readiness monitor.
type account struct {
	pod    *pod
	driver *lifecycle.Driver
}

// routes are what the server answers beside its own endpoints.
func (a account) routes() map[string]http.Handler {
	table, _ := lifecycle.JSON(lifecycle.Table) // it is made of texts, so nothing can fail
	return map[string]http.Handler{
		"GET /{$}":              page.Handler(lifecycle.Overview(), table),
		"GET /statemachine.svg": page.Picture(lifecycle.SVG()),
		"GET /lifecycle":        status.Handler(a.source()),
		"GET /metrics":          a.pod.metrics.Handler(),
	}
}

func (a account) source() status.Source {
	return status.Source{
		Document: a.document,
		Changed:  func() <-chan struct{} { return a.driver.Snapshot().Superseded() },
	}
}

// phase is what /readyz needs to know.
func (a account) phase() readiness.Phase {
	now := a.driver.Snapshot()
	return readiness.Phase{
		State: string(now.State), Since: now.Since, Serving: now.State == lifecycle.Serving, Reason: a.reason(now),
	}
}

func (a account) document() status.Document {
	run, report, now := a.driver.Snapshot(), a.pod.monitor.Report(), time.Now()
	memberID, _ := a.pod.memberID.Load().(string)
	return status.Document{
		State: string(run.State), Since: run.Since, Reason: a.reason(run), Attempt: run.Attempt, NextRetry: run.NextRetry,
		Ready:     run.State == lifecycle.Serving && report.Ready(now),
		LastError: lastError(run.Trouble), Validation: validation(run.Validation), SidecarWord: string(run.Word),
		MemberID: memberID, Started: a.pod.began, LastExit: a.pod.lastExit,
		Versions:     status.Versions{Wrapper: version, Etcd: etcd.Version, Go: runtime.Version()},
		Certificates: a.pod.certificates.now(),
		Checks:       checks(report.Checks(now)), Transitions: transitions(run.History), Edges: edges(run.Tallies),
	}
}

// reason is why the state was entered and, while etcd starts, how far it has come: without a quorum it never gets on.
func (a account) reason(run *lifecycle.Snapshot) string {
	starting := a.pod.opening.Load()
	if run.State != lifecycle.StartEtcd || starting == nil || starting.Doing() == "" {
		return run.Reason
	}
	return run.Reason + "; it " + starting.Doing()
}

func lastError(t lifecycle.Trouble) *status.Error {
	if t == (lifecycle.Trouble{}) {
		return nil
	}
	return &status.Error{At: t.At, Class: string(t.Class), Message: t.Text}
}

func validation(v lifecycle.Validation) *status.Validation {
	if v == (lifecycle.Validation{}) {
		return nil
	}
	return &status.Validation{Mode: string(v.Mode), Reason: v.Why}
}

func checks(all []readiness.Check) []status.Check {
	told := make([]status.Check, len(all))
	for i, c := range all {
		told[i] = status.Check{Name: c.Name, Status: string(c.Status), Reason: c.Reason}
	}
	return told
}

func transitions(all []lifecycle.Transition) []status.Transition {
	told := make([]status.Transition, len(all))
	for i, t := range all {
		told[i] = status.Transition{
			At: t.At, From: string(t.From), Event: string(t.Event), Guard: string(t.Guard), To: string(t.To),
			Reason: t.Reason, Times: t.Times, After: t.After.Seconds(),
		}
	}
	return told
}

func edges(all []lifecycle.Tally) []status.Edge {
	told := make([]status.Edge, len(all))
	for i, t := range all {
		told[i] = status.Edge{
			From: string(t.From), Event: string(t.Event), Guard: string(t.Guard), To: string(t.To),
			Times: t.Times, Last: t.Last, Spent: t.Spent.Seconds(),
		}
	}
	return told
}

// howTheLastRunEnded is told from what it left on the volume.
func (p *pod) howTheLastRunEnded() string {
	if word, err := p.record.Read(); err == nil {
		return string(word)
	}
	if p.note.Previous() != "" {
		return "crash"
	}
	return "unknown"
}
