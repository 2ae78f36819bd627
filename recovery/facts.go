package recovery

import (
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// Condition is how a data directory was found.
type Condition string

// The conditions.
const (
	Empty  Condition = "empty" // there is none, or nothing in it
	Valid  Condition = "valid"
	Broken Condition = "broken"
)

// Listing is how the other members have this one in their list.
type Listing = peers.Listing

// Payload is what an event has to tell beside its name. The zero value tells nothing.
type Payload struct {
	Condition  Condition // with Examined
	Alone      bool      // with Examined: the member is alone in its cluster, or would found one alone
	Joins      bool      // with Examined: the configuration is of a cluster that exists
	Peers      bool      // with Examined: the configuration names other members
	Remains    bool      // with Examined: something is in the place of the data directory
	Listing    Listing   // with PeersTold
	Outdated   bool      // with PeersTold: the volume's data are not those that the member had last
	Free       bool      // with PeersTold: nothing keeps the member from being replaced, or added
	AllBrought bool      // with PeersTold: the store has what only the volumes of the others had
	Asked      bool      // with Examined and Answered: a restore is asked for that was not done before
	Owner      Owner     // with Answered
	Kept       bool      // with Answered: there is a way to the target
	Behind     bool      // with Answered: the store has more than the volume
	Err        error     // what went wrong, for people
}

// Facts is what the guards may ask about. The zero value is of a run with --recover=auto that has just begun.
type Facts struct {
	Never      bool // --recover=never
	Store      bool // there is one
	Condition  Condition
	Alone      bool
	Joins      bool
	Peers      bool
	Remains    bool
	Listing    Listing
	Outdated   bool
	Free       bool
	Brought    bool // the store has what only this volume had, as far as it can be brought there
	AllBrought bool
	Asked      bool
	Owner      Owner
	Kept       bool
	Behind     bool
}

// Learn implements machine.Facts.
func (f Facts) Learn(event Event, payload Payload) Facts {
	switch event { //nolint:exhaustive // the others tell nothing
	case Examined:
		f.Condition, f.Alone, f.Asked = payload.Condition, payload.Alone, payload.Asked
		f.Joins, f.Peers, f.Remains = payload.Joins, payload.Peers, payload.Remains
	case PeersTold:
		f.Listing, f.Outdated, f.Free = payload.Listing, payload.Outdated, payload.Free
		f.AllBrought = payload.AllBrought
	case Flushed:
		f.Brought = true
	case Moved:
		f.Condition, f.Remains = Empty, false
	case Installed:
		f.Asked = payload.Asked
	case Answered:
		f.Owner, f.Kept, f.Behind, f.Asked = payload.Owner, payload.Kept, payload.Behind, payload.Asked
		f.Brought = f.Brought || !f.Asked || f.Condition != Valid // what waits for the store comes before it is asked
	}
	return f
}

// Conclude implements machine.Facts. What was known of the volume and of the store is forgotten where both are looked at
// anew, and of the store after a pause for peers.
func (f Facts) Conclude(from State, event Event, to State, _ Payload) Facts {
	if from == AskPeers && event == Elapsed {
		f.Owner, f.Kept = "", false
	}
	if to == Examine {
		return Facts{Never: f.Never, Store: f.Store}
	}
	return f
}

// Holds reports whether the guard's condition is true. An unknown guard never holds.
func (f Facts) Holds(guard Guard) bool {
	if guard == statemachine.Always {
		return true
	}
	holds, known := conditions[guard]
	return known && holds(f)
}

// conditions are what the guards mean.
var conditions = map[Guard]func(Facts) bool{
	NoStore:           func(f Facts) bool { return !f.Store },
	AmongOthersAsked:  func(f Facts) bool { return !f.Alone && f.Asked && !f.goTogether() },
	AmongPeers:        Facts.asksPeers,
	AmongOthers:       func(f Facts) bool { return f.leftAsItIs() && f.Condition != Broken && !f.mayBeFounded() },
	AmongOthersBroken: func(f Facts) bool { return f.leftAsItIs() && f.Condition == Broken },
	OnItsOwn:          func(f Facts) bool { return f.Alone && !f.Store && f.Condition != Broken },
	OnItsOwnBroken:    func(f Facts) bool { return f.Alone && !f.Store && f.Condition == Broken },
	LeftAlone:         func(f Facts) bool { return f.Alone && f.Store && !f.Asked && f.Never && f.Condition == Valid },

	AllAskReadable: func(f Facts) bool { return f.allAsk() && f.hasMore() },
	AllAsk:         func(f Facts) bool { return f.allAsk() && !f.hasMore() && f.AllBrought },
	NotAllBrought:  func(f Facts) bool { return (f.allAsk() && !f.hasMore() || f.severalKept()) && !f.AllBrought },
	NotAllAsk:      func(f Facts) bool { return !f.Alone && f.Asked && f.Listing != peers.Asking },
	PeersGoOn:      func(f Facts) bool { return !f.Asked && f.Condition == Valid && !f.lost() },
	KnownButNever: func(f Facts) bool {
		return f.Never && !f.Asked && (f.Listing == peers.Started || f.Listing == peers.Claimed)
	},
	NotNow:         func(f Facts) bool { return f.returns() && f.known() && !f.Free },
	Replaceable:    func(f Facts) bool { return f.returns() && f.known() && f.Free && f.Remains },
	LostAmongPeers: func(f Facts) bool { return f.returns() && !f.Remains && f.Listing == peers.Started && f.Free },
	NotListed:      func(f Facts) bool { return f.returns() && !f.Remains && f.Listing == peers.Unlisted && f.Free },
	AddedByNow:     func(f Facts) bool { return f.returns() && !f.Remains && f.Listing == peers.Added && f.Free },
	FirstStart:     func(f Facts) bool { return !f.Asked && f.Condition == Empty && f.Listing == peers.Expected },
	BornBroken:     func(f Facts) bool { return !f.Asked && f.Condition == Broken && f.Listing == peers.Expected },
	AsEver:         Facts.asEver,
	StoreMayKnow:   func(f Facts) bool { return f.founds() && f.Store && f.Owner == "" },
	AllGone:        func(f Facts) bool { return f.isGone() && f.Listing == peers.Gone && f.Store && f.Owner == "" },
	AllGoneForGood: func(f Facts) bool { return f.isGone() && f.Listing == peers.Gone && !f.Store },

	Overtaken: func(f Facts) bool {
		return !f.Asked && f.Condition == Valid && f.Outdated && (f.Listing == peers.Unknown || f.Listing == peers.Claimed)
	},
	Unfounded: func(f Facts) bool { return !f.Asked && f.Condition == Empty && f.Listing == peers.Unknown },

	SeveralWait: func(f Facts) bool { return !f.Alone && !f.Never && f.Listing != "" },
	SeveralAsk:  func(f Facts) bool { return !f.Alone && f.Asked && f.Kept && (f.Owner == Ours || f.Owner == Doubtful) },
	SeveralUnasked: func(f Facts) bool {
		return f.Peers && !f.Alone && !f.Asked && f.Owner != "" && f.Owner != Others && !f.isGone()
	},
	SeveralMissing: func(f Facts) bool { return f.isGone() && f.Listing == peers.Partial && f.Owner == Ours && !f.Never },
	SeveralKept:    Facts.severalKept,
	SeveralBack:    func(f Facts) bool { return f.severalKept() && f.AllBrought },
	SeveralFlushed: func(f Facts) bool { return !f.Alone && f.Brought },
	SeveralNew:     func(f Facts) bool { return !f.Alone && !f.Asked && f.Owner == Nobody && f.founds() },
	UnnamedNew:     func(f Facts) bool { return f.mayBeFounded() && f.Owner == Nobody },
	UnnamedLost:    func(f Facts) bool { return f.mayBeFounded() && (f.Owner == Ours || f.Owner == Doubtful) },

	WillNotWait: func(f Facts) bool { return f.Never || f.Alone && f.Condition == Broken },

	AskedSince:       func(f Facts) bool { return f.Asked },
	OtherCluster:     func(f Facts) bool { return f.Owner == Others },
	DoubtfulCluster:  func(f Facts) bool { return f.Owner == Doubtful && !f.Asked && (f.Alone || f.isGone()) },
	AskedAndReadable: func(f Facts) bool { return f.goesBack() && f.Condition == Valid },
	Asked:            func(f Facts) bool { return f.goesBack() && f.Condition != Valid },
	AskedNotKept:     func(f Facts) bool { return f.Asked && f.Owner != Others && !f.Kept },
	NewCluster:       func(f Facts) bool { return f.Alone && !f.Asked && f.Owner == Nobody && f.Condition == Empty },
	NotBehind: func(f Facts) bool {
		return f.Alone && !f.Asked && f.Condition == Valid && (f.Owner == Nobody || f.Owner == Ours && !f.Behind)
	},
	NoneTheWiser: func(f Facts) bool { return f.Alone && !f.Asked && f.Condition == Valid && f.Owner == Unknown },
	RolledBack:   func(f Facts) bool { return f.comesBack() && !f.Never && f.Condition == Valid },
	BrokenKept:   func(f Facts) bool { return f.comesBack() && !f.Never && f.Condition == Broken },
	LostKept:     func(f Facts) bool { return f.comesBack() && !f.Never && f.Condition == Empty },
	KeptButNever: func(f Facts) bool { return f.Never && (f.comesBack() || f.isGone() && f.Owner == Ours && f.Kept) },
}

// asksPeers says that the other members are asked. With --recover=never they are only about an empty volume, which must not
// be begun anew if it was lost.
func (f Facts) asksPeers() bool {
	return !f.Alone && f.Peers && !f.Asked && (!f.Never || f.Condition == Empty)
}

// leftAsItIs says that recovery has nothing to do with a member of several.
func (f Facts) leftAsItIs() bool { return !f.Alone && !f.Asked && !f.asksPeers() }

// mayBeFounded says that a cluster would be begun with members that are not named, such as those that a discovery service knows:
// only the store tells whether it was begun before.
func (f Facts) mayBeFounded() bool {
	return f.leftAsItIs() && f.Condition == Empty && f.Store && !f.Joins
}

// goTogether says that all members may go back together.
func (f Facts) goTogether() bool { return !f.Alone && f.Asked && f.Peers && f.Store }

// lost says that the volume has nothing that this member could go on with.
func (f Facts) lost() bool { return f.Condition != Valid || f.Outdated }

// returns says that what the member lacks is to come from the others.
func (f Facts) returns() bool { return !f.Never && !f.Asked && f.lost() }

// known says that a quorum of the others has said how they have this member, and that its data come from them.
func (f Facts) known() bool {
	return f.Listing == peers.Started || f.Listing == peers.Added || f.Listing == peers.Unlisted
}

// isGone says that no member has told of data of use, this one included. Those that a store has more than are of no use.
func (f Facts) isGone() bool {
	return !f.Alone && !f.Asked && f.lost() &&
		(f.Listing == peers.Founding || f.Listing == peers.Gone || f.Listing == peers.Partial)
}

// severalKept says that the store has what all members lack.
func (f Facts) severalKept() bool {
	return f.isGone() && f.Listing != peers.Partial && f.Owner == Ours && f.Kept && !f.Never
}

// allAsk says that every member asks for the same restore.
func (f Facts) allAsk() bool { return f.Asked && f.Listing == peers.Asking }

// hasMore says that the volume may have what the store has not.
func (f Facts) hasMore() bool { return f.Condition == Valid && !f.Brought }

// founds says that no member has data, this one included. A volume of a start that was cut off in its first moment counts as
// empty.
func (f Facts) founds() bool {
	return f.isGone() && f.Condition == Empty && f.Listing != peers.Gone
}

// asEver says that etcd is started as it is configured: in a first start, or because --recover=never leaves to people what the
// others say.
func (f Facts) asEver() bool {
	if f.Never && !f.Asked && f.Condition == Empty && (f.Listing == peers.Added || f.Listing == peers.Unlisted) {
		return true
	}
	return f.founds() && !f.Store
}

// goesBack says that a restore is asked for and possible.
func (f Facts) goesBack() bool {
	return f.Alone && f.Asked && f.Kept && (f.Owner == Ours || f.Owner == Doubtful)
}

// comesBack says that the store has what the volume lacks.
func (f Facts) comesBack() bool {
	return f.Alone && !f.Asked && f.Owner == Ours && f.Kept && (f.Condition != Valid || f.Behind)
}
