package recovery

import (
	"slices"

	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// A Membership is how the other members list this one.
type Membership = peers.Membership

// Facts are the input of guards, and the payload of events. The zero value belongs to a run with --recover=auto
// that has just started.
type Facts struct {
	Never bool // --recover=never
	Store bool // there is a store

	// Reported by Examined; the last one also by Installed and Answered.
	Volume       VolumeState // VolumeEmpty, VolumeCorrupt or VolumeValid
	Alone        bool        // the member is alone in its cluster, or would found one alone
	Joins        bool        // the configuration joins an existing cluster
	Peers        bool        // the configuration names other members
	Remains      bool        // the path of the data directory is occupied
	Unidentified bool        // the volume is valid and names no cluster
	Rejected     bool        // the volume is valid, and its data were refused by a comparison with the store before
	Lost         bool        // data were served from the data directory, which is empty now
	Asked        bool        // a restore is requested that was not done before

	// Reported by PeersTold.
	Listing    Membership
	Outdated   bool // the volume's data are not the ones that the member had last
	Free       bool // nothing prevents the member from being replaced or added
	AllBrought bool // the store has what only the volumes of the others had
	Settled    bool // no member has had usable data for as long as a late mount takes
	Heard      bool // the peers have answered, and the store was not asked since

	// Reported by Answered.
	Told        StoreState // empty if the store was not asked
	Behind      bool       // the store has more than the volume
	RestoreDone bool       // the requested restore was done before: it is no longer Asked, whatever the store answers

	Brought bool // the store has what only this volume had, as far as possible

	Err error // of an event: what went wrong, for the user
}

// Learn implements machine.Facts.
func (f Facts) Learn(event Event, told Facts) Facts {
	switch event { //nolint:exhaustive // the others tell nothing
	case Examined:
		f.Volume, f.Alone, f.Asked = told.Volume, told.Alone, told.Asked
		f.Joins, f.Peers, f.Remains, f.Unidentified, f.Lost = told.Joins, told.Peers, told.Remains, told.Unidentified, told.Lost
		f.Rejected = told.Rejected
		f.Listing, f.Heard = "", false
	case PeersTold:
		f.Listing, f.Outdated, f.Free = told.Listing, told.Outdated, told.Free
		f.AllBrought, f.Settled, f.Heard = told.AllBrought, told.Settled, true
	case Flushed:
		f.Brought = true
	case Moved:
		f.Volume, f.Remains, f.Lost = VolumeEmpty, false, false
	case Installed:
		f.Asked = told.Asked
	case Answered:
		f.Told, f.Asked = told.Told, f.Asked && !told.RestoreDone
		if !f.Told.isKnown() { // an earlier answer may have shown that it has more
			f.Behind = f.Behind || told.Behind
			break
		}
		f.Heard, f.Behind = false, told.Behind
		f.Brought = f.Brought || !f.Asked || f.Volume != VolumeValid // what is queued for the store is uploaded before it is asked
	}
	return f
}

// Conclude implements machine.Facts. Facts about the volume and the store are reset when both are inspected again,
// and those about the store after a pause for peers.
func (f Facts) Conclude(from State, event Event, to State, _ Facts) Facts {
	if from == AskPeers && event == Elapsed {
		f.Told = ""
	}
	if to == Examine {
		return Facts{Never: f.Never, Store: f.Store}
	}
	return f
}

// hasStoreMismatch reports whether a comparison with the store speaks against a valid volume.
func (f Facts) hasStoreMismatch() bool {
	return f.Volume == VolumeValid && !f.Asked && slices.Contains([]StoreState{StoreOthers, StoreNotOwned, StoreUnclaimed, StoreDamaged, StoreLocked}, f.Told)
}

// Holds reports whether the guard's condition is true. An unknown guard never holds.
func (f Facts) Holds(guard Guard) bool {
	if guard == statemachine.Always {
		return true
	}
	holds, known := conditions[guard]
	return known && holds(f)
}

// conditions are the meanings of the guards.
var conditions = map[Guard]func(Facts) bool{
	NoStore:     func(f Facts) bool { return !f.Store },
	Several:     func(f Facts) bool { return !f.Alone },
	StillAsked:  func(f Facts) bool { return f.Asked },
	PeersHeard:  func(f Facts) bool { return slices.Contains(heard, f.peerState()) },
	InItsPlace:  func(f Facts) bool { return f.Remains },
	StillListed: func(f Facts) bool { return !f.Remains && f.Listing == peers.Started },
	NotListed:   func(f Facts) bool { return !f.Remains && f.Listing == peers.Unlisted },
}

// NewRules makes rules from a table. The program uses NewRules(Table, Elsewhere); tests mutate copies.
func NewRules(table []Row, elsewhere []statemachine.Default) *statemachine.Rules[Facts, Facts] {
	return statemachine.NewRules[Facts](table, elsewhere, Ready)
}

// caseOf reduces the facts to a case.
func (f Facts) caseOf() Case {
	return Case{f.volumeState(), f.peerState(), f.storeState(), f.request()}
}

func (f Facts) request() RequestKind {
	switch {
	case f.Asked:
		return AskedRestore
	case f.Never:
		return AskedNever
	default:
		return AskedNothing
	}
}

func (f Facts) volumeState() VolumeState {
	switch {
	case f.Volume == VolumeEmpty && f.Lost:
		return VolumeLost
	case f.Volume == VolumeEmpty, f.Volume == VolumeCorrupt:
		return f.Volume
	case f.Asked && f.Brought:
		return VolumeStored
	case !f.Asked && (f.Outdated || f.Alone && f.Behind):
		return VolumeBehind
	case f.Rejected && f.Store && !f.Never && !f.Asked && !f.Told.isKnown():
		return VolumeRefused
	case f.Unidentified && f.Store && !f.Never && !f.Asked && f.Told == "":
		return VolumeUnnamed
	default:
		return VolumeValid
	}
}

func (f Facts) peerState() PeerState {
	switch {
	case f.Alone && f.Joins && f.Volume == VolumeEmpty:
		return PeersItself
	case f.Alone:
		return PeersNone
	case !f.Peers && !f.Heard && f.Joins:
		return PeersExisting
	case !f.Peers && !f.Heard && f.Listing == "":
		return PeersUnnamed
	case f.Asked:
		return f.requestState()
	case f.isLost():
		return f.lostState()
	case !f.Heard:
		return PeersUnasked
	}
	return f.running()
}

// requestState returns what the others have answered while a restore is requested here.
func (f Facts) requestState() PeerState {
	switch {
	case !f.Heard:
		return PeersUnasked
	case f.Listing != peers.Asking:
		return PeersNotAgreed
	case !f.AllBrought:
		return PeersUnstored
	default:
		return PeersAgreed
	}
}

// lostState returns what the others have answered if none of them has usable data.
func (f Facts) lostState() PeerState {
	switch {
	case f.Listing == peers.Partial:
		return PeersSomeNew
	case f.Heard && f.Told.isKnown() && !f.AllBrought:
		return PeersUnstored
	case f.Heard && f.Told.isKnown() && !f.Settled:
		return PeersJustLost
	case f.Heard && f.Told.isKnown():
		return PeersStillLost
	case f.Listing == peers.Founding && f.Volume == VolumeEmpty:
		return PeersNew
	default:
		return PeersLost
	}
}

// running returns what a quorum of the others has answered, or what is known without one.
func (f Facts) running() PeerState {
	switch state, known := quorum[f.Listing]; {
	case known && !f.Free && !f.Never:
		return PeersBusy
	case known:
		return state
	case f.Listing == peers.Expected:
		return PeersExpect
	case f.Listing == peers.Claimed:
		return PeersMinority
	default:
		return PeersMissing
	}
}

var quorum = map[Membership]PeerState{peers.Started: PeersKnow, peers.Added: PeersAdded, peers.Unlisted: PeersUnlisted}

func (f Facts) isLost() bool {
	return f.Listing == peers.Founding || f.Listing == peers.Gone || f.Listing == peers.Partial
}

func (f Facts) storeState() StoreState {
	switch {
	case f.Told != "":
		return f.Told
	case f.Store:
		return StoreUnasked
	default:
		return StoreNone
	}
}

// failure returns the event for something that could not be done.
func failure(err error) (Event, Facts) { return Broke, Facts{Err: err} }

// continueOrFail returns the event of an action that is followed by another one.
func continueOrFail(err error) (Event, Facts) {
	if err != nil {
		return failure(err)
	}
	return "", Facts{}
}
