package recovery

import (
	"fmt"
	"slices"

	"etcd-wrapper/backup/relation"
	"etcd-wrapper/recovery/peers"
)

// A VolumeState describes what this member has on its volume.
type VolumeState string

// The states of a volume.
const (
	VolumeEmpty   VolumeState = "empty"            // nothing, or an etcd that had stored nothing yet
	VolumeLost    VolumeState = "lost"             // as empty, but data were served from there, and not restored since
	VolumeCorrupt VolumeState = "corrupt"          // etcd cannot open or read all of it
	VolumeValid   VolumeState = "valid"            // nothing is known to be missing
	VolumeBehind  VolumeState = "behind"           // valid, and the store or the other members have more
	VolumeStored  VolumeState = "stored"           // valid, and the store has all of it, as far as possible
	VolumeRefused VolumeState = "refused before"   // valid, and refused by the store before, which was not asked or does not answer now
	VolumeUnnamed VolumeState = "names no cluster" // valid, as of a plain etcd, and the store was not asked
)

// A PeerState describes what the other members have answered.
type PeerState string

// The states of the other members. The last eight need a quorum of equal answers, or those of all members.
const (
	PeersNone      PeerState = "none"               // a single-member cluster
	PeersItself    PeerState = "none, joins"        // as none, with initial-cluster-state: existing and an empty volume
	PeersUnnamed   PeerState = "not named"          // the configuration founds a cluster and names no other member
	PeersExisting  PeerState = "not named, joins"   // the configuration joins a cluster and names no other member
	PeersUnasked   PeerState = "not asked"          //
	PeersMissing   PeerState = "not all there"      // no cluster is known, and a member that is missing or waiting may have data
	PeersMinority  PeerState = "no quorum"          // some run, but no quorum
	PeersNotAgreed PeerState = "not all ask"        // not all request the restore that is requested here
	PeersAgreed    PeerState = "all ask"            // all request it
	PeersNew       PeerState = "never had data"     // none ever had data; all are here
	PeersSomeNew   PeerState = "some never had"     // as far as they know; some run already, and some are missing
	PeersLost      PeerState = "all lost"           // all are here, and none has usable data
	PeersJustLost  PeerState = "all lost, just now" // for less than 10 s
	PeersStillLost PeerState = "all lost, still"    // and that did not change after the store was asked
	PeersUnstored  PeerState = "volumes hold more"  // as "all lost, still" or "all ask", and one has not brought into the store what only its volume has
	PeersExpect    PeerState = "expect it"          // a cluster is being founded with this member, which never started
	PeersKnow      PeerState = "know it"            // a quorum runs, and this member was in the cluster
	PeersAdded     PeerState = "added it"           // a quorum runs, and this member was added and never started
	PeersUnlisted  PeerState = "do not list it"     // a quorum runs, and this member is not in the cluster
	PeersBusy      PeerState = "run, not now"       // a quorum runs, and something prevents this member from rejoining
)

// A StoreState describes what the store has answered.
type StoreState string

// The states of a store.
const (
	StoreNone       StoreState = "none"            // --backup-store is not given
	StoreUnasked    StoreState = "not asked"       //
	StoreAway       StoreState = "away"            // it does not answer, denies access, or its URL is wrong
	StoreLongAway   StoreState = "away for 10 s"   // for that long
	StoreInUse      StoreState = "in use"          // another process has written to it recently and may continue
	StoreEmpty      StoreState = "empty"           // nothing was ever stored
	StoreFounded    StoreState = "founded"         // as empty, except for a cluster manifest of this owner
	StoreOurs       StoreState = "ours"            // there is a backup to restore
	StoreBare       StoreState = "ours, no backup" // it names a cluster, and what is wanted is not there
	StoreNotOwned   StoreState = "another owner's" // the volume has no data, or less than the store, which belongs to another owner
	StoreUnclaimed  StoreState = "unclaimed"       // the volume names no cluster, and the store does
	StoreAdopted    StoreState = "adopted"         // the user has named its cluster, so that the data on the volume continue there
	StoreOthers     StoreState = "another's"       //
	StoreUnverified StoreState = "not verified"    // its statements are damaged, and no name suggests more than the volume has
	StoreDamaged    StoreState = "damaged"         // its statements are damaged
	StoreLocked     StoreState = "keys lacking"    // it is signed or encrypted with keys that are not given
)

