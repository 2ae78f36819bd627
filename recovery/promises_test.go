package recovery

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
	"etcd-wrapper/statemachine/statemachinetest"
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

// reasons are all that tells some steps apart for people.
var reasons = []struct {
	in      State
	on      Event
	given   Facts
	payload Payload
	because string
}{
	{AskStore, Answered, asVolume(Valid), Payload{Owner: Others, Kept: true, Behind: true}, "another cluster's backups"},
	{AskStore, Answered, asVolume(Corrupt), Payload{Owner: Others, Kept: true, Asked: true}, "another cluster's backups"},
	{AskStore, Answered, asVolume(Empty), Payload{Owner: NotOwned, Kept: true}, "another owner"},
	{AskStore, Answered, asVolume(Valid), Payload{Owner: Unclaimed, Kept: true}, "names no cluster"},
	{AskStore, Answered, asVolume(Valid), Payload{Owner: Ours, Asked: true}, "the target is not kept"},
	{AskStore, Answered, asNever(Corrupt), kept, "but --recover=never"},
	{AskStore, Answered, asNever(Empty), ahead, "but --recover=never"},
	{AskStore, Answered, asVolume(Corrupt), nothing, "nothing is kept"},
	{AskStore, Answered, asVolume(Empty), certificate, "nothing is kept"},
	{AskPeers, PeersTold, ofNever, told(peers.Started), "but --recover=never"},
	{AskPeers, PeersTold, ofPeers(Corrupt), told(peers.Gone), "nothing is kept"},
	{AskPeers, PeersTold, together(Corrupt), told(peers.Asking), "comes into the store first"},
	{AskPeers, PeersTold, has(Empty), told(peers.Founding), "comes into the store first"},
	{AskPeers, PeersTold, has(Empty), Payload{Listing: peers.Founding, AllBrought: true}, "mounted late comes back within 10 s"},
	{AskPeers, PeersTold, together(Valid), told(peers.Unknown), "every member has to be stopped"},
	{AskStore, Answered, gone(Empty, peers.Gone), nothing, "nothing is kept"},
	{AskStore, Answered, together(Valid), Payload{Owner: Ours, Asked: true}, "the target is not kept"},
	{AskStore, Answered, gone(Empty, peers.Founding), Payload{Owner: NotOwned, Kept: true}, "another owner"},
	{AskPeers, PeersTold, ofPeers(Empty), hindered(peers.Started), "as soon as nothing is in the way"},
	{AskPeers, PeersTold, ofPeers(Corrupt), told(peers.Claimed), "a quorum of the other members is waited for"},
	{AskPeers, PeersTold, ofPeers(Corrupt), told(peers.Unknown), "a quorum of the other members is waited for"},
	{AskPeers, PeersTold, ofPeers(Corrupt), lagging(peers.Claimed), "a quorum of the other members is waited for"},
	{AskPeers, PeersTold, ofPeers(Empty), told(peers.Claimed), "a quorum of the other members is waited for"},
	{AskPeers, PeersTold, ofPeers(Empty), told(peers.Unknown), "one of the others may have data"},
	{AskPeers, PeersTold, together(Empty), told(peers.Unknown), "every member has to be stopped"},
	{AskPeers, PeersTold, together(Valid), lagging(peers.Unknown), "every member has to be stopped"},
	{AskPeers, PeersTold, ofPeers(Valid), lagging(peers.Unknown), "which has what this one lacks"},
	{AskPeers, PeersTold, ofPeers(Valid), lagging(peers.Claimed), "which has what this one lacks"},
	{AskPeers, PeersTold, ofPeers(Valid), Payload{Listing: peers.Started, Outdated: true}, "as soon as nothing is in the way"},
	{AskPeers, PeersTold, ofPeers(Corrupt), told(peers.Expected), "never had any"},
	{Examine, Examined, Facts{}, Payload{Condition: Corrupt}, "the others would not"},
	{Examine, Examined, Facts{}, Payload{Alone: true, Condition: Corrupt}, "nothing is kept"},
	{Examine, Examined, Facts{}, Payload{Alone: true, Condition: Valid}, "nobody is known to have more"},
	{Examine, Examined, never, Payload{Alone: true, Condition: Valid}, "started as it is"},
	{AskStore, Answered, unnamed, nothing, "a new cluster"},
	{AskStore, Answered, unnamed, certificate, "was founded before"},
}

func reasonFailures(by suite) (failures []string) {
	for _, r := range reasons {
		decisions := by.steps(r.in, r.given, r.on, r.payload)
		decision := decisions[len(decisions)-1]
		if !strings.Contains(decision.Why, r.because) {
			failures = append(failures, fmt.Sprintf("%+v of %+v leads to %s, because %s", r.payload, r.given, decision.To, decision.Why))
		}
	}
	return failures
}

func TestStepsThatLookTheSameSayTheirOwnReasons(t *testing.T) {
	assert.Empty(t, reasonFailures(program))
}

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
		return l.found != Valid || l.behind
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

func TestTheCommittedDiagramIsTheTables(t *testing.T) {
	statemachinetest.AssertGenerated(t, "../docs/recovery.dot", Drawing.DOT())
}

func TestTheCommittedMatrixIsTheTables(t *testing.T) {
	statemachinetest.AssertGenerated(t, "../testdata/recovery.golden", NewRules(Table, Elsewhere).Matrix(States))
}

func TestTheCommittedPictureIsTheDiagrams(t *testing.T) {
	tested.AssertPicture(t, "recovery.svg", Drawing.DOT())
}

func TestTheJSONIsTheTable(t *testing.T) {
	var document struct{ Transitions []Row }
	require.NoError(t, json.Unmarshal([]byte(Drawing.JSON()), &document))
	assert.Equal(t, Table, document.Transitions)
	assert.True(t, strings.HasPrefix(Drawing.Mermaid(), "stateDiagram-v2\n"))
}

func TestNoMutantOfTheTableSurvives(t *testing.T) {
	tested.AssertNoMutantSurvives(t, stepFailures, func(table []Row, elsewhere []statemachine.Default) []string { return explore(table, elsewhere).wrong })
}
