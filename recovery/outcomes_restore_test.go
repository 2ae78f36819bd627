package recovery

import (
	"etcd-wrapper/recovery/peers"
)

func claims(given lot, now truth) []outcome {
	then, lost := now, now
	then.claimed = true
	if !given.alone && (!now.rolled || !now.told && !now.claimed) {
		then.lost = "a cluster of several is replaced before all have called"
	}
	if !now.brought {
		then.lost = "a restore is claimed without what waits on the volume"
	}
	if !given.alone && given.requested && given.found == Valid && now.place == "original" && !now.flushed {
		then.lost = "a restore is claimed before the store has what only the volume has"
	}
	if !given.alone && now.revived {
		then.lost = "a cluster is replaced that has its data"
	}
	if !now.proved || !now.noted {
		then.lost = "a generation is claimed for what is not proved, or not noted"
	}
	if !given.alone && !now.claimed && now.revived { // the last roll call
		return append([]outcome{{ClaimLost, Payload{}, now}, {PeersSilent, Payload{}, now}, {StoreSilent, Payload{}, now}}, breaks(now)...)
	}
	all := []outcome{{Claimed, Payload{}, then}, {StoreSilent, Payload{}, now}, {StoreSilent, Payload{}, then}}
	if !given.alone {
		all = append(all, outcome{PeersSilent, Payload{}, now})
	}
	if !now.outrun {
		lost.outrun = true
		if !given.alone { // another member was first, and runs alone
			lost.listing = peers.Unlisted
		}
		all = append(all, outcome{ClaimLost, Payload{}, lost})
	}
	return append(all, breaks(now, then)...)
}

func setsAside(given lot, now truth) []outcome {
	then := now
	then.place, then.aside = "", now.aside || now.place == "original"
	switch {
	case now.place == "restored":
		then.lost = "restored data are set aside"
	case given.never && !given.requested:
		then.lost = "data are moved in spite of --recover=never"
	case !given.alone && !now.claimed && (!now.free || given.found == Valid && !given.behind && !now.outrun):
		then.lost = "data are moved that the others may not have, or that are of use"
	case !given.alone && !now.claimed:
	case !now.claimed || !now.proved:
		then.lost = "data are moved without a claim"
	case given.found == Valid && !given.behind && !now.outrun && !given.requested:
		then.lost = "good data are moved"
	}
	return append([]outcome{{Moved, Payload{}, then}}, breaks(now, then)...)
}

func installs(given lot, now truth) []outcome {
	then := now
	then.place, then.built, then.sound = "restored", false, now.proved && now.built
	then.installs++
	if !given.alone {
		then.listing = peers.Started // of those who have joined it
	}
	switch {
	case now.place == "original":
		then.lost = "data are deleted: something is installed over them"
	case !now.proved || !now.built:
		then.lost = "what was not proved is installed"
	case !now.claimed:
		then.lost = "what is not claimed is installed, so revisions may be handed out twice"
	}
	return append([]outcome{{"", Payload{}, then}}, breaks(now, then)...)
}