// answers reports whether the store has answered what it has.
func (s StoreState) answers() bool {
	return s != "" && !slices.Contains([]StoreState{StoreAway, StoreLongAway, StoreInUse, StoreDamaged, StoreLocked}, s)
}

// Asked is what the user requests.
type Asked string

// The requests.
const (
	AskedNothing Asked = "auto"    // --recover=auto
	AskedNever   Asked = "never"   // --recover=never
	AskedRestore Asked = "restore" // --restore-to, whatever --recover says
)

// The results. They are events of the machine, which carries them out.
const (
	StartEtcd    Event = "start"         // etcd opens the volume as it is
	FoundCluster Event = "found"         // etcd creates a new cluster
	ConsultPeers Event = "ask the peers" //
	ConsultStore Event = "ask the store" //
	Wait         Event = "wait"          // and ask again: the others if they have answered, otherwise the store
	FlushFirst   Event = "flush"         // upload what the volume has, before it is replaced
	RestoreData  Event = "restore"       // from the store
	Rejoin       Event = "rejoin"        // with the data of the others
	AdoptStore   Event = "adopt"         // create a generation for the data on the volume
	Refuse       Event = "refuse"        // the user has to act
	Decline      Event = "decline"       // the request cannot be carried out
)

// A Case is all that a decision depends on.
type Case struct {
	Volume VolumeState
	Peers  PeerState
	Store  StoreState
	Asked  Asked
}

// A Decision says what happens to a volume, why, and the way out of a refusal.
type Decision struct {
	Result Event
	Why    string
	WayOut string
}

// A rule is a line of the table. It fits a case that has one of each of its values; an empty list fits any.
type rule struct {
	volume []VolumeState
	peers  []PeerState
	store  []StoreState
	asked  []Asked
	Decision
}

func (r rule) fits(c Case) bool {
	return anyOf(r.volume, c.Volume) && anyOf(r.peers, c.Peers) && anyOf(r.store, c.Store) && anyOf(r.asked, c.Asked)
}

func anyOf[T comparable](list []T, value T) bool {
	return len(list) == 0 || slices.Contains(list, value)
}

// decide is the only place that decides the fate of a volume. The first rule that fits wins, and the last one fits
// every case.
func decide(c Case) Decision { return decideBy(rules, c) }

func decideBy(rules []rule, c Case) Decision {
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
	nothingAsked = []Asked{AskedNothing, AskedNever}
	isAuto       = []Asked{AskedNothing}
	isNever      = []Asked{AskedNever}
	goesBack     = []Asked{AskedRestore}
)

func refuse(why, wayOut string) Decision   { return Decision{Refuse, why, wayOut} }
func decline(why, wayOut string) Decision  { return Decision{Decline, why, wayOut} }
func so(result Event, why string) Decision { return Decision{Result: result, Why: why} }

const keysLacking = "what is signed, or encrypted, with keys that are not given is not damaged: nothing older is taken in its place, and nothing was moved"

