package recovery

import (
	_ "embed" // the diagram
	"slices"

	"etcd-wrapper/backup/relation"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// Table is the transition table, with a row for each state of a group. It must not be changed at run time.
var Table = statemachine.Expand(written)

const always = statemachine.Always

// working groups the states whose work may fail because of the volume or a bug in this program.
var working = statemachine.Group{Resume, Examine, AskPeers, GiveWay, Leave, Enter, AskStore, Adopt, Flush, MakeRoom, Build, Prove, Claim, SetAside, Install}

// weighing groups the states in which the store may turn out to have less than it announced.
var weighing = statemachine.Group{Flush, MakeRoom, Build}

// Actions that several rows share.
var (
	deciding = []Action{DecideNow}
	askPeers = []Action{AskThePeers}
)

// written is the table before expansion. Rows with the same From and On are adjacent, and all but the last have a
// guard; the first row whose guard is true applies. Elsewhere answers events without a row. The table does not
// decide what happens to a volume: the rules in decide.go do, and their results are the events of Decide. A row
// only carries out a decision.
var written = statemachine.Entries{
	{Resume, Begun, always, Resume, []Action{ReadPosition}, "an earlier run may have been interrupted after its claim"},
	{Resume, NothingBegun, always, Examine, []Action{DropUnfinished, ValidateVolume}, "no restore is claimed, so the data directory is validated"},
	{Resume, ClaimFound, NoStore, Refused, nil, "a restore was interrupted, and only the store shows its progress: start with --backup-store; or, if the data directory is still there, move recovery.json away to continue with it"},
	{Resume, ClaimFound, always, Prove, []Action{ProveData}, "a restore was interrupted and continues with the data directory that it built"},
	{Resume, InstallFound, always, Install, []Action{Remember}, "a restore was installed and is now recorded"},

	{Examine, Examined, always, Decide, deciding, "the state of the volume is known"},

	{Decide, StartEtcd, always, Ready, nil, "etcd may open the data directory as it is"},
	{Decide, FoundCluster, always, Ready, nil, "etcd creates a new cluster"},
	{Decide, ConsultPeers, always, AskPeers, askPeers, "the other members may know more"},
	{Decide, ConsultStore, always, AskStore, []Action{FlushSpool, AskTheStore}, "the store may have more"},
	{Decide, Wait, PeersHeard, AskPeers, []Action{PacePeers}, "the peers are asked again after a pause"},
	{Decide, Wait, always, AskStore, []Action{PaceStore}, "the store is asked again after a pause"},
	{Decide, FlushFirst, always, Flush, []Action{TellLoss, FlushVolume}, "revisions that only the volume has are uploaded before it is replaced"},
	{Decide, RestoreData, Several, MakeRoom, []Action{FindEnd, TellLoss, MeasureRoom}, "the store has the data that all members lack, including uploads from their volumes"},
	{Decide, RestoreData, always, MakeRoom, []Action{TellLoss, MeasureRoom}, "the store has data that the volume lacks"},
	{Decide, Rejoin, InItsPlace, GiveWay, []Action{TellReturn, SetVolumeAside}, "the volume's data is preserved, and the others provide all data"},
	{Decide, Rejoin, StillListed, Leave, []Action{TellReturn, RemoveMember}, "the member has lost its log, so it must not vote under its old identity"},
	{Decide, Rejoin, NotListed, Enter, []Action{TellReturn, AddMember}, "the cluster adds the member, as a learner if possible: a learner does not count for the quorum"},
	{Decide, Rejoin, always, Ready, []Action{AdoptCluster}, "the cluster expects the member, which gets its data from the others"},
	{Decide, AdoptStore, always, Adopt, []Action{TakeStore}, "--adopt names the store's cluster"},
	{Decide, Refuse, always, Refused, nil, "the user has to act"},
	{Decide, Decline, always, Refused, nil, "the request cannot be carried out"},

	{AskPeers, PeersTold, always, Decide, deciding, "the peers have answered"},
	{AskPeers, Elapsed, always, AskPeers, askPeers, "the pause has ended"},

	{Adopt, Taken, always, Ready, nil, "the store has a generation for the data"},
	{Adopt, StoreSilent, always, AskStore, []Action{PaceStore}, "the adoption failed and is retried unless another process was first"},

	{GiveWay, Moved, always, AskPeers, askPeers, "the data directory was moved"},
	{statemachine.Group{Leave, Enter}, Changed, always, AskPeers, askPeers, "the cluster has changed its members"},
	{statemachine.Group{Leave, Enter}, PeersSilent, always, AskPeers, []Action{PacePeers}, "the membership may not have changed, so the peers are asked again"},

	{statemachine.Group{AskStore, Flush, MakeRoom, Build}, Answered, always, Decide, deciding, "the store has answered"},
	{AskStore, Stuck, always, Refused, nil, "a restore would lose queued segments that cannot be uploaded"},
	{AskStore, Elapsed, always, AskStore, []Action{FlushSpool, AskTheStore}, "the pause has ended"},

	{Flush, Flushed, Several, AskPeers, askPeers, "the volume was uploaded, and the members are restored once all have done so"},
	{Flush, Flushed, always, MakeRoom, []Action{FindEnd, TellLoss, MeasureRoom}, "the volume was uploaded as far as possible, and is preserved in any case"},
	{weighing, Missing, always, AskStore, []Action{PaceStore}, "an object that the store refers to is missing, perhaps because it is listed late or is being merged, so it is searched again before anything older is restored"},
	{statemachine.Group{MakeRoom, Build}, StoreSilent, always, AskStore, []Action{PaceStore}, "the store became unreachable, so it is read again and the backup is fetched again"},
	{statemachine.Group{MakeRoom, Build}, RoomLacking, always, Refused, nil, "the volume has no room for the restored data next to the old data, so the fetched data was removed"},
	{MakeRoom, RoomEnough, always, Build, []Action{EndAdopted, BuildData}, "the volume has room for the restored data next to the old data"},

	{Build, Built, always, Prove, []Action{ProveData}, "a data directory was built next to the old one"},
	{Build, Unbuildable, always, Refused, nil, "the backups are damaged"},
	{Build, Grown, always, Refused, []Action{DropUnfinished}, "the configuration names only this member, but the backups are from a cluster of several members, which may still run"},

	{Prove, Proved, always, Claim, []Action{NotePosition, ClaimGeneration}, "the restored data is valid"},
	{Prove, Unproved, always, Refused, []Action{ForgetClaim}, "the restored data is invalid and is never opened"},
	{Prove, Diverged, always, Refused, []Action{ForgetClaim, DropUnfinished}, "the volume has data that differs from its backups, and nothing was moved"},

	{Claim, Claimed, always, SetAside, []Action{SetVolumeAside}, "the store has a generation for the restored data, which may replace the old data"},
	{Claim, ClaimLost, always, Examine, []Action{ForgetClaim, DropUnfinished, ValidateVolume}, "the built data directory is outdated, so recovery starts over"},
	{Claim, StoreSilent, always, Claim, []Action{PaceStore}, "the store may not have created the generation, so it is read again"},
	{Claim, PeersSilent, always, Claim, []Action{PacePeers}, "a cluster is replaced only after every member has responded once more"},
	{Claim, Elapsed, always, Claim, []Action{ClaimGeneration}, "the pause has ended"},

	{SetAside, Moved, always, Install, []Action{InstallData, Remember}, "the data directory was moved"},

	{Install, Installed, StillAsked, Examine, []Action{ValidateVolume}, "an interrupted restore is complete, and another one is requested"},
	{Install, Installed, always, Ready, nil, "the restored data is installed"},

	{working, Broke, always, Refused, nil, "recovery is retried and continues from here"},
}

// Elsewhere answers events that have no row in Table. An event that ends a state's work is accepted only in that
// state. Ready ignores every event.
var Elsewhere = statemachine.RejectByDefault(Table)

// pause describes the wait between two unanswered requests.
const pause = "at most 30 s"

// States describes every state, in the order of a run.
var States = []statemachine.StateInfo{
	{Name: Resume, Meaning: "check whether an earlier run was interrupted", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Examine, Meaning: "validate the data directory, read its cluster and revision", Bound: statemachine.ByCalls, Deadline: "none: validating a large database takes long"},
	{Name: Decide, Meaning: "decide by the table what happens to the volume", Bound: statemachine.ByCalls, Deadline: "at once"},
	{Name: AskPeers, Meaning: "ask the other members how they list this one, and what prevents its replacement", Bound: statemachine.ByCalls, Deadline: "some seconds for a request, " + pause + " between requests"},
	{Name: GiveWay, Meaning: "preserve data that the other members replace", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Leave, Meaning: "remove the old identity from the cluster", Bound: statemachine.ByCalls, Deadline: "10s for the request"},
	{Name: Enter, Meaning: "add this member to the cluster", Bound: statemachine.ByCalls, Deadline: "10s for the request"},
	{Name: AskStore, Meaning: "upload queued segments, read which cluster the store belongs to and what it contains", Bound: statemachine.ByCalls, Deadline: "2m for each queued segment, 2m for the request, " + pause + " between requests"},
	{Name: Flush, Meaning: "upload the revisions that only the volume has", Bound: statemachine.ByCalls, Deadline: "2m"},
	{Name: MakeRoom, Meaning: "report what would be lost, compare the free space with what is needed", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Build, Meaning: "fetch the backup and build a data directory next to the old one", Bound: statemachine.ByCalls, Deadline: "none while bytes arrive; a request fails after a minute without any"},
	{Name: Prove, Meaning: "validate the built data directory in full", Bound: statemachine.ByCalls, Deadline: "none"},
	{Name: Claim, Meaning: "create the next generation in the store, with a reservation of revisions", Bound: statemachine.ByCalls, Deadline: "2m for the request, " + pause + " between requests"},
	{Name: Adopt, Meaning: "create a generation for the data on the volume, in the store that --adopt names", Bound: statemachine.ByCalls, Deadline: "2m for the request, " + pause + " between requests"},
	{Name: SetAside, Meaning: "preserve the old data directory", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Install, Meaning: "rename the restored data directory, record the restore", Bound: statemachine.ByCalls, Deadline: "the disk's"},
	{Name: Ready, Meaning: "etcd may open the data directory", Bound: statemachine.AtEnd, Deadline: "final"},
	{Name: Refused, Meaning: "etcd may not; one sentence gives the reason, and nothing was deleted", Bound: statemachine.AtEnd, Deadline: "final"},
}

// Diagram configures the drawing of the state machine.
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
	// An Action names a step that a run performs.
	Action = statemachine.Action
)

