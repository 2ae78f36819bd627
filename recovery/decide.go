package recovery

import (
	"cmp"
	"fmt"
	"slices"

	"etcd-wrapper/backup/relation"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// A Case is everything that a decision depends on.
type Case struct {
	Volume VolumeState
	Peers  PeerState
	Store  StoreState
	Asked  RequestKind
}

// A Decision contains what to do with a volume, the reason and, if user action is required, the way out.
type Decision struct {
	Result Event
	Why    string
	WayOut string
}

// A rule is a row of the decision table. Each list contains the values that match. An empty list matches every value.
type rule struct {
	volumes  []VolumeState
	peers    []PeerState
	stores   []StoreState
	requests []RequestKind
	Decision
}

func anyOf[T comparable](list []T, value T) bool {
	return len(list) == 0 || slices.Contains(list, value)
}

// evaluate returns the decision of the first rule that matches the case. The last rule matches every case.
func evaluate(rules []rule, c Case) Decision {
	for _, r := range rules {
		if anyOf(r.volumes, c.Volume) && anyOf(r.peers, c.Peers) && anyOf(r.stores, c.Store) && anyOf(r.requests, c.Asked) {
			return r.Decision
		}
	}
	panic(fmt.Sprintf("no rule matches %+v: the last rule must match every case", c))
}

// Lists used by more than one rule.
var (
	usableVolumes   = []VolumeState{VolumeValid, VolumeStored}
	emptyVolumes    = []VolumeState{VolumeEmpty, VolumeLost}
	corruptVolumes  = []VolumeState{VolumeCorrupt}
	unusableVolumes = []VolumeState{VolumeEmpty, VolumeLost, VolumeCorrupt, VolumeBehind}
	singlePeers     = []PeerState{PeersNone, PeersNoneJoin}
	emptyStores     = []StoreState{StoreNone, relation.Empty, relation.Initialized}
	namelessPeers   = []PeerState{PeersUnnamed, PeersUnnamedJoin}
	unaskedPeers    = []PeerState{PeersUnasked}
	heardPeers      = []PeerState{
		peers.Unknown, peers.NoQuorum, PeersNotAgreed, peers.RestoreAgreed, peers.AllEmpty, peers.SomeStarted, peers.AllLost, PeersJustLost, PeersStillLost, PeersUploading,
		peers.Expected, peers.Started, peers.Added, peers.Unlisted, PeersBlocked,
	}
	knownPeers        = slices.Concat(singlePeers, namelessPeers, heardPeers)
	unreachableStores = []StoreState{StoreUnreachable, StoreLongUnreachable}
	nothingAsked      = []RequestKind{AskedNothing, AskedNever}
	isAuto            = []RequestKind{AskedNothing}
	isNever           = []RequestKind{AskedNever}
	restoreAsked      = []RequestKind{AskedRestore}
)

func reject(why, wayOut string) Decision        { return Decision{Refuse, why, wayOut} }
func rejectRequest(why, wayOut string) Decision { return Decision{Decline, why, wayOut} }

// Strings used by more than one rule.
const (
	notRestoredAlone = "one member of a cluster is never restored on its own, because the others would keep newer data"
	notCompared      = "the store could not be read for 10s, so etcd is starting with valid data that was not compared with the store"
	checkStore       = "check that the store is reachable and that --backup-store is correct"
	reachStore       = checkStore + "; if the store is gone for good and no readable data is left, create a new cluster: set a different --backup-store and move the data directory " +
		"and exit_code.last aside"
	recoverAuto = "to allow recovery, start with --recover=auto"
)

// rules is the decision table. The first matching rule applies. docs/recovery.md and testdata/decisions.golden are
// generated from the table.
var rules = []rule{
	// Store states that take precedence over everything else.
	{nil, nil, []StoreState{relation.OtherCluster}, nil, reject("backups of another cluster are never restored to this member", relation.OtherCluster.WayOut())},
	{nil, nil, []StoreState{relation.OtherOwner}, nil, reject("backups of another owner are not restored to a volume that is empty or missing revisions", relation.OtherOwner.WayOut())},
	{nil, nil, []StoreState{relation.Unidentified}, nil, reject("the store belongs to a cluster, but the data does not record which cluster it belongs to, as with plain etcd or after \"etcdutl snapshot restore\"", relation.Unidentified.WayOut())},
	{nil, nil, []StoreState{relation.Adopted}, nil, Decision{AdoptStore, "--adopt names the cluster of the store, which will continue with the data on this volume", ""}},
	{nil, nil, []StoreState{StoreDamaged}, nil, reject("nothing was restored or moved because a metadata object in the store is damaged",
		"restore the object, for example from an earlier version in the bucket; or build a data directory from a full snapshot manually with \"age -d\", \"zstd -d\" and \"etcd-wrapper restore --snapshot\"; or, to create a new cluster, start with an empty volume and a different --backup-store")},
	{nil, nil, []StoreState{StoreNoKeys}, nil, reject("nothing was moved and no older backup was restored because the backups are signed or encrypted with keys that are not configured",
		"add the key to the --backup-trusted-keys file or to --backup-identities; or, if the signer is unknown, delete the objects; or choose a revision to restore with --restore-to and --restore-id")},

	// Unreachable stores.
	{unusableVolumes, nil, unreachableStores, isNever, reject("nothing can be restored while the store is unreachable, and --recover=never does not wait for it", checkStore)},
	{usableVolumes, knownPeers, []StoreState{StoreLongUnreachable}, nothingAsked, Decision{StartEtcd, notCompared, checkStore + "; the data will be compared once the store responds"}},
	{nil, nil, unreachableStores, nil, Decision{Wait, "the store cannot be read, so it is unknown whether data was lost or rolled back", reachStore}},

	// Requested restores.
	{nil, namelessPeers, nil, restoreAsked, rejectRequest("a member can only be restored together with the others, but the configuration does not list them",
		"remove --restore-to or list all members in initial-cluster; if the others are gone for good, move the data directory aside")},
	{nil, nil, []StoreState{StoreNone, relation.Empty, relation.Initialized, StoreNoBackup, StoreUnverified}, restoreAsked, rejectRequest("nothing was moved because the requested target cannot be restored",
		"choose a target from the output of \"etcd-wrapper backup list\", or remove --restore-to")},
	{nil, nil, []StoreState{StoreUnasked}, restoreAsked, Decision{ConsultStore, "checking in the store whether the target can be restored and whether the restore has already been done", ""}},
	{nil, unaskedPeers, []StoreState{StoreInUse}, restoreAsked, Decision{ConsultPeers, "the other members may still be writing the backups", ""}},
	{nil, []PeerState{PeersNotAgreed}, nil, restoreAsked, Decision{Wait, "waiting until every member has stopped and requests the same restore", ""}},
	{nil, nil, []StoreState{StoreInUse}, nil, Decision{
		Wait, "another process wrote backups less than 90s ago and may still be running",
		"if the process is running elsewhere, stop it or point --backup-store at another location",
	}},
	{[]VolumeState{VolumeValid}, []PeerState{PeersNone, PeersNoneJoin, peers.RestoreAgreed, PeersUploading}, nil, restoreAsked, Decision{FlushFirst, "uploading the revisions that only this volume has before all members are restored", ""}},
	{nil, []PeerState{PeersNone, PeersNoneJoin, peers.RestoreAgreed}, nil, restoreAsked, Decision{RestoreData, "restoring all members; the store has everything that can be read from this volume", ""}},

	// Data that may be opened, and new members.
	{emptyVolumes, []PeerState{PeersNoneJoin}, emptyStores, nil, reject("initial-cluster-state: existing makes this member join a cluster, but initial-cluster lists no other members",
		"to create a new cluster, remove initial-cluster-state or set it to new; to join a cluster, list its members in initial-cluster")},
	{[]VolumeState{VolumeLost}, []PeerState{PeersNone, PeersUnnamed, peers.AllEmpty, peers.SomeStarted, peers.AllLost}, emptyStores, nil, reject("the data directory is empty, but etcd has served data from it before; lost data is never replaced by a new cluster",
		"mount the volume that has the data or move a preserved copy back to the data directory; to create a new cluster instead, delete exit_code.last on the volume")},
	{emptyVolumes, []PeerState{PeersNone, PeersUnnamed, peers.AllEmpty, peers.SomeStarted}, emptyStores, nil, Decision{CreateCluster, "creating a new cluster: no member is known to have data, and there are no backups", ""}},
	{usableVolumes, []PeerState{PeersNone, PeersUnasked}, nil, isNever, Decision{StartEtcd, "with --recover=never, valid data is opened unchanged", ""}},
	{nil, singlePeers, []StoreState{StoreUnasked}, nil, Decision{ConsultStore, "uploading segments queued on the volume and checking the store for newer data", ""}},
	{[]VolumeState{VolumeUnidentified}, knownPeers, []StoreState{StoreUnasked}, nil, Decision{ConsultStore, "the data does not record which cluster it belongs to; checking whether the store belongs to a cluster", ""}},
	{[]VolumeState{VolumeRejected}, knownPeers, []StoreState{StoreUnasked}, nil, Decision{ConsultStore, "comparing the data with the store again because an earlier comparison found a mismatch", ""}},
	{usableVolumes, knownPeers, nil, nothingAsked, Decision{StartEtcd, "the data is valid, and neither the other members nor the store are known to have newer data", ""}},
	{emptyVolumes, []PeerState{PeersUnnamedJoin, peers.Expected}, nil, nil, Decision{StartEtcd, "this member has never started, and the cluster expects it to join", ""}},
	{emptyVolumes, []PeerState{peers.Added, peers.Unlisted}, nil, isNever, Decision{StartEtcd, "with --recover=never, membership changes are left to the user", ""}},

	// Lost or rolled-back data.
	{corruptVolumes, namelessPeers, nil, nil, reject(notRestoredAlone, "")},
	{corruptVolumes, unaskedPeers, nil, isNever, reject(notRestoredAlone, "")},
	{corruptVolumes, []PeerState{peers.Expected}, nil, nil, reject("the data is damaged, but according to the other members, this member has never started", "if this member never had data, move the data directory aside")},
	{nil, unaskedPeers, nil, nil, Decision{ConsultPeers, "the other members may have data that the volume lacks", ""}},
	{nil, []PeerState{peers.Started, peers.NoQuorum}, nil, isNever, reject("this member could get its data from the other members, but --recover=never forbids it", recoverAuto)},
	{nil, []PeerState{PeersBlocked}, nil, nil, Decision{Wait, "waiting until this member can rejoin the cluster", ""}},
	{nil, []PeerState{peers.Started, peers.Added, peers.Unlisted}, nil, nil, Decision{Rejoin, "replacing the data on the volume with the data of the other members", ""}},
	{emptyVolumes, []PeerState{peers.Unknown}, nil, nil, Decision{
		Wait, "waiting for other members, which may have data",
		"a new cluster is created once all members of initial-cluster have started without data; remove a member from initial-cluster only if it never had data",
	}},
	{nil, []PeerState{peers.Unknown, peers.NoQuorum}, nil, nil, Decision{Wait, "waiting for a quorum of the other members, which have data that this member lacks", ""}},

	// Data that all members have lost.
	{nil, []PeerState{PeersUnnamed, peers.AllEmpty, peers.SomeStarted, peers.AllLost}, []StoreState{StoreUnasked}, nil, Decision{ConsultStore, "no member is known to have usable data; checking in the store whether the cluster existed before", ""}},
	{emptyVolumes, []PeerState{PeersUnnamed}, nil, nil, reject("the store belongs to an existing cluster, but the configuration does not list the members that may have its data",
		"list all members in initial-cluster instead of using a discovery service; to create a new cluster, set a different --backup-store")},
	{unusableVolumes, []PeerState{peers.SomeStarted}, []StoreState{relation.Ours, StoreNoBackup}, isAuto, Decision{Wait, "waiting for all members to report that they have no data", ""}},
	{nil, []PeerState{peers.AllEmpty, peers.AllLost}, []StoreState{relation.Ours}, isAuto, Decision{ConsultPeers, "checking once more whether another member has the data", ""}},
	{nil, []PeerState{PeersUploading}, nil, nil, Decision{Wait, "waiting for the other members to upload revisions that are only on their volumes", ""}},
	{nil, []PeerState{PeersJustLost}, nil, nil, Decision{Wait, "no volume has usable data; waiting 10s for volumes that may be mounted late", ""}},
	{unusableVolumes, []PeerState{PeersNone, PeersNoneJoin, PeersStillLost}, []StoreState{relation.Ours}, isAuto, Decision{RestoreData, "no volume has usable data; restoring the newest backup", ""}},
	{nil, nil, []StoreState{relation.Ours}, isNever, reject("the data could be restored, but --recover=never forbids it", recoverAuto)},
	{nil, nil, []StoreState{StoreNoBackup}, nil, reject("the store belongs to an existing cluster but has no usable backups, so nothing was restored and no new cluster was created",
		"if the store is slow to list objects, start again; otherwise restore the objects from earlier versions in the bucket, or mount the lost volumes (a quorum of them in a cluster); if nothing was ever stored there, delete cluster.json and everything under gen/")},
	{nil, nil, nil, nil, reject("there is no backup to restore",
		"mount the lost volumes (a quorum of them in a cluster); to create a new cluster, empty the volumes (including exit_code.last) and, if a store is configured, set a different --backup-store")},
}

// Facts is the input of the guards and the payload of events. The zero value is the start of a run with
// --recover=auto.
type Facts struct {
	VolumeFacts
	PeerFacts
	StoreFacts

	Never    bool // --recover=never
	Store    bool // whether a store is configured
	Asked    bool // whether a requested restore is pending; set by Examined, Installed and Answered
	Heard    bool // whether the peers have answered since the last request to the store
	Uploaded bool // whether this member has uploaded as much as possible of the data that only its volume had

	Err error // error to show to the user; only set in payloads
}

// VolumeFacts describes the volume and the configuration. The Examined event sets these facts.
type VolumeFacts struct {
	Volume       VolumeState // VolumeEmpty, VolumeCorrupt or VolumeValid
	Alone        bool        // whether this is the only member of its cluster, or would create a cluster on its own
	Joins        bool        // whether the configuration joins an existing cluster
	Peers        bool        // whether the configuration lists other members
	Remains      bool        // whether the path of the data directory exists
	Unidentified bool        // whether the volume is valid but its data does not record which cluster it belongs to
	Rejected     bool        // whether the volume is valid but an earlier comparison with the store rejected its data
	Lost         bool        // whether the data directory is empty even though an earlier run served data from it
}

// PeerFacts describes what the other members reported. The PeersResponded event sets these facts.
type PeerFacts struct {
	Listing     PeerState // how the other members list this member
	Outdated    bool      // whether this member once had newer data than the volume has now
	Free        bool      // whether this member can be replaced or added now
	AllUploaded bool      // whether the other members have uploaded all data that only their volumes had
	Settled     bool      // whether no member has had usable data for so long that a late mount is ruled out
}

// StoreFacts describes what the store reported. The StoreResponded event sets these facts.
type StoreFacts struct {
	Answer      StoreState // empty if the store was not queried
	Behind      bool       // whether the store has data that the volume lacks
	RestoreDone bool       // whether the requested restore was already done, which clears Asked; only set in payloads
}

// Learn implements statemachine.Facts.
func (f Facts) Learn(event Event, payload Facts) Facts {
	switch event { //nolint:exhaustive // the other events carry no facts
	case Examined:
		payload.Never, payload.Store, payload.Err = f.Never, f.Store, nil
		return payload // Conclude has already reset the other facts
	case PeersResponded:
		f.PeerFacts, f.Heard = payload.PeerFacts, true
	case Flushed:
		f.Uploaded = true
	case Moved:
		f.Volume, f.Remains, f.Lost = VolumeEmpty, false, false
	case Installed:
		f.Asked = payload.Asked
	case StoreResponded:
		f.Answer, f.Asked = payload.Answer, f.Asked && !payload.RestoreDone
		if !isKnown(f.Answer) { // an earlier response may have shown that the store has newer data
			f.Behind = f.Behind || payload.Behind
			break
		}
		f.Heard, f.Behind = false, payload.Behind
		// Without a requested restore or valid data, only the queued segments are uploaded, which precedes the query.
		f.Uploaded = f.Uploaded || !f.Asked || f.Volume != VolumeValid
	}
	return f
}

// Conclude implements statemachine.Facts. Conclude resets the facts about the volume and the store if both will be
// examined again. After a pause for the peers, Conclude resets only the facts about the store.
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
	return f.Volume == VolumeValid && !f.Asked && slices.Contains([]StoreState{relation.OtherCluster, relation.OtherOwner, relation.Unidentified, StoreDamaged, StoreNoKeys}, f.Answer)
}

