package recovery

import (
	_ "embed" // the diagram
	"slices"

	"etcd-wrapper/backup/relation"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// Table is the transition table. A row for a group of states is expanded to one row per state. Table must not be
// modified.
var Table = statemachine.Expand(written)

const always = statemachine.Always

// workStates contains the states whose actions can fail because of the volume or a bug.
var workStates = statemachine.Group{Resume, Examine, AskPeers, GiveWay, Leave, Enter, AskStore, Adopt, Flush, MakeRoom, Build, Prove, Claim, Preserve, Install}

// readingStates contains the states that read objects from the store, which may have disappeared since they were
// listed.
var readingStates = statemachine.Group{Flush, MakeRoom, Build}

// Actions used by more than one row.
var (
	decideNow = []Action{DecideNow}
	askPeers  = []Action{AskThePeers}
)

// written is the table before expansion. Rows with the same From and On are adjacent, and all but the last have a
// guard. The first row with a guard that holds applies. Elsewhere handles events that have no row. The rules in
// decide.go decide what happens to a volume. The table only carries out their decisions, which are the events of
// Decide.
var written = statemachine.Entries{
	{Resume, RunStarted, always, Resume, []Action{ReadPosition}, "an earlier run may have been interrupted after it claimed a generation"},
	{Resume, NothingToResume, always, Examine, []Action{DropUnfinished, ValidateVolume}, "no restore is pending; validating the data directory"},
	{Resume, ClaimFound, NoStore, Refused, nil, "a restore was interrupted, and only the store shows its progress; start with --backup-store or, if the data directory still exists, move recovery.json aside to keep that directory"},
	{Resume, ClaimFound, always, Prove, []Action{ValidateBuilt}, "resuming an interrupted restore with the data directory that it built"},
	{Resume, InstallFound, always, Install, []Action{RecordRestore}, "recording an interrupted restore whose data is already installed"},

	{Examine, Examined, always, Decide, decideNow, "the state of the volume is known"},

	{Decide, StartEtcd, always, Ready, nil, "etcd may open the data directory as it is"},
	{Decide, CreateCluster, always, Ready, nil, "etcd creates a new cluster"},
	{Decide, ConsultPeers, always, AskPeers, askPeers, "the other members may have newer data"},
	{Decide, ConsultStore, always, AskStore, []Action{FlushSpool, AskTheStore}, "the store may have newer data"},
	{Decide, Wait, PeersAnswered, AskPeers, []Action{PacePeers}, "asking the peers again after a pause"},
	{Decide, Wait, always, AskStore, []Action{PaceStore}, "asking the store again after a pause"},
	{Decide, FlushFirst, always, Flush, []Action{LogLoss, FlushVolume}, "uploading the revisions that only the volume has before its data is replaced"},
	{Decide, RestoreData, MultiMember, MakeRoom, []Action{FindEnd, LogLoss, CheckSpace}, "the store has the data to restore, including uploads from all members' volumes"},
	{Decide, RestoreData, always, MakeRoom, []Action{LogLoss, CheckSpace}, "the store has data that the volume lacks"},
	{Decide, Rejoin, DirectoryPresent, GiveWay, []Action{LogRejoin, PreserveData}, "preserving the data on the volume before the other members' data replaces it"},
	{Decide, Rejoin, Listed, Leave, []Action{LogRejoin, RemoveMember}, "the member has lost its log, so it must not vote under its old identity"},
	{Decide, Rejoin, NotListed, Enter, []Action{LogRejoin, AddMember}, "adding this member to the cluster, as a learner if possible because learners do not count toward the quorum"},
	{Decide, Rejoin, always, Ready, []Action{AdoptCluster}, "the cluster expects this member, which will get its data from the others"},
	{Decide, AdoptStore, always, Adopt, []Action{TakeStore}, "--adopt names the store's cluster"},
	{Decide, Refuse, always, Refused, nil, "user action is required"},
	{Decide, Decline, always, Refused, nil, "the request cannot be fulfilled"},

	{AskPeers, PeersResponded, always, Decide, decideNow, "the peers have responded"},
	{AskPeers, Elapsed, always, AskPeers, askPeers, "the pause is over"},

	{Adopt, StoreAdopted, always, Ready, nil, "the store has a new generation for the data"},
	{Adopt, StoreUnavailable, always, AskStore, []Action{PaceStore}, "the adoption failed; retrying unless another process has adopted the store"},

	{GiveWay, Moved, always, AskPeers, askPeers, "the data directory was moved"},
	{statemachine.Group{Leave, Enter}, Changed, always, AskPeers, askPeers, "the cluster membership has changed"},
	{statemachine.Group{Leave, Enter}, PeersUnavailable, always, AskPeers, []Action{PacePeers}, "the membership may not have changed; asking the peers again"},

	{statemachine.Group{AskStore, Flush, MakeRoom, Build}, StoreResponded, always, Decide, decideNow, "the store has responded"},
	{AskStore, Stuck, always, Refused, nil, "a restore would lose queued segments that cannot be uploaded"},
	{AskStore, Elapsed, always, AskStore, []Action{FlushSpool, AskTheStore}, "the pause is over"},

	{Flush, Flushed, MultiMember, AskPeers, askPeers, "as much of the volume's data as possible was uploaded; the restore starts once all members have uploaded theirs"},
	{Flush, Flushed, always, MakeRoom, []Action{FindEnd, LogLoss, CheckSpace}, "as much of the volume's data as possible was uploaded; the data directory will be preserved"},
	{readingStates, Missing, always, AskStore, []Action{PaceStore}, "an object in the store is missing, possibly because of a delayed listing or a merge; searching again before restoring an older backup"},
	{statemachine.Group{MakeRoom, Build}, StoreUnavailable, always, AskStore, []Action{PaceStore}, "the store became unreachable; reading it and fetching the backup again"},
	{statemachine.Group{MakeRoom, Build}, NoSpace, always, Refused, nil, "the volume has no room for both the restored data and the old data, so the fetched data was removed"},
	{MakeRoom, EnoughSpace, always, Build, []Action{EndAdopted, BuildData}, "the volume has room for both the restored data and the old data"},

	{Build, Built, always, Prove, []Action{ValidateBuilt}, "a data directory was built next to the old one"},
	{Build, BackupsDamaged, always, Refused, nil, "the backups are damaged"},
	{Build, MultiMemberBackup, always, Refused, []Action{DropUnfinished}, "the configuration lists only this member, but the backups are from a multi-member cluster that may still be running"},

	{Prove, Validated, always, Claim, []Action{RecordClaim, ClaimGeneration}, "the restored data is valid"},
	{Prove, ValidationFailed, always, Refused, []Action{DropClaim}, "the restored data is invalid and will not be opened"},
	{Prove, Diverged, always, Refused, []Action{DropClaim, DropUnfinished}, "nothing was moved because the data on the volume differs from its backups"},

	{Claim, Claimed, always, Preserve, []Action{PreserveData}, "the store has a generation for the restored data; replacing the old data"},
	{Claim, ClaimLost, always, Examine, []Action{DropClaim, DropUnfinished, ValidateVolume}, "the built data directory is outdated; starting recovery over"},
	{Claim, StoreUnavailable, always, Claim, []Action{PaceStore}, "the store may not have created the generation; reading it again"},
	{Claim, PeersUnavailable, always, Claim, []Action{PacePeers}, "waiting for every member to respond once more before the cluster is replaced"},
	{Claim, Elapsed, always, Claim, []Action{ClaimGeneration}, "the pause is over"},

	{Preserve, Moved, always, Install, []Action{InstallData, RecordRestore}, "the data directory was moved"},

	{Install, Installed, StillAsked, Examine, []Action{ValidateVolume}, "an interrupted restore was completed, but another restore has been requested"},
	{Install, Installed, always, Ready, nil, "the restored data is installed"},

	{workStates, Failed, always, Refused, nil, "retrying recovery from this step"},
}

// Elsewhere handles events that have no row in Table. An event that ends a state's work is accepted only in that
// state. Ready ignores every event.
var Elsewhere = statemachine.RejectByDefault(Table)

// pause describes the pause between unanswered requests.
const pause = "up to 30s"

// States describes the states in the order in which a run reaches them.
var States = []statemachine.StateInfo{
	{Name: Resume, Meaning: "check whether an earlier run was interrupted", Bound: statemachine.ByCalls, Deadline: "none: depends on disk speed"},
	{Name: Examine, Meaning: "validate the data directory and read its cluster and revision", Bound: statemachine.ByCalls, Deadline: "none: validating a large database can take a while"},
	{Name: Decide, Meaning: "decide what to do with the volume", Bound: statemachine.ByCalls, Deadline: "immediate"},
	{Name: AskPeers, Meaning: "ask the other members how they list this member and whether it can be replaced", Bound: statemachine.ByCalls, Deadline: "a few seconds per request, " + pause + " between requests"},
	{Name: GiveWay, Meaning: "preserve the data before the other members' data replaces it", Bound: statemachine.ByCalls, Deadline: "none: depends on disk speed"},
	{Name: Leave, Meaning: "remove this member's old identity from the cluster", Bound: statemachine.ByCalls, Deadline: "10s for the request"},
	{Name: Enter, Meaning: "add this member to the cluster", Bound: statemachine.ByCalls, Deadline: "10s for the request"},
	{Name: AskStore, Meaning: "upload queued segments and read the cluster and contents of the store", Bound: statemachine.ByCalls, Deadline: "2m per queued segment, 2m for the request, " + pause + " between requests"},
	{Name: Flush, Meaning: "upload the revisions that only the volume has", Bound: statemachine.ByCalls, Deadline: "2m"},
	{Name: MakeRoom, Meaning: "report the expected data loss and check the free space", Bound: statemachine.ByCalls, Deadline: "none: depends on disk speed"},
	{Name: Build, Meaning: "fetch the backup and build a data directory next to the old one", Bound: statemachine.ByCalls, Deadline: "none while data is arriving; a request fails after a minute without data"},
	{Name: Prove, Meaning: "run a full validation of the built data directory", Bound: statemachine.ByCalls, Deadline: "none"},
	{Name: Claim, Meaning: "reserve revisions and create the next generation in the store", Bound: statemachine.ByCalls, Deadline: "2m for the request, " + pause + " between requests"},
	{Name: Adopt, Meaning: "create a generation for the volume's data in the adopted store", Bound: statemachine.ByCalls, Deadline: "2m for the request, " + pause + " between requests"},
	{Name: Preserve, Meaning: "preserve the old data directory", Bound: statemachine.ByCalls, Deadline: "none: depends on disk speed"},
	{Name: Install, Meaning: "rename the restored data directory and record the restore", Bound: statemachine.ByCalls, Deadline: "none: depends on disk speed"},
	{Name: Ready, Meaning: "etcd may open the data directory", Bound: statemachine.AtEnd, Deadline: "final"},
	{Name: Refused, Meaning: "etcd may not open the data directory; nothing was deleted", Bound: statemachine.AtEnd, Deadline: "final"},
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
	// An Event reports how a state's work ended.
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
	Preserve State = "Preserve"
	Install  State = "Install"
	Ready    State = "Ready"
	Refused  State = "Refused"
)

// Events that are not decisions. All events except the first one and Elapsed end a state's work.
const (
	RunStarted        Event = "run started"             // a run has started; sent once
	NothingToResume   Event = "nothing to resume"       // there is no claimed restore to install
	ClaimFound        Event = "claim found"             // a claimed restore was interrupted, and its data directory exists
	InstallFound      Event = "installed restore found" // a claimed restore was interrupted after it was installed
	Examined          Event = "examined"                // the data directory was examined
	PeersResponded    Event = "peers responded"         // the other members have reported how they list this member
	PeersUnavailable  Event = "peers unavailable"       // the membership change failed, or a member did not respond
	Changed           Event = "membership changed"      // this member was removed from or added to the cluster
	StoreResponded    Event = "store responded"         // the state of the store is known
	StoreUnavailable  Event = "store unavailable"       // the store is temporarily unavailable
	Stuck             Event = "upload stuck"            // the queued segments cannot be uploaded, and waiting would not help
	Missing           Event = "object missing"          // an object that the store listed is missing, possibly only temporarily
	Flushed           Event = "flushed"                 // everything that could be uploaded from the volume is in the store
	EnoughSpace       Event = "enough space"            // the volume has room for the restored data
	NoSpace           Event = "not enough space"
	Built             Event = "built" // a data directory was built next to the current one and synced to disk
	BackupsDamaged    Event = "backups damaged"
	MultiMemberBackup Event = "multi-member backup" // only this member of a multi-member cluster would be restored
	Validated         Event = "validated"           // the restored data passed validation
	ValidationFailed  Event = "validation failed"   // the restored data failed validation
	Diverged          Event = "diverged"            // the restored data is valid, but the current data is not an earlier state of it
	StoreAdopted      Event = "store adopted"       // the next generation in the store was created for the data on the volume
	Claimed           Event = "claimed"             // the next generation in the store was created for this restore and is empty
	ClaimLost         Event = "claim lost"          // another process was faster, or another member has data
	Moved             Event = "data moved"          // the previous data directory was moved
	Installed         Event = "installed"           // the restored data is in the data directory, and recovery has recorded that the restore is done
	Failed            Event = "failed"              // the volume or this program failed
	Elapsed           Event = statemachine.Elapsed  // the state's timer expired
)

// Guards, in addition to statemachine.Always; see conditions.
const (
	NoStore          statemachine.Guard = "no store"
	MultiMember      statemachine.Guard = "multi-member"
	StillAsked       statemachine.Guard = "another restore requested"
	PeersAnswered    statemachine.Guard = "peer responses known"
	DirectoryPresent statemachine.Guard = "data directory present"
	Listed           statemachine.Guard = "listed, no data directory"
	NotListed        statemachine.Guard = "not listed, no data directory"
)

// Actions. PaceStore and PacePeers set the timer. All other actions may block.
const (
	ReadPosition    Action = "read position"
	DropUnfinished  Action = "drop unfinished" // remove data that was built but not claimed
	DropClaim       Action = "drop claim"      // drop a claim that is no longer useful or belongs to another restore
	ValidateVolume  Action = "validate volume" // validate the data directory and read its cluster and revision
	DecideNow       Action = "decide"          // apply the decision rules
	AskThePeers     Action = "ask the peers"   // query the other members
	LogRejoin       Action = "log rejoin"      // log which members provide the data
	RemoveMember    Action = "remove member"   // remove this member's old identity from the cluster
	AddMember       Action = "add member"      // add this member to the cluster
	AdoptCluster    Action = "adopt cluster"   // start in the existing cluster with the members that the peers list
	TakeStore       Action = "take over store" // end the newest generation and create one for the data on the volume
	AskTheStore     Action = "ask the store"   // read the cluster and contents of the store
	LogLoss         Action = "log loss"        // log the number of lost revisions
	FlushSpool      Action = "flush spool"     // upload the segments queued on the volume
	FlushVolume     Action = "flush volume"    // upload data that exists only on the volume
	FindEnd         Action = "find end"        // reread the end of the backups after volumes have uploaded data
	CheckSpace      Action = "check space"
	EndAdopted      Action = "end adopted generation" // end the generation that the user named before restoring it
	BuildData       Action = "build data"             // build the restored data next to the data directory
	ValidateBuilt   Action = "validate built data"    // validate the restored data
	RecordClaim     Action = "record claim"           // notify the peers, then record the claim durably
	ClaimGeneration Action = "claim generation"       // reserve revisions and create the generation
	PreserveData    Action = "preserve data"          // rename the data directory to its preserved copy
	InstallData     Action = "install data"           // rename the restored data to the data directory
	RecordRestore   Action = "record restore"         // record durably that the restore is done

	PaceStore Action = "pace store" // query the store again later
	PacePeers Action = "pace peers" // query the peers again later
)

// A VolumeState describes the data on this member's volume.
type VolumeState string

// States of a volume.
const (
	VolumeEmpty        VolumeState = "empty"        // no data, or only the directories of an etcd that has not stored anything yet
	VolumeLost         VolumeState = "lost"         // empty, even though an earlier run served data from it
	VolumeCorrupt      VolumeState = "corrupt"      // etcd cannot open or fully read the data
	VolumeValid        VolumeState = "valid"        // no data is known to be missing
	VolumeBehind       VolumeState = "behind"       // valid, but the store or the other members have newer data
	VolumeStored       VolumeState = "stored"       // valid, and uploaded to the store as far as possible
	VolumeRejected     VolumeState = "rejected"     // valid, but the last comparison with the store found a mismatch
	VolumeUnidentified VolumeState = "unidentified" // valid, but does not record its cluster; the store has not been queried yet
)

// A PeerState describes how the other members list this member. Its values are those of peers.Membership and the
// constants below.
type PeerState = peers.Membership

// States of the other members. PeersJustLost, PeersStillLost and PeersUploading require responses from all members.
// PeersBlocked requires equal responses from a quorum.
const (
	PeersNone        PeerState = "none"                        // a single-member cluster
	PeersNoneJoin    PeerState = "none when joining"           // a single-member cluster that joins, with an empty volume
	PeersUnnamed     PeerState = "not configured"              // the configuration creates a cluster and names no other member
	PeersUnnamedJoin PeerState = "not configured when joining" // the configuration joins a cluster and names no other member
	PeersUnasked     PeerState = "not asked"                   // the other members have not been queried, or not since the store was
	PeersNotAgreed   PeerState = "restore requested by some"   // not all members request the same restore
	PeersJustLost    PeerState = "all data just lost"          // all members have been without data for less than 10s
	PeersStillLost   PeerState = "all data lost for 10s"       // all members are still without data after the store was queried
	PeersUploading   PeerState = "uploads pending"             // as RestoreAgreed or PeersStillLost, but a member has not yet uploaded the data that only its volume has
	PeersBlocked     PeerState = "rejoin blocked"              // a quorum is running, but this member cannot rejoin yet
)

// A StoreState describes how the volume relates to the store. Its values are those of relation.Relation and the
// constants below; relation.Ours stands for every relation in which there is a backup to restore.
type StoreState = relation.Relation

// States of a store.
const (
	StoreNone            StoreState = "none"                // --backup-store is not set
	StoreUnasked         StoreState = "not asked"           // the store has not been queried yet
	StoreUnreachable     StoreState = "unreachable"         // unreachable, access denied, or wrong URL
	StoreLongUnreachable StoreState = "unreachable for 10s" // as StoreUnreachable, but valid data no longer waits for a comparison
	StoreInUse           StoreState = "in use"              // another process has written to the store recently and may continue
	StoreNoBackup        StoreState = "ours without backup" // belongs to this cluster, but has no backup that can be restored
	StoreUnverified      StoreState = "unverified"          // damaged, but no object name suggests a revision that the volume lacks
	StoreDamaged         StoreState = "damaged"             // the store's metadata is damaged
	StoreNoKeys          StoreState = "keys missing"        // signed or encrypted with keys that are not configured
)

// isKnown reports whether the contents of the store are known.
func isKnown(s StoreState) bool {
	return s != "" && !slices.Contains([]StoreState{StoreUnreachable, StoreLongUnreachable, StoreInUse, StoreDamaged, StoreNoKeys}, s)
}

// A RequestKind is the kind of restore that the user requests.
type RequestKind string

// Request kinds, set by --recover and --restore-to.
const (
	AskedNothing RequestKind = "auto"    // --recover=auto
	AskedNever   RequestKind = "never"   // --recover=never
	AskedRestore RequestKind = "restore" // --restore-to, regardless of --recover
)

// Decisions, which are also events of the state machine.
const (
	StartEtcd     Event = "start"          // etcd opens the volume as it is
	CreateCluster Event = "create cluster" // etcd creates a new cluster
	ConsultPeers  Event = "ask the peers"  // query the other members
	ConsultStore  Event = "ask the store"  // upload the queued segments, then query the store
	Wait          Event = "wait"           // wait, then query the peers again if they have responded, otherwise the store
	FlushFirst    Event = "flush"          // upload the volume's data before it is replaced
	RestoreData   Event = "restore"        // restore from the store
	Rejoin        Event = "rejoin"         // rejoin with the data of the other members
	AdoptStore    Event = "adopt"          // create a generation for the data on the volume
	Refuse        Event = "refuse"         // refuse to start until the user acts
	Decline       Event = "decline"        // reject the requested restore
)
