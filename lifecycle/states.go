package lifecycle

// StateInfo is what people are told about a state.
type StateInfo struct {
	Name     State  `json:"name"`
	Meaning  string `json:"meaning"`
	Deadline string `json:"deadline"` // what bounds a visit, or why nothing does
}

// States describes every state, in the order of a run.
var States = []StateInfo{
	{Query, "ask the sidecar where initialization stands", "15 s for the call"},
	{Trigger, "ask for sanity or full validation", "10 s for the call"},
	{Wait, "wait before asking again", "at most 15 s"},
	{FetchConfig, "fetch, store and check etcd's configuration", "60 s a call, at most 15 s between calls"},
	{StartEtcd, "serve /readyz and start the embedded etcd", "--etcd-ready-timeout; 0 waits for ever"},
	{Serving, "etcd runs, readiness is watched", "none: this is the job"},
	{Terminating, "unready, close etcd in order, settle the exit record", "2 s before etcd was started, 25 s after"},
	{Terminated, "the process exits", "final"},
}
