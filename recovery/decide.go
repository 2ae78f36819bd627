package recovery

import (
	"cmp"
	"fmt"
	"slices"

	"etcd-wrapper/backup/relation"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// A Case holds everything that a decision depends on.
type Case struct {
	Volume VolumeState
	Peers  PeerState
	Store  StoreState
	Asked  RequestKind
}

// A Decision is the action for a volume, its reason, and the way out of a refusal.
type Decision struct {
	Result Event
	Why    string
	WayOut string
}

// A rule is a line of the table. It matches a case if each list contains the case's value or is empty.
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

// evaluate decides what happens to a volume. The first matching rule applies, and the last rule matches every case.
func evaluate(rules []rule, c Case) Decision {
	for _, r := range rules {
		if r.fits(c) {
			return r.Decision
		}
	}
	panic(fmt.Sprintf("no rule fits %+v: the last one of rules has to fit all", c))
}

// Lists shared by several rules.
var (
	usableVolumes   = []VolumeState{VolumeValid, VolumeStored}
	emptyVolumes    = []VolumeState{VolumeEmpty, VolumeLost}
	corruptVolumes  = []VolumeState{VolumeCorrupt}
	unusableVolumes = []VolumeState{VolumeEmpty, VolumeLost, VolumeCorrupt, VolumeBehind}
	singlePeers     = []PeerState{PeersNone, PeersItself}
	emptyStores     = []StoreState{StoreNone, relation.Empty, relation.Founded}
	namelessPeers   = []PeerState{PeersUnnamed, PeersExisting}
	unaskedPeers    = []PeerState{PeersUnasked}
	heardPeers      = []PeerState{
		peers.Unknown, peers.Claimed, PeersNotAgreed, peers.Asking, peers.Founding, peers.Partial, peers.Gone, PeersJustLost, PeersStillLost, PeersUnstored,
		peers.Expected, peers.Started, peers.Added, peers.Unlisted, PeersBusy,
	}
	knownPeers   = slices.Concat(singlePeers, namelessPeers, heardPeers)
	awayStores   = []StoreState{StoreAway, StoreLongAway}
	nothingAsked = []RequestKind{AskedNothing, AskedNever}
	isAuto       = []RequestKind{AskedNothing}
	isNever      = []RequestKind{AskedNever}
	restoreAsked = []RequestKind{AskedRestore}
)

func reject(why, wayOut string) Decision        { return Decision{Refuse, why, wayOut} }
func rejectRequest(why, wayOut string) Decision { return Decision{Decline, why, wayOut} }

// Sentences shared by several rules.
const (
	notRestoredAlone = "one member of a cluster is never restored on its own: the others would keep newer data"
	notCompared      = "the store could not be read for 10 s, so etcd serves valid data that was not compared with it"
	checkStore       = "check that the store is reachable and that --backup-store names it"
	reachStore       = checkStore + "; if it is gone for good and there is no readable data, set another --backup-store and move the data directory " +
		"and exit_code.last away, which creates a new cluster"
	recoverAuto = "start with --recover=auto to allow that"
)

// rules is the decision table. The first matching rule applies, and the last one matches every case. docs/recovery.md
// and testdata/decisions.golden are generated from it.
var rules = []rule{
	// Stores that take precedence over everything else.
	{nil, nil, []StoreState{relation.OtherCluster}, nil, reject("backups of another cluster are never restored here", relation.OtherCluster.WayOut())},
	{nil, nil, []StoreState{relation.OtherOwner}, nil, reject("backups of another owner are not restored to a volume that is empty or lacks revisions", relation.OtherOwner.WayOut())},
	{nil, nil, []StoreState{relation.Unclaimed}, nil, reject("the data identifies no cluster, like data of a plain etcd or of etcdutl snapshot restore, but the store belongs to one", relation.Unclaimed.WayOut())},
	{nil, nil, []StoreState{relation.Adopted}, nil, Decision{AdoptStore, "--adopt names the cluster of the store, so this data continues in it", ""}},
	{nil, nil, []StoreState{StoreDamaged}, nil, reject("an object that describes the store is damaged, so nothing can be restored, and nothing was moved",
		"restore that object, for instance from an earlier version in the bucket; or make a data directory from a full snapshot by hand, with age -d, zstd -d and etcd-wrapper restore --snapshot; or, to create a new cluster, start with an empty volume and another --backup-store")},
	{nil, nil, []StoreState{StoreLocked}, nil, reject("the backups are signed or encrypted with keys that are not configured: no older backup is restored instead, and nothing was moved",
		"add the key to the file of --backup-trusted-keys, or to --backup-identities; or delete the objects if their signer is unknown; or name a revision to restore with --restore-to and --restore-id")},

	// Unreachable stores.
	{unusableVolumes, nil, awayStores, isNever, reject("nothing can be restored without the store, and --recover=never does not wait for it", checkStore)},
	{usableVolumes, knownPeers, []StoreState{StoreLongAway}, nothingAsked, Decision{StartEtcd, notCompared, checkStore + ": the data is compared as soon as the store responds"}},
	{nil, nil, awayStores, nil, Decision{Wait, "the store cannot be read, so it is unknown whether data was lost or rolled back", reachStore}},

	// Requested restores.
	{nil, namelessPeers, nil, restoreAsked, rejectRequest("a member is only restored together with the others, but the configuration does not name them",
		"remove --restore-to, or name all members in initial-cluster; or, if the others are gone for good, move the data directory away")},
	{nil, nil, []StoreState{StoreNone, relation.Empty, relation.Founded, StoreBare, StoreUnverified}, restoreAsked, rejectRequest("the target cannot be restored, and nothing was moved",
		"name a target that etcd-wrapper backup list shows, or remove --restore-to")},
	{nil, nil, []StoreState{StoreUnasked}, restoreAsked, Decision{ConsultStore, "the store shows whether the target can be restored, and whether the restore was done before", ""}},
	{nil, unaskedPeers, []StoreState{StoreInUse}, restoreAsked, Decision{ConsultPeers, "the other members may be the ones that still write the backups", ""}},
	{nil, []PeerState{PeersNotAgreed}, nil, restoreAsked, Decision{Wait, "a restore starts once every member is stopped and requests the same restore", ""}},
	{nil, nil, []StoreState{StoreInUse}, nil, Decision{
		Wait, "another process wrote the backups less than 90 s ago and may still run, so they are not replaced yet",
		"if it runs elsewhere, stop it; or point --backup-store at another location",
	}},
	{[]VolumeState{VolumeValid}, []PeerState{PeersNone, PeersItself, peers.Asking, PeersUnstored}, nil, restoreAsked, Decision{FlushFirst, "all members are restored; revisions that only this volume has are uploaded first", ""}},
	{nil, []PeerState{PeersNone, PeersItself, peers.Asking}, nil, restoreAsked, Decision{RestoreData, "all members are restored; the store has everything that can be read from this volume", ""}},

	// Data that may be opened, and new members.
	{emptyVolumes, []PeerState{PeersItself}, emptyStores, nil, reject("initial-cluster names only this member, but initial-cluster-state: existing makes it join other members",
		"to create a new cluster, remove initial-cluster-state or set it to new; to join a cluster, name its members in initial-cluster")},
	{[]VolumeState{VolumeLost}, []PeerState{PeersNone, PeersUnnamed, peers.Founding, peers.Partial, peers.Gone}, emptyStores, nil, reject("etcd has served from this data directory, which is empty now: no new cluster replaces lost data",
		"mount the volume that has the data, or move a preserved copy back to the data directory; to create a new cluster instead, delete the file exit_code.last on the volume")},
	{emptyVolumes, []PeerState{PeersNone, PeersUnnamed, peers.Founding, peers.Partial}, emptyStores, nil, Decision{FoundCluster, "a new cluster: no member is known to have data, and nothing was ever backed up", ""}},
	{usableVolumes, []PeerState{PeersNone, PeersUnasked}, nil, isNever, Decision{StartEtcd, "with --recover=never, valid data is opened unchanged", ""}},
	{nil, singlePeers, []StoreState{StoreUnasked}, nil, Decision{ConsultStore, "the store may have more, and segments that wait on the volume are uploaded", ""}},
	{[]VolumeState{VolumeUnnamed}, knownPeers, []StoreState{StoreUnasked}, nil, Decision{ConsultStore, "the data identifies no cluster, and the store shows whether it belongs to one", ""}},
	{[]VolumeState{VolumeRefused}, knownPeers, []StoreState{StoreUnasked}, nil, Decision{ConsultStore, "the data was rejected after an earlier comparison with the store, so it is compared again", ""}},
	{usableVolumes, knownPeers, nil, nothingAsked, Decision{StartEtcd, "the data is valid, and neither members nor store are known to have more", ""}},
	{emptyVolumes, []PeerState{PeersExisting, peers.Expected}, nil, nil, Decision{StartEtcd, "this member has never started, and its cluster expects it", ""}},
	{emptyVolumes, []PeerState{peers.Added, peers.Unlisted}, nil, isNever, Decision{StartEtcd, "with --recover=never, membership changes are left to the user", ""}},

	// Lost or rolled-back data.
	{corruptVolumes, namelessPeers, nil, nil, reject(notRestoredAlone, "")},
	{corruptVolumes, unaskedPeers, nil, isNever, reject(notRestoredAlone, "")},
	{corruptVolumes, []PeerState{peers.Expected}, nil, nil, reject("the data is damaged, but the other members have never seen this member with data", "if it had none, move the data directory away")},
	{nil, unaskedPeers, nil, nil, Decision{ConsultPeers, "the other members may have what the volume lacks", ""}},
	{nil, []PeerState{peers.Started, peers.Claimed}, nil, isNever, reject("the member was lost and could get its data from the others, but --recover=never forbids it", recoverAuto)},
	{nil, []PeerState{PeersBusy}, nil, nil, Decision{Wait, "the member rejoins as soon as nothing prevents it", ""}},
	{nil, []PeerState{peers.Started, peers.Added, peers.Unlisted}, nil, nil, Decision{Rejoin, "the other members have all data, which replaces the volume's", ""}},
	{emptyVolumes, []PeerState{peers.Unknown}, nil, nil, Decision{
		Wait, "another member may have data",
		"a new cluster is created once every member of initial-cluster is here without data; remove only members from it that never had any",
	}},
	{nil, []PeerState{peers.Unknown, peers.Claimed}, nil, nil, Decision{Wait, "waiting for a quorum of the other members, which has the data that this member lacks", ""}},

	// Data that all members have lost.
	{nil, []PeerState{PeersUnnamed, peers.Founding, peers.Partial, peers.Gone}, []StoreState{StoreUnasked}, nil, Decision{ConsultStore, "no member is known to have usable data, and the store shows whether the cluster existed before", ""}},
	{emptyVolumes, []PeerState{PeersUnnamed}, nil, nil, reject("the store belongs to an existing cluster, but the members that may have its data are not named",
		"name all members in initial-cluster instead of a discovery service; or, to create a new cluster, set another --backup-store")},
	{unusableVolumes, []PeerState{peers.Partial}, []StoreState{relation.Ours, StoreBare}, isAuto, Decision{Wait, "waiting for members that have not yet reported that they have no data", ""}},
	{nil, []PeerState{peers.Founding, peers.Gone}, []StoreState{relation.Ours}, isAuto, Decision{ConsultPeers, "another member may have the data by now", ""}},
	{nil, []PeerState{PeersUnstored}, nil, nil, Decision{Wait, "waiting until the other members have uploaded the revisions that only their volumes have", ""}},
	{nil, []PeerState{PeersJustLost}, nil, nil, Decision{Wait, "no volume has usable data; waiting 10 s for volumes that are mounted late", ""}},
	{unusableVolumes, []PeerState{PeersNone, PeersItself, PeersStillLost}, []StoreState{relation.Ours}, isAuto, Decision{RestoreData, "no volume has usable data, and the store has the newest backup", ""}},
	{nil, nil, []StoreState{relation.Ours}, isNever, reject("the data could be restored, but --recover=never forbids it", recoverAuto)},
	{nil, nil, []StoreState{StoreBare}, nil, reject("the store belongs to a cluster, but none of its backups can be found, so nothing is restored and no new cluster is created",
		"start again if the store lists its objects late; or restore them from an earlier version in the bucket; or mount the lost volumes, for several members those of a quorum; or, if nothing was ever stored there, delete cluster.json and everything below gen/")},
	{nil, nil, nil, nil, reject("there is no backup to restore",
		"mount the lost volumes, for several members those of a quorum; or, to create a new cluster, empty the volumes, exit_code.last included, and set another --backup-store if one is given")},
}

// Facts are the input of guards and the payload of events. The zero value is the start of a run with
// --recover=auto.
type Facts struct {
	VolumeFacts
	PeerFacts
	StoreFacts

	Never    bool // --recover=never
	Store    bool // a store is configured
	Asked    bool // a restore is requested and not done yet; set by Examined, Installed and Answered
	Heard    bool // the peers have answered since the store was last asked
	Uploaded bool // this member has uploaded everything that only its volume had, as far as possible

	Err error // payload only: the error, for the user
}

// VolumeFacts describe the volume and the configuration. Examined sets them.
type VolumeFacts struct {
	Volume       VolumeState // VolumeEmpty, VolumeCorrupt or VolumeValid
	Alone        bool        // this is the only member of its cluster, or would create a cluster on its own
	Joins        bool        // the configuration joins an existing cluster
	Peers        bool        // the configuration names other members
	Remains      bool        // something exists at the path of the data directory
	Unidentified bool        // the volume is valid and names no cluster
	Rejected     bool        // the volume is valid, but a comparison with the store rejected its data before
	Lost         bool        // the data directory is empty, but a run served data from it
}

// PeerFacts are the other members' answers. PeersTold sets them.
type PeerFacts struct {
	Listing     PeerState
	Outdated    bool // this member once had newer data than the volume has now
	Free        bool // nothing prevents the member from being replaced or added
	AllUploaded bool // the other members have uploaded everything that only their volumes had
	Settled     bool // all members have lacked usable data for as long as a late mount takes
}

// StoreFacts are the store's answer. Answered sets them.
type StoreFacts struct {
	Answer      StoreState // empty if the store was not asked
	Behind      bool       // the volume lacks data that the store has
	RestoreDone bool       // payload only: the requested restore was done before, so Asked becomes false
}

// Learn implements statemachine.Facts.
func (f Facts) Learn(event Event, payload Facts) Facts {
	switch event { //nolint:exhaustive // the others carry no facts
	case Examined:
		payload.Never, payload.Store, payload.Err = f.Never, f.Store, nil
		return payload // Conclude has already reset the rest
	case PeersTold:
		f.PeerFacts, f.Heard = payload.PeerFacts, true
	case Flushed:
		f.Uploaded = true
	case Moved:
		f.Volume, f.Remains, f.Lost = VolumeEmpty, false, false
	case Installed:
		f.Asked = payload.Asked
	case Answered:
		f.Answer, f.Asked = payload.Answer, f.Asked && !payload.RestoreDone
		if !isKnown(f.Answer) { // an earlier answer may have shown that the store has newer data
			f.Behind = f.Behind || payload.Behind
			break
		}
		f.Heard, f.Behind = false, payload.Behind
		f.Uploaded = f.Uploaded || !f.Asked || f.Volume != VolumeValid // queued segments are uploaded before the store is asked
	}
	return f
}

// Conclude implements statemachine.Facts. It resets the facts about the volume and the store when both will be
// inspected again, and the facts about the store after a pause for peers.
func (f Facts) Conclude(from State, event Event, to State, _ Facts) Facts {
	if from == AskPeers && event == Elapsed {
		f.Answer = ""
	}
	if to == Examine {
		return Facts{Never: f.Never, Store: f.Store}
	}
	return f
}

// hasStoreMismatch reports whether a valid volume failed the comparison with the store.
func (f Facts) hasStoreMismatch() bool {
	return f.Volume == VolumeValid && !f.Asked && slices.Contains([]StoreState{relation.OtherCluster, relation.OtherOwner, relation.Unclaimed, StoreDamaged, StoreLocked}, f.Answer)
}

// Holds implements statemachine.Facts.
func (f Facts) Holds(guard statemachine.Guard) bool { return conditions.Evaluate(guard, f) }

// conditions defines the guards.
var conditions = statemachine.Conditions[Facts]{
	NoStore:     func(f Facts) bool { return !f.Store },
	Several:     func(f Facts) bool { return !f.Alone },
	StillAsked:  func(f Facts) bool { return f.Asked },
	PeersHeard:  func(f Facts) bool { return slices.Contains(heardPeers, f.peerState()) },
	InItsPlace:  func(f Facts) bool { return f.Remains },
	StillListed: func(f Facts) bool { return !f.Remains && f.Listing == peers.Started },
	NotListed:   func(f Facts) bool { return !f.Remains && f.Listing == peers.Unlisted },
}

// caseOf returns the case to which the facts reduce.
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
	case f.Asked && f.Uploaded:
		return VolumeStored
	case !f.Asked && (f.Outdated || f.Alone && f.Behind):
		return VolumeBehind
	case f.Rejected && f.Store && !f.Never && !f.Asked && !isKnown(f.Answer):
		return VolumeRefused
	case f.Unidentified && f.Store && !f.Never && !f.Asked && f.Answer == "":
		return VolumeUnnamed
	default:
		return VolumeValid
	}
}

