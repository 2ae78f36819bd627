package recovery

import "etcd-wrapper/statemachine"

type (
	// State is a phase of a recovery.
	State = statemachine.State
	// Event is how the work of a state ended.
	Event = statemachine.Event
	// Guard is the name of a condition over the Facts.
	Guard = statemachine.Guard
	// Action is the name of something that a run does.
	Action = statemachine.Action
	// Row is one transition.
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

// The events, beside the verdicts. All but the first and the timer's end the work that the state began.
const (
	Begun        Event = "begun"              // a run begins; it comes once
	NothingBegun Event = "nothing begun"      // no restore has claimed a generation and waits to be installed
	ClaimFound   Event = "claim found"        // one has, and what it built is there
	InstallFound Event = "install found"      // one has, and it is installed already
	Examined     Event = "examined"           // how the data directory is
	PeersTold    Event = "peers told"         // how the other members have this one, as far as they can be asked
	PeersSilent  Event = "peers silent"       // the cluster has not changed its members, or not said so; or one is missing of all
	Left         Event = "left"               // the cluster does not have this member any more
	Entered      Event = "entered"            // the cluster has this member as a learner
	Answered     Event = "answered"           // what the store keeps
	StoreSilent  Event = "store silent"       // the store cannot be asked, or not be believed, at the moment
	Stuck        Event = "stuck"              // what waits on the volume cannot be brought into the store, and no waiting changes that
	Alive        Event = "alive"              // whoever writes the newest generation may be alive
	Missing      Event = "missing"            // what the store has told of is not there, or not yet
	KeysLacking  Event = "keys lacking"       // what the store has is signed, or encrypted, with keys that are not given
	Disbelieved  Event = "disbelieved"        // what the store says of itself is damaged
	Flushed      Event = "flushed"            // the store has what the volume has, or it is known why not
	RoomEnough   Event = "room enough"        // the volume has the room for what is to be built
	RoomLacking  Event = "room lacking"       // it has not
	Built        Event = "built"              // a data directory was made beside the one in use, and is on the disk
	Unbuildable  Event = "unbuildable"        // what the store keeps is damaged
	Grown        Event = "grown"              // it was made, and is of a cluster of several, of which this member would be the only one
	Proved       Event = "proved"             // what was built is valid, all of it
	Unproved     Event = "unproved"           // it is not
	Diverged     Event = "diverged"           // it is valid, and the data in use are no earlier state of it
	Taken        Event = "taken"              // the next generation in the store is that of the data on the volume
	Claimed      Event = "claimed"            // the next generation in the store is this restore's, and has nothing yet
	ClaimLost    Event = "claim lost"         // somebody else has begun it, its cluster has gone on already, or another member has data
	Moved        Event = "moved"              // what was in the place of the data directory is set aside
	Installed    Event = "installed"          // what was built is the data directory now, and that is remembered
	Broke        Event = "broke"              // the volume, or this program, could not do it
	Elapsed      Event = statemachine.Elapsed // the state's timer ran out
)

// The guards, beside statemachine.Always. conditions says what they mean.
const (
	NoStore     Guard = "no store"
	Several     Guard = "multi-member"
	StillAsked  Guard = "another restore asked for"
	NotAllAsk   Guard = "not all ask for the restore"
	InItsPlace  Guard = "something in its place"
	StillListed Guard = "listed, place free"
	NotListed   Guard = "not listed, place free"
)

// The actions. Those that begin with "pace" set the timer; all others may block.
const (
	ReadPosition    Action = "read position"
	DropUnfinished  Action = "drop unfinished"  // what an attempt has built that claimed nothing
	ForgetClaim     Action = "forget claim"     // it is not this restore's, or of no use any more
	ValidateVolume  Action = "validate volume"  //
	DecideNow       Action = "decide"           // by the table of decisions
	AskThePeers     Action = "ask the peers"    //
	TellReturn      Action = "tell return"      // from whom the data come back
	RemoveMember    Action = "remove member"    // take this one's old identity out of the cluster
	AddLearner      Action = "add learner"      // have the cluster take this member in
	AdoptCluster    Action = "adopt cluster"    // start with the members that the peers have told, in a cluster that exists
	TakeStore       Action = "take store"       // end the newest generation there, and begin one for the data on the volume
	AskTheStore     Action = "ask the store"    //
	TellLoss        Action = "tell loss"        // in numbers
	FlushSpool      Action = "flush spool"      // bring into the store what waits for it on the volume
	FlushVolume     Action = "flush volume"     // bring into the store what only the volume has
	FindEnd         Action = "find end"         // of the backups, anew: volumes have brought something
	MeasureRoom     Action = "measure room"     //
	BuildData       Action = "build data"       // fetch, rebuild and found, beside the data directory
	ProveData       Action = "prove data"       // validate what was built, as any data directory
	TellPeers       Action = "tell peers"       // that this member is about to have data
	NotePosition    Action = "note position"    // durably, what is about to be claimed
	ClaimGeneration Action = "claim generation" // with a reservation of revisions
	SetVolumeAside  Action = "set volume aside" // by a rename
	InstallData     Action = "install data"     // by a rename
	Remember        Action = "remember"         // durably, that it was done

	PaceStore Action = "pace store" // ask the store again later
	PacePeers Action = "pace peers" // ask the peers again later
)
