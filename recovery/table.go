package recovery

import "etcd-wrapper/statemachine"

// Table is recovery, with a row for each state of a group. Nobody may change it at run time.
var Table = statemachine.Expand(written)

// entry is a row as it is written here: it may start in a group.
type entry statemachine.Entry

const always = statemachine.Always

const lives = "a process somewhere else still writes them: nothing takes its place before it has been still for a minute, so end it, or point --backup-store at another place"

const keysLacking = "what is signed, or encrypted, with keys that are not given is not damaged: nothing older is taken in its place, and nothing was moved"

// working is where something blocks that the volume, or this program, may not be able to do.
var working = statemachine.Group{Resume, Examine, AskPeers, GiveWay, Leave, Enter, AskStore, Flush, MakeRoom, Build, Prove, Claim, SetAside, Install}

// weighing is where it shows that less would come back than the store has told of.
var weighing = statemachine.Group{Flush, MakeRoom, Build}

// written is the table as people read and change it. Rows that share From and On stand together, all but the last of them
// guarded; the first that holds wins. What has no row is answered by Elsewhere.
var written = []entry{
	{Resume, Begun, always, Resume, []Action{ReadPosition}, "what an earlier run has claimed must be brought to its end"},
	{Resume, NothingBegun, always, Examine, []Action{DropUnfinished, ValidateVolume}, "nothing was claimed, so a run that was cut off is begun again"},
	{Resume, ClaimFound, NoStore, Refused, nil, "a restore was cut off, and only a store tells how far it was: start with --backup-store; or, where the data directory is still there, move recovery.json away to go on with that"},
	{Resume, ClaimFound, always, Prove, []Action{ProveData}, "what was built is claimed, or about to be: it goes on from there"},
	{Resume, InstallFound, always, Install, []Action{Remember}, "it was installed; only that it was done is not remembered yet"},

	{Examine, Examined, OnItsOwn, Ready, nil, "there is neither a store nor another member that could know better"},
	{Examine, Examined, OnItsOwnBroken, Refused, nil, "the data are broken, and there is neither a store nor another member to bring them back from"},
	{Examine, Examined, AmongOthersAsked, Refused, nil, "a member of several goes back with the others only, and the configuration does not name them"},
	{Examine, Examined, AmongPeers, AskPeers, []Action{AskThePeers}, "the others have what it lacks, and may have had it with them before"},
	{Examine, Examined, AmongOthers, Ready, nil, "a member of several starts as ever: the others have what it lacks"},
	{Examine, Examined, AmongOthersBroken, Refused, nil, "a member of several is not restored: it would go back, and the others would not"},
	{Examine, Examined, LeftAlone, Ready, nil, "with --recover=never a valid volume is started without asking the store"},
	{Examine, Examined, always, AskStore, []Action{FlushSpool, AskTheStore}, "the store may know better, or get to know it now: what waits for it on the volume need not be lost with the data"},

	{AskPeers, PeersTold, NotAllAsk, AskPeers, []Action{PacePeers}, "every member has to be stopped and ask for the same restore before one goes back"},
	{AskPeers, PeersTold, AllAsk, MakeRoom, []Action{FindEnd, TellLoss, MeasureRoom}, "all go back together; of the volume nothing can be read"},
	{AskPeers, PeersTold, AllAskReadable, Flush, []Action{TellLoss, FlushVolume}, "all go back together; what the volume has comes into the store first"},
	{AskPeers, PeersTold, PeersGoOn, Ready, nil, "the data are the member's last, as far as the others know: they bring it up to date"},
	{AskPeers, PeersTold, KnownButNever, Refused, nil, "the member was lost, and comes back from the others, but --recover=never"},
	{AskPeers, PeersTold, NotNow, AskPeers, []Action{PacePeers}, "the member comes back from the others as soon as nothing is in the way"},
	{AskPeers, PeersTold, Replaceable, GiveWay, []Action{TellReturn, SetVolumeAside}, "what is on the volume is of no use: the others have all of it"},
	{AskPeers, PeersTold, LostAmongPeers, Leave, []Action{TellReturn, RemoveMember}, "the member has lost its log, so it may never vote under its old identity again"},
	{AskPeers, PeersTold, NotListed, Enter, []Action{TellReturn, AddLearner}, "the cluster takes the member in as a learner, which counts for no quorum until it has all data"},
	{AskPeers, PeersTold, AddedByNow, Ready, []Action{AdoptCluster}, "the cluster expects the member, which gets its data from the others"},
	{AskPeers, PeersTold, FirstStart, Ready, nil, "the cluster is founded, or was, with this member, which has never started"},
	{AskPeers, PeersTold, BornBroken, Refused, nil, "the data are broken, and by its peers the member never had any"},
	{AskPeers, PeersTold, AsEver, Ready, nil, "nobody has data: the cluster is founded as it is configured"},
	{AskPeers, PeersTold, StoreMayKnow, AskStore, []Action{FlushSpool, AskTheStore}, "nobody has data, and a store tells whether the cluster was ever founded"},
	{AskPeers, PeersTold, AllGone, AskStore, []Action{FlushSpool, AskTheStore}, "all members are here, and none has data of use: the store has, or gets them now"},
	{AskPeers, PeersTold, SeveralBack, MakeRoom, []Action{FindEnd, TellLoss, MeasureRoom}, "all members are still here without data of use, and nobody had begun another generation before they said so"},
	{AskPeers, PeersTold, NotAllBrought, AskPeers, []Action{PacePeers}, "what only the volumes of the others have comes into the store first"},
	{AskPeers, PeersTold, AllGoneForGood, Refused, nil, "all members are here, none has data of use, and there is no store"},
	{AskPeers, PeersTold, Overtaken, AskPeers, []Action{PacePeers}, "the data are perhaps not the last ones, and are not opened before others are there that have these"},
	{AskPeers, PeersTold, Unfounded, AskPeers, []Action{PacePeers}, "one of the others may have data: a cluster is founded when every member of initial-cluster is here and has none; only one that never had any may be left out of it"},
	{AskPeers, PeersTold, always, AskPeers, []Action{PacePeers}, "a quorum of the other members is waited for, which has what this one has lost"},
	{AskPeers, Elapsed, NotAllAsk, AskStore, []Action{AskTheStore}, "another member may have begun the restore by now"},
	{AskPeers, Elapsed, always, AskPeers, []Action{AskThePeers}, "time to ask again"},

	{GiveWay, Moved, always, AskPeers, []Action{AskThePeers}, "the place is free"},
	{Leave, Left, always, AskPeers, []Action{AskThePeers}, "the old identity is gone for good"},
	{Leave, PeersSilent, always, AskPeers, []Action{PacePeers}, "whether it is gone is not known: the peers are asked how things are"},
	{Enter, Entered, always, AskPeers, []Action{AskThePeers}, "the cluster has the member as a learner"},
	{Enter, PeersSilent, always, AskPeers, []Action{PacePeers}, "whether it was taken in is not known: the peers are asked how things are"},

	{AskStore, StoreSilent, SeveralWait, AskPeers, []Action{PacePeers}, "the store may know that the data are lost: it is waited for, or for the peers"},
	{AskStore, StoreSilent, WillNotWait, Refused, nil, "without the store nothing can be brought back, and waiting is not wanted"},
	{AskStore, StoreSilent, always, AskStore, []Action{PaceStore}, "the store may know that the data are lost or were put back: it is waited for"},
	{AskStore, Alive, SeveralWait, AskPeers, []Action{PacePeers}, lives},
	{AskStore, Alive, always, AskStore, []Action{PaceStore}, lives},
	{AskStore, Elapsed, always, AskStore, []Action{FlushSpool, AskTheStore}, "time to ask again, and to go on bringing what waits"},
	{AskStore, Answered, AskedNotKept, Refused, nil, "the target is not kept: nothing is moved"},
	{AskStore, Answered, SeveralAsk, AskPeers, []Action{AskThePeers}, "the target is kept: the others have to ask for it, too"},
	{AskStore, Answered, SeveralUnasked, AskPeers, []Action{AskThePeers}, "the restore was done: what this member lacks comes from the others"},
	{AskStore, Answered, SeveralMissing, AskPeers, []Action{PacePeers}, "the cluster was founded once, and the members that have not said that they lack its data are waited for"},
	{AskStore, Answered, SeveralKept, AskPeers, []Action{AskThePeers}, "the store has the data, unless another member has them by now, who says so before it begins a generation"},
	{AskStore, Answered, SeveralNew, Ready, nil, "a new cluster, for the only time in its life: etcd waits for a quorum of it"},
	{AskStore, Answered, UnnamedNew, Ready, nil, "nothing was ever kept: etcd looks for the other members as it is configured"},
	{AskStore, Answered, UnnamedLost, Refused, nil, "the volume is empty, and the cluster in the store was founded before: it is not begun anew, and the members that may have the data are not named"},
	{AskStore, Answered, OtherCluster, Refused, nil, "another cluster's backups are never restored here"},
	{AskStore, Answered, DoubtfulCluster, Refused, nil, "the volume does not tell whose it was, and the configuration is not that of the cluster in the store"},
	{AskStore, Answered, AskedAndReadable, Flush, []Action{TellLoss, FlushVolume}, "go back once; what the volume has comes into the store first"},
	{AskStore, Answered, Asked, MakeRoom, []Action{TellLoss, MeasureRoom}, "go back once; of the volume nothing can be read"},
	{AskStore, Answered, NewCluster, Ready, nil, "a new cluster, for the only time in its life"},
	{AskStore, Answered, NotBehind, Ready, nil, "the volume has everything that the store has"},
	{AskStore, Answered, NoneTheWiser, Ready, nil, "no name in the store tells of more than the volume has: that the rest is not believed is a trouble of backups, with which etcd serves"},
	{AskStore, Answered, RolledBack, MakeRoom, []Action{TellLoss, MeasureRoom}, "the volume was put back to an older state: the store has the newest"},
	{AskStore, Answered, BrokenKept, MakeRoom, []Action{TellLoss, MeasureRoom}, "the volume is broken, the store has the newest"},
	{AskStore, Answered, LostKept, MakeRoom, []Action{TellLoss, MeasureRoom}, "the volume was lost, the store has the newest"},
	{AskStore, Answered, KeptButNever, Refused, nil, "it could be brought back, but --recover=never"},
	{AskStore, Answered, always, Refused, nil, "nothing is kept that could be brought back"},

	{AskStore, Stuck, always, Refused, nil, "a restore would lose what waits on the volume, and waiting does not help"},
	{AskStore, KeysLacking, always, Refused, nil, keysLacking},
	{AskStore, Disbelieved, always, Refused, nil, "what the store says of itself is damaged, so what it keeps cannot be brought back, and nothing was moved"},
	{weighing, KeysLacking, always, Refused, nil, keysLacking},
	{weighing, Missing, always, AskStore, []Action{PaceStore}, "the store does not have what it has told of: that may be listed late, or be merged at this moment, so it is looked for again before anything older comes back"},

	{Flush, Flushed, SeveralFlushed, AskPeers, []Action{AskThePeers}, "the others may go on, and this one as soon as they have brought what they have"},
	{Flush, Flushed, always, MakeRoom, []Action{FindEnd, TellLoss, MeasureRoom}, "the state before is in the store, or it is known why not; it is set aside in any case"},

	{MakeRoom, StoreSilent, always, AskStore, []Action{PaceStore}, "the store went away before it told how far the backups go by now"},
	{MakeRoom, RoomEnough, always, Build, []Action{BuildData}, "there is room for the restored data beside the old"},
	{MakeRoom, RoomLacking, always, Refused, nil, "there is no room for the restored data beside the old: nothing was fetched"},

	{Build, Built, always, Prove, []Action{ProveData}, "a data directory is there beside the old one"},
	{Build, StoreSilent, always, AskStore, []Action{PaceStore}, "the store went away: what was fetched is fetched again"},
	{Build, RoomLacking, always, Refused, nil, "the volume was full before the restored data were built: what was built is removed again"},
	{Build, Unbuildable, always, Refused, nil, "the backups are damaged"},
	{Build, Grown, always, Refused, []Action{DropUnfinished}, "the configuration names this member alone, and the backups are of a cluster of several, which may be alive"},

	{Prove, Proved, always, Claim, []Action{TellPeers, NotePosition, ClaimGeneration}, "only what is valid gets a generation"},
	{Prove, Unproved, always, Refused, []Action{ForgetClaim}, "what was built is not valid: it is never opened"},
	{Prove, Diverged, always, Refused, []Action{ForgetClaim, DropUnfinished}, "the volume and the backups are of one cluster id, and took different ways"},

	{Claim, Claimed, always, SetAside, []Action{SetVolumeAside}, "the store knows of the new cluster: now it may take the place of the old one"},
	{Claim, ClaimLost, always, Examine, []Action{ForgetClaim, DropUnfinished, ValidateVolume}, "another member was first, or is back with its data, or the store is not believed any more: what was built is dropped"},
	{Claim, StoreSilent, always, Claim, []Action{PaceStore}, "whether it is claimed is not known: it is asked again"},
	{Claim, PeersSilent, always, Claim, []Action{PacePeers}, "every member is heard once more before a cluster takes the place of the one before"},
	{Claim, Elapsed, always, Claim, []Action{ClaimGeneration}, "time to ask again"},

	{SetAside, Moved, always, Install, []Action{InstallData, Remember}, "the place is free"},

	{Install, Installed, AskedSince, Examine, []Action{ValidateVolume}, "the restored data are those of a run that was cut off, and another restore is asked for by now"},
	{Install, Installed, always, Ready, nil, "the restored data are in their place"},

	{working, Broke, always, Refused, nil, "it could not be done; the next run goes on from here, or begins again"},
}