// rules are the table of decisions. The first rule that fits wins, and the last one fits every case. docs/recovery.md
// and testdata/decisions.golden are generated from it.
var rules = []rule{
	// Stores that rule out everything else.
	{nil, nil, []StoreState{StoreOthers}, nil, refuse("another cluster's backups are never restored here", relation.OtherCluster.WayOut())},
	{nil, nil, []StoreState{StoreNotOwned}, nil, refuse("a volume that is empty, or lacks revisions, is not given the backups of another owner", relation.OtherOwner.WayOut())},
	{nil, nil, []StoreState{StoreUnclaimed}, nil, refuse("the volume names no cluster, as that of a plain etcd or of etcdutl snapshot restore, and the store has one", relation.Unclaimed.WayOut())},
	{nil, nil, []StoreState{StoreAdopted}, nil, so(AdoptStore, "a person has named the cluster of the store for the data on the volume")},
	{nil, nil, []StoreState{StoreDamaged}, nil, refuse("what the store says of itself is damaged, so what it keeps cannot be brought back, and nothing was moved",
		"put that object back, as from an earlier version of the bucket; or make a data directory of a full by hand, with age -d, zstd -d and etcd-wrapper restore --snapshot; or begin a new cluster with an empty volume and another --backup-store")},
	{nil, nil, []StoreState{StoreLocked}, nil, refuse(keysLacking,
		"add the key to the file of --backup-trusted-keys, or --backup-identities; or delete what nobody of yours has signed, or name the revision to come back to with --restore-to and a --restore-id")},

	// A store that does not answer.
	{without, nil, away, isNever, refuse("without the store nothing can be brought back, and waiting is not wanted", "see that the store can be reached")},
	{usable, known, []StoreState{StoreLongAway}, nothingAsked, Decision{StartEtcd, notCompared, "see that the store can be reached, and that --backup-store names it: the data are compared as soon as it answers"}},
	{nil, nil, away, nil, Decision{Wait, "the store may know that the data are lost or were put back: it is waited for", reachStore}},

	// Requested restores.
	{nil, nameless, nil, goesBack, decline("a member of several goes back with the others, and the configuration does not name them",
		"take --restore-to away, or name all members in initial-cluster; or, if the others are gone for good, move the data directory away")},
	{nil, nil, []StoreState{StoreNone, StoreEmpty, StoreFounded, StoreBare, StoreUnverified}, goesBack, decline("the target is not kept", "name a target that is kept, as etcd-wrapper backup list shows them, or take --restore-to away; nothing was moved")},
	{nil, nil, []StoreState{StoreUnasked}, goesBack, so(ConsultStore, "the store shows whether the target is kept, and whether the restore was done before")},
	{nil, unasked, []StoreState{StoreInUse}, goesBack, so(ConsultPeers, "the other members may be the ones that still write the backups")},
	{nil, []PeerState{PeersNotAgreed}, nil, goesBack, so(Wait, "every member has to be stopped and ask for the same restore before one goes back")},
	{nil, nil, []StoreState{StoreInUse}, nil, Decision{Wait, "a process that still runs may have written the backups a moment ago, and nothing replaces them before it has been silent for 90 s", "if it runs elsewhere, stop it; or point --backup-store at another place"}},
	{[]VolumeState{VolumeValid}, []PeerState{PeersNone, PeersItself, PeersAgreed, PeersUnstored}, nil, goesBack, so(FlushFirst, "all members go back, and what the volume has comes into the store first")},
	{nil, []PeerState{PeersNone, PeersItself, PeersAgreed}, nil, goesBack, so(RestoreData, "all members go back, and the store has what can be read of the volume")},

	// Data that may be opened, and new members.
	{empty, []PeerState{PeersItself}, nothing, nil, refuse("initial-cluster names this member only, and initial-cluster-state: existing makes it join other members",
		"to create a new cluster, remove initial-cluster-state or set it to new; to join a cluster, name its members in initial-cluster")},
	{lostData, []PeerState{PeersNone, PeersUnnamed, PeersNew, PeersSomeNew, PeersLost}, nothing, nil, refuse("data were served from this data directory, and nothing is there now: no empty cluster replaces them",
		"mount the volume that has them, or move a preserved copy back to the data directory; to create a new cluster instead, delete the file exit_code.last on the volume")},
	{empty, []PeerState{PeersNone, PeersUnnamed, PeersNew, PeersSomeNew}, nothing, nil, so(FoundCluster,
		"a new cluster: nobody is known to have data, and nothing was ever kept")},
	{usable, []PeerState{PeersNone, PeersUnasked}, nil, isNever, so(StartEtcd, "with --recover=never a valid volume is started as it is")},
	{nil, single, []StoreState{StoreUnasked}, nil, so(ConsultStore, "the store may have more, and takes what waits for it on the volume")},
	{anonymous, known, []StoreState{StoreUnasked}, nil, so(ConsultStore, "the volume names no cluster, and the store tells whether it has one")},
	{[]VolumeState{VolumeRefused}, known, []StoreState{StoreUnasked}, nil, so(ConsultStore, "the store has refused these data before, so it is asked again before they are served")},
	{usable, known, nil, nothingAsked, so(StartEtcd, "nobody is known to have more than the volume")},
	{empty, []PeerState{PeersExisting, PeersExpect}, nil, nil, so(StartEtcd, "the cluster is there, or is founded, with this member, which has never started")},
	{empty, []PeerState{PeersAdded, PeersUnlisted}, nil, isNever, so(StartEtcd, "with --recover=never it is left to people what the others say")},

	// Data that are lost or were rolled back.
	{corrupt, nameless, nil, nil, refuse("a member of several is not restored alone: it would go back, and the others would not", "")},
	{corrupt, unasked, nil, isNever, refuse("a member of several is not restored alone: it would go back, and the others would not", "")},
	{corrupt, []PeerState{PeersExpect}, nil, nil, refuse("the data are broken, and by its peers the member never had any", "move the data directory away if that is so")},
	{nil, unasked, nil, nil, so(ConsultPeers, "the others may have what the volume lacks")},
	{nil, []PeerState{PeersKnow, PeersMinority}, nil, isNever, refuse("the member was lost, and comes back from the others, but --recover=never", "start with --recover=auto to have it brought back")},
	{nil, []PeerState{PeersBusy}, nil, nil, so(Wait, "the member comes back from the others as soon as nothing is in the way")},
	{nil, []PeerState{PeersKnow, PeersAdded, PeersUnlisted}, nil, nil, so(Rejoin, "what is on the volume is of no use: the others have all of it")},
	{empty, []PeerState{PeersMissing}, nil, nil, Decision{Wait, "one of the others may have data", "a cluster is founded when every member of initial-cluster is here and has none; leave out of it only one that never had any"}},
	{nil, []PeerState{PeersMissing, PeersMinority}, nil, nil, so(Wait, "a quorum of the other members is waited for, which has what this one lacks")},

	// Data that all members have lost.
	{nil, []PeerState{PeersUnnamed, PeersNew, PeersSomeNew, PeersLost}, []StoreState{StoreUnasked}, nil, so(ConsultStore, "nobody is known to have data of use, and the store tells whether the cluster was ever founded")},
	{empty, []PeerState{PeersUnnamed}, nil, nil, refuse("the cluster in the store was founded before, and the members that may have its data are not named",
		"name all members in initial-cluster, in the place of a discovery service; or begin a new cluster with another --backup-store")},
	{without, []PeerState{PeersSomeNew}, []StoreState{StoreOurs, StoreBare}, isAuto, so(Wait, "the members that have not said that they lack the data are waited for")},
	{nil, []PeerState{PeersNew, PeersLost}, []StoreState{StoreOurs}, isAuto, so(ConsultPeers, "another member may have the data by now")},
	{nil, []PeerState{PeersUnstored}, nil, nil, so(Wait, "what only the volumes of the others have comes into the store first")},
	{nil, []PeerState{PeersJustLost}, nil, nil, so(Wait, "no volume has data of use, and one that is mounted late comes back within 10 s")},
	{without, []PeerState{PeersNone, PeersItself, PeersStillLost}, []StoreState{StoreOurs}, isAuto, so(RestoreData, "no volume has the data any more, and the store has the newest")},
	{nil, nil, []StoreState{StoreOurs}, isNever, refuse("it could be brought back, but --recover=never", "start with --recover=auto to have it brought back")},
	{nil, nil, []StoreState{StoreBare}, nil, refuse("the store names a cluster, and none of its backups can be found there, so nothing can be restored and no new cluster is created",
		"start again if the store lists its objects late; or restore them from an earlier version of the bucket; or bring back the volume, of several members those of a quorum; or, if nothing was ever stored there, delete cluster.json and everything below gen/")},
	{nil, nil, nil, nil, refuse("nothing is kept that could be brought back",
		"bring back the volume, of several members those of a quorum; or begin a new cluster with empty volumes, and another --backup-store if one is given")},
}