// Holds implements statemachine.Facts.
func (f Facts) Holds(guard statemachine.Guard) bool { return conditions.Evaluate(guard, f) }

// conditions defines the guards.
var conditions = statemachine.Conditions[Facts]{
	NoStore:          func(f Facts) bool { return !f.Store },
	MultiMember:      func(f Facts) bool { return !f.Alone },
	StillAsked:       func(f Facts) bool { return f.Asked },
	PeersAnswered:    func(f Facts) bool { return slices.Contains(heardPeers, f.peerState()) },
	DirectoryPresent: func(f Facts) bool { return f.Remains },
	Listed:           func(f Facts) bool { return !f.Remains && f.Listing == peers.Started },
	NotListed:        func(f Facts) bool { return !f.Remains && f.Listing == peers.Unlisted },
}

// caseOf returns the case described by the facts.
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
		return VolumeRejected
	case f.Unidentified && f.Store && !f.Never && !f.Asked && f.Answer == "":
		return VolumeUnidentified
	default:
		return VolumeValid
	}
}

func (f Facts) peerState() PeerState {
	confirmed := f.isLost() && f.Heard && isKnown(f.Answer) && f.Listing != peers.SomeStarted // the peers were queried after the store
	switch {
	case f.Alone && f.Joins && f.Volume == VolumeEmpty:
		return PeersNoneJoin
	case f.Alone:
		return PeersNone
	case !f.Peers && !f.Heard && f.Joins:
		return PeersUnnamedJoin
	case !f.Peers && !f.Heard && f.Listing == "":
		return PeersUnnamed
	case !f.Heard && (f.Asked || !f.isLost()):
		return PeersUnasked
	case f.Asked && f.Listing != peers.RestoreAgreed:
		return PeersNotAgreed
	case (f.Asked || confirmed) && !f.AllUploaded:
		return PeersUploading
	case f.Asked:
		return peers.RestoreAgreed
	case confirmed && !f.Settled:
		return PeersJustLost
	case confirmed:
		return PeersStillLost
	case f.Listing == peers.AllEmpty && f.Volume != VolumeEmpty:
		return peers.AllLost
	case f.Listing.HasQuorum() && !f.Free && !f.Never:
		return PeersBlocked
	case f.Listing == "", f.Listing == peers.RestoreAgreed:
		return peers.Unknown
	default:
		return f.Listing
	}
}

func (f Facts) isLost() bool {
	return f.Listing == peers.AllEmpty || f.Listing == peers.AllLost || f.Listing == peers.SomeStarted
}

func (f Facts) storeState() StoreState {
	if f.Answer == "" && f.Store {
		return StoreUnasked
	}
	return cmp.Or(f.Answer, StoreNone)
}
