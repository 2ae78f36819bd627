package recovery

import (
	"github.com/stretchr/testify/assert"

	"etcd-wrapper/recovery/peers"
)

// What a member that is alone finds on its volume, and what its store answers.
var (
	alone       = Facts{Alone: true, Store: true}
	never       = Facts{Alone: true, Store: true, Never: true}
	asVolume    = func(c Condition) Facts { return Facts{Alone: true, Store: true, Condition: c} }
	asNever     = func(c Condition) Facts { return Facts{Alone: true, Store: true, Condition: c, Never: true} }
	nothing     = Payload{Owner: Nobody}
	unread      = Payload{Owner: Unknown}
	kept        = Payload{Owner: Ours, Kept: true}
	ahead       = Payload{Owner: Ours, Kept: true, Behind: true}
	certificate = Payload{Owner: Ours, Behind: true}
	asked       = Payload{Owner: Ours, Kept: true, Asked: true}
	bringBack   = []Action{TellLoss, MeasureRoom}
	restoreNow  = []Action{FindEnd, TellLoss, MeasureRoom}
	brought     = func(l Listing) Payload { return Payload{Listing: l, Free: true, AllBrought: true, Settled: true} }
)

var sentencesOfStore = []sentence{
	// AskStore: several
	{"several: without a certificate it is a new cluster", AskStore, gone(Empty, peers.Founding), Answered, nothing, Ready, nil},
	{"several: with one, and a backup, it comes back", AskStore, gone(Empty, peers.Founding), Answered, ahead, AskPeers, []Action{AskThePeers}},
	{"several: whatever they have brought", AskStore, Facts{Peers: true, Condition: Empty, Listing: peers.Gone, AllBrought: true}, Answered, ahead, AskPeers, []Action{AskThePeers}},
	{"several: also if some are broken", AskStore, gone(Empty, peers.Gone), Answered, ahead, AskPeers, []Action{AskThePeers}},
	{"several: also if this one is", AskStore, gone(Corrupt, peers.Gone), Answered, kept, AskPeers, []Action{AskThePeers}},
	{"several: also if all are older", AskStore, putBack, Answered, ahead, AskPeers, []Action{AskThePeers}},
	{"several: a quorum without data begins a new cluster", AskStore, gone(Empty, peers.Partial), Answered, nothing, Ready, nil},
	{"several: and restores nothing, as the rest may have data", AskStore, gone(Empty, peers.Partial), Answered, ahead, AskPeers, askAgain},
	{"several: also without a backup", AskStore, gone(Empty, peers.Partial), Answered, certificate, AskPeers, askAgain},
	{"several: --recover=never waits for nobody", AskStore, Facts{Peers: true, Condition: Empty, Never: true, Listing: peers.Partial}, Answered, ahead, Refused, nil},
	{"several: the rest is waited for", AskPeers, has(Empty), PeersTold, told(peers.Partial), AskPeers, askAgain},
	{"several: without a backup it is refused", AskStore, gone(Empty, peers.Founding), Answered, certificate, Refused, nil},
	{"several: broken data do not become a new cluster", AskStore, gone(Empty, peers.Gone), Answered, nothing, Refused, nil},
	{"several: nor by whom they were", AskStore, gone(Corrupt, peers.Gone), Answered, nothing, Refused, nil},
	{"several: another cluster's", AskStore, gone(Corrupt, peers.Gone), Answered, Payload{Owner: Others, Kept: true}, Refused, nil},
	{"several: another owner's", AskStore, gone(Empty, peers.Founding), Answered, Payload{Owner: NotOwned, Kept: true}, Refused, nil},
	{"several: a founded one is gone on with", AskStore, gone(Empty, peers.Founding), Answered, Payload{Owner: Founded}, Ready, nil},
	{"several: a volume that names no cluster asks the store for it", AskPeers, anonym, PeersTold, told(peers.Started), AskStore, flushed},
	{"several: also if the others are not named", Examine, Facts{Store: true}, Examined, Payload{Condition: Valid, Unidentified: true}, AskStore, flushed},
	{"several: --recover=never asks nobody for it", AskPeers, Facts{Peers: true, Store: true, Condition: Valid, Never: true, Unidentified: true}, PeersTold, told(peers.Started), Ready, nil},
	{"several: where the store is empty it is this cluster's", AskStore, anonym, Answered, nothing, AskPeers, []Action{AskThePeers}},
	{"several: where it has a cluster that is not told to be this one it is refused", AskStore, anonym, Answered, Payload{Owner: Unclaimed, Kept: true}, Refused, nil},
	{"several: where it is away it is waited for", AskStore, anonym, StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"several: but not for long", AskPeers, Facts{Peers: true, Store: true, Condition: Valid, Unidentified: true, Trouble: StoreAway, Waited: true}, PeersTold, told(peers.Started), Ready, nil},
	{"several: --recover=never does not bring it back", AskStore, Facts{Peers: true, Condition: Empty, Never: true, Listing: peers.Founding}, Answered, ahead, Refused, nil},
	{"several: nor wait for the store", AskStore, Facts{Peers: true, Condition: Empty, Never: true, Listing: peers.Founding}, StoreSilent, Payload{}, Refused, nil},
	{"several: while the store is away the peers are asked, who may come back", AskStore, gone(Empty, peers.Founding), StoreSilent, Payload{}, AskPeers, askAgain},
	{"several: also if some are broken", AskStore, gone(Corrupt, peers.Gone), StoreSilent, Payload{}, AskPeers, askAgain},
	{"several: before they were asked it is waited for", AskStore, Facts{Peers: true, Asked: true, Condition: Valid}, StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"several: what is asked for and kept needs all", AskStore, together(Valid), Answered, asked, AskPeers, []Action{AskThePeers}},
	{"several: not from another owner's", AskStore, together(Empty), Answered, Payload{Owner: NotOwned, Kept: true, Asked: true}, Refused, nil},
	{"several: what is not kept moves nothing", AskStore, together(Valid), Answered, Payload{Owner: Ours, Asked: true}, Refused, nil},
	{"several: what was done is not done again", AskStore, together(Valid), Answered, kept, AskPeers, []Action{AskThePeers}},
	{"several: whoever was not there comes from the others", AskStore, together(Empty), Answered, ahead, AskPeers, []Action{AskThePeers}},
	{"several: another cluster's is refused before they are asked", AskStore, together(Valid), Answered, Payload{Owner: Others, Kept: true}, Refused, nil},

	// AskStore: several that are not named
	{"unnamed: nothing was ever kept", AskStore, unnamed, Answered, nothing, Ready, nil},
	{"unnamed: new is said once", AskStore, unnamed, Answered, ahead, Refused, nil},
	{"unnamed: also without a backup", AskStore, unnamed, Answered, certificate, Refused, nil},
	{"unnamed: also if it is another owner's", AskStore, unnamed, Answered, Payload{Owner: NotOwned, Kept: true}, Refused, nil},
	{"unnamed: a founded one is gone on with", AskStore, unnamed, Answered, Payload{Owner: Founded}, Ready, nil},
	{"unnamed: also if the store is not believed", AskStore, unnamed, Answered, unread, Refused, nil},
	{"unnamed: the store is waited for", AskStore, unnamed, StoreSilent, Payload{}, AskStore, []Action{PaceStore}},

	// Examine: a member alone
	{"without a store valid data start", Examine, Facts{}, Examined, Payload{Alone: true, Condition: Valid}, Ready, nil},
	{"without a store an empty volume is a new cluster", Examine, Facts{}, Examined, Payload{Alone: true, Condition: Empty}, Ready, nil},
	{"without a store broken data are for people", Examine, Facts{}, Examined, Payload{Alone: true, Condition: Corrupt}, Refused, nil},
	{"--recover=never changes nothing about that", Examine, Facts{Never: true}, Examined, Payload{Alone: true, Condition: Corrupt}, Refused, nil},
	{"nor about that", Examine, Facts{Never: true}, Examined, Payload{Alone: true, Condition: Valid}, Ready, nil},
	{"a valid volume is compared with the store, when that has what waits for it", Examine, alone, Examined, Payload{Alone: true, Condition: Valid}, AskStore, flushed},
	{"so is an empty one", Examine, alone, Examined, Payload{Alone: true, Condition: Empty}, AskStore, flushed},
	{"so is a broken one", Examine, alone, Examined, Payload{Alone: true, Condition: Corrupt}, AskStore, flushed},
	{"--recover=never starts a valid volume without asking", Examine, never, Examined, Payload{Alone: true, Condition: Valid}, Ready, nil},
	{"--recover=never asks about an empty one, which may be a loss", Examine, never, Examined, Payload{Alone: true, Condition: Empty}, AskStore, flushed},
	{"--recover=never asks about a broken one, to say what could be had", Examine, never, Examined, Payload{Alone: true, Condition: Corrupt}, AskStore, flushed},
	{"a restore that is asked for counts in spite of --recover=never", Examine, never, Examined, Payload{Alone: true, Condition: Valid, Asked: true}, AskStore, flushed},

	// AskStore: no answer
	{"a valid volume waits for the store, which may know better", AskStore, asVolume(Valid), StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"so does an empty one", AskStore, asVolume(Empty), StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"so does a broken one", AskStore, asVolume(Corrupt), StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"a valid volume is served after a while", AskStore, asVolume(Valid), StoreSilent, Payload{Waited: true}, Ready, nil},
	{"an empty one is not", AskStore, asVolume(Empty), StoreSilent, Payload{Waited: true}, AskStore, []Action{PaceStore}},
	{"nor is a broken one", AskStore, asVolume(Corrupt), StoreSilent, Payload{Waited: true}, AskStore, []Action{PaceStore}},
	{"nor does a restore that is asked for wait less", AskStore, Facts{Alone: true, Store: true, Condition: Valid, Asked: true}, StoreSilent, Payload{Waited: true}, AskStore, []Action{PaceStore}},
	{"--recover=never does not wait", AskStore, asNever(Empty), StoreSilent, Payload{}, Refused, nil},
	{"the store is asked again", AskStore, alone, Elapsed, Payload{}, AskStore, flushed},

	// AskStore: backups that go on
	{"a cluster that lives keeps its store", AskStore, asVolume(Empty), Alive, Payload{}, AskStore, []Action{PaceStore}},
	{"several: its members may be back", AskStore, gone(Empty, peers.Founding), Alive, Payload{}, AskPeers, askAgain},
	{"several: also if all ask", AskStore, Facts{Peers: true, Store: true, Asked: true, Listing: peers.Asking, Heard: true}, Alive, Payload{}, AskPeers, askAgain},
	{"several: not before they were asked", AskStore, together(Valid), Alive, Payload{}, AskStore, []Action{PaceStore}},

	// AskStore: another cluster's
	{"another cluster's store is refused by a valid volume", AskStore, asVolume(Valid), Answered, Payload{Owner: Others, Kept: true}, Refused, nil},
	{"also if a restore is asked for", AskStore, asVolume(Valid), Answered, Payload{Owner: Others, Kept: true, Asked: true}, Refused, nil},
	{"and if its target is not kept", AskStore, asVolume(Corrupt), Answered, Payload{Owner: Others, Asked: true}, Refused, nil},
	{"another owner's store is refused by an empty volume", AskStore, asVolume(Empty), Answered, Payload{Owner: NotOwned, Kept: true}, Refused, nil},
	{"also if a restore is asked for", AskStore, asVolume(Empty), Answered, Payload{Owner: NotOwned, Kept: true, Asked: true}, Refused, nil},
	{"a founded store is gone on with", AskStore, asVolume(Empty), Answered, Payload{Owner: Founded}, Ready, nil},
	{"a volume that names no cluster does not go on with a store that has one", AskStore, asVolume(Valid), Answered, Payload{Owner: Unclaimed, Kept: true}, Refused, nil},
	{"unless a person has named that", AskStore, asVolume(Valid), Answered, Payload{Owner: Adopted, Kept: true}, Adopt, []Action{TakeStore}},

	// Adopt
	{"the data go on in the store", Adopt, alone, Taken, Payload{}, Ready, nil},
	{"a store that is silent is asked again", Adopt, alone, StoreSilent, Payload{}, AskStore, []Action{PaceStore}},

	// AskStore: the column of a member alone, each cell
	{"valid, nothing kept: start", AskStore, asVolume(Valid), Answered, nothing, Ready, nil},
	{"valid, not behind: start", AskStore, asVolume(Valid), Answered, kept, Ready, nil},
	{"valid, not behind, no chain yet: start", AskStore, asVolume(Valid), Answered, Payload{Owner: Ours}, Ready, nil},
	{"valid, store not believed: start", AskStore, asVolume(Valid), Answered, unread, Ready, nil},
	{"broken, store not believed: refuse", AskStore, asVolume(Corrupt), Answered, unread, Refused, nil},
	{"empty, store not believed: no new cluster", AskStore, asVolume(Empty), Answered, unread, Refused, nil},
	{"valid, store not believed: nothing is gone back to", AskStore, asVolume(Valid), Answered, Payload{Owner: Unknown, Asked: true}, Refused, nil},
	{"what the store says of itself is damaged", AskStore, alone, Disbelieved, Payload{}, Refused, nil},
	{"several: also if all are here", AskStore, gone(Empty, peers.Founding), Disbelieved, Payload{}, Refused, nil},
	{"valid, behind: restore", AskStore, asVolume(Valid), Answered, ahead, MakeRoom, bringBack},
	{"valid, behind, no chain: refuse", AskStore, asVolume(Valid), Answered, certificate, Refused, nil},
	{"broken, chain: restore", AskStore, asVolume(Corrupt), Answered, kept, MakeRoom, bringBack},
	{"broken, no chain: refuse", AskStore, asVolume(Corrupt), Answered, Payload{Owner: Ours}, Refused, nil},
	{"broken, nothing kept: refuse", AskStore, asVolume(Corrupt), Answered, nothing, Refused, nil},
	{"empty, chain: restore", AskStore, asVolume(Empty), Answered, ahead, MakeRoom, bringBack},
	{"empty, certificate without a chain: refuse, for new is said once", AskStore, asVolume(Empty), Answered, certificate, Refused, nil},
	{"empty, no certificate: new", AskStore, asVolume(Empty), Answered, nothing, Ready, nil},

	// AskStore: --recover=never
	{"never: broken data stay, and what could be had is said", AskStore, asNever(Corrupt), Answered, kept, Refused, nil},
	{"never: lost data stay lost, and no new cluster is begun", AskStore, asNever(Empty), Answered, ahead, Refused, nil},
	{"never: an empty volume without a certificate is a new cluster", AskStore, asNever(Empty), Answered, nothing, Ready, nil},
	{"never: the id was used, so a valid volume starts", AskStore, asNever(Valid), Answered, kept, Ready, nil},

	// AskStore: a restore that is asked for
	{"what a valid volume has comes into the store before it goes back", AskStore, asVolume(Valid), Answered, asked, Flush, []Action{TellLoss, FlushVolume}},
	{"of a broken one nothing can be read", AskStore, asVolume(Corrupt), Answered, asked, MakeRoom, bringBack},
	{"of an empty one neither", AskStore, asVolume(Empty), Answered, asked, MakeRoom, bringBack},
	{"a target that is not kept moves nothing", AskStore, asVolume(Valid), Answered, Payload{Owner: Ours, Asked: true}, Refused, nil},
	{"nor is what nobody is known to have written gone back to", AskStore, asVolume(Corrupt), Answered, Payload{Owner: Nobody, Kept: true, Asked: true}, Refused, nil},
	{"nor does one in a store that has nothing", AskStore, asVolume(Empty), Answered, Payload{Owner: Nobody, Asked: true}, Refused, nil},

	// Decide: a verdict is carried out, whatever else is known
	{"the peers are asked", Decide, alone, ConsultPeers, Payload{}, AskPeers, []Action{AskThePeers}},
	{"or waited for", Decide, alone, WaitForPeers, Payload{}, AskPeers, askAgain},
	{"or joined again", Decide, alone, Rejoin, Payload{}, Ready, []Action{AdoptCluster}},
	{"what stands in the place of the data makes way", Decide, Facts{Alone: true, Remains: true}, Rejoin, Payload{}, GiveWay, moveAway},
	{"what the volume has comes into the store", Decide, alone, FlushFirst, Payload{}, Flush, []Action{TellLoss, FlushVolume}},
	{"what cannot be is declined", Decide, alone, Decline, Payload{}, Refused, nil},
	{"also where all ask", Decide, Facts{Asked: true, Listing: peers.Asking}, Decline, Payload{}, Refused, nil},

	// On the way
	{"several: the others are heard again", Flush, together(Valid), Flushed, Payload{}, AskPeers, []Action{AskThePeers}},
	{"several: whatever else is known", Flush, Facts{Condition: Valid}, Flushed, Payload{}, AskPeers, []Action{AskThePeers}},
	{"flushed or not, it is set aside later", Flush, alone, Flushed, Payload{Err: assert.AnError}, MakeRoom, []Action{FindEnd, TellLoss, MeasureRoom}},
	{"a store that does not tell what was brought is asked again", MakeRoom, alone, StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"with room it is built", MakeRoom, alone, RoomEnough, Payload{}, Build, []Action{BuildData}},
	{"without room nothing is fetched", MakeRoom, alone, RoomLacking, Payload{}, Refused, nil},
	{"what is built is proved", Build, alone, Built, Payload{}, Prove, []Action{ProveData}},
	{"a store that goes away is asked again", Build, alone, StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"what is missing may come: it is looked for again before anything older is taken", weighing, alone, Missing, Payload{}, AskStore, []Action{PaceStore}},
	{"what nobody trusts is not damaged: nothing older is taken", weighing, alone, KeysLacking, Payload{}, Refused, nil},
	{"what waits and cannot be brought is for people: a restore would lose it", AskStore, alone, Stuck, Payload{}, Refused, nil},
	{"nor where nothing else is trusted", AskStore, alone, KeysLacking, Payload{}, Refused, nil},
	{"a volume that becomes full is no damaged backup", Build, alone, RoomLacking, Payload{}, Refused, nil},
	{"damaged backups are refused", Build, alone, Unbuildable, Payload{}, Refused, nil},
	{"one of several is not made a cluster of one, unless somebody says so", Build, alone, Grown, Payload{}, Refused, []Action{DropUnfinished}},
	{"the position is durable before the claim", Prove, alone, Proved, Payload{}, Claim, []Action{TellPeers, NotePosition, ClaimGeneration}},
	{"what is not valid is never claimed", Prove, alone, Unproved, Payload{}, Refused, []Action{ForgetClaim}},
	{"good data are not given up for another history", Prove, alone, Diverged, Payload{}, Refused, []Action{ForgetClaim, DropUnfinished}},
	{"only what is claimed takes the place", Claim, alone, Claimed, Payload{}, SetAside, []Action{SetVolumeAside}},
	{"who comes second begins again", Claim, alone, ClaimLost, Payload{}, Examine, []Action{ForgetClaim, DropUnfinished, ValidateVolume}},
	{"a claim that got no answer is made again", Claim, alone, StoreSilent, Payload{}, Claim, []Action{PaceStore}},
	{"whoever is missing when all are called once more is waited for", Claim, alone, PeersSilent, Payload{}, Claim, askAgain},
	{"after a while", Claim, alone, Elapsed, Payload{}, Claim, []Action{ClaimGeneration}},
	{"the old data are out of the way before the new ones come", SetAside, alone, Moved, Payload{}, Install, []Action{InstallData, Remember}},
	{"restored data may be opened", Install, alone, Installed, Payload{}, Ready, nil},
	{"what was asked for is done", Install, Facts{Alone: true, Asked: true}, Installed, Payload{}, Ready, nil},
	{"what is asked for since is done first", Install, alone, Installed, Payload{Asked: true}, Examine, []Action{ValidateVolume}},
	{"also if all have asked for the one before", Install, Facts{Listing: peers.Asking}, Installed, Payload{Asked: true}, Examine, []Action{ValidateVolume}},
	{"whatever was kept of what was asked for before", Install, Facts{Alone: true, Owner: Ours, Kept: true}, Installed, Payload{Asked: true}, Examine, []Action{ValidateVolume}},
	{"what the volume cannot do ends the run", working, alone, Broke, Payload{}, Refused, nil},
}