// States. A run starts in Resume and ends in Ready or Refused.
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

// Events that are not results of a decision. All of them except the first and the timer's end the work of a state.
const (
	Begun        Event = "begun"              // a run starts; sent once
	NothingBegun Event = "nothing begun"      // no claimed restore is waiting to be installed
	ClaimFound   Event = "claim found"        // a claimed restore was interrupted, and its data directory exists
	InstallFound Event = "install found"      // a claimed restore was interrupted after it was installed
	Examined     Event = "examined"           // the data directory was examined
	PeersTold    Event = "peers told"         // how the other members list this one, as far as they answered
	PeersSilent  Event = "peers silent"       // the membership change failed, or a member is missing
	Changed      Event = "members changed"    // this member was removed from or added to the cluster
	Answered     Event = "answered"           // the state of the store is known: unreachable, in use, or its content
	StoreSilent  Event = "store silent"       // the store is temporarily unusable
	Stuck        Event = "stuck"              // queued segments cannot be uploaded, and waiting does not help
	Missing      Event = "missing"            // an object that the store announced is missing, perhaps only for a moment
	Flushed      Event = "flushed"            // the store has everything from the volume, or the reason why not is known
	RoomEnough   Event = "room enough"        // the volume has room for the restored data
	RoomLacking  Event = "room lacking"       // the volume has too little room
	Built        Event = "built"              // a data directory was built next to the current one and synced to disk
	Unbuildable  Event = "unbuildable"        // the backups are damaged
	Grown        Event = "grown"              // restored a cluster of several with this as its only member
	Proved       Event = "proved"             // the restored data passed validation
	Unproved     Event = "unproved"           // the restored data failed validation
	Diverged     Event = "diverged"           // it is valid, but the current data is not an earlier state
	Taken        Event = "taken"              // the store's next generation was created for the data on the volume
	Claimed      Event = "claimed"            // the store's next generation was created for this restore, and is empty
	ClaimLost    Event = "claim lost"         // another process was first, or another member has data
	Moved        Event = "moved"              // the previous data directory was moved
	Installed    Event = "installed"          // the restored data is now the data directory, and that is recorded
	Broke        Event = "broke"              // the volume or this program failed
	Elapsed      Event = statemachine.Elapsed // the state's timer expired
)

