package recovery

import "etcd-wrapper/lifecycle/machine"

// Table is recovery, with a row for each state of a group. Nobody may change it at run time.
var Table = machine.Expand(written)

// entry is a row as it is written here: it may start in a group.
type entry machine.Entry

const always = machine.Always

// working is where something blocks that the volume, or this program, may not be able to do.
var working = machine.Group{Resume, Examine, AskStore, Flush, MakeRoom, Build, Prove, Claim, SetAside, Install}

// written is the table as people read and change it. Rows that share From and On stand together, all but the last of them
// guarded; the first that holds wins. What has no row is answered by Elsewhere.
var written = []entry{
	{Resume, Begun, always, Resume, []Action{ReadPosition}, "what an earlier run has claimed must be brought to its end"},
	{Resume, NothingBegun, always, Examine, []Action{DropUnfinished, ValidateVolume}, "nothing was claimed, so a run that was cut off is begun again"},
	{Resume, ClaimFound, always, Prove, []Action{ProveData}, "what was built is claimed, or about to be: it goes on from there"},
	{Resume, InstallFound, always, Install, []Action{Remember}, "it was installed; only that it was done is not remembered yet"},

	{Examine, Examined, AmongOthersAsked, Refused, nil, "only a member that is alone can go back: the others would not follow"},
	{Examine, Examined, AmongOthers, Ready, nil, "a member of several starts as ever: the others have what it lacks"},
	{Examine, Examined, AmongOthersBroken, Refused, nil, "a member of several is not restored: it would go back, and the others would not"},
	{Examine, Examined, LeftAlone, Ready, nil, "with --recover=never a valid volume is started without asking the store"},
	{Examine, Examined, BrokenAlone, AskStore, []Action{FlushSpool, AskTheStore}, "the store may have the data, or get them now: what waits for it on the volume need not be broken"},
	{Examine, Examined, always, AskStore, []Action{AskTheStore}, "the store may know better"},

	{AskStore, StoreSilent, WillNotWait, Refused, nil, "without the store nothing can be brought back, and waiting is not wanted"},
	{AskStore, StoreSilent, always, AskStore, []Action{PaceStore}, "the store may know that the data are lost or were put back: it is waited for"},
	{AskStore, Elapsed, always, AskStore, []Action{AskTheStore}, "time to ask again"},
	{AskStore, Answered, OtherCluster, Refused, nil, "another cluster's backups are never restored here"},
	{AskStore, Answered, DoubtfulCluster, Refused, nil, "the volume does not tell whose it was, and the configuration is not that of the cluster in the store"},
	{AskStore, Answered, AskedAndReadable, Flush, []Action{TellLoss, FlushVolume}, "go back once; what the volume has comes into the store first"},
	{AskStore, Answered, Asked, MakeRoom, []Action{TellLoss, MeasureRoom}, "go back once; of the volume nothing can be read"},
	{AskStore, Answered, AskedNotKept, Refused, nil, "the target is not kept: nothing is moved"},
	{AskStore, Answered, NewCluster, Ready, nil, "a new cluster, for the only time in its life"},
	{AskStore, Answered, NotBehind, Ready, nil, "the volume has everything that the store has"},
	{AskStore, Answered, RolledBack, MakeRoom, []Action{TellLoss, MeasureRoom}, "the volume was put back to an older state: the store has the newest"},
	{AskStore, Answered, BrokenKept, MakeRoom, []Action{TellLoss, MeasureRoom}, "the volume is broken, the store has the newest"},
	{AskStore, Answered, LostKept, MakeRoom, []Action{TellLoss, MeasureRoom}, "the volume was lost, the store has the newest"},
	{AskStore, Answered, KeptButNever, Refused, nil, "it could be brought back, but --recover=never"},
	{AskStore, Answered, always, Refused, nil, "nothing is kept that could be brought back"},

	{Flush, Flushed, always, MakeRoom, []Action{MeasureRoom}, "the state before is in the store, or it is known why not; it is set aside in any case"},

	{MakeRoom, RoomEnough, always, Build, []Action{BuildData}, "there is room for the restored data beside the old"},
	{MakeRoom, RoomLacking, always, Refused, nil, "there is no room for the restored data beside the old: nothing was fetched"},

	{Build, Built, always, Prove, []Action{ProveData}, "a data directory is there beside the old one"},
	{Build, StoreSilent, always, AskStore, []Action{PaceStore}, "the store went away: what was fetched is fetched again"},
	{Build, Unbuildable, always, Refused, nil, "the backups are damaged"},

	{Prove, Proved, always, Claim, []Action{NotePosition, ClaimGeneration}, "only what is valid gets a generation"},
	{Prove, Unproved, always, Refused, []Action{ForgetClaim}, "what was built is not valid: it is never opened"},

	{Claim, Claimed, always, SetAside, []Action{SetVolumeAside}, "the store knows of the new cluster: now it may take the place of the old one"},
	{Claim, ClaimLost, always, Examine, []Action{ForgetClaim, DropUnfinished, ValidateVolume}, "somebody else was first: what was built is out of date"},
	{Claim, StoreSilent, always, Claim, []Action{PaceStore}, "whether it is claimed is not known: it is asked again"},
	{Claim, Elapsed, always, Claim, []Action{ClaimGeneration}, "time to ask again"},

	{SetAside, Moved, always, Install, []Action{InstallData, Remember}, "the place is free"},

	{Install, Installed, always, Ready, nil, "the restored data are in their place"},

	{working, Broke, always, Refused, nil, "it could not be done; the next run goes on from here, or begins again"},
}

