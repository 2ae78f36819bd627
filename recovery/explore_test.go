package recovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/relation"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// An explorer visits every reachable place and collects violations.
type explorer struct {
	*statemachine.Rules[Facts, Facts]
	seen  map[place]bool
	queue []place
	wrong []string
}

// explore visits all places that are reachable from any input, up to the first violation.
func explore() *explorer {
	e := &explorer{Rules: program, seen: map[place]bool{}}
	for _, given := range allInputs() {
		e.find(e.begin(given, origin(given)))
	}
	for len(e.queue) > 0 && len(e.wrong) == 0 {
		here := e.queue[0]
		e.queue = e.queue[1:]
		for _, promise := range promises {
			if !promise.kept(here) {
				e.blame("broken: "+promise.what+" "+here.truth.lost, here)
			}
		}
		e.expand(here)
	}
	return e
}

// begin starts a run.
func (e *explorer) begin(given input, now reality) place {
	now.validated, now.free, now.adopted, now.told, now.uncompared, now.rolled = false, false, false, false, false, now.rolled && now.noted
	return e.take(place{lot: given, truth: now, core: statemachine.Core[Facts]{State: Resume, Facts: Facts{Never: given.never, Store: given.store}}}, Begun, Facts{})
}

func (e *explorer) expand(here place) {
	if here.core.State != Ready {
		e.find(e.begin(here.lot, here.truth)) // after a crash or for the next attempt
	}
	if here.timer {
		e.find(e.take(here, Elapsed, Facts{}))
	}
	if !here.lot.alone && here.truth.noted && !here.truth.claimed && !here.truth.revived && !here.truth.outrun {
		back := here
		back.truth.revived, back.truth.listing = true, peers.Started
		e.find(back)
	}
	for _, there := range e.ends(here) {
		e.find(there)
	}
}

// ends returns the places to which the next action leads.
func (e *explorer) ends(here place) (all []place) {
	if here.chain == "" {
		return nil
	}
	action, rest, _ := strings.Cut(here.chain, "|")
	if Action(action) == DecideNow {
		next := here
		next.chain = ""
		return []place{e.take(next, evaluate(rules, here.core.Facts.caseOf()).Result, Facts{})}
	}
	ways := outcomes(Action(action), here.lot, here.truth)
	if len(ways) == 0 {
		e.blame(fmt.Sprintf("action %q has no outcome: say how it can end, in outcomes", action), here)
	}
	for _, o := range ways {
		next := here
		next.truth, next.chain = o.after, rest
		if o.event != "" {
			next.chain = ""
			if here.core.State == Refused {
				all = append(all, next) // the cleanup at the end of a run sends no event
				continue
			}
			next = e.take(next, o.event, o.payload)
		}
		all = append(all, next)
	}
	return all
}

// take applies an event.
func (e *explorer) take(here place, event Event, payload Facts) place {
	core, decision := e.Step(here.core, event, payload)
	if decision.Row < 0 {
		e.blame(fmt.Sprintf("%q is %sed", event, decision.Answer), here)
		return here
	}
	here.core, here.timer = core, slices.Contains(decision.Do, PaceStore) || slices.Contains(decision.Do, PacePeers)
	var names []string
	for _, action := range decision.Do {
		if action != PaceStore && action != PacePeers {
			names = append(names, string(action))
		}
	}
	here.chain = strings.Join(names, "|")
	return here
}

func (e *explorer) find(p place) {
	if !e.seen[p] {
		e.seen[p] = true
		e.queue = append(e.queue, p)
	}
}

func (e *explorer) blame(what string, p place) {
	e.wrong = append(e.wrong, fmt.Sprintf("%s: in %s, given %+v, knowing %+v, when %+v", what, p.core.State, p.lot, p.core.Facts, p.truth))
}

// calm continues from a place without further failures and returns the last place, which is either final or waiting
// for other members.
func (e *explorer) calm(p place) place {
	been := map[place]bool{}
	for range 100 {
		if p.timer && been[p] {
			return p
		}
		been[p] = true
		switch {
		case p.chain != "":
			next := e.ends(p)
			if len(next) == 0 {
				return p // the violation was already recorded
			}
			p = next[0]
		case p.timer:
			p = e.take(p, Elapsed, Facts{})
		default:
			return p
		}
	}
	e.blame("no end is reached", p)
	return p
}

func TestPromisesHoldInEveryReachableState(t *testing.T) {
	e := explore()
	require.Empty(t, e.wrong)
	visited := map[State]bool{}
	for p := range e.seen {
		visited[p.core.State] = true
	}
	assert.Len(t, visited, len(States), "every state was visited")
	t.Logf("explored %d places of %d states, %d rows and %d lots", len(e.seen), len(States), len(Table), len(allInputs()))
}

