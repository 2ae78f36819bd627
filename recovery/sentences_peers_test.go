package recovery

import (
	"github.com/stretchr/testify/assert"

	"etcd-wrapper/recovery/peers"
)

// What a member of several finds on its volume, and what the others answer.
var (
	ofPeers  = func(c Condition) Facts { return Facts{Peers: true, Condition: c, Remains: c != Empty} }
	unborn   = Facts{Peers: true, Condition: Empty, Remains: true}
	stored   = Facts{Peers: true, Condition: Empty, Store: true}
	ofNever  = Facts{Peers: true, Condition: Empty, Never: true}
	told     = func(l Listing) Payload { return Payload{Listing: l, Free: true} }
	hindered = func(l Listing) Payload { return Payload{Listing: l, Err: assert.AnError} }
	outdated = Payload{Listing: peers.Started, Outdated: true, Free: true}
	lagging  = func(l Listing) Payload { return Payload{Listing: l, Outdated: true, Free: true} }
	gone     = func(c Condition, l Listing) Facts {
		return Facts{Peers: true, Store: true, Condition: c, Remains: c != Empty, Listing: l}
	}
	has = func(c Condition) Facts {
		return Facts{Peers: true, Store: true, Condition: c, Owner: Ours, Kept: true}
	}
	putBack  = Facts{Peers: true, Store: true, Condition: Valid, Remains: true, Listing: peers.Gone, Outdated: true}
	together = func(c Condition) Facts { return Facts{Peers: true, Store: true, Condition: c, Asked: true} }
	unnamed  = Facts{Store: true, Condition: Empty}
	anonym   = Facts{Peers: true, Store: true, Condition: Valid, Unidentified: true}
	flushed  = []Action{FlushSpool, AskTheStore}
	moveAway = []Action{TellReturn, SetVolumeAside}
	askAgain = []Action{PacePeers}
)

