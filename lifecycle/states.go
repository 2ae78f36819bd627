package lifecycle

import (
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/statemachine"
)

// States describes every state, in the order of a run.
var States = []StateInfo{
	{Name: Query, Meaning: "ask the sidecar where initialization stands", Bound: ByCalls, Deadline: seconds(bootstrap.StatusDeadline) + " for the call"},
	{Name: Trigger, Meaning: "ask for sanity or full validation", Bound: ByCalls, Deadline: seconds(bootstrap.TriggerDeadline) + " for the call"},
	{Name: Wait, Meaning: "wait before asking again", Bound: ByTimer, Deadline: "at most " + seconds(maxPause)},
	{Name: FetchConfig, Meaning: "fetch, store and check etcd's configuration; serve /readyz as it says, lock the data directory", Bound: ByCalls, Deadline: seconds(bootstrap.ConfigDeadline) + " a call, at most " + seconds(maxPause) + " between calls"},
	{Name: StartEtcd, Meaning: "remove the exit record, start the embedded etcd", Bound: ByTimer, Deadline: "--etcd-ready-timeout; 0 waits for ever"},
	{Name: Serving, Meaning: "etcd runs, readiness is watched", Bound: NoBound, Deadline: "none: this is the job"},
	{Name: Terminating, Meaning: "unready, close etcd in order, settle the exit record", Bound: ByTimer, Deadline: seconds(AbortBudget) + " before etcd was started, " + seconds(StopBudget) + " after"},
	{Name: Terminated, Meaning: "the process exits", Bound: AtEnd, Deadline: "final"},
}

// drawing is how the lifecycle is drawn.
var drawing = statemachine.Drawing{
	Name: "lifecycle", Source: "etcd-wrapper --dump-fsm", States: States, Initial: Query, Final: Terminated, Aside: Terminating,
	Shapes: map[State]string{
		Serving:    `fillcolor="#dff3e1", color="#2c6e35", `,
		Terminated: `peripheries=2, fillcolor="#f3f3f3", `,
	},
	Defaults: Elsewhere,
}

// DOT is the table as a Graphviz graph, the same byte for byte every time. What makes the machine stay in a state is
// written into the state; what has no row is in the matrix, not in the picture.
func DOT(table []Row) string { return drawing.DOT(table) }

// Mermaid is the table as a Mermaid state diagram, which GitHub draws in a README.
func Mermaid(table []Row) string { return drawing.Mermaid(table) }

// JSON is the table, its states and the answers where there is no row, for programs.
func JSON(table []Row) (string, error) { return drawing.JSON(table) }
