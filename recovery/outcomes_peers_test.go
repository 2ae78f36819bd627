package recovery

import (
	"etcd-wrapper/recovery/peers"
)

// census are the ways in which the others answer: with what is the case, with or without something in the way; without a
// quorum, where one who knows more may be among them; and not at all.
func census(given lot, now truth) (all []outcome) {
	runs := now.listing == peers.Added || now.listing == peers.Started || now.listing == peers.Unlisted
	byStore := given.behind && now.listing == peers.Gone
	outdated := given.found == Valid && now.place == "original" && (byStore || runs && (given.behind && now.listing == peers.Started || now.outrun))
	asked := now
	asked.free = runs
	listing := now.listing
	if listing == peers.Asking && !asks(given, now) {
		listing = peers.Unknown
	}
	allHere := listing == peers.Gone || listing == peers.Founding || listing == peers.Asking
	asked.rolled = now.rolled || allHere
	all = append(all, outcome{PeersTold, Payload{Listing: listing, Outdated: outdated, Free: true, AllBrought: true, Settled: true}, asked})
	asked.rolled = now.rolled
	if allHere {
		if listing != peers.Asking {
			all = append(all, outcome{PeersTold, Payload{Listing: listing, Outdated: outdated, Free: true, AllBrought: true}, asked})
		}
		all = append(all, outcome{PeersTold, Payload{Listing: listing, Outdated: outdated, Free: true}, asked})
	}
	asked.free = false
	if now.listing == peers.Started || now.listing == peers.Unlisted {
		all = append(all, outcome{PeersTold, Payload{Listing: now.listing, Outdated: outdated}, asked})
	}
	if runs {
		all = append(all, outcome{PeersTold, Payload{Listing: peers.Claimed, Free: true}, asked})
	}
	outdated = outdated && byStore
	return append(all, outcome{PeersTold, Payload{Listing: peers.Unknown, Outdated: outdated, Free: true}, asked}, outcome{Broke, Payload{}, now})
}

// changes are the ways in which a change of the cluster's members ends.
func changes(given lot, now truth, from, to Listing, done Event) []outcome {
	then := now
	then.listing, then.free = to, false
	switch {
	case now.listing != from:
		then.lost = "a member is removed, or added, twice"
	case !now.free:
		then.lost = "members are changed although something is in the way, or nobody said that nothing is"
	case holdsData(given, now):
		then.lost = "the member is replaced before its data have made way"
	case given.never:
		then.lost = "members are changed in spite of --recover=never"
	}
	return append([]outcome{{done, Payload{}, then}, {PeersSilent, Payload{}, now}, {PeersSilent, Payload{}, then}}, breaks(now, then)...)
}