func (f Facts) peerState() PeerState {
	confirmed := f.isLost() && f.Heard && isKnown(f.Answer) && f.Listing != peers.Partial // the peers answered last
	switch {
	case f.Alone && f.Joins && f.Volume == VolumeEmpty:
		return PeersItself
	case f.Alone:
		return PeersNone
	case !f.Peers && !f.Heard && f.Joins:
		return PeersExisting
	case !f.Peers && !f.Heard && f.Listing == "":
		return PeersUnnamed
	case !f.Heard && (f.Asked || !f.isLost()):
		return PeersUnasked
	case f.Asked && f.Listing != peers.Asking:
		return PeersNotAgreed
	case (f.Asked || confirmed) && !f.AllUploaded:
		return PeersUnstored
	case f.Asked:
		return peers.Asking
	case confirmed && !f.Settled:
		return PeersJustLost
	case confirmed:
		return PeersStillLost
	case f.Listing == peers.Founding && f.Volume != VolumeEmpty:
		return peers.Gone
	case f.Listing.HasQuorum() && !f.Free && !f.Never:
		return PeersBusy
	case f.Listing == "", f.Listing == peers.Asking:
		return peers.Unknown
	default:
		return f.Listing
	}
}

func (f Facts) isLost() bool {
	return f.Listing == peers.Founding || f.Listing == peers.Gone || f.Listing == peers.Partial
}

func (f Facts) storeState() StoreState {
	if f.Answer == "" && f.Store {
		return StoreUnasked
	}
	return cmp.Or(f.Answer, StoreNone)
}
