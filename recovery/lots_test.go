package recovery

import (
	"etcd-wrapper/recovery/peers"
)

// lot is what a run is given: it does not change.
type lot struct {
	found     Condition
	alone     bool
	never     bool
	requested bool // --restore-to
	owner     Owner
	kept      bool // there is a way to the target
	behind    bool // the store has more than the volume; of several: the volume was put back

	unidentified bool // the volume names no cluster

	store bool // there is one
	// of a member of several
	peers   bool    // they are named
	joins   bool    // a cluster that exists
	remains bool    // of an empty volume: an etcd had just begun on it
	listing Listing // how the others have the member at first
}

// lots are all that a run can be given and that makes sense.
func lots() (all []lot) {
	for _, found := range []Condition{Empty, Valid, Corrupt} {
		for _, owner := range []Owner{Nobody, Founded, Ours, Adopted, NotOwned, Unclaimed, Others, Unknown} {
			for bits := range 32 {
				given := lot{store: true, found: found, owner: owner, alone: bits&1 == 0, never: bits&2 > 0, requested: bits&4 > 0, kept: bits&8 > 0, behind: bits&16 > 0}
				given.unidentified = found == Valid && (owner == Unclaimed || owner == Adopted || owner == Nobody)
				if given.sensible() {
					all = append(all, given.among()...)
				}
			}
		}
		for bits := range 4 {
			all = append(all, lot{found: found, owner: Nobody, alone: bits&1 == 0, never: bits&2 > 0}) // there is no store
		}
	}
	return all
}

// sensible says that a store can be like that for this volume.
func (l lot) sensible() bool {
	switch l.owner {
	case Unknown:
		return !l.kept
	case Nobody:
		return !l.kept && (!l.behind || !l.alone)
	case Founded:
		return l.found != Valid && !l.kept && !l.behind
	case NotOwned:
		return l.found != Valid
	case Unclaimed:
		return l.found == Valid && !l.behind
	case Adopted:
		return l.found == Valid && !l.behind && !l.requested
	case Others:
		return l.found != Empty
	case Ours:
	}
	return true
}

// among are the lots of a member of several, of whom the store is asked no more than whether it was ever written.
func (l lot) among() (all []lot) {
	if l.alone {
		return []lot{l}
	}
	if l.behind && (l.found != Valid || l.requested) {
		return nil
	}
	joining := l
	joining.joins = true
	all = append(all, l, joining) // its peers are not named
	for _, listing := range []Listing{peers.Founding, peers.Partial, peers.Gone, peers.Asking, peers.Expected, peers.Added, peers.Started, peers.Unlisted} {
		for bits := range 4 {
			l.peers, l.listing, l.store, l.remains = true, listing, bits&1 > 0, bits&2 > 0
			if l.possible() {
				all = append(all, l)
			}
		}
	}
	return all
}

// possible says that what the others tell fits what this member is.
func (l lot) possible() bool {
	switch {
	case l.remains && l.found != Empty, l.behind && !l.putBack(), l.requested && !l.store:
		return false
	case l.listing == peers.Founding, l.listing == peers.Partial:
		return l.found == Empty && !l.requested
	case l.listing == peers.Gone:
		return (l.found != Valid || l.behind) && !l.requested
	case l.listing == peers.Asking:
		return l.requested
	default:
		return true
	}
}

// putBack says that somebody can tell that a volume of several was put back: the others, or the store.
func (l lot) putBack() bool {
	return l.listing == peers.Started || l.listing == peers.Gone && l.store && l.owner == Ours && l.kept
}

func origin(given lot) truth { return truth{place: "original", listing: given.listing} }
