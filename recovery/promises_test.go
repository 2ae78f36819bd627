package recovery

import (
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/recovery/peers"
)

// promises lists the invariants that must hold in every reachable place.
var promises = []struct {
	what string
	kept func(place) bool
}{
	{"nothing happens that must not", func(p place) bool { return p.truth.lost == "" }},
	{"etcd opens only what was proved, or found valid, or a new cluster", func(p place) bool {
		t := p.truth
		return !p.opens() || t.place == "restored" && t.sound || t.place == "original" && t.validated && p.lot.found != VolumeCorrupt || p.isNew() || t.adopted
	}},
	{"nor one of several that all are", func(p place) bool {
		byStore := p.lot.behind && p.lot.listing == peers.Gone
		return !p.opens() || !byStore || p.lot.never || p.truth.place != "original" || p.truth.listing != peers.Gone
	}},
	{"new is said only where no certificate is", func(p place) bool {
		return !p.opens() || !p.isNew() || p.lot.peers || p.lot.joins || p.lot.owner == relation.Empty || p.lot.owner == relation.Founded
	}},
	{"a cluster is begun only after what waits on the volume has told whether there was one", func(p place) bool {
		return !p.opens() || !p.isNew() || p.core.Facts.Answer == "" || p.truth.brought
	}},
	{"a volume that is behind its store is not opened, unless the store was away for long", func(p place) bool {
		return !p.opens() || p.truth.uncompared || !p.lot.alone || p.lot.never || p.truth.place == "restored" || !p.lot.behind || p.lot.owner != relation.Ours && p.lot.owner != StoreUnverified
	}},
	{"a member of several is begun anew only where nobody knows it", func(p place) bool {
		founds := p.truth.listing == peers.Founding || p.truth.listing == peers.Partial
		unknown := founds && p.core.Facts.Listing == p.truth.listing && (!p.lot.store || p.lot.owner == relation.Empty || p.lot.owner == relation.Founded)
		left := p.lot.never && (p.core.Facts.Listing == peers.Added || p.core.Facts.Listing == peers.Unlisted)
		return !p.opens() || !p.isNew() || !p.lot.peers || left || unknown || p.core.Facts.Listing == peers.Expected
	}},
	{"a volume that was put back is not opened where a quorum says so", func(p place) bool {
		return !p.opens() || p.lot.alone || p.truth.place != "original" || !p.core.Facts.Outdated
	}},
	{"a volume is opened beside the store of its own cluster, or of nobody, or one that a person has named for it", func(p place) bool {
		others := p.lot.owner == relation.OtherCluster || p.lot.owner == relation.OtherOwner || p.lot.owner == relation.Unclaimed || p.lot.owner == relation.Adopted && !p.truth.taken
		return !p.opens() || !p.lot.alone || p.lot.never || p.truth.uncompared || !others
	}},
	{"a claim is installed once", func(p place) bool { return p.truth.installs <= 1 }},
	{"a member whose peers are not named restores nothing", func(p place) bool { return p.lot.alone || p.lot.peers || !p.truth.claimed }},
	{"a member whose peers are not named moves nothing", func(p place) bool { return p.lot.alone || p.lot.peers || p.truth.place == "original" }},
	{"a target that is not kept moves nothing", func(p place) bool { return !p.lot.alone || p.lot.kept || p.truth.place == "original" }},
	{"a restore that is asked for is done before etcd opens", func(p place) bool {
		return !p.opens() || !p.lot.requested || p.truth.done || !p.lot.alone && p.truth.outrun
	}},
	{"a visit ends: there is work, or a timer", func(p place) bool {
		return p.ended() || p.chain != "" || p.timer
	}},
}

func (p place) opens() bool { return p.core.State == Ready && p.chain == "" }
func (p place) ended() bool { return p.opens() || p.core.State == Refused && p.chain == "" }
func (p place) isNew() bool {
	return !p.truth.adopted && (p.truth.place == "original" && p.lot.found == VolumeEmpty || p.truth.place == "")
}

