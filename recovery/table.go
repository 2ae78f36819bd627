package recovery

import (
	_ "embed" // for the picture

	"etcd-wrapper/statemachine"
)

type (
	// A State is a phase of a recovery.
	State = statemachine.State
	// An Event is how the work of a state ended.
	Event = statemachine.Event
	// A Guard is the name of a condition over the Facts.
	Guard = statemachine.Guard
	// An Action is the name of something that a run does.
	Action = statemachine.Action
	// A Row is one transition.
	Row = statemachine.Row
)

// The states. Resume is the initial one, Ready the final one; Refused ends a run, too.
const (
	Resume   State = "Resume"
	Examine  State = "Examine"
	Decide   State = "Decide"
	AskPeers State = "AskPeers"
	GiveWay  State = "GiveWay"
	Leave    State = "Leave"
	Enter    State = "Enter"
	AskStore State = "AskStore"
	Flush    State = "Flush"
	MakeRoom State = "MakeRoom"
	Build    State = "Build"
	Prove    State = "Prove"
	Claim    State = "Claim"
	Adopt    State = "Adopt"
	SetAside State = "SetAside"
	Install  State = "Install"
	Ready    State = "Ready"
	Refused  State = "Refused"
)

// The events, in addition to the results. All but the first and the timer's end the work of a state.
const (
	Begun        Event = "begun"              // a run starts; it comes once
	NothingBegun Event = "nothing begun"      // no restore was claimed and is not installed
	ClaimFound   Event = "claim found"        // one was, and what it built exists
	InstallFound Event = "install found"      // one was, and is installed already
	Examined     Event = "examined"           // the state of the data directory
	PeersTold    Event = "peers told"         // how the other members list this one, as far as they can be asked
	PeersSilent  Event = "peers silent"       // the cluster has not changed its members, or the answer was lost; or a member is missing
	Left         Event = "left"               // the cluster no longer has this member
	Entered      Event = "entered"            // the cluster has added this member
	Answered     Event = "answered"           // the state of the store: unreachable, in use, or what it has
	StoreSilent  Event = "store silent"       // the store cannot be used at the moment
	Stuck        Event = "stuck"              // what waits on the volume cannot be uploaded, and waiting does not help
	Missing      Event = "missing"            // what the store has announced is missing, perhaps for a moment
	Flushed      Event = "flushed"            // the store has what the volume has, or it is known why not
	RoomEnough   Event = "room enough"        // the volume has room for what is to be built
	RoomLacking  Event = "room lacking"       // it has not
	Built        Event = "built"              // a data directory was built next to the one in use, and is on disk
	Unbuildable  Event = "unbuildable"        // the backups are damaged
	Grown        Event = "grown"              // it was built, and belongs to a cluster of several, of which this member would be the only one
	Proved       Event = "proved"             // what was built is completely valid
	Unproved     Event = "unproved"           // it is not
	Diverged     Event = "diverged"           // it is valid, and the data in use are not an earlier state of it
	Taken        Event = "taken"              // the next generation in the store is that of the data on the volume
	Claimed      Event = "claimed"            // the next generation in the store is this restore's, and has nothing yet
	ClaimLost    Event = "claim lost"         // another process has created it, its cluster has continued already, or another member has data
	Moved        Event = "moved"              // the previous data directory was moved
	Installed    Event = "installed"          // what was built is the data directory now, and that is recorded
	Broke        Event = "broke"              // the volume or this program failed
	Elapsed      Event = statemachine.Elapsed // the state's timer expired
)

// The guards, in addition to statemachine.Always. conditions has their meanings.
const (
	NoStore     Guard = "no store"
	Several     Guard = "multi-member"
	StillAsked  Guard = "another restore asked for"
	PeersHeard  Guard = "the others heard"
	InItsPlace  Guard = "something in its place"
	StillListed Guard = "listed, place free"
	NotListed   Guard = "not listed, place free"
)