// Guards, in addition to statemachine.Always. conditions defines them.
const (
	NoStore     statemachine.Guard = "no store"
	Several     statemachine.Guard = "multi-member"
	StillAsked  statemachine.Guard = "another restore requested"
	PeersHeard  statemachine.Guard = "the others heard"
	InItsPlace  statemachine.Guard = "data in the way"
	StillListed statemachine.Guard = "listed, place free"
	NotListed   statemachine.Guard = "not listed, place free"
)

// Actions. Those that start with "pace" set the timer; all others may block.
const (
	ReadPosition    Action = "read position"
	DropUnfinished  Action = "drop unfinished"  // remove data that an attempt built without a claim
	ForgetClaim     Action = "forget claim"     // drop a claim that belongs to another restore or is no longer useful
	ValidateVolume  Action = "validate volume"  //
	DecideNow       Action = "decide"           // apply the decision rules
	AskThePeers     Action = "ask the peers"    //
	TellReturn      Action = "tell return"      // report which members the data comes from
	RemoveMember    Action = "remove member"    // remove this member's old identity from the cluster
	AddMember       Action = "add member"       // add this member to the cluster
	AdoptCluster    Action = "adopt cluster"    // start in the existing cluster, with the members that the peers list
	TakeStore       Action = "take store"       // end the newest generation, create one for the volume's data
	AskTheStore     Action = "ask the store"    //
	TellLoss        Action = "tell loss"        // report the number of lost revisions
	FlushSpool      Action = "flush spool"      // upload the segments queued on the volume
	FlushVolume     Action = "flush volume"     // upload data that exists only on the volume
	FindEnd         Action = "find end"         // read the end of the backups again, after volumes have uploaded data
	MeasureRoom     Action = "measure room"     //
	EndAdopted      Action = "end adopted"      // end the generation named by the user, before it is restored
	BuildData       Action = "build data"       // build the restored data next to the data directory
	ProveData       Action = "prove data"       // validate the restored data like any data directory
	NotePosition    Action = "note position"    // notify the peers, then record the claim durably
	ClaimGeneration Action = "claim generation" // reserve revisions and create the generation
	SetVolumeAside  Action = "set volume aside" // rename the data directory to its preserved copy
	InstallData     Action = "install data"     // rename the restored data to the data directory
	Remember        Action = "remember"         // record durably that the restore is done

	PaceStore Action = "pace store" // ask the store again later
	PacePeers Action = "pace peers" // ask the peers again later
)