// An input is the configuration and the initial state of a run.
type input struct {
	found     VolumeState
	alone     bool
	never     bool
	requested bool // --restore-to
	owner     StoreState
	kept      bool // the requested target can be restored
	behind    bool // the store has data that the volume lacks, because of a rollback in a multi-member cluster

	unidentified bool // the data does not record which cluster it belongs to

	store bool // a store is configured
	// Fields for multi-member clusters.
	peers   bool      // the configuration lists the peers
	joins   bool      // the configuration joins an existing cluster
	remains bool      // the volume has only the files of an etcd server that had just started
	listing PeerState // how the peers initially list this member
}

// allInputs returns every sensible input.
func allInputs() (all []input) {
	for _, found := range []VolumeState{VolumeEmpty, VolumeValid, VolumeCorrupt} {
		for _, owner := range []StoreState{relation.Empty, relation.Founded, relation.Ours, relation.Adopted, relation.OtherOwner, relation.Unclaimed, relation.OtherCluster, StoreUnverified} {
			for bits := range 32 {
				given := input{store: true, found: found, owner: owner, alone: bits&1 == 0, never: bits&2 > 0, requested: bits&4 > 0, kept: bits&8 > 0, behind: bits&16 > 0}
				given.unidentified = found == VolumeValid && (owner == relation.Unclaimed || owner == relation.Adopted || owner == relation.Empty)
				if given.sensible() {
					all = append(all, given.variants()...)
				}
			}
		}
		for bits := range 4 {
			all = append(all, input{found: found, owner: relation.Empty, alone: bits&1 == 0, never: bits&2 > 0}) // without a store
		}
	}
	return all
}

// sensible reports whether the store can be in this state for this volume.
func (l input) sensible() bool {
	switch l.owner { //nolint:exhaustive // of the others nothing more is demanded
	case StoreUnverified:
		return !l.kept
	case relation.Empty:
		return !l.kept && (!l.behind || !l.alone)
	case relation.Founded:
		return l.found != VolumeValid && !l.kept && !l.behind
	case relation.OtherOwner:
		return l.found != VolumeValid || l.behind
	case relation.Unclaimed:
		return l.found == VolumeValid && !l.behind
	case relation.Adopted:
		return l.found == VolumeValid && !l.behind && !l.requested
	case relation.OtherCluster:
		return l.found != VolumeEmpty
	}
	return true
}

// variants returns the inputs for a member of a multi-member cluster. In these inputs, the store differs only in
// whether it has backups.
func (l input) variants() (all []input) {
	if l.alone {
		return []input{l}
	}
	if l.behind && (l.found != VolumeValid || l.requested) {
		return nil
	}
	joining := l
	joining.joins = true
	all = append(all, l, joining) // the configuration does not list the peers
	for _, listing := range []PeerState{peers.Founding, peers.Partial, peers.Gone, peers.Asking, peers.Expected, peers.Added, peers.Started, peers.Unlisted} {
		for bits := range 4 {
			l.peers, l.listing, l.store, l.remains = true, listing, bits&1 > 0, bits&2 > 0
			if l.possible() {
				all = append(all, l)
			}
		}
	}
	return all
}

// possible reports whether the responses of the peers are consistent with this member.
func (l input) possible() bool {
	switch {
	case l.remains && l.found != VolumeEmpty, l.behind && !l.rolledBack(), l.requested && !l.store:
		return false
	case l.listing == peers.Founding, l.listing == peers.Partial:
		return l.found == VolumeEmpty && !l.requested
	case l.listing == peers.Gone:
		return (l.found != VolumeValid || l.behind) && !l.requested
	case l.listing == peers.Asking:
		return l.requested
	default:
		return true
	}
}

// rolledBack reports whether the peers or the store can reveal that the volume was rolled back.
func (l input) rolledBack() bool {
	return l.listing == peers.Started || l.listing == peers.Gone && l.store && l.owner == relation.Ours && l.kept
}

func origin(given input) reality { return reality{place: "original", listing: given.listing} }