// The actions. Those that start with "pace" set the timer; all others may block.
const (
	ReadPosition    Action = "read position"
	DropUnfinished  Action = "drop unfinished"  // what an attempt has built without a claim
	ForgetClaim     Action = "forget claim"     // it belongs to another restore, or is useless by now
	ValidateVolume  Action = "validate volume"  //
	DecideNow       Action = "decide"           // by the table of decisions
	AskThePeers     Action = "ask the peers"    //
	TellReturn      Action = "tell return"      // from which members the data come
	RemoveMember    Action = "remove member"    // remove this member's old identity from the cluster
	AddMember       Action = "add member"       // add this member to the cluster
	AdoptCluster    Action = "adopt cluster"    // start with the members that the peers list, in an existing cluster
	TakeStore       Action = "take store"       // end the newest generation there, and create one for the data on the volume
	AskTheStore     Action = "ask the store"    //
	TellLoss        Action = "tell loss"        // in numbers
	FlushSpool      Action = "flush spool"      // upload what waits on the volume
	FlushVolume     Action = "flush volume"     // upload what only the volume has
	FindEnd         Action = "find end"         // of the backups, after volumes have uploaded something
	MeasureRoom     Action = "measure room"     //
	EndAdopted      Action = "end adopted"      // the generation that the user has named, so that nothing more is added to it
	BuildData       Action = "build data"       // fetch, rebuild and create the cluster, next to the data directory
	ProveData       Action = "prove data"       // validate what was built, like any data directory
	TellPeers       Action = "tell peers"       // that this member is about to have data
	NotePosition    Action = "note position"    // durably, what is about to be claimed
	ClaimGeneration Action = "claim generation" // with a reservation of revisions
	SetVolumeAside  Action = "set volume aside" // by a rename
	InstallData     Action = "install data"     // by a rename
	Remember        Action = "remember"         // durably, that it was done

	PaceStore Action = "pace store" // ask the store again later
	PacePeers Action = "pace peers" // ask the peers again later
)

// Table is the transition table, with a row for each state of a group. It must not be changed at run time.
var Table = statemachine.Expand(written)

// An entry is a row as it is written here: it may start in a group.
type entry statemachine.Entry

const always = statemachine.Always

// working has the states whose work the volume, or this program, may be unable to do.
var working = statemachine.Group{Resume, Examine, AskPeers, GiveWay, Leave, Enter, AskStore, Adopt, Flush, MakeRoom, Build, Prove, Claim, SetAside, Install}

// weighing has the states in which less may turn out to be restored than the store has announced.
var weighing = statemachine.Group{Flush, MakeRoom, Build}

// Actions that several rows share.
var (
	deciding = []Action{DecideNow}
	askPeers = []Action{AskThePeers}
)

