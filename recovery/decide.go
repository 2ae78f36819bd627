package recovery

import (
	"fmt"
	"slices"

	"etcd-wrapper/backup/relation"
)

// A Case is all that a decision depends on.
type Case struct {
	Volume VolumeState
	Peers  PeerState
	Store  StoreState
	Asked  RequestKind
}

// A Decision is what happens to a volume, why, and the way out of a refusal.
type Decision struct {
	Result Event
	Why    string
	WayOut string
}

// A rule is a line of the table. It fits a case that has one of each of its values; an empty list fits any.
type rule struct {
	volumes  []VolumeState
	peers    []PeerState
	stores   []StoreState
	requests []RequestKind
	Decision
}

func (r rule) fits(c Case) bool {
	return anyOf(r.volumes, c.Volume) && anyOf(r.peers, c.Peers) && anyOf(r.stores, c.Store) && anyOf(r.requests, c.Asked)
}

func anyOf[T comparable](list []T, value T) bool {
	return len(list) == 0 || slices.Contains(list, value)
}

// evaluate is the only place that decides the fate of a volume. The first rule that fits wins, and the last one fits
// every case.
func evaluate(c Case) Decision { return evaluateRules(rules, c) }

func evaluateRules(rules []rule, c Case) Decision {
	for _, r := range rules {
		if r.fits(c) {
			return r.Decision
		}
	}
	panic(fmt.Sprintf("no rule fits %+v: the last one of rules has to fit all", c))
}

// Lists that several rules use.
var (
	usable    = []VolumeState{VolumeValid, VolumeStored}
	empty     = []VolumeState{VolumeEmpty, VolumeLost}
	lostData  = []VolumeState{VolumeLost}
	corrupt   = []VolumeState{VolumeCorrupt}
	anonymous = []VolumeState{VolumeUnnamed}
	without   = []VolumeState{VolumeEmpty, VolumeLost, VolumeCorrupt, VolumeBehind}
	single    = []PeerState{PeersNone, PeersItself}
	nothing   = []StoreState{StoreNone, StoreEmpty, StoreFounded}
	nameless  = []PeerState{PeersUnnamed, PeersExisting}
	unasked   = []PeerState{PeersUnasked}
	heard     = []PeerState{
		PeersMissing, PeersMinority, PeersNotAgreed, PeersAgreed, PeersNew, PeersSomeNew, PeersLost, PeersJustLost, PeersStillLost, PeersUnstored,
		PeersExpect, PeersKnow, PeersAdded, PeersUnlisted, PeersBusy,
	}
	known        = slices.Concat(single, nameless, heard)
	away         = []StoreState{StoreAway, StoreLongAway}
	nothingAsked = []RequestKind{AskedNothing, AskedNever}
	isAuto       = []RequestKind{AskedNothing}
	isNever      = []RequestKind{AskedNever}
	restoreAsked = []RequestKind{AskedRestore}
)

func reject(why, wayOut string) Decision        { return Decision{Refuse, why, wayOut} }
func rejectRequest(why, wayOut string) Decision { return Decision{Decline, why, wayOut} }
func result(result Event, why string) Decision {
	return Decision{Result: result, Why: why}
}

// Sentences that several rules have.
const (
	notRestoredAlone = "one member of a cluster is never restored on its own: the others would keep newer data"
	notCompared      = "the store could not be read for 10 s, so etcd serves valid data that were not compared with it"
	checkStore       = "check that the store can be reached and that --backup-store names it"
	reachStore       = checkStore + "; if it is gone for good and there are no readable data, set another --backup-store and move the data directory " +
		"and exit_code.last away, which creates a new cluster"
	recoverAuto = "start with --recover=auto to allow that"
)