// If a run crashes or fails at any point, the next run must have the same outcome as an uninterrupted run.
func TestRunCutOffAnywhereReachesTheSameEnd(t *testing.T) {
	e := explore()
	type end struct {
		state State
		place string
		aside bool
	}
	calm := func(p place) end {
		p = e.calm(p)
		return end{p.core.State, p.truth.place, p.truth.aside}
	}
	comesTo := map[input]end{}
	for _, given := range allInputs() {
		comesTo[given] = calm(e.begin(given, origin(given)))
	}
	for p := range e.seen {
		if p.truth.outrun || p.truth.revived { // another process has changed the target
			continue
		}
		require.Equal(t, comesTo[p.lot], calm(e.begin(p.lot, p.truth)), "cut off in %s, given %+v, when %+v", p.core.State, p.lot, p.truth)
	}
	require.Empty(t, e.wrong)
}

// At most one guard may hold for a state and an event, so that the order of guarded rows does not matter.
func TestGuardsExcludeEachOther(t *testing.T) {
	for p := range explore().seen {
		holding := map[Event]int{}
		for _, row := range Table {
			if row.From == p.core.State && row.When != statemachine.Always && p.core.Facts.Holds(row.When) {
				holding[row.On]++
			}
		}
		for event, count := range holding {
			require.Equal(t, 1, count, "%s, %s, knowing %+v", p.core.State, event, p.core.Facts)
		}
	}
}

// A reality is the true state of the world, which the state machine may not know.
type reality struct {
	place     string // data at the path of the data directory: "original", "" or "restored"
	validated bool   // whether that data was validated
	aside     bool   // whether the original data was preserved
	built     bool   // whether a complete new data directory exists next to the original
	proved    bool   // whether the new directory is valid
	sound     bool   // whether the installed directory was validated before
	brought   bool   // whether the segments queued on the volume are in the store
	noted     bool   // whether the claim is recorded on the volume
	taken     bool   // whether an adoption created the newest generation for this volume
	claimed   bool   // whether the store has the generation of this restore
	outrun    bool   // another process has created a generation
	revived   bool   // whether members returned with their data after the claim was recorded
	installs  int    // number of installations for this claim
	done      bool   // whether the ID of the restore is recorded

	listing    PeerState // how the peers list this member
	free       bool      // whether a quorum of the peers agrees on the listing and nothing blocks a replacement
	adopted    bool      // whether etcd starts with the members that the peers listed
	told       bool      // whether this member reports to its peers that it will have data soon
	uncompared bool      // whether valid data may be served without a comparison, after a long store outage
	rolled     bool      // whether all members have uploaded and have lost their data or request the same restore
	flushed    bool      // whether this member has uploaded its data

	lost string // first violation; empty if there is none
}

// A place is a state of the state machine together with a state of the world.
type place struct {
	lot   input
	truth reality
	core  statemachine.Core[Facts]
	chain string // remaining actions, joined to make places comparable
	timer bool
}

// An outcome is a possible result of an action. If an outcome has no event, the next action runs. The first outcome
// of every action is success.
type outcome struct {
	event   Event
	payload Facts
	after   reality
}

// ends returns one outcome for each event, without facts.
func ends(after reality, events ...Event) (all []outcome) {
	for _, event := range events {
		all = append(all, outcome{event: event, after: after})
	}
	return all
}

// breaks returns the outcomes of an action that fails either before or after it takes effect.
func breaks(now reality, done ...reality) (all []outcome) {
	for _, after := range append(done, now) {
		all = append(all, ends(after, Broke)...)
	}
	return all
}