// A VolumeState describes the data on this member's volume.
type VolumeState string

// States of a volume.
const (
	VolumeEmpty   VolumeState = "empty"            // no data, or an etcd that had not stored anything yet
	VolumeLost    VolumeState = "lost"             // empty, but a run served data from here earlier
	VolumeCorrupt VolumeState = "corrupt"          // etcd cannot open it, or cannot read all of it
	VolumeValid   VolumeState = "valid"            // nothing is known to be missing
	VolumeBehind  VolumeState = "behind"           // valid, but the store or the other members have newer data
	VolumeStored  VolumeState = "stored"           // valid, and uploaded to the store as far as possible
	VolumeRefused VolumeState = "refused before"   // valid, but rejected earlier; not compared again yet
	VolumeUnnamed VolumeState = "names no cluster" // valid data of a plain etcd; the store was not asked
)

// A PeerState describes how the other members list this one, or is one of the constants below.
type PeerState = peers.Membership

// States of the other members. The last eight require equal responses from a quorum, or responses from all members.
const (
	PeersNone      PeerState = "none"               // a single-member cluster
	PeersItself    PeerState = "none, joins"        // like none, but joins, with an empty volume
	PeersUnnamed   PeerState = "not named"          // the configuration founds a cluster and names no other member
	PeersExisting  PeerState = "not named, joins"   // the configuration joins a cluster and names no other member
	PeersUnasked   PeerState = "not asked"          //
	PeersNotAgreed PeerState = "not all ask"        // not every member requests the restore that is requested here
	PeersJustLost  PeerState = "all lost, just now" // all data has been lost for less than 10 s
	PeersStillLost PeerState = "all lost, still"    // all data is still lost after the store was asked
	PeersUnstored  PeerState = "volumes hold more"  // as "all lost, still" or "all ask", and one has not brought into the store what only its volume has
	PeersBusy      PeerState = "run, not now"       // a quorum runs, but something prevents this member from rejoining
)

// A StoreState describes how the volume relates to the store, or is one of the constants below. relation.Ours stands
// for all relations in which there is a backup to restore.
type StoreState = relation.Relation

// States of a store.
const (
	StoreNone       StoreState = "none"            // --backup-store is not given
	StoreUnasked    StoreState = "not asked"       //
	StoreAway       StoreState = "away"            // unreachable, access denied, or wrong URL
	StoreLongAway   StoreState = "away for 10 s"   // unreachable for 10 s
	StoreInUse      StoreState = "in use"          // another process has written to it recently and may continue
	StoreBare       StoreState = "ours, no backup" // names this cluster, but lacks the requested backup
	StoreUnverified StoreState = "not verified"    // damaged, but no name suggests that the volume lacks data
	StoreDamaged    StoreState = "damaged"         // its statements are damaged
	StoreLocked     StoreState = "keys lacking"    // signed or encrypted with keys that were not given
)

// isKnown reports whether the content of the store is known.
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

// Results of a decision. They are also events of the machine, which carries them out.
const (
	StartEtcd    Event = "start"         // etcd opens the volume as it is
	FoundCluster Event = "found"         // etcd creates a new cluster
	ConsultPeers Event = "ask the peers" //
	ConsultStore Event = "ask the store" //
	Wait         Event = "wait"          // wait, then ask the peers again if they have answered, otherwise the store
	FlushFirst   Event = "flush"         // upload the volume's data before it is replaced
	RestoreData  Event = "restore"       // from the store
	Rejoin       Event = "rejoin"        // with the data of the other members
	AdoptStore   Event = "adopt"         // create a generation for the data on the volume
	Refuse       Event = "refuse"        // the user has to act
	Decline      Event = "decline"       // the request cannot be carried out
)
