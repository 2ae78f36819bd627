package recovery

import (
	"slices"

	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// truth is what is really the case, whatever the machine believes.
type truth struct {
	place     string // what has the data directory's name: "original", "" or "restored"
	validated bool   // what has it was found valid
	aside     bool   // the original is set aside
	built     bool   // a whole data directory is beside
	proved    bool   // and valid
	sound     bool   // what was installed was proved
	brought   bool   // what waited on the volume is in the store
	noted     bool   // the position is on the disk
	taken     bool   // the store's newest generation is that of the volume, by an adoption
	claimed   bool   // the store has this restore's generation
	outrun    bool   // somebody else has begun another one
	revived   bool   // when that was noted, or later, members came back with their data
	installs  int    // of what this claim is about
	done      bool   // the id is remembered

	listing    Listing // how the others have the member
	free       bool    // a quorum of them has said so, and that nothing is in the way
	adopted    bool    // etcd is started with the members that they have told
	told       bool    // who asks hears that this member is about to have data
	uncompared bool    // the store was away for so long that valid data may be served
	rolled     bool    // since the store was asked: all members are here and have no data of use, or ask for the same restore, and have brought what they have
	flushed    bool    // so has this one

	lost string // what must never happen, and has
}

// place is the machine and its world at one instant.
type place struct {
	lot   lot
	truth truth
	core  statemachine.Core[Facts]
	chain string // the actions of the work at hand, joined; comparable
	timer bool
}

// outcome is one way in which an action can end. Without an event the next action follows. The first one of an action is
// how it ends if nothing is in the way.
type outcome struct {
	event   Event
	payload Payload
	after   truth
}

// breaks is what can happen to every action: it may have been done or not.
func breaks(now truth, done ...truth) (all []outcome) {
	for _, after := range append(done, now) {
		all = append(all, outcome{event: Broke, after: after})
	}
	return all
}

// outcomes are all the ways in which an action can end.
func outcomes(action Action, given lot, now truth) []outcome {
	then := now
	next := func(events ...Event) (all []outcome) {
		for _, event := range events {
			all = append(all, outcome{event: event, after: then})
		}
		return append(all, breaks(now, then)...)
	}
	switch action {
	case ReadPosition:
		switch {
		case !now.noted:
			return next(NothingBegun)
		case now.place == "restored":
			return next(InstallFound)
		default:
			return next(ClaimFound)
		}
	case DropUnfinished:
		then.built, then.proved = false, false
		if now.noted {
			then.lost = "what was claimed is dropped"
		}
		return next("")
	case ForgetClaim:
		then.noted, then.claimed, then.installs = false, false, 0
		if now.place == "restored" {
			then.lost = "an installed restore is forgotten"
		}
		return next("")
	case ValidateVolume:
		return examinations(given, now)
	case AskThePeers:
		return census(given, now)
	case TellReturn:
		return next("")
	case RemoveMember:
		return changes(given, now, peers.Started, peers.Unlisted, Left)
	case AddLearner:
		return changes(given, now, peers.Unlisted, peers.Added, Entered)
	case AdoptCluster:
		then.adopted = true
		if now.listing != peers.Added || holdsData(given, now) {
			then.lost = "a cluster is joined that does not expect the member, or with old data"
		}
		return []outcome{{after: then}} // it cannot fail
	case AskTheStore:
		return append(answers(given, now), outcome{event: Disbelieved, after: now}, outcome{event: StoreSilent, after: now}, silence(given, now), outcome{event: KeysLacking, after: now}, outcome{event: Alive, after: now}, outcome{event: Broke, after: now})
	case TakeStore:
		if then.taken = true; given.owner != Adopted {
			then.lost = "a store is taken that nobody has named"
		}
		return append(next(Taken), outcome{event: StoreSilent, after: now}, outcome{event: StoreSilent, after: then})
	case TellLoss:
		return append(next(""), outcome{event: Missing, after: now}, outcome{event: KeysLacking, after: now})
	case FlushSpool:
		then.brought = true
		return append(next(""), outcome{event: StoreSilent, after: now}, outcome{event: Stuck, after: now})
	case FlushVolume:
		then.flushed = true
		return next(Flushed)
	case FindEnd:
		return append(next(""), outcome{event: StoreSilent, after: now})
	case MeasureRoom:
		return next(RoomEnough, RoomLacking)
	case BuildData:
		then.built = true
		if slices.Contains([]Owner{Others, NotOwned, Unclaimed, Adopted}, given.owner) {
			then.lost = "another cluster's data are restored"
		}
		torn := outcome{event: StoreSilent, after: now}
		all := append(next(Built), torn)
		for _, event := range []Event{Unbuildable, RoomLacking, Missing, KeysLacking, Grown} {
			all = append(all, outcome{event: event, after: now})
		}
		return all
	case ProveData:
		then.proved = true
		return append(next(Proved), outcome{event: Unproved, after: now}, outcome{event: Diverged, after: now})
	case TellPeers:
		then.told = true
		return next("")
	case NotePosition:
		then.noted = true
		return next("")
	case ClaimGeneration:
		return claims(given, now)
	case SetVolumeAside:
		return setsAside(given, now)
	case InstallData:
		return installs(given, now)
	case Remember:
		then.noted, then.done = false, true
		return next(Installed)
	}
	return nil
}

// silence is that of a store that has been silent for so long that valid data are served.
func silence(given lot, now truth) outcome {
	now.uncompared = (given.alone || given.unidentified) && !asks(given, now)
	return outcome{StoreSilent, Payload{Waited: true}, now}
}

func examinations(given lot, now truth) []outcome {
	now.validated = true
	condition := given.found
	switch now.place {
	case "":
		condition = Empty
	case "restored":
		condition = Valid
	}
	return []outcome{
		{Examined, Payload{
			Condition: condition, Alone: given.alone, Joins: given.joins, Asked: given.requested && !now.done, Peers: given.peers, Remains: holdsData(given, now),
			Unidentified: given.unidentified && condition == Valid && now.place == "original" && !now.taken,
		}, now},
		{Broke, Payload{}, now},
	}
}

// answers are what a store says: once somebody has begun another generation the volume is behind.
func answers(given lot, now truth) []outcome {
	now.rolled, now.uncompared = false, false
	if given.owner == Unknown && now.place != "restored" && (!given.alone || given.found != Valid || given.behind || asks(given, now)) {
		return []outcome{{event: Disbelieved, after: now}}
	}
	behind := (given.behind || now.outrun || now.claimed) && now.place != "restored"
	owner := given.owner
	if now.place == "restored" || now.taken {
		owner = Ours // its generation is in the store
	}
	return []outcome{{Answered, Payload{
		Owner: owner, Kept: given.kept, Behind: behind, Asked: asks(given, now),
	}, now}}
}

// holdsData says that the place of the data directory is not free.
func holdsData(given lot, now truth) bool {
	return now.place == "restored" || now.place == "original" && (given.found != Empty || given.remains)
}

// asks says that a restore is asked for that nobody has done, as the store knows.
func asks(given lot, now truth) bool {
	return given.requested && !now.done && (given.alone || !now.outrun)
}