// outcomes returns all outcomes of an action.
func outcomes(action Action, given input, now reality) []outcome {
	then := now
	next := func(events ...Event) []outcome { return append(ends(then, events...), breaks(now, then)...) }
	untrusted := outcome{Answered, Facts{StoreFacts: StoreFacts{Answer: StoreLocked}}, now}
	switch action {
	case ReadPosition:
		switch {
		case !now.noted:
			return next(NothingBegun)
		case now.place == "restored":
			return next(InstallFound)
		default:
			return next(ClaimFound)
		}
	case DropUnfinished:
		then.built, then.proved = false, false
		if now.noted {
			then.lost = "what was claimed is dropped"
		}
		return next("")
	case ForgetClaim:
		then.noted, then.claimed, then.installs = false, false, 0
		if now.place == "restored" {
			then.lost = "an installed restore is forgotten"
		}
		return next("")
	case ValidateVolume:
		return examinations(given, now)
	case AskThePeers:
		return survey(given, now)
	case TellReturn:
		return next("")
	case RemoveMember:
		return changes(given, now, peers.Started, peers.Unlisted)
	case AddMember:
		return changes(given, now, peers.Unlisted, peers.Added)
	case AdoptCluster:
		then.adopted = true
		if now.listing != peers.Added || holdsData(given, now) {
			then.lost = "a cluster is joined that does not expect the member, or with old data"
		}
		return []outcome{{after: then}} // this action cannot fail
	case AskTheStore:
		all := append(answers(given, now), silence(given, now), outcome{event: Broke, after: now})
		for _, told := range []StoreState{StoreAway, StoreInUse, StoreDamaged, StoreLocked} {
			all = append(all, outcome{Answered, Facts{StoreFacts: StoreFacts{Answer: told, RestoreDone: given.requested && !asks(given, now)}}, now})
		}
		return all
	case TakeStore:
		if then.taken = true; given.owner != relation.Adopted {
			then.lost = "a store is taken that nobody has named"
		}
		return append(next(Taken), append(ends(now, StoreSilent), ends(then, StoreSilent)...)...)
	case TellLoss:
		return append(append(next(""), ends(now, Missing)...), untrusted)
	case FlushSpool:
		then.brought = true
		return append(append(next(""), ends(now, Stuck)...), outcome{Answered, Facts{StoreFacts: StoreFacts{Answer: StoreAway}}, now})
	case FlushVolume:
		then.flushed = true
		return next(Flushed)
	case FindEnd, EndAdopted:
		return append(next(""), ends(now, StoreSilent)...)
	case MeasureRoom:
		return next(RoomEnough, RoomLacking)
	case BuildData:
		then.built = true
		if slices.Contains([]StoreState{relation.OtherCluster, relation.OtherOwner, relation.Unclaimed, relation.Adopted}, given.owner) {
			then.lost = "another cluster's data are restored"
		}
		return append(append(next(Built), ends(now, StoreSilent, Unbuildable, RoomLacking, Missing, Grown)...), untrusted)
	case ProveData:
		then.proved = true
		return append(next(Proved), ends(now, Unproved, Diverged)...)
	case NotePosition:
		then.told, then.noted = true, true
		return next("")
	case ClaimGeneration:
		return claims(given, now)
	case SetVolumeAside:
		return setsAside(given, now)
	case InstallData:
		return installs(given, now)
	case Remember:
		then.noted, then.done = false, true
		return next(Installed)
	}
	return nil
}

// silence returns the outcome if the store has been unreachable for so long that valid data is served.
func silence(given input, now reality) outcome {
	now.uncompared = (given.alone || given.unidentified) && !asks(given, now)
	return outcome{Answered, Facts{StoreFacts: StoreFacts{Answer: StoreLongAway}}, now}
}

func examinations(given input, now reality) []outcome {
	now.validated = true
	condition := given.found
	switch now.place {
	case "":
		condition = VolumeEmpty
	case "restored":
		condition = VolumeValid
	}
	return []outcome{
		{Examined, Facts{VolumeFacts: VolumeFacts{Volume: condition, Alone: given.alone, Joins: given.joins, Peers: given.peers, Remains: holdsData(given, now), Unidentified: given.unidentified && condition == VolumeValid && now.place == "original" && !now.taken}, Asked: given.requested && !now.done}, now},
		{Broke, Facts{}, now},
	}
}

// answers returns the outcomes of a query to the store. If another process has created a generation, the volume is
// behind the store.
func answers(given input, now reality) []outcome {
	now.rolled, now.uncompared = false, false
	if given.owner == StoreUnverified && now.place != "restored" && (!given.alone || given.found != VolumeValid || given.behind || asks(given, now)) {
		return []outcome{{event: Answered, payload: Facts{StoreFacts: StoreFacts{Answer: StoreDamaged}}, after: now}}
	}
	behind := (given.behind || now.outrun || now.claimed) && now.place != "restored"
	owner := given.owner
	if now.place == "restored" || now.taken {
		owner = relation.Ours // the store has the generation of this volume
	}
	if owner == relation.Ours && !given.kept {
		owner = StoreBare
	}
	return []outcome{{Answered, Facts{StoreFacts: StoreFacts{Answer: owner, Behind: behind, RestoreDone: given.requested && !asks(given, now)}}, now}}
}

// holdsData reports whether the data directory exists.
func holdsData(given input, now reality) bool {
	return now.place == "restored" || now.place == "original" && (given.found != VolumeEmpty || given.remains)
}

// asks reports whether a requested restore is still pending, according to the store.
func asks(given input, now reality) bool {
	return given.requested && !now.done && (given.alone || !now.outrun)
}