var sentencesOfPeers = []sentence{
	// Resume: what an earlier run left
	{"a run first looks for one that was cut off", Resume, alone, Begun, Payload{}, Resume, []Action{ReadPosition}},
	{"one that claimed nothing is begun again", Resume, alone, NothingBegun, Payload{}, Examine, []Action{DropUnfinished, ValidateVolume}},
	{"one that may have claimed is for people where no store tells", Resume, Facts{Peers: true}, ClaimFound, Payload{}, Refused, nil},
	{"also if it is alone", Resume, Facts{Alone: true}, ClaimFound, Payload{}, Refused, nil},
	{"one that may have claimed goes on with what it built", Resume, alone, ClaimFound, Payload{}, Prove, []Action{ProveData}},
	{"one that has installed only has to remember it", Resume, alone, InstallFound, Payload{}, Install, []Action{Remember}},

	// Examine: a member of several
	{"a valid member of several starts as ever", Examine, Facts{}, Examined, Payload{Condition: Valid}, Ready, nil},
	{"an empty member of several starts as ever", Examine, Facts{}, Examined, Payload{Condition: Empty}, Ready, nil},
	{"a broken member of several is refused as ever", Examine, Facts{}, Examined, Payload{Condition: Corrupt}, Refused, nil},
	{"a member of several cannot go back alone", Examine, Facts{}, Examined, Payload{Condition: Valid, Asked: true}, Refused, nil},
	{"nor if it is broken", Examine, Facts{}, Examined, Payload{Condition: Corrupt, Asked: true}, Refused, nil},

	{"a store may know better than one whose peers are not named", Examine, Facts{Store: true}, Examined, Payload{Condition: Empty}, AskStore, flushed},
	{"but restores nothing to one, as the others would not go back", Examine, Facts{Store: true}, Examined, Payload{Condition: Corrupt}, Refused, nil},
	{"one that has data is not compared", Examine, Facts{Store: true}, Examined, Payload{Condition: Valid}, Ready, nil},
	{"or joins a cluster that exists", Examine, Facts{Store: true}, Examined, Payload{Condition: Empty, Joins: true}, Ready, nil},
	{"--recover=never begins it no more a second time", Examine, Facts{Store: true, Never: true}, Examined, Payload{Condition: Empty}, AskStore, flushed},

	{"one whose peers are named asks them", Examine, Facts{}, Examined, Payload{Condition: Empty, Peers: true}, AskPeers, []Action{AskThePeers}},
	{"so does one with valid data, which may have been put back", Examine, Facts{}, Examined, Payload{Condition: Valid, Peers: true}, AskPeers, []Action{AskThePeers}},
	{"so does a broken one", Examine, Facts{}, Examined, Payload{Condition: Corrupt, Peers: true}, AskPeers, []Action{AskThePeers}},
	{"--recover=never starts valid data as ever", Examine, Facts{Never: true}, Examined, Payload{Condition: Valid, Peers: true}, Ready, nil},
	{"--recover=never refuses broken data as ever", Examine, Facts{Never: true}, Examined, Payload{Condition: Corrupt, Peers: true}, Refused, nil},
	{"--recover=never asks about an empty volume, which must not be begun anew", Examine, Facts{Never: true}, Examined, Payload{Condition: Empty, Peers: true}, AskPeers, []Action{AskThePeers}},
	{"without a store there is nothing to go back to", Examine, Facts{}, Examined, Payload{Condition: Empty, Peers: true, Asked: true}, Refused, nil},
	{"whatever they have said", Examine, Facts{Listing: peers.Asking}, Examined, Payload{Condition: Valid, Asked: true}, Refused, nil},
	{"nor with others that are not named", Examine, Facts{Store: true}, Examined, Payload{Condition: Valid, Asked: true}, Refused, nil},
	{"several go back together: the store comes first", Examine, Facts{Store: true}, Examined, Payload{Condition: Valid, Peers: true, Asked: true}, AskStore, flushed},
	{"also with --recover=never", Examine, Facts{Store: true, Never: true}, Examined, Payload{Condition: Empty, Peers: true, Asked: true}, AskStore, flushed},

	// AskPeers: valid data
	{"data that the others know are started", AskPeers, ofPeers(Valid), PeersTold, told(peers.Started), Ready, nil},
	{"also if nobody answers", AskPeers, ofPeers(Valid), PeersTold, told(peers.Unknown), Ready, nil},
	{"or if they have removed the member", AskPeers, ofPeers(Valid), PeersTold, told(peers.Unlisted), Ready, nil},
	{"data that were put back make way", AskPeers, ofPeers(Valid), PeersTold, outdated, GiveWay, moveAway},
	{"but not while something is in the way", AskPeers, ofPeers(Valid), PeersTold, Payload{Listing: peers.Started, Outdated: true}, AskPeers, askAgain},

	{"data that the store has more than are not opened alone", AskPeers, ofPeers(Valid), PeersTold, lagging(peers.Unknown), AskPeers, askAgain},
	{"nor with one that is no quorum", AskPeers, ofPeers(Valid), PeersTold, lagging(peers.Claimed), AskPeers, askAgain},

	// AskPeers: broken data
	{"broken data make way where the others have all of them", AskPeers, ofPeers(Corrupt), PeersTold, told(peers.Started), GiveWay, moveAway},
	{"or where the member was added since", AskPeers, ofPeers(Corrupt), PeersTold, told(peers.Added), GiveWay, moveAway},
	{"or removed", AskPeers, ofPeers(Corrupt), PeersTold, told(peers.Unlisted), GiveWay, moveAway},
	{"but not while something is in the way", AskPeers, ofPeers(Corrupt), PeersTold, hindered(peers.Started), AskPeers, askAgain},
	{"without a quorum they stay where they are", AskPeers, ofPeers(Corrupt), PeersTold, told(peers.Unknown), AskPeers, askAgain},
	{"also if one of the others knows the member", AskPeers, ofPeers(Corrupt), PeersTold, told(peers.Claimed), AskPeers, askAgain},
	{"broken data of a member that never started are for people", AskPeers, ofPeers(Corrupt), PeersTold, told(peers.Expected), Refused, nil},

	// AskPeers: no data
	{"a member that was lost leaves under its old identity", AskPeers, ofPeers(Empty), PeersTold, told(peers.Started), Leave, []Action{TellReturn, RemoveMember}},
	{"as soon as nothing is in the way", AskPeers, ofPeers(Empty), PeersTold, hindered(peers.Started), AskPeers, askAgain},
	{"one that is not listed is taken in", AskPeers, ofPeers(Empty), PeersTold, told(peers.Unlisted), Enter, []Action{TellReturn, AddLearner}},
	{"one at a time", AskPeers, ofPeers(Empty), PeersTold, hindered(peers.Unlisted), AskPeers, askAgain},
	{"one that was added joins", AskPeers, ofPeers(Empty), PeersTold, told(peers.Added), Ready, []Action{AdoptCluster}},
	{"what an etcd left that had just begun makes way first", AskPeers, unborn, PeersTold, told(peers.Added), GiveWay, moveAway},
	{"also if the member is lost", AskPeers, unborn, PeersTold, told(peers.Started), GiveWay, moveAway},
	{"one that never started is founded with the others", AskPeers, ofPeers(Empty), PeersTold, told(peers.Expected), Ready, nil},
	{"one of a cluster in which nobody has data is begun as ever", AskPeers, ofPeers(Empty), PeersTold, told(peers.Founding), Ready, nil},
	{"while somebody may have data it waits", AskPeers, ofPeers(Empty), PeersTold, told(peers.Unknown), AskPeers, askAgain},
	{"a store may know better", AskPeers, stored, PeersTold, told(peers.Founding), AskStore, flushed},
	{"a quorum in which nobody has data begins as ever", AskPeers, ofPeers(Empty), PeersTold, told(peers.Partial), Ready, nil},
	{"a store may know better than a quorum", AskPeers, stored, PeersTold, told(peers.Partial), AskStore, flushed},
	{"one that a single peer knows waits for a quorum", AskPeers, ofPeers(Empty), PeersTold, told(peers.Claimed), AskPeers, askAgain},
	{"a single member does not wait for any", AskPeers, alone, PeersTold, Payload{}, AskStore, flushed},
	{"so does what nothing is known of", AskPeers, ofPeers(Empty), PeersTold, Payload{}, AskPeers, askAgain},
	{"the peers are asked again", AskPeers, alone, Elapsed, Payload{}, AskPeers, []Action{AskThePeers}},

	// AskPeers: --recover=never
	{"never: a lost member is not begun anew", AskPeers, ofNever, PeersTold, told(peers.Started), Refused, nil},
	{"never: nor where one peer knows it", AskPeers, ofNever, PeersTold, told(peers.Claimed), Refused, nil},
	{"never: a first start is one", AskPeers, ofNever, PeersTold, told(peers.Expected), Ready, nil},
	{"never: what nobody knows starts as ever", AskPeers, ofNever, PeersTold, told(peers.Founding), Ready, nil},
	{"never: whoever added the member has configured it", AskPeers, ofNever, PeersTold, told(peers.Added), Ready, nil},
	{"never: nor does it add itself", AskPeers, ofNever, PeersTold, told(peers.Unlisted), Ready, nil},
	{"never: unless a store may know better", AskPeers, Facts{Peers: true, Condition: Empty, Never: true, Store: true}, PeersTold, told(peers.Founding), AskStore, flushed},

	// The way back
	{"the others are asked again when the place is free", GiveWay, alone, Moved, Payload{}, AskPeers, []Action{AskThePeers}},
	{"and when the old identity is gone", Leave, alone, Left, Payload{}, AskPeers, []Action{AskThePeers}},
	{"and when that is not known", Leave, alone, PeersSilent, Payload{}, AskPeers, askAgain},
	{"and when the member was taken in", Enter, alone, Entered, Payload{}, AskPeers, []Action{AskThePeers}},
	{"and when that is not known, either", Enter, alone, PeersSilent, Payload{}, AskPeers, askAgain},

	// AskPeers: all are gone, or ask
	{"all gone: the store is asked", AskPeers, gone(Corrupt, ""), PeersTold, told(peers.Gone), AskStore, flushed},
	{"also by one that has nothing", AskPeers, gone(Empty, ""), PeersTold, told(peers.Gone), AskStore, flushed},
	{"all gone, and no store", AskPeers, ofPeers(Corrupt), PeersTold, told(peers.Gone), Refused, nil},
	{"all still gone when the store was asked: it is restored", AskPeers, has(Empty), PeersTold, brought(peers.Founding), MakeRoom, restoreNow},
	{"but not before late mounts had the time to come", AskPeers, has(Empty), PeersTold, Payload{Listing: peers.Founding, Free: true, AllBrought: true}, AskPeers, askAgain},
	{"also if some are broken", AskPeers, has(Corrupt), PeersTold, brought(peers.Gone), MakeRoom, restoreNow},
	{"not if one has data by then", AskPeers, has(Empty), PeersTold, told(peers.Unknown), AskPeers, askAgain},
	{"but if it is a cluster by then, that is joined", AskPeers, has(Empty), PeersTold, told(peers.Unlisted), Enter, []Action{TellReturn, AddLearner}},
	{"all are older than the store: it is asked", AskPeers, gone(Valid, ""), PeersTold, lagging(peers.Gone), AskStore, flushed},
	{"all still older when it was asked: it is restored", AskPeers, has(Valid), PeersTold, Payload{Listing: peers.Gone, Outdated: true, Free: true, AllBrought: true, Settled: true}, MakeRoom, restoreNow},
	{"who has data of use is not gone", AskPeers, gone(Valid, ""), PeersTold, told(peers.Gone), Ready, nil},
	{"all ask: what a valid volume has comes into the store first", AskPeers, together(Valid), PeersTold, told(peers.Asking), Flush, []Action{TellLoss, FlushVolume}},
	{"whatever else is known", AskPeers, Facts{Store: true, Asked: true, Condition: Valid, Kept: true}, PeersTold, told(peers.Asking), Flush, []Action{TellLoss, FlushVolume}},
	{"all ask: of a broken one nothing can be read", AskPeers, together(Corrupt), PeersTold, brought(peers.Asking), MakeRoom, restoreNow},
	{"all ask: nor of an empty one", AskPeers, together(Empty), PeersTold, brought(peers.Asking), MakeRoom, restoreNow},
	{"all ask: others may have more than the store", AskPeers, together(Corrupt), PeersTold, told(peers.Asking), AskPeers, askAgain},
	{"all ask: a valid volume has brought what it has", AskPeers, Facts{Store: true, Asked: true, Condition: Valid, Brought: true}, PeersTold, brought(peers.Asking), MakeRoom, restoreNow},
	{"all ask: and waits for the others", AskPeers, Facts{Store: true, Asked: true, Condition: Valid, Brought: true}, PeersTold, told(peers.Asking), AskPeers, askAgain},
	{"all ask: what the others have brought is not all", AskPeers, together(Valid), PeersTold, brought(peers.Asking), Flush, []Action{TellLoss, FlushVolume}},
	{"all gone: others may have more than the store", AskPeers, has(Empty), PeersTold, told(peers.Founding), AskPeers, askAgain},
	{"all gone: also if this one is broken", AskPeers, has(Corrupt), PeersTold, told(peers.Gone), AskPeers, askAgain},
	{"as long as not all ask, they are waited for", AskPeers, together(Valid), PeersTold, told(peers.Unknown), AskPeers, askAgain},
	{"also if they run", AskPeers, together(Valid), PeersTold, told(peers.Started), AskPeers, askAgain},
	{"also if data are lost", AskPeers, together(Empty), PeersTold, told(peers.Unlisted), AskPeers, askAgain},
	{"also if all are gone", AskPeers, together(Empty), PeersTold, told(peers.Gone), AskPeers, askAgain},
	{"also if nobody has data", AskPeers, together(Empty), PeersTold, told(peers.Founding), AskPeers, askAgain},
	{"also if the member is expected", AskPeers, together(Empty), PeersTold, told(peers.Expected), AskPeers, askAgain},
	{"also if it is broken", AskPeers, together(Corrupt), PeersTold, told(peers.Expected), AskPeers, askAgain},
	{"also if it was put back", AskPeers, together(Valid), PeersTold, outdated, AskPeers, askAgain},
	{"who has heard all does not ask the store again", AskPeers, Facts{Asked: true, Store: true, Peers: true, Listing: peers.Asking}, Elapsed, Payload{}, AskPeers, []Action{AskThePeers}},
	{"the store may know by now that it was done", AskPeers, together(Valid), Elapsed, Payload{}, AskStore, []Action{AskTheStore}},
}
