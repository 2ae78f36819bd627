package recovery

import (
	"slices"

	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// Listing is how the other members have this one in their list.
type Listing = peers.Listing

// Facts are what the guards may ask about, and what an event has to tell beside its name: those that it has found out. The zero value is of
// a run with --recover=auto that has just begun.
type Facts struct {
	Never bool // --recover=never
	Store bool // there is one

	// Examined tells of them, and Installed and Answered of the last one, too.
	Volume       VolumeState // VolumeEmpty, VolumeCorrupt or VolumeValid
	Alone        bool        // the member is alone in its cluster, or would found one alone
	Joins        bool        // the configuration is of a cluster that exists
	Peers        bool        // the configuration names other members
	Remains      bool        // something is in the place of the data directory
	Unidentified bool        // the volume is valid, and names no cluster
	Rejected     bool        // the volume is valid, and a comparison with the store has refused its data before
	Lost         bool        // a run has served data from the data directory, where nothing is now
	Asked        bool        // a restore is asked for that was not done before

	// PeersTold tells of them.
	Listing    Listing
	Outdated   bool // the volume's data are not those that the member had last
	Free       bool // nothing keeps the member from being replaced, or added
	AllBrought bool // the store has what only the volumes of the others had
	Settled    bool // nobody has had data of use for as long as a late mount takes
	Heard      bool // the peers have told so, and the store was not asked since

	// Answered tells of them.
	Told        StoreState // empty if the store was not asked
	Behind      bool       // the store has more than the volume
	RestoreDone bool       // the restore that is asked for was done before: it is no longer Asked, whatever else the store says

	Brought bool // the store has what only this volume had, as far as it can be brought there

	Err error // with an event: what went wrong, for people
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
		if !f.Told.answers() { // it may have told before that it has more
			f.Behind = f.Behind || told.Behind
			break
		}
		f.Heard, f.Behind = false, told.Behind
		f.Brought = f.Brought || !f.Asked || f.Volume != VolumeValid // what waits for the store comes before it is asked
	}
	return f
}

// Conclude implements machine.Facts. What was known of the volume and of the store is forgotten where both are looked at
// anew, and of the store after a pause for peers.
func (f Facts) Conclude(from State, event Event, to State, _ Facts) Facts {
	if from == AskPeers && event == Elapsed {
		f.Told = ""
	}
	if to == Examine {
		return Facts{Never: f.Never, Store: f.Store}
	}
	return f
}

// refusedByStore reports whether a comparison with the store speaks against a valid volume.
func (f Facts) refusedByStore() bool {
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

// conditions are what the guards mean.
var conditions = map[Guard]func(Facts) bool{
	NoStore:     func(f Facts) bool { return !f.Store },
	Several:     func(f Facts) bool { return !f.Alone },
	StillAsked:  func(f Facts) bool { return f.Asked },
	PeersHeard:  func(f Facts) bool { return slices.Contains(heard, f.peerState()) },
	InItsPlace:  func(f Facts) bool { return f.Remains },
	StillListed: func(f Facts) bool { return !f.Remains && f.Listing == peers.Started },
	NotListed:   func(f Facts) bool { return !f.Remains && f.Listing == peers.Unlisted },
}
