package recovery

import (
	"slices"

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
	InItsPlace  Guard = "data in the way"
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

// A PeerState describes what the other members have answered.
type PeerState string

// The states of the other members. The last eight need a quorum of equal answers, or those of all members.
const (
	PeersNone      PeerState = "none"               // a single-member cluster
	PeersItself    PeerState = "none, joins"        // as none, with initial-cluster-state: existing and an empty volume
	PeersUnnamed   PeerState = "not named"          // the configuration founds a cluster and names no other member
	PeersExisting  PeerState = "not named, joins"   // the configuration joins a cluster and names no other member
	PeersUnasked   PeerState = "not asked"          //
	PeersMissing   PeerState = "not all there"      // no cluster is known, and a member that is missing or waiting may have data
	PeersMinority  PeerState = "no quorum"          // some run, but no quorum
	PeersNotAgreed PeerState = "not all ask"        // not all request the restore that is requested here
	PeersAgreed    PeerState = "all ask"            // all request it
	PeersNew       PeerState = "never had data"     // none ever had data; all are here
	PeersSomeNew   PeerState = "some never had"     // as far as they know; some run already, and some are missing
	PeersLost      PeerState = "all lost"           // all are here, and none has usable data
	PeersJustLost  PeerState = "all lost, just now" // for less than 10 s
	PeersStillLost PeerState = "all lost, still"    // and that did not change after the store was asked
	PeersUnstored  PeerState = "volumes hold more"  // as "all lost, still" or "all ask", and one has not brought into the store what only its volume has
	PeersExpect    PeerState = "expect it"          // a cluster is being founded with this member, which never started
	PeersKnow      PeerState = "know it"            // a quorum runs, and this member was in the cluster
	PeersAdded     PeerState = "added it"           // a quorum runs, and this member was added and never started
	PeersUnlisted  PeerState = "do not list it"     // a quorum runs, and this member is not in the cluster
	PeersBusy      PeerState = "run, not now"       // a quorum runs, and something prevents this member from rejoining
)

// A StoreState describes what the store has answered.
type StoreState string

// The states of a store.
const (
	StoreNone       StoreState = "none"            // --backup-store is not given
	StoreUnasked    StoreState = "not asked"       //
	StoreAway       StoreState = "away"            // it does not answer, denies access, or its URL is wrong
	StoreLongAway   StoreState = "away for 10 s"   // for that long
	StoreInUse      StoreState = "in use"          // another process has written to it recently and may continue
	StoreEmpty      StoreState = "empty"           // nothing was ever stored
	StoreFounded    StoreState = "founded"         // as empty, except for a cluster manifest of this owner
	StoreOurs       StoreState = "ours"            // there is a backup to restore
	StoreBare       StoreState = "ours, no backup" // it names a cluster, and what is wanted is not there
	StoreNotOwned   StoreState = "another owner's" // the volume has no data, or less than the store, which belongs to another owner
	StoreUnclaimed  StoreState = "unclaimed"       // the volume names no cluster, and the store does
	StoreAdopted    StoreState = "adopted"         // the user has named its cluster, so that the data on the volume continue there
	StoreOthers     StoreState = "another's"       //
	StoreUnverified StoreState = "not verified"    // its statements are damaged, and no name suggests more than the volume has
	StoreDamaged    StoreState = "damaged"         // its statements are damaged
	StoreLocked     StoreState = "keys lacking"    // it is signed or encrypted with keys that are not given
)

// isKnown reports whether the store has answered what it has.
func (s StoreState) isKnown() bool {
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
