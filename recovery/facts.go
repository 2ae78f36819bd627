package recovery

import (
	"slices"

	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// Condition is how a data directory was found.
type Condition string

// The conditions.
const (
	Empty   Condition = "empty" // there is none, or nothing in it
	Valid   Condition = "valid"
	Corrupt Condition = "corrupt"
)

// Listing is how the other members have this one in their list.
type Listing = peers.Listing

// Payload is what an event has to tell beside its name. The zero value tells nothing.
type Payload struct {
	Condition    Condition // with Examined
	Alone        bool      // with Examined: the member is alone in its cluster, or would found one alone
	Joins        bool      // with Examined: the configuration is of a cluster that exists
	Peers        bool      // with Examined: the configuration names other members
	Remains      bool      // with Examined: something is in the place of the data directory
	Unidentified bool      // with Examined: the volume is valid, and names no cluster
	Listing      Listing   // with PeersTold
	Outdated     bool      // with PeersTold: the volume's data are not those that the member had last
	Free         bool      // with PeersTold: nothing keeps the member from being replaced, or added
	AllBrought   bool      // with PeersTold: the store has what only the volumes of the others had
	Settled      bool      // with PeersTold: nobody has had data of use for as long as a late mount takes
	Asked        bool      // with Examined and Answered: a restore is asked for that was not done before
	Owner        Owner     // with Answered
	Kept         bool      // with Answered: there is a way to the target
	Behind       bool      // with Answered: the store has more than the volume
	Waited       bool      // with StoreSilent: for as long as valid data wait for the store
	Err          error     // what went wrong, for people
}

// Facts is what the guards may ask about. The zero value is of a run with --recover=auto that has just begun.
type Facts struct {
	Never        bool // --recover=never
	Store        bool // there is one
	Condition    Condition
	Alone        bool
	Joins        bool
	Peers        bool
	Remains      bool
	Unidentified bool
	Listing      Listing
	Outdated     bool
	Free         bool
	Brought      bool // the store has what only this volume had, as far as it can be brought there
	AllBrought   bool
	Settled      bool
	Asked        bool
	Heard        bool // the peers have told how they are, and the store was not asked since
	Owner        Owner
	Trouble      StoreState // why the store has not told what it keeps; empty if it has, or was not asked
	Waited       bool
	Kept         bool
	Behind       bool
}

// Learn implements machine.Facts.
func (f Facts) Learn(event Event, payload Payload) Facts {
	switch event { //nolint:exhaustive // the others tell nothing
	case Examined:
		f.Condition, f.Alone, f.Asked = payload.Condition, payload.Alone, payload.Asked
		f.Joins, f.Peers, f.Remains, f.Unidentified = payload.Joins, payload.Peers, payload.Remains, payload.Unidentified
		f.Listing, f.Heard = "", false
	case PeersTold:
		f.Listing, f.Outdated, f.Free = payload.Listing, payload.Outdated, payload.Free
		f.AllBrought, f.Settled, f.Heard = payload.AllBrought, payload.Settled, true
	case Flushed:
		f.Brought = true
	case Moved:
		f.Condition, f.Remains = Empty, false
	case Installed:
		f.Asked = payload.Asked
	case StoreSilent, Alive, Disbelieved, KeysLacking:
		f.Trouble, f.Waited = troubles[event], payload.Waited
	case Answered:
		f.Trouble, f.Heard = "", false
		f.Owner, f.Kept, f.Behind, f.Asked = payload.Owner, payload.Kept, payload.Behind, payload.Asked
		f.Brought = f.Brought || !f.Asked || f.Condition != Valid // what waits for the store comes before it is asked
	}
	return f
}

var troubles = map[Event]StoreState{StoreSilent: StoreAway, Alive: StoreInUse, Disbelieved: StoreDamaged, KeysLacking: StoreLocked}

// Conclude implements machine.Facts. What was known of the volume and of the store is forgotten where both are looked at
// anew, and of the store after a pause for peers.
func (f Facts) Conclude(from State, event Event, to State, _ Payload) Facts {
	if from == AskPeers && event == Elapsed {
		f.Owner, f.Kept, f.Trouble = "", false, ""
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
	NoStore:     func(f Facts) bool { return !f.Store },
	Several:     func(f Facts) bool { return !f.Alone },
	StillAsked:  func(f Facts) bool { return f.Asked },
	PeersHeard:  func(f Facts) bool { return slices.Contains(heard, f.peerState()) },
	NotAllAsk:   func(f Facts) bool { return f.Asked && f.Listing != peers.Asking },
	InItsPlace:  func(f Facts) bool { return f.Remains },
	StillListed: func(f Facts) bool { return !f.Remains && f.Listing == peers.Started },
	NotListed:   func(f Facts) bool { return !f.Remains && f.Listing == peers.Unlisted },
}