// survey returns the possible responses of the peers: the true state with or without an obstacle, a response without
// a quorum, and no response.
func survey(given input, now reality) (all []outcome) {
	runs := now.listing == peers.Added || now.listing == peers.Started || now.listing == peers.Unlisted
	byStore := given.behind && now.listing == peers.Gone
	outdated := given.found == VolumeValid && now.place == "original" && (byStore || runs && (given.behind && now.listing == peers.Started || now.outrun))
	asked := now
	asked.free = runs
	listing := now.listing
	if listing == peers.Asking && !asks(given, now) {
		listing = peers.Unknown
	}
	allHere := listing == peers.Gone || listing == peers.Founding || listing == peers.Asking
	asked.rolled = now.rolled || allHere
	all = append(all, outcome{PeersTold, Facts{PeerFacts: PeerFacts{Listing: listing, Outdated: outdated, Free: true, AllUploaded: true, Settled: true}}, asked})
	asked.rolled = now.rolled
	if allHere {
		if listing != peers.Asking {
			all = append(all, outcome{PeersTold, Facts{PeerFacts: PeerFacts{Listing: listing, Outdated: outdated, Free: true, AllUploaded: true}}, asked})
		}
		all = append(all, outcome{PeersTold, Facts{PeerFacts: PeerFacts{Listing: listing, Outdated: outdated, Free: true}}, asked})
	}
	asked.free = false
	if now.listing == peers.Started || now.listing == peers.Unlisted {
		all = append(all, outcome{PeersTold, Facts{PeerFacts: PeerFacts{Listing: now.listing, Outdated: outdated}}, asked})
	}
	if runs {
		all = append(all, outcome{PeersTold, Facts{PeerFacts: PeerFacts{Listing: peers.Claimed, Free: true}}, asked})
	}
	outdated = outdated && byStore
	return append(all, outcome{PeersTold, Facts{PeerFacts: PeerFacts{Listing: peers.Unknown, Outdated: outdated, Free: true}}, asked}, outcome{Broke, Facts{}, now})
}

// changes returns the outcomes of a membership change.
func changes(given input, now reality, from, to PeerState) []outcome {
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
	return slices.Concat(ends(then, Changed), ends(now, PeersSilent), ends(then, PeersSilent), breaks(now, then))
}

func claims(given input, now reality) []outcome {
	then, lost := now, now
	then.claimed = true
	if !given.alone && (!now.rolled || !now.told && !now.claimed) {
		then.lost = "a cluster of several is replaced before all have called"
	}
	if !now.brought {
		then.lost = "a restore is claimed without what waits on the volume"
	}
	if !given.alone && given.requested && given.found == VolumeValid && now.place == "original" && !now.flushed {
		then.lost = "a restore is claimed before the store has what only the volume has"
	}
	if !given.alone && now.revived {
		then.lost = "a cluster is replaced that has its data"
	}
	if !now.proved || !now.noted {
		then.lost = "a generation is claimed for what is not proved, or not noted"
	}
	if !given.alone && !now.claimed && now.revived { // the last survey detects the members that returned
		return append(ends(now, ClaimLost, PeersSilent, StoreSilent), breaks(now)...)
	}
	all := slices.Concat(ends(then, Claimed, StoreSilent), ends(now, StoreSilent))
	if !given.alone {
		all = append(all, ends(now, PeersSilent)...)
	}
	if !now.outrun {
		lost.outrun = true
		if !given.alone { // another member claimed first and is the only running member
			lost.listing = peers.Unlisted
		}
		all = append(all, ends(lost, ClaimLost)...)
	}
	return append(all, breaks(now, then)...)
}

func setsAside(given input, now reality) []outcome {
	then := now
	then.place, then.aside = "", now.aside || now.place == "original"
	switch {
	case now.place == "restored":
		then.lost = "restored data are set aside"
	case given.never && !given.requested:
		then.lost = "data are moved in spite of --recover=never"
	case !given.alone && !now.claimed && (!now.free || given.found == VolumeValid && !given.behind && !now.outrun):
		then.lost = "data are moved that the others may not have, or that are of use"
	case !given.alone && !now.claimed:
	case !now.claimed || !now.proved:
		then.lost = "data are moved without a claim"
	case given.found == VolumeValid && !given.behind && !now.outrun && !given.requested:
		then.lost = "good data are moved"
	}
	return append(ends(then, Moved), breaks(now, then)...)
}

func installs(given input, now reality) []outcome {
	then := now
	then.place, then.built, then.sound = "restored", false, now.proved && now.built
	then.installs++
	if !given.alone {
		then.listing = peers.Started // this member is listed by the members that have joined
	}
	switch {
	case now.place == "original":
		then.lost = "data are deleted: something is installed over them"
	case !now.proved || !now.built:
		then.lost = "what was not proved is installed"
	case !now.claimed:
		then.lost = "what is not claimed is installed, so revisions may be handed out twice"
	}
	return append(ends(then, ""), breaks(now, then)...)
}