const (
	notCompared = "the store has not answered for 10 s, and valid data are served all the same: they are not compared with the store yet"
	reachStore  = "see that the store can be reached, and that --backup-store names it; if it is gone for good, and there are no data that can be read, name another one and move the data directory away, which begins a new cluster"
)

// caseOf reduces the facts to a case.
func (f Facts) caseOf() Case { return Case{f.volumeState(), f.peerState(), f.storeState(), f.wish()} }

func (f Facts) wish() Asked {
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
	case f.Asked && f.Brought:
		return VolumeStored
	case !f.Asked && (f.Outdated || f.Alone && f.Behind):
		return VolumeBehind
	case f.Rejected && f.Store && !f.Never && !f.Asked && !f.Told.answers():
		return VolumeRefused
	case f.Unidentified && f.Store && !f.Never && !f.Asked && f.Told == "":
		return VolumeUnnamed
	default:
		return VolumeValid
	}
}

func (f Facts) peerState() PeerState {
	switch {
	case f.Alone && f.Joins && f.Volume == VolumeEmpty:
		return PeersItself
	case f.Alone:
		return PeersNone
	case !f.Peers && !f.Heard && f.Joins:
		return PeersExisting
	case !f.Peers && !f.Heard && f.Listing == "":
		return PeersUnnamed
	case f.Asked:
		return f.agreement()
	case f.nobodyHas():
		return f.loss()
	case !f.Heard:
		return PeersUnasked
	}
	return f.running()
}

