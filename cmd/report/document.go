package report

import (
	"runtime"
	"time"

	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/status"
)

// Document is everything there is to know about the run now.
func (r *Report) Document() status.Document {
	run, found, now := r.run.Snapshot(), r.world.Readiness(), time.Now()
	lastExit, lastExitReason := r.world.LastExit()
	return status.Document{
		State: string(run.State), Since: run.Since, Reason: r.headline(run, found, now), Attempt: run.Attempt, NextRetry: run.NextRetry,
		Ready: run.State == lifecycle.Serving && found.Ready(now), ReadySince: r.readySince(run, found, now),
		LastError: lastError(run.Trouble), Validation: validation(run.Validation), SidecarWord: string(run.Word),
		Pod: r.pod, MemberID: r.world.MemberID(), Member: r.world.Member(), Started: r.world.Began(), LastExit: lastExit,
		Versions:     status.Versions{Wrapper: r.version, Etcd: r.world.EtcdVersion(), Go: runtime.Version()},
		Certificates: r.world.Certificates(), DataVersion: r.world.DataVersion(), Backup: r.world.Backup(), Recovery: r.world.Recovery(), Upkeep: r.world.Upkeep(),
		Leases: r.world.Leases(), ConfigOddities: r.world.ConfigOddities(),
		Checks: checks(found.Checks(now)), Transitions: r.readiness.among(transitions(run.History)), Edges: edges(run.Tallies),
		PhaseSince: run.PhaseSince, LastExitReason: lastExitReason,
	}
}

// readySince is since when the document's ready is what it is. Being ready takes both the lifecycle and etcd, of which the
// one that came last counts; to be unready one of them is enough, of which the first counts.
func (r *Report) readySince(run *lifecycle.Snapshot, found *readiness.Report, now time.Time) time.Time {
	ofEtcd := found.Since(now)
	if run.State == lifecycle.Serving {
		if found.Ready(now) && ofEtcd.Before(run.Since) {
			return run.Since
		}
		return ofEtcd
	}
	notServing := r.world.Began()
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

func lastError(t lifecycle.Trouble) *status.Error {
	if t == (lifecycle.Trouble{}) {
		return nil
	}
	return &status.Error{At: t.At, Since: t.Since, Times: t.Times, Ended: t.Ended, Class: string(t.Class), Message: t.Text}
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
		told[i] = status.Check{Name: c.Name, Status: string(c.Verdict), Reason: c.Reason}
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
