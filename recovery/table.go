package recovery

import (
	_ "embed" // for the picture

	"etcd-wrapper/statemachine"
)

// Table is the transition table, with a row for each state of a group. It must not be changed at run time.
var Table = statemachine.Expand(written)

// An entry is a row as it is written here: it may start in a group.
type entry statemachine.Entry

const always = statemachine.Always

// working has the states whose work may fail because of the volume or this program.
var working = statemachine.Group{Resume, Examine, AskPeers, GiveWay, Leave, Enter, AskStore, Adopt, Flush, MakeRoom, Build, Prove, Claim, SetAside, Install}

// weighing has the states in which less may turn out to be restorable than the store has announced.
var weighing = statemachine.Group{Flush, MakeRoom, Build}

// Actions that several rows share.
var (
	deciding = []Action{DecideNow}
	askPeers = []Action{AskThePeers}
)

// written is the table as it is read and changed. Rows with the same From and On are adjacent, all but the last of
// them guarded; the first that holds wins. Elsewhere answers an event without a row. The fate of a volume is not
// decided here but by the rules (decide.go), whose results are the events of Decide; a row carries one out.
var written = []entry{
	{Resume, Begun, always, Resume, []Action{ReadPosition}, "an earlier run may have been cut off after its claim"},
	{Resume, NothingBegun, always, Examine, []Action{DropUnfinished, ValidateVolume}, "no restore is claimed, so the data directory is validated"},
	{Resume, ClaimFound, NoStore, Refused, nil, "a restore was cut off, and only the store shows how far it got: start with --backup-store; or, if the data directory is still there, move recovery.json away to continue with that"},
	{Resume, ClaimFound, always, Prove, []Action{ProveData}, "a restore was cut off: it continues with what was built"},
	{Resume, InstallFound, always, Install, []Action{Remember}, "a restore was installed, and is recorded now"},

	{Examine, Examined, always, Decide, deciding, "the state of the volume is known"},

	{Decide, StartEtcd, always, Ready, nil, "etcd may open the data directory as it is"},
	{Decide, FoundCluster, always, Ready, nil, "etcd creates a new cluster"},
	{Decide, ConsultPeers, always, AskPeers, askPeers, "the other members may know more"},
	{Decide, ConsultStore, always, AskStore, []Action{FlushSpool, AskTheStore}, "the store may have more"},
	{Decide, Wait, PeersHeard, AskPeers, []Action{PacePeers}, "the peers are asked again after a pause"},
	{Decide, Wait, always, AskStore, []Action{PaceStore}, "the store is asked again after a pause"},
	{Decide, FlushFirst, always, Flush, []Action{TellLoss, FlushVolume}, "what only the volume has is uploaded before it is replaced"},
	{Decide, RestoreData, Several, MakeRoom, []Action{FindEnd, TellLoss, MeasureRoom}, "the store has what all members lack, including what their volumes have uploaded"},
	{Decide, RestoreData, always, MakeRoom, []Action{TellLoss, MeasureRoom}, "the store has what the volume lacks"},
	{Decide, Rejoin, InItsPlace, GiveWay, []Action{TellReturn, SetVolumeAside}, "the volume's data are moved out of the way, as the others have everything"},
	{Decide, Rejoin, StillListed, Leave, []Action{TellReturn, RemoveMember}, "the member has lost its log, so it must not vote under its old identity"},
	{Decide, Rejoin, NotListed, Enter, []Action{TellReturn, AddMember}, "the cluster adds the member, as a learner where it can: a learner counts for no quorum"},
	{Decide, Rejoin, always, Ready, []Action{AdoptCluster}, "the cluster expects the member, which gets its data from the others"},
	{Decide, AdoptStore, always, Adopt, []Action{TakeStore}, "--adopt names the store's cluster"},
	{Decide, Refuse, always, Refused, nil, "the user has to act"},
	{Decide, Decline, always, Refused, nil, "the request cannot be carried out"},

	{AskPeers, PeersTold, always, Decide, deciding, "the peers have answered"},
	{AskPeers, Elapsed, always, AskPeers, askPeers, "the pause is over"},

	{Adopt, Taken, always, Ready, nil, "the store has a generation for the data"},
	{Adopt, StoreSilent, always, AskStore, []Action{PaceStore}, "the adoption failed, and continues unless another process was faster"},

	{GiveWay, Moved, always, AskPeers, askPeers, "the data directory was moved"},
	{Leave, Left, always, AskPeers, askPeers, "the old identity was removed"},
	{Enter, Entered, always, AskPeers, askPeers, "the cluster has added the member"},
	{statemachine.Group{Leave, Enter}, PeersSilent, always, AskPeers, []Action{PacePeers}, "the members may not have changed, so the peers are asked again"},

	{statemachine.Group{AskStore, Flush, MakeRoom, Build}, Answered, always, Decide, deciding, "the store has answered"},
	{AskStore, Stuck, always, Refused, nil, "a restore would lose segments that wait on the volume and cannot be uploaded"},
	{AskStore, Elapsed, always, AskStore, []Action{FlushSpool, AskTheStore}, "the pause is over"},

	{Flush, Flushed, Several, AskPeers, askPeers, "the volume was uploaded, and the members restore once all have done that"},
	{Flush, Flushed, always, MakeRoom, []Action{FindEnd, TellLoss, MeasureRoom}, "the volume was uploaded as far as possible, and is preserved in any case"},
	{weighing, Missing, always, AskStore, []Action{PaceStore}, "an object that the store refers to is missing, perhaps because it is listed late or is being merged, so it is searched again before anything older is restored"},
	{statemachine.Group{MakeRoom, Build}, StoreSilent, always, AskStore, []Action{PaceStore}, "the store became unreachable, so it is asked again, and the backup is fetched again"},
	{MakeRoom, RoomLacking, always, Refused, nil, "the volume has no room for the restored data next to the old, and nothing was fetched"},
	{Build, RoomLacking, always, Refused, nil, "the volume was full before the restored data were complete, and they were removed"},
	{MakeRoom, RoomEnough, always, Build, []Action{EndAdopted, BuildData}, "the volume has room for the restored data next to the old"},

	{Build, Built, always, Prove, []Action{ProveData}, "a data directory was built next to the old one"},
	{Build, Unbuildable, always, Refused, nil, "the backups are damaged"},
	{Build, Grown, always, Refused, []Action{DropUnfinished}, "the configuration names this member alone, but the backups are of a cluster of several, which may still run"},

	{Prove, Proved, always, Claim, []Action{TellPeers, NotePosition, ClaimGeneration}, "the restored data are valid"},
	{Prove, Unproved, always, Refused, []Action{ForgetClaim}, "the restored data are not valid, and are never opened"},
	{Prove, Diverged, always, Refused, []Action{ForgetClaim, DropUnfinished}, "the volume has data that differ from its backups, and nothing was moved"},

	{Claim, Claimed, always, SetAside, []Action{SetVolumeAside}, "the store has a generation for the restored data, which may replace the old ones"},
	{Claim, ClaimLost, always, Examine, []Action{ForgetClaim, DropUnfinished, ValidateVolume}, "what was built is outdated, and recovery starts again"},
	{Claim, StoreSilent, always, Claim, []Action{PaceStore}, "the store may not have created the generation, so it is asked again"},
	{Claim, PeersSilent, always, Claim, []Action{PacePeers}, "a cluster is replaced only after every member has answered once more"},
	{Claim, Elapsed, always, Claim, []Action{ClaimGeneration}, "the pause is over"},

	{SetAside, Moved, always, Install, []Action{InstallData, Remember}, "the data directory was moved"},

	{Install, Installed, StillAsked, Examine, []Action{ValidateVolume}, "a restore that was cut off is complete, and another one is requested"},
	{Install, Installed, always, Ready, nil, "the restored data are installed"},

	{working, Broke, always, Refused, nil, "recovery tries again, and continues from here"},
}