// Elsewhere answers where Table has no row, one line an event. In Ready every event is ignored.
var Elsewhere = []statemachine.Default{
	{On: Begun, Answer: statemachine.Reject, Why: "a run begins once"},
	{On: NothingBegun, Answer: statemachine.Reject, Why: "only Resume reads the position"},
	{On: ClaimFound, Answer: statemachine.Reject, Why: "only Resume reads the position"},
	{On: InstallFound, Answer: statemachine.Reject, Why: "only Resume reads the position"},
	{On: Examined, Answer: statemachine.Reject, Why: "only Examine validates the volume"},
	{On: PeersTold, Answer: statemachine.Reject, Why: "only AskPeers asks them"},
	{On: PeersSilent, Answer: statemachine.Reject, Why: "only Leave, Enter and Claim need all of them, or a quorum"},
	{On: Left, Answer: statemachine.Reject, Why: "only Leave takes the member out"},
	{On: Entered, Answer: statemachine.Reject, Why: "only Enter has it taken in"},
	{On: Answered, Answer: statemachine.Reject, Why: "only AskStore asks what is kept"},
	{On: StoreSilent, Answer: statemachine.Reject, Why: "only AskStore, MakeRoom, Build and Claim need the store"},
	{On: Stuck, Answer: statemachine.Reject, Why: "only FlushSpool brings what waits on the volume"},
	{On: Alive, Answer: statemachine.Reject, Why: "only AskStore looks whether the backups go on"},
	{On: Missing, Answer: statemachine.Reject, Why: "only TellLoss and BuildData look for what was told of"},
	{On: KeysLacking, Answer: statemachine.Reject, Why: "only what reads the store needs keys"},
	{On: Disbelieved, Answer: statemachine.Reject, Why: "only AskStore asks what is kept"},
	{On: Flushed, Answer: statemachine.Reject, Why: "only Flush brings anything into the store"},
	{On: RoomEnough, Answer: statemachine.Reject, Why: "only MakeRoom measures"},
	{On: RoomLacking, Answer: statemachine.Reject, Why: "only MakeRoom and Build need room"},
	{On: Built, Answer: statemachine.Reject, Why: "only Build builds"},
	{On: Unbuildable, Answer: statemachine.Reject, Why: "only Build builds"},
	{On: Grown, Answer: statemachine.Reject, Why: "only Build builds"},
	{On: Proved, Answer: statemachine.Reject, Why: "only Prove validates what was built"},
	{On: Unproved, Answer: statemachine.Reject, Why: "only Prove validates what was built"},
	{On: Diverged, Answer: statemachine.Reject, Why: "only Prove compares what was built with the volume"},
	{On: Claimed, Answer: statemachine.Reject, Why: "only Claim claims"},
	{On: ClaimLost, Answer: statemachine.Reject, Why: "only Claim claims"},
	{On: Moved, Answer: statemachine.Reject, Why: "only SetAside and GiveWay move what is replaced"},
	{On: Installed, Answer: statemachine.Reject, Why: "only Install installs"},
	{On: Broke, Answer: statemachine.Reject, Why: "the run has ended"},
	{On: Elapsed, Answer: statemachine.Reject, Why: "only AskPeers, AskStore and Claim wait"},
}

// NewRules makes rules of a table; the program's own are NewRules(Table, Elsewhere), tests mutate copies.
func NewRules(table []Row, elsewhere []statemachine.Default) *statemachine.Rules[Facts, Payload] {
	return statemachine.NewRules[Facts](table, elsewhere, Ready)
}
