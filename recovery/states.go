package recovery

import "etcd-wrapper/statemachine"

// pause is what people are told of the pause between two questions to those who do not answer.
const pause = "at most 30 s"

// States describes every state, in the order of a run.
var States = []statemachine.StateInfo{
	{Name: Resume, Meaning: "see whether an earlier run was cut off", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Examine, Meaning: "validate the data directory, read its cluster and revision", Bound: statemachine.ByCalls, Deadline: "that of the validation: none, a large database takes long"},
	{Name: Decide, Meaning: "decide by the table what becomes of the volume", Bound: statemachine.ByCalls, Deadline: "at once"},
	{Name: AskPeers, Meaning: "ask the other members how they have this one, and what would be in the way of replacing it", Bound: statemachine.ByCalls, Deadline: "some seconds for a question, " + pause + " between questions"},
	{Name: GiveWay, Meaning: "move data out of the way that the others have all of", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Leave, Meaning: "have the others take the old identity out of the cluster", Bound: statemachine.ByCalls, Deadline: "10s for the request"},
	{Name: Enter, Meaning: "have the others take this member in, as a learner", Bound: statemachine.ByCalls, Deadline: "10s for the request"},
	{Name: AskStore, Meaning: "bring what waits on the volume into the store, ask whose it is, and what is kept", Bound: statemachine.ByCalls, Deadline: "2m for each segment that waits, 2m for the question, " + pause + " between questions"},
	{Name: Flush, Meaning: "bring into the store what only the volume has", Bound: statemachine.ByCalls, Deadline: "2m"},
	{Name: MakeRoom, Meaning: "say what would be lost, compare the room on the volume with what is needed", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Build, Meaning: "fetch the backup and make a data directory of it, beside the old one", Bound: statemachine.ByCalls, Deadline: "none while bytes come; the store gives up after a minute without any"},
	{Name: Prove, Meaning: "validate what was built, all of it", Bound: statemachine.ByCalls, Deadline: "that of the validation"},
	{Name: Claim, Meaning: "begin the next generation in the store, with a reservation of revisions", Bound: statemachine.ByCalls, Deadline: "2m for the request, " + pause + " between requests"},
	{Name: Adopt, Meaning: "begin a generation of its own for the data on the volume, in a store that a person has named", Bound: statemachine.ByCalls, Deadline: "2m for the request, " + pause + " between requests"},
	{Name: SetAside, Meaning: "move the old data directory out of the way", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Install, Meaning: "give the restored one its name, remember that it was done", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Ready, Meaning: "etcd may open the data directory", Bound: statemachine.AtEnd, Deadline: "final"},
	{Name: Refused, Meaning: "etcd may not; one sentence says why, and nothing was deleted", Bound: statemachine.AtEnd, Deadline: "final"},
}

// drawing is how recovery is drawn.
var drawing = statemachine.Drawing{
	Name: "recovery", Source: "etcd-wrapper --dump-fsm --machine=recovery", States: States, Initial: Resume, Final: Ready, Aside: Refused,
	Shapes: map[State]string{
		Ready:   `peripheries=2, fillcolor="#dff3e1", color="#2c6e35", `,
		Refused: `peripheries=2, fillcolor="#f8e8e8", color="#804040", `,
	},
	Defaults: Elsewhere,
}

// DOT is the table as a Graphviz graph, the same byte for byte every time.
func DOT() string { return drawing.DOT(Table) }

// Mermaid is the table as a Mermaid state diagram.
func Mermaid() string { return drawing.Mermaid(Table) }

// JSON is the table, its states and the answers where there is no row, for programs.
func JSON() (string, error) { return drawing.JSON(Table) }