// Elsewhere answers events for which Table has no row: each event ends the work of the states that await it. In Ready
// every event is ignored.
var Elsewhere = statemachine.RejectByDefault(Table)

// pause describes the pause between two questions that stay unanswered.
const pause = "at most 30 s"

// States describes every state, in the order of a run.
var States = []statemachine.StateInfo{
	{Name: Resume, Meaning: "check whether an earlier run was cut off", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Examine, Meaning: "validate the data directory, read its cluster and revision", Bound: statemachine.ByCalls, Deadline: "none: validating a large database takes long"},
	{Name: Decide, Meaning: "decide by the table what happens to the volume", Bound: statemachine.ByCalls, Deadline: "at once"},
	{Name: AskPeers, Meaning: "ask the other members how they list this one, and what prevents it from being replaced", Bound: statemachine.ByCalls, Deadline: "some seconds for a question, " + pause + " between questions"},
	{Name: GiveWay, Meaning: "preserve data that the others have", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Leave, Meaning: "remove the old identity from the cluster", Bound: statemachine.ByCalls, Deadline: "10s for the request"},
	{Name: Enter, Meaning: "add this member to the cluster", Bound: statemachine.ByCalls, Deadline: "10s for the request"},
	{Name: AskStore, Meaning: "upload what waits on the volume, ask which cluster the store belongs to and what it has", Bound: statemachine.ByCalls, Deadline: "2m for each segment that waits, 2m for the question, " + pause + " between questions"},
	{Name: Flush, Meaning: "upload what only the volume has", Bound: statemachine.ByCalls, Deadline: "2m"},
	{Name: MakeRoom, Meaning: "report what would be lost, compare the free space with what is needed", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Build, Meaning: "fetch the backup and build a data directory next to the old one", Bound: statemachine.ByCalls, Deadline: "none while bytes arrive; a request fails after a minute without any"},
	{Name: Prove, Meaning: "validate what was built in full", Bound: statemachine.ByCalls, Deadline: "none"},
	{Name: Claim, Meaning: "create the next generation in the store, with a reservation of revisions", Bound: statemachine.ByCalls, Deadline: "2m for the request, " + pause + " between requests"},
	{Name: Adopt, Meaning: "create a generation for the data on the volume, in the store that --adopt names", Bound: statemachine.ByCalls, Deadline: "2m for the request, " + pause + " between requests"},
	{Name: SetAside, Meaning: "preserve the old data directory", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Install, Meaning: "rename the restored one, record that it was done", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Ready, Meaning: "etcd may open the data directory", Bound: statemachine.AtEnd, Deadline: "final"},
	{Name: Refused, Meaning: "etcd may not; one sentence gives the reason, and nothing was deleted", Bound: statemachine.AtEnd, Deadline: "final"},
}

// Drawing describes how recovery is drawn.
var Drawing = statemachine.Drawing{
	Name: "recovery", Source: "etcd-wrapper --dump-fsm=recovery.dot", Table: Table, States: States, Initial: Resume, Final: Ready, Aside: Refused,
	Shapes: map[State]string{
		Ready:   `peripheries=2, fillcolor="#dff3e1", color="#2c6e35", `,
		Refused: `peripheries=2, fillcolor="#f8e8e8", color="#804040", `,
	},
	Defaults: Elsewhere, Picture: picture,
}

//go:embed recovery.svg
var picture string