// written is the table as it is read and changed. Rows with the same From and On are adjacent, all but the last of
// them guarded; the first that holds wins. Elsewhere answers an event without a row. The fate of a volume is not
// decided here but by the rules (decide.go), whose results are the events of Decide; a row says how one is carried
// out.
var written = []entry{
	{Resume, Begun, always, Resume, []Action{ReadPosition}, "what an earlier run has claimed must be brought to its end"},
	{Resume, NothingBegun, always, Examine, []Action{DropUnfinished, ValidateVolume}, "nothing was claimed, so a run that was cut off is begun again"},
	{Resume, ClaimFound, NoStore, Refused, nil, "a restore was cut off, and only a store tells how far it was: start with --backup-store; or, where the data directory is still there, move recovery.json away to go on with that"},
	{Resume, ClaimFound, always, Prove, []Action{ProveData}, "what was built is claimed, or about to be: it goes on from there"},
	{Resume, InstallFound, always, Install, []Action{Remember}, "it was installed; only that it was done is not remembered yet"},

	{Examine, Examined, always, Decide, deciding, "how the volume is has been seen"},

	{Decide, StartEtcd, always, Ready, nil, "etcd may open the volume as it is"},
	{Decide, FoundCluster, always, Ready, nil, "etcd begins a new cluster"},
	{Decide, ConsultPeers, always, AskPeers, askPeers, "the other members may know better"},
	{Decide, ConsultStore, always, AskStore, []Action{FlushSpool, AskTheStore}, "the store may know better"},
	{Decide, Wait, PeersHeard, AskPeers, []Action{PacePeers}, "the peers are asked again after a pause: they may have the data by then"},
	{Decide, Wait, always, AskStore, []Action{PaceStore}, "the store is asked again after a pause"},
	{Decide, FlushFirst, always, Flush, []Action{TellLoss, FlushVolume}, "what the volume has comes into the store before it is replaced"},
	{Decide, RestoreData, Several, MakeRoom, []Action{FindEnd, TellLoss, MeasureRoom}, "the store has what all members lack, with what their volumes have brought"},
	{Decide, RestoreData, always, MakeRoom, []Action{TellLoss, MeasureRoom}, "the store has what the volume lacks"},
	{Decide, Rejoin, InItsPlace, GiveWay, []Action{TellReturn, SetVolumeAside}, "what is on the volume is of no use: the others have all of it"},
	{Decide, Rejoin, StillListed, Leave, []Action{TellReturn, RemoveMember}, "the member has lost its log, so it may never vote under its old identity again"},
	{Decide, Rejoin, NotListed, Enter, []Action{TellReturn, AddMember}, "the cluster takes the member in, as a learner where it can: that counts for no quorum until it has all data"},
	{Decide, Rejoin, always, Ready, []Action{AdoptCluster}, "the cluster expects the member, which gets its data from the others"},
	{Decide, AdoptStore, always, Adopt, []Action{TakeStore}, "a person has named the store's cluster"},
	{Decide, Refuse, always, Refused, nil, "a person has to do something"},
	{Decide, Decline, always, Refused, nil, "what is asked for cannot be"},

	{AskPeers, PeersTold, always, Decide, deciding, "what the peers know has been heard"},
	{AskPeers, Elapsed, always, AskPeers, askPeers, "time to ask again"},

	{Adopt, Taken, always, Ready, nil, "the store knows the data by now"},
	{Adopt, StoreSilent, always, AskStore, []Action{PaceStore}, "what was begun is completed, unless somebody else was faster"},

	{GiveWay, Moved, always, AskPeers, askPeers, "the place is free"},
	{Leave, Left, always, AskPeers, askPeers, "the old identity is gone for good"},
	{Enter, Entered, always, AskPeers, askPeers, "the cluster has taken the member in"},
	{statemachine.Group{Leave, Enter}, PeersSilent, always, AskPeers, []Action{PacePeers}, "whether the change was made is not known: the peers are asked how things are"},

	{statemachine.Group{AskStore, Flush, MakeRoom, Build}, Answered, always, Decide, deciding, "how the store is has been told"},
	{AskStore, Stuck, always, Refused, nil, "a restore would lose what waits on the volume, and waiting does not help"},
	{AskStore, Elapsed, always, AskStore, []Action{FlushSpool, AskTheStore}, "time to ask again, and to go on bringing what waits"},

	{Flush, Flushed, Several, AskPeers, askPeers, "the others may go on, and this one as soon as they have brought what they have"},
	{Flush, Flushed, always, MakeRoom, []Action{FindEnd, TellLoss, MeasureRoom}, "the state before is in the store, or it is known why not; it is set aside in any case"},
	{weighing, Missing, always, AskStore, []Action{PaceStore}, "the store does not have what it has told of: that may be listed late, or be merged at this moment, so it is looked for again before anything older comes back"},
	{statemachine.Group{MakeRoom, Build}, StoreSilent, always, AskStore, []Action{PaceStore}, "the store went away: it is asked again how far the backups go, and what was fetched is fetched again"},
	{MakeRoom, RoomLacking, always, Refused, nil, "there is no room for the restored data beside the old: nothing was fetched"},
	{Build, RoomLacking, always, Refused, nil, "the volume was full before the restored data were built: what was built is removed again"},
	{MakeRoom, RoomEnough, always, Build, []Action{EndAdopted, BuildData}, "there is room for the restored data beside the old"},

	{Build, Built, always, Prove, []Action{ProveData}, "a data directory is there beside the old one"},
	{Build, Unbuildable, always, Refused, nil, "the backups are damaged"},
	{Build, Grown, always, Refused, []Action{DropUnfinished}, "the configuration names this member alone, and the backups are of a cluster of several, which may be alive"},

	{Prove, Proved, always, Claim, []Action{TellPeers, NotePosition, ClaimGeneration}, "only what is valid gets a generation"},
	{Prove, Unproved, always, Refused, []Action{ForgetClaim}, "what was built is not valid: it is never opened"},
	{Prove, Diverged, always, Refused, []Action{ForgetClaim, DropUnfinished}, "the volume and the backups are of one cluster, and took different ways"},

	{Claim, Claimed, always, SetAside, []Action{SetVolumeAside}, "the store knows of the new cluster: now it may take the place of the old one"},
	{Claim, ClaimLost, always, Examine, []Action{ForgetClaim, DropUnfinished, ValidateVolume}, "another member was first, or is back with its data, or the store is not believed any more: what was built is dropped"},
	{Claim, StoreSilent, always, Claim, []Action{PaceStore}, "whether it is claimed is not known: it is asked again"},
	{Claim, PeersSilent, always, Claim, []Action{PacePeers}, "every member is heard once more before a cluster takes the place of the one before"},
	{Claim, Elapsed, always, Claim, []Action{ClaimGeneration}, "time to ask again"},

	{SetAside, Moved, always, Install, []Action{InstallData, Remember}, "the place is free"},

	{Install, Installed, StillAsked, Examine, []Action{ValidateVolume}, "the restored data are those of a run that was cut off, and another restore is asked for by now"},
	{Install, Installed, always, Ready, nil, "the restored data are in their place"},

	{working, Broke, always, Refused, nil, "it could not be done; the next run goes on from here, or begins again"},
}

