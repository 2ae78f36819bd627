package recovery

import (
	"etcd-wrapper/recovery/peers"
)

// promises are what must hold at every instant.
var promises = []struct {
	what string
	kept func(place) bool
}{
	{"nothing happens that must not", func(p place) bool { return p.truth.lost == "" }},
	{"etcd opens only what was proved, or found valid, or a new cluster", func(p place) bool {
		t := p.truth
		return !p.opens() || t.place == "restored" && t.sound || t.place == "original" && t.validated && p.lot.found != Corrupt || p.isNew() || t.adopted
	}},
	{"nor one of several that all are", func(p place) bool {
		byStore := p.lot.behind && p.lot.listing == peers.Gone
		return !p.opens() || !byStore || p.lot.never || p.truth.place != "original" || p.truth.listing != peers.Gone
	}},
	{"new is said only where no certificate is", func(p place) bool {
		return !p.opens() || !p.isNew() || p.lot.peers || p.lot.joins || p.lot.owner == Nobody || p.lot.owner == Founded
	}},
	{"a cluster is begun only after what waits on the volume has told whether there was one", func(p place) bool {
		return !p.opens() || !p.isNew() || p.core.Facts.Owner == "" || p.truth.brought
	}},
	{"a volume that is behind its store is not opened, unless the store was away for long", func(p place) bool {
		return !p.opens() || p.truth.uncompared || !p.lot.alone || p.lot.never || p.truth.place == "restored" || !p.lot.behind || p.lot.owner != Ours && p.lot.owner != Unknown
	}},
	{"a member of several is begun anew only where nobody knows it", func(p place) bool {
		founds := p.truth.listing == peers.Founding || p.truth.listing == peers.Partial
		unknown := founds && p.core.Facts.Listing == p.truth.listing && (!p.lot.store || p.lot.owner == Nobody || p.lot.owner == Founded)
		left := p.lot.never && (p.core.Facts.Listing == peers.Added || p.core.Facts.Listing == peers.Unlisted)
		return !p.opens() || !p.isNew() || !p.lot.peers || left || unknown || p.core.Facts.Listing == peers.Expected
	}},
	{"a volume that was put back is not opened where a quorum says so", func(p place) bool {
		return !p.opens() || p.lot.alone || p.truth.place != "original" || !p.core.Facts.Outdated
	}},
	{"a volume is opened beside the store of its own cluster, or of nobody, or one that a person has named for it", func(p place) bool {
		others := p.lot.owner == Others || p.lot.owner == NotOwned || p.lot.owner == Unclaimed || p.lot.owner == Adopted && !p.truth.taken
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
	return !p.truth.adopted && (p.truth.place == "original" && p.lot.found == Empty || p.truth.place == "")
}
