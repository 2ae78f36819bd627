package lifecycle

import "etcd-wrapper/bootstrap"

// StateInfo is what people are told about a state.
type StateInfo struct {
	Name     State  `json:"name"`
	Meaning  string `json:"meaning"`
	Bound    Bound  `json:"-"`        // what the tests hold every visit to
	Deadline string `json:"deadline"` // the same for people: what bounds a visit, or why nothing does
}

// Bound is what keeps a visit to a state from lasting for ever.
type Bound string

// The bounds. Every state has one.
const (
	ByTimer Bound = "timer" // the state's timer is set from its beginning to its end
	ByCalls Bound = "calls" // each call has a deadline of its own; between calls the timer is set
	NoBound Bound = "none"  // its work may go on for ever, and Deadline says why; without work the timer is set
	AtEnd   Bound = "end"   // nothing happens any more
)

// States describes every state, in the order of a run.
var States = []StateInfo{
	{Query, "ask the sidecar where initialization stands", ByCalls, seconds(bootstrap.StatusDeadline) + " for the call"},
	{Trigger, "ask for sanity or full validation", ByCalls, seconds(bootstrap.TriggerDeadline) + " for the call"},
	{Wait, "wait before asking again", ByTimer, "at most " + seconds(maxPause)},
	{FetchConfig, "fetch, store and check etcd's configuration; serve /readyz as it says, lock the data directory", ByCalls, seconds(bootstrap.ConfigDeadline) + " a call, at most " + seconds(maxPause) + " between calls"},
	{StartEtcd, "remove the exit record, start the embedded etcd", ByTimer, "--etcd-ready-timeout; 0 waits for ever"},
	{Serving, "etcd runs, readiness is watched", NoBound, "none: this is the job"},
	{Terminating, "unready, close etcd in order, settle the exit record", ByTimer, seconds(AbortBudget) + " before etcd was started, " + seconds(StopBudget) + " after"},
	{Terminated, "the process exits", AtEnd, "final"},
}