// Elsewhere answers where Table has no row, one line an event. In Ready every event is ignored.
var Elsewhere = []machine.Default{
	{On: Begun, Answer: machine.Reject, Why: "a run begins once"},
	{On: NothingBegun, Answer: machine.Reject, Why: "only Resume reads the position"},
	{On: ClaimFound, Answer: machine.Reject, Why: "only Resume reads the position"},
	{On: InstallFound, Answer: machine.Reject, Why: "only Resume reads the position"},
	{On: Examined, Answer: machine.Reject, Why: "only Examine validates the volume"},
	{On: Answered, Answer: machine.Reject, Why: "only AskStore asks what is kept"},
	{On: StoreSilent, Answer: machine.Reject, Why: "only AskStore, Build and Claim need the store"},
	{On: Flushed, Answer: machine.Reject, Why: "only Flush brings anything into the store"},
	{On: RoomEnough, Answer: machine.Reject, Why: "only MakeRoom measures"},
	{On: RoomLacking, Answer: machine.Reject, Why: "only MakeRoom measures"},
	{On: Built, Answer: machine.Reject, Why: "only Build builds"},
	{On: Unbuildable, Answer: machine.Reject, Why: "only Build builds"},
	{On: Proved, Answer: machine.Reject, Why: "only Prove validates what was built"},
	{On: Unproved, Answer: machine.Reject, Why: "only Prove validates what was built"},
	{On: Claimed, Answer: machine.Reject, Why: "only Claim claims"},
	{On: ClaimLost, Answer: machine.Reject, Why: "only Claim claims"},
	{On: Moved, Answer: machine.Reject, Why: "only SetAside moves what is replaced"},
	{On: Installed, Answer: machine.Reject, Why: "only Install installs"},
	{On: Broke, Answer: machine.Reject, Why: "the run has ended"},
	{On: Elapsed, Answer: machine.Reject, Why: "only AskStore and Claim wait"},
}

// NewRules makes rules of a table; the program's own are NewRules(Table, Elsewhere), tests mutate copies.
func NewRules(table []Row, elsewhere []machine.Default) *machine.Rules[Facts, Payload] {
	return machine.NewRules[Facts](table, elsewhere, Ready)
}
