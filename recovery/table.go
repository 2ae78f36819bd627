package recovery

import (
	_ "embed" // for the picture
	"slices"

	"etcd-wrapper/backup/relation"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// Table is the transition table, with a row for each state of a group. It must not be changed at run time.
var Table = statemachine.Expand(written)

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
var written = statemachine.Entries{
	{Resume, Begun, always, Resume, []Action{ReadPosition}, "an earlier run may have been interrupted after its claim"},
	{Resume, NothingBegun, always, Examine, []Action{DropUnfinished, ValidateVolume}, "no restore is claimed, so the data directory is validated"},
	{Resume, ClaimFound, NoStore, Refused, nil, "a restore was interrupted, and only the store shows how far it got: start with --backup-store; or, if the data directory is still there, move recovery.json away to continue with that"},
	{Resume, ClaimFound, always, Prove, []Action{ProveData}, "a restore was interrupted: it continues with what was built"},
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
	{AskPeers, Elapsed, always, AskPeers, askPeers, "the pause has ended"},

	{Adopt, Taken, always, Ready, nil, "the store has a generation for the data"},
	{Adopt, StoreSilent, always, AskStore, []Action{PaceStore}, "the adoption failed, and continues unless another process was faster"},

	{GiveWay, Moved, always, AskPeers, askPeers, "the data directory was moved"},
	{statemachine.Group{Leave, Enter}, Changed, always, AskPeers, askPeers, "the cluster has changed its members"},
	{statemachine.Group{Leave, Enter}, PeersSilent, always, AskPeers, []Action{PacePeers}, "the members may not have changed, so the peers are asked again"},

	{statemachine.Group{AskStore, Flush, MakeRoom, Build}, Answered, always, Decide, deciding, "the store has answered"},
	{AskStore, Stuck, always, Refused, nil, "a restore would lose segments that wait on the volume and cannot be uploaded"},
	{AskStore, Elapsed, always, AskStore, []Action{FlushSpool, AskTheStore}, "the pause has ended"},

	{Flush, Flushed, Several, AskPeers, askPeers, "the volume was uploaded, and the members restore once all have done that"},
	{Flush, Flushed, always, MakeRoom, []Action{FindEnd, TellLoss, MeasureRoom}, "the volume was uploaded as far as possible, and is preserved in any case"},
	{weighing, Missing, always, AskStore, []Action{PaceStore}, "an object that the store refers to is missing, perhaps because it is listed late or is being merged, so it is searched again before anything older is restored"},
	{statemachine.Group{MakeRoom, Build}, StoreSilent, always, AskStore, []Action{PaceStore}, "the store became unreachable, so it is asked again, and the backup is fetched again"},
	{statemachine.Group{MakeRoom, Build}, RoomLacking, always, Refused, nil, "the volume has no room for the restored data next to the old, and nothing that was fetched is kept"},
	{MakeRoom, RoomEnough, always, Build, []Action{EndAdopted, BuildData}, "the volume has room for the restored data next to the old"},

	{Build, Built, always, Prove, []Action{ProveData}, "a data directory was built next to the old one"},
	{Build, Unbuildable, always, Refused, nil, "the backups are damaged"},
	{Build, Grown, always, Refused, []Action{DropUnfinished}, "the configuration names this member alone, but the backups are of a cluster of several, which may still run"},

	{Prove, Proved, always, Claim, []Action{NotePosition, ClaimGeneration}, "the restored data are valid"},
	{Prove, Unproved, always, Refused, []Action{ForgetClaim}, "the restored data are not valid, and are never opened"},
	{Prove, Diverged, always, Refused, []Action{ForgetClaim, DropUnfinished}, "the volume has data that differ from its backups, and nothing was moved"},

	{Claim, Claimed, always, SetAside, []Action{SetVolumeAside}, "the store has a generation for the restored data, which may replace the old ones"},
	{Claim, ClaimLost, always, Examine, []Action{ForgetClaim, DropUnfinished, ValidateVolume}, "what was built is outdated, and recovery starts again"},
	{Claim, StoreSilent, always, Claim, []Action{PaceStore}, "the store may not have created the generation, so it is asked again"},
	{Claim, PeersSilent, always, Claim, []Action{PacePeers}, "a cluster is replaced only after every member has answered once more"},
	{Claim, Elapsed, always, Claim, []Action{ClaimGeneration}, "the pause has ended"},

	{SetAside, Moved, always, Install, []Action{InstallData, Remember}, "the data directory was moved"},

	{Install, Installed, StillAsked, Examine, []Action{ValidateVolume}, "an interrupted restore is complete, and another one is requested"},
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
	{Name: Resume, Meaning: "check whether an earlier run was interrupted", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Examine, Meaning: "validate the data directory, read its cluster and revision", Bound: statemachine.ByCalls, Deadline: "none: validating a large database takes long"},
	{Name: Decide, Meaning: "decide by the table what happens to the volume", Bound: statemachine.ByCalls, Deadline: "at once"},
	{Name: AskPeers, Meaning: "ask the other members how they list this one, and what prevents it from being replaced", Bound: statemachine.ByCalls, Deadline: "some seconds for a request, " + pause + " between requests"},
	{Name: GiveWay, Meaning: "preserve data that the others have", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Leave, Meaning: "remove the old identity from the cluster", Bound: statemachine.ByCalls, Deadline: "10s for the request"},
	{Name: Enter, Meaning: "add this member to the cluster", Bound: statemachine.ByCalls, Deadline: "10s for the request"},
	{Name: AskStore, Meaning: "upload what waits on the volume, ask which cluster the store belongs to and what it has", Bound: statemachine.ByCalls, Deadline: "2m for each segment that waits, 2m for the question, " + pause + " between requests"},
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

// Diagram describes how recovery is drawn.
var Diagram = statemachine.Diagram{
	Name: "recovery", Source: "etcd-wrapper --dump-fsm=recovery.dot", Table: Table, States: States, Initial: Resume, Final: Ready, Aside: Refused,
	Shapes: map[State]string{
		Ready:   `peripheries=2, fillcolor="#dff3e1", color="#2c6e35", `,
		Refused: `peripheries=2, fillcolor="#f8e8e8", color="#804040", `,
	},
	Defaults: Elsewhere, Picture: picture,
}

//go:embed recovery.svg
var picture string

type (
	// A State is a phase of a recovery.
	State = statemachine.State
	// An Event reports how the work of a state ended.
	Event = statemachine.Event
	// An Action is the name of something that a run does.
	Action = statemachine.Action
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
	Changed      Event = "members changed"    // the cluster no longer has this member, or has added it
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
	NoStore     statemachine.Guard = "no store"
	Several     statemachine.Guard = "multi-member"
	StillAsked  statemachine.Guard = "another restore requested"
	PeersHeard  statemachine.Guard = "the others heard"
	InItsPlace  statemachine.Guard = "data in the way"
	StillListed statemachine.Guard = "listed, place free"
	NotListed   statemachine.Guard = "not listed, place free"
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
	NotePosition    Action = "note position"    // durably, what is about to be claimed, after the peers know that this member is about to have data
	ClaimGeneration Action = "claim generation" // with a reservation of revisions
	SetVolumeAside  Action = "set volume aside" // by a rename
	InstallData     Action = "install data"     // by a rename
	Remember        Action = "remember"         // durably, that it was done

	PaceStore Action = "pace store" // ask the store again later
	PacePeers Action = "pace peers" // ask the peers again later
)

// A VolumeState describes what this member has on its volume.
type VolumeState string

// The states of a volume.
const (
	VolumeEmpty   VolumeState = "empty"            // nothing, or an etcd that had stored nothing yet
	VolumeLost    VolumeState = "lost"             // as empty, but data were served from there, and not restored since
	VolumeCorrupt VolumeState = "corrupt"          // etcd cannot open or read all of it
	VolumeValid   VolumeState = "valid"            // nothing is known to be missing
	VolumeBehind  VolumeState = "behind"           // valid, and the store or the other members have more
	VolumeStored  VolumeState = "stored"           // valid, and the store has all of it, as far as possible
	VolumeRefused VolumeState = "refused before"   // valid, and refused by the store before, which was not asked or does not answer now
	VolumeUnnamed VolumeState = "names no cluster" // valid, as of a plain etcd, and the store was not asked
)

// A PeerState describes what the other members have answered: how they list this one, or one of these.
type PeerState = peers.Membership

// The states of the other members. The last eight need a quorum of equal answers, or those of all members.
const (
	PeersNone      PeerState = "none"               // a single-member cluster
	PeersItself    PeerState = "none, joins"        // as none, with initial-cluster-state: existing and an empty volume
	PeersUnnamed   PeerState = "not named"          // the configuration founds a cluster and names no other member
	PeersExisting  PeerState = "not named, joins"   // the configuration joins a cluster and names no other member
	PeersUnasked   PeerState = "not asked"          //
	PeersNotAgreed PeerState = "not all ask"        // not all request the restore that is requested here
	PeersJustLost  PeerState = "all lost, just now" // for less than 10 s
	PeersStillLost PeerState = "all lost, still"    // and that did not change after the store was asked
	PeersUnstored  PeerState = "volumes hold more"  // as "all lost, still" or "all ask", and one has not brought into the store what only its volume has
	PeersBusy      PeerState = "run, not now"       // a quorum runs, and something prevents this member from rejoining
)

// A StoreState describes what the store has answered: how the volume relates to it, or one of these. relation.Ours
// stands for all relations in which there is a backup to restore.
type StoreState = relation.Relation

// The states of a store.
const (
	StoreNone       StoreState = "none"            // --backup-store is not given
	StoreUnasked    StoreState = "not asked"       //
	StoreAway       StoreState = "away"            // it does not answer, denies access, or its URL is wrong
	StoreLongAway   StoreState = "away for 10 s"   // for that long
	StoreInUse      StoreState = "in use"          // another process has written to it recently and may continue
	StoreBare       StoreState = "ours, no backup" // it names a cluster, and what is wanted is not there
	StoreUnverified StoreState = "not verified"    // its statements are damaged, and no name suggests more than the volume has
	StoreDamaged    StoreState = "damaged"         // its statements are damaged
	StoreLocked     StoreState = "keys lacking"    // it is signed or encrypted with keys that are not given
)

// isKnown reports whether the store has answered what it has.
func isKnown(s StoreState) bool {
	return s != "" && !slices.Contains([]StoreState{StoreAway, StoreLongAway, StoreInUse, StoreDamaged, StoreLocked}, s)
}

// A RequestKind is the kind of restore that the user requests.
type RequestKind string

// The requests.
const (
	AskedNothing RequestKind = "auto"    // --recover=auto
	AskedNever   RequestKind = "never"   // --recover=never
	AskedRestore RequestKind = "restore" // --restore-to, whatever --recover says
)

// The results. They are events of the machine, which carries them out.
const (
	StartEtcd    Event = "start"         // etcd opens the volume as it is
	FoundCluster Event = "found"         // etcd creates a new cluster
	ConsultPeers Event = "ask the peers" //
	ConsultStore Event = "ask the store" //
	Wait         Event = "wait"          // and ask again: the others if they have answered, otherwise the store
	FlushFirst   Event = "flush"         // upload what the volume has, before it is replaced
	RestoreData  Event = "restore"       // from the store
	Rejoin       Event = "rejoin"        // with the data of the others
	AdoptStore   Event = "adopt"         // create a generation for the data on the volume
	Refuse       Event = "refuse"        // the user has to act
	Decline      Event = "decline"       // the request cannot be carried out
)