// agreement returns what the others have answered while a restore is requested here.
func (f Facts) agreement() PeerState {
	switch {
	case !f.Heard:
		return PeersUnasked
	case f.Listing != peers.Asking:
		return PeersNotAgreed
	case !f.AllBrought:
		return PeersUnstored
	default:
		return PeersAgreed
	}
}

// loss returns what the others have answered if none of them has usable data.
func (f Facts) loss() PeerState {
	switch {
	case f.Listing == peers.Partial:
		return PeersSomeNew
	case f.Heard && f.Told.answers() && !f.AllBrought:
		return PeersUnstored
	case f.Heard && f.Told.answers() && !f.Settled:
		return PeersJustLost
	case f.Heard && f.Told.answers():
		return PeersStillLost
	case f.Listing == peers.Founding && f.Volume == VolumeEmpty:
		return PeersNew
	default:
		return PeersLost
	}
}

// running returns what a quorum of the others has answered, or what is known without one.
func (f Facts) running() PeerState {
	switch state, known := quorum[f.Listing]; {
	case known && !f.Free && !f.Never:
		return PeersBusy
	case known:
		return state
	case f.Listing == peers.Expected:
		return PeersExpect
	case f.Listing == peers.Claimed:
		return PeersMinority
	default:
		return PeersMissing
	}
}

var quorum = map[Listing]PeerState{peers.Started: PeersKnow, peers.Added: PeersAdded, peers.Unlisted: PeersUnlisted}

func (f Facts) nobodyHas() bool {
	return f.Listing == peers.Founding || f.Listing == peers.Gone || f.Listing == peers.Partial
}

func (f Facts) storeState() StoreState {
	switch {
	case f.Told != "":
		return f.Told
	case f.Store:
		return StoreUnasked
	default:
		return StoreNone
	}
}