// rules are the table of decisions. The first rule that fits wins, and the last one fits every case. docs/recovery.md
// and testdata/decisions.golden are generated from it.
var rules = []rule{
	// Stores that rule out everything else.
	{nil, nil, []StoreState{StoreOthers}, nil, reject("backups of another cluster are never restored here", relation.OtherCluster.WayOut())},
	{nil, nil, []StoreState{StoreNotOwned}, nil, reject("backups of another owner are not restored to a volume that is empty or lacks revisions", relation.OtherOwner.WayOut())},
	{nil, nil, []StoreState{StoreUnclaimed}, nil, reject("the data name no cluster, like those of a plain etcd or of etcdutl snapshot restore, but the store belongs to one", relation.Unclaimed.WayOut())},
	{nil, nil, []StoreState{StoreAdopted}, nil, result(AdoptStore, "--adopt names the cluster of the store, so these data continue in it")},
	{nil, nil, []StoreState{StoreDamaged}, nil, reject("an object that describes the store is damaged, so nothing can be restored, and nothing was moved",
		"restore that object, for instance from an earlier version in the bucket; or make a data directory from a full snapshot by hand, with age -d, zstd -d and etcd-wrapper restore --snapshot; or, to create a new cluster, start with an empty volume and another --backup-store")},
	{nil, nil, []StoreState{StoreLocked}, nil, reject("the backups are signed or encrypted with keys that are not given: nothing older is restored instead, and nothing was moved",
		"add the key to the file of --backup-trusted-keys, or to --backup-identities; or delete the objects if their signer is unknown; or name a revision to restore with --restore-to and --restore-id")},

	// A store that does not answer.
	{without, nil, away, isNever, reject("nothing can be restored without the store, and --recover=never does not wait for it", checkStore)},
	{usable, known, []StoreState{StoreLongAway}, nothingAsked, Decision{StartEtcd, notCompared, checkStore + ": the data are compared as soon as it answers"}},
	{nil, nil, away, nil, Decision{Wait, "the store cannot be read, and may show that the data are lost or were rolled back", reachStore}},

	// Requested restores.
	{nil, nameless, nil, restoreAsked, rejectRequest("a member is restored together with the others, but the configuration does not name them",
		"remove --restore-to, or name all members in initial-cluster; or, if the others are gone for good, move the data directory away")},
	{nil, nil, []StoreState{StoreNone, StoreEmpty, StoreFounded, StoreBare, StoreUnverified}, restoreAsked, rejectRequest("the target cannot be restored, and nothing was moved",
		"name a target that etcd-wrapper backup list shows, or remove --restore-to")},
	{nil, nil, []StoreState{StoreUnasked}, restoreAsked, result(ConsultStore, "the store shows whether the target can be restored, and whether the restore was done before")},
	{nil, unasked, []StoreState{StoreInUse}, restoreAsked, result(ConsultPeers, "the other members may be the ones that still write the backups")},
	{nil, []PeerState{PeersNotAgreed}, nil, restoreAsked, result(Wait, "a restore starts when every member is stopped and requests the same one")},
	{nil, nil, []StoreState{StoreInUse}, nil, Decision{
		Wait, "another process wrote the backups less than 90 s ago and may still run, so nothing replaces them yet",
		"if it runs elsewhere, stop it; or point --backup-store at another place",
	}},
	{[]VolumeState{VolumeValid}, []PeerState{PeersNone, PeersItself, PeersAgreed, PeersUnstored}, nil, restoreAsked, result(FlushFirst, "all members are restored, and what only this volume has is uploaded first")},
	{nil, []PeerState{PeersNone, PeersItself, PeersAgreed}, nil, restoreAsked, result(RestoreData, "all members are restored, and the store has all that can be read of this volume")},

	// Data that may be opened, and new members.
	{empty, []PeerState{PeersItself}, nothing, nil, reject("initial-cluster names only this member, but initial-cluster-state: existing makes it join other members",
		"to create a new cluster, remove initial-cluster-state or set it to new; to join a cluster, name its members in initial-cluster")},
	{lostData, []PeerState{PeersNone, PeersUnnamed, PeersNew, PeersSomeNew, PeersLost}, nothing, nil, reject("etcd has served from this data directory, which is empty now: no new cluster replaces lost data",
		"mount the volume that has them, or move a preserved copy back to the data directory; to create a new cluster instead, delete the file exit_code.last on the volume")},
	{empty, []PeerState{PeersNone, PeersUnnamed, PeersNew, PeersSomeNew}, nothing, nil, result(FoundCluster, "a new cluster: no member is known to have data, and nothing was ever backed up")},
	{usable, []PeerState{PeersNone, PeersUnasked}, nil, isNever, result(StartEtcd, "with --recover=never, valid data are opened as they are")},
	{nil, single, []StoreState{StoreUnasked}, nil, result(ConsultStore, "the store may have more, and segments that wait on the volume are uploaded")},
	{anonymous, known, []StoreState{StoreUnasked}, nil, result(ConsultStore, "the data name no cluster, and the store shows whether it belongs to one")},
	{[]VolumeState{VolumeRefused}, known, []StoreState{StoreUnasked}, nil, result(ConsultStore, "these data were refused after a comparison with the store, so they are compared again")},
	{usable, known, nil, nothingAsked, result(StartEtcd, "the data are valid, and nothing is known to have more")},
	{empty, []PeerState{PeersExisting, PeersExpect}, nil, nil, result(StartEtcd, "this member has never started, and its cluster expects it")},
	{empty, []PeerState{PeersAdded, PeersUnlisted}, nil, isNever, result(StartEtcd, "with --recover=never, the list of members is left to the user")},

	// Data that are lost or were rolled back.
	{corrupt, nameless, nil, nil, reject(notRestoredAlone, "")},
	{corrupt, unasked, nil, isNever, reject(notRestoredAlone, "")},
	{corrupt, []PeerState{PeersExpect}, nil, nil, reject("the data are damaged, and the other members have never seen this member with data", "if it had none, move the data directory away")},
	{nil, unasked, nil, nil, result(ConsultPeers, "the other members may have what the volume lacks")},
	{nil, []PeerState{PeersKnow, PeersMinority}, nil, isNever, reject("the member was lost and could get its data from the others, but --recover=never", recoverAuto)},
	{nil, []PeerState{PeersBusy}, nil, nil, result(Wait, "the member rejoins as soon as nothing prevents that")},
	{nil, []PeerState{PeersKnow, PeersAdded, PeersUnlisted}, nil, nil, result(Rejoin, "the other members have everything, and replace the volume's data")},
	{empty, []PeerState{PeersMissing}, nil, nil, Decision{
		Wait, "another member may have data",
		"a new cluster is created once every member of initial-cluster is here without data; remove only members from it that never had any",
	}},
	{nil, []PeerState{PeersMissing, PeersMinority}, nil, nil, result(Wait, "waiting for a quorum of the other members, which has what this one lacks")},

	// Data that all members have lost.
	{nil, []PeerState{PeersUnnamed, PeersNew, PeersSomeNew, PeersLost}, []StoreState{StoreUnasked}, nil, result(ConsultStore, "no member is known to have usable data, and the store shows whether the cluster existed before")},
	{empty, []PeerState{PeersUnnamed}, nil, nil, reject("the store belongs to a cluster that exists, and the members that may have its data are not named",
		"name all members in initial-cluster instead of a discovery service; or, to create a new cluster, set another --backup-store")},
	{without, []PeerState{PeersSomeNew}, []StoreState{StoreOurs, StoreBare}, isAuto, result(Wait, "waiting for the members that have not reported yet that they have no data")},
	{nil, []PeerState{PeersNew, PeersLost}, []StoreState{StoreOurs}, isAuto, result(ConsultPeers, "another member may have the data by now")},
	{nil, []PeerState{PeersUnstored}, nil, nil, result(Wait, "waiting until the other members have uploaded what only their volumes have")},
	{nil, []PeerState{PeersJustLost}, nil, nil, result(Wait, "no volume has usable data; waiting 10 s for volumes that are mounted late")},
	{without, []PeerState{PeersNone, PeersItself, PeersStillLost}, []StoreState{StoreOurs}, isAuto, result(RestoreData, "no volume has the data any more, and the store has the newest backup")},
	{nil, nil, []StoreState{StoreOurs}, isNever, reject("the data could be restored, but --recover=never", recoverAuto)},
	{nil, nil, []StoreState{StoreBare}, nil, reject("the store belongs to a cluster, but none of its backups can be found, so nothing is restored and no new cluster is created",
		"start again if the store lists its objects late; or restore them from an earlier version in the bucket; or mount the lost volumes, for several members those of a quorum; or, if nothing was ever stored there, delete cluster.json and everything below gen/")},
	{nil, nil, nil, nil, reject("there is no backup to restore",
		"mount the lost volumes, for several members those of a quorum; or, to create a new cluster, empty the volumes, exit_code.last included, and set another --backup-store if one is given")},
}