// Elsewhere answers events for which Table has no row: each event ends the work of the states that await it. In Ready
// every event is ignored.
var Elsewhere = statemachine.RejectByDefault(Table)

// NewRules makes rules from a table. The program uses NewRules(Table, Elsewhere); tests mutate copies.
func NewRules(table []Row, elsewhere []statemachine.Default) *statemachine.Rules[Facts, Facts] {
	return statemachine.NewRules[Facts](table, elsewhere, Ready)
}

// pause describes the pause between two questions that stay unanswered.
const pause = "at most 30 s"

// States describes every state, in the order of a run.
var States = []statemachine.StateInfo{
	{Name: Resume, Meaning: "see whether an earlier run was cut off", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Examine, Meaning: "validate the data directory, read its cluster and revision", Bound: statemachine.ByCalls, Deadline: "that of the validation: none, a large database takes long"},
	{Name: Decide, Meaning: "decide by the table what becomes of the volume", Bound: statemachine.ByCalls, Deadline: "at once"},
	{Name: AskPeers, Meaning: "ask the other members how they have this one, and what would be in the way of replacing it", Bound: statemachine.ByCalls, Deadline: "some seconds for a question, " + pause + " between questions"},
	{Name: GiveWay, Meaning: "move data out of the way that the others have all of", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Leave, Meaning: "have the others take the old identity out of the cluster", Bound: statemachine.ByCalls, Deadline: "10s for the request"},
	{Name: Enter, Meaning: "have the others take this member in", Bound: statemachine.ByCalls, Deadline: "10s for the request"},
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
