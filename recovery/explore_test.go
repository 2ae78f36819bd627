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

// An explorer visits every reachable state of the model and collects violations of the invariants.
type explorer struct {
	*statemachine.Rules[Facts, Facts]
	seen       map[modelState]bool
	queue      []modelState
	violations []string
}

// explore visits every state of the model that is reachable from an input. explore stops at the first violation.
func explore() *explorer {
	e := &explorer{Rules: program, seen: map[modelState]bool{}}
	for _, given := range allInputs() {
		e.enqueue(e.begin(given, initialState(given)))
	}
	for len(e.queue) > 0 && len(e.violations) == 0 {
		current := e.queue[0]
		e.queue = e.queue[1:]
		for _, invariant := range invariants {
			if !invariant.holds(current) {
				e.addViolation("invariant violated: "+invariant.name+" "+current.actual.violation, current)
			}
		}
		e.expand(current)
	}
	return e
}

// begin starts a run. The new process has lost what the previous one had only in memory.
func (e *explorer) begin(given input, now actualState) modelState {
	now.validated, now.replaceable, now.joinsPeers, now.announced, now.uncompared, now.allReported = false, false, false, false, false, now.allReported && now.recorded
	return e.take(modelState{input: given, actual: now, core: statemachine.Core[Facts]{State: Resume, Facts: Facts{Never: given.never, Store: given.store}}}, RunStarted, Facts{})
}

func (e *explorer) expand(current modelState) {
	if current.core.State != Ready {
		e.enqueue(e.begin(current.input, current.actual)) // after a crash or for the next attempt
	}
	if current.timer {
		e.enqueue(e.take(current, Elapsed, Facts{}))
	}
	if !current.input.alone && current.actual.recorded && !current.actual.claimed && !current.actual.peersReturned && !current.actual.overtaken {
		back := current
		back.actual.peersReturned, back.actual.listing = true, peers.Started
		e.enqueue(back)
	}
	for _, successor := range e.successors(current) {
		e.enqueue(successor)
	}
}

// successors returns the model states to which the next action can lead.
func (e *explorer) successors(current modelState) (all []modelState) {
	if current.pending == "" {
		return nil
	}
	action, rest, _ := strings.Cut(current.pending, "|")
	if Action(action) == DecideNow {
		next := current
		next.pending = ""
		return []modelState{e.take(next, evaluate(rules, current.core.Facts.caseOf()).Result, Facts{})}
	}
	ways := outcomes(Action(action), current.input, current.actual)
	if len(ways) == 0 {
		e.addViolation(fmt.Sprintf("action %q has no outcome: add a case to the function outcomes", action), current)
	}
	for _, o := range ways {
		next := current
		next.actual, next.pending = o.after, rest
		if o.event != "" {
			next.pending = ""
			if current.core.State == Refused {
				all = append(all, next) // the cleanup at the end of a run sends no event
				continue
			}
			next = e.take(next, o.event, o.payload)
		}
		all = append(all, next)
	}
	return all
}

// take applies an event to a model state.
func (e *explorer) take(current modelState, event Event, payload Facts) modelState {
	core, decision := e.Step(current.core, event, payload)
	if decision.Row < 0 {
		e.addViolation(fmt.Sprintf("the table has no row for event %q (%s)", event, decision.Answer), current)
		return current
	}
	current.core, current.timer = core, slices.Contains(decision.Do, PaceStore) || slices.Contains(decision.Do, PacePeers)
	var names []string
	for _, action := range decision.Do {
		if action != PaceStore && action != PacePeers {
			names = append(names, string(action))
		}
	}
	current.pending = strings.Join(names, "|")
	return current
}

func (e *explorer) enqueue(p modelState) {
	if !e.seen[p] {
		e.seen[p] = true
		e.queue = append(e.queue, p)
	}
}

func (e *explorer) addViolation(what string, p modelState) {
	e.violations = append(e.violations, fmt.Sprintf("%s: in state %s with input %+v, facts %+v and actual state %+v", what, p.core.State, p.input, p.core.Facts, p.actual))
}

// finish continues a run without further failures and returns its last model state, which is final unless the run
// waits for other members.
func (e *explorer) finish(p modelState) modelState {
	been := map[modelState]bool{}
	for range 100 {
		if p.timer && been[p] {
			return p
		}
		been[p] = true
		switch {
		case p.pending != "":
			next := e.successors(p)
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
	e.addViolation("the run does not end", p)
	return p
}

func TestPromisesHoldInEveryReachableState(t *testing.T) {
	e := explore()
	require.Empty(t, e.violations)
	visited := map[State]bool{}
	for p := range e.seen {
		visited[p.core.State] = true
	}
	assert.Len(t, visited, len(States), "every state was visited")
	t.Logf("explored %d model states: %d inputs, %d states and %d rows", len(e.seen), len(allInputs()), len(States), len(Table))
}

// If a run crashes or fails at any point, the next run must have the same outcome as an uninterrupted run.
func TestRunCutOffAnywhereReachesTheSameEnd(t *testing.T) {
	e := explore()
	type result struct {
		state     State
		data      string
		preserved bool
	}
	finish := func(p modelState) result {
		p = e.finish(p)
		return result{p.core.State, p.actual.data, p.actual.preserved}
	}
	uninterrupted := map[input]result{}
	for _, given := range allInputs() {
		uninterrupted[given] = finish(e.begin(given, initialState(given)))
	}
	for p := range e.seen {
		if p.actual.overtaken || p.actual.peersReturned { // another process has changed what recovery must do
			continue
		}
		require.Equal(t, uninterrupted[p.input], finish(e.begin(p.input, p.actual)), "interrupted in state %s with input %+v and actual state %+v", p.core.State, p.input, p.actual)
	}
	require.Empty(t, e.violations)
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
			require.Equal(t, 1, count, "state %s, event %s, facts %+v", p.core.State, event, p.core.Facts)
		}
	}
}

// An actualState is the actual state of the volume, the store and the peers, which the state machine may not know.
type actualState struct {
	data              string // data in the data directory: "original", "restored", or "" if the directory was moved
	validated         bool   // whether that data was validated
	preserved         bool   // whether the original data was preserved
	built             bool   // whether a complete new data directory exists next to the original
	verified          bool   // whether the new directory is valid
	installedVerified bool   // whether the installed directory was validated before
	spoolUploaded     bool   // whether the segments queued on the volume are in the store
	recorded          bool   // whether the claim is recorded on the volume
	adoptedStore      bool   // whether an adoption created the newest generation for this volume
	claimed           bool   // whether the store has the generation of this restore
	overtaken         bool   // whether another process has created a generation
	peersReturned     bool   // whether members returned with their data after the claim was recorded
	installCount      int    // number of installations for this claim
	idRecorded        bool   // whether the ID of the restore is recorded

	listing        PeerState // how the peers list this member
	replaceable    bool      // whether a quorum of the peers agrees on the listing and nothing blocks a replacement
	joinsPeers     bool      // whether etcd starts with the members that the peers listed
	announced      bool      // whether this member has reported to its peers that it is about to restore
	uncompared     bool      // whether the store was unreachable for so long that valid data may be served uncompared
	allReported    bool      // whether all members have uploaded and have lost their data or request the same restore
	volumeUploaded bool      // whether this member has uploaded its data

	violation string // violated precondition of an action; empty if there is none
}

// A modelState is a state of the model, which consists of the state machine and its surroundings. Model states are
// map keys, so all fields must be comparable.
type modelState struct {
	input   input
	actual  actualState
	core    statemachine.Core[Facts]
	pending string // actions that the current row has not performed yet, separated by |
	timer   bool   // whether the current row has set the timer
}

// An outcome is a possible result of an action. If an outcome has no event, the next action runs. The first outcome
// of every action is success.
type outcome struct {
	event   Event
	payload Facts
	after   actualState
}

// outcomesOf returns an outcome without facts for each event.
func outcomesOf(after actualState, events ...Event) (all []outcome) {
	for _, event := range events {
		all = append(all, outcome{event: event, after: after})
	}
	return all
}

// brokeOutcomes returns the outcomes of an action that fails before it takes effect, which leaves the state now, or
// afterwards, which leads to one of the states in done.
func brokeOutcomes(now actualState, done ...actualState) (all []outcome) {
	for _, after := range append(done, now) {
		all = append(all, outcomesOf(after, Failed)...)
	}
	return all
}

// outcomes returns all outcomes of an action.
func outcomes(action Action, given input, now actualState) []outcome {
	then := now
	next := func(events ...Event) []outcome {
		return append(outcomesOf(then, events...), brokeOutcomes(now, then)...)
	}
	untrusted := outcome{StoreResponded, Facts{StoreFacts: StoreFacts{Answer: StoreNoKeys}}, now}
	switch action {
	case ReadPosition:
		switch {
		case !now.recorded:
			return next(NothingToResume)
		case now.data == "restored":
			return next(InstallFound)
		default:
			return next(ClaimFound)
		}
	case DropUnfinished:
		then.built, then.verified = false, false
		if now.recorded {
			then.violation = "a claimed restore is removed"
		}
		return next("")
	case DropClaim:
		then.recorded, then.claimed, then.installCount = false, false, 0
		if now.data == "restored" {
			then.violation = "the claim of an installed restore is dropped"
		}
		return next("")
	case ValidateVolume:
		return validationOutcomes(given, now)
	case AskThePeers:
		return surveyOutcomes(given, now)
	case LogRejoin:
		return next("")
	case RemoveMember:
		return membershipOutcomes(given, now, peers.Started, peers.Unlisted)
	case AddMember:
		return membershipOutcomes(given, now, peers.Unlisted, peers.Added)
	case AdoptCluster:
		then.joinsPeers = true
		if now.listing != peers.Added || holdsData(given, now) {
			then.violation = "the member joins a cluster that does not expect it, or joins with old data"
		}
		return []outcome{{after: then}} // this action cannot fail
	case AskTheStore:
		all := append(storeOutcomes(given, now), outageOutcome(given, now), outcome{event: Failed, after: now})
		for _, told := range []StoreState{StoreUnreachable, StoreInUse, StoreDamaged, StoreNoKeys} {
			all = append(all, outcome{StoreResponded, Facts{StoreFacts: StoreFacts{Answer: told, RestoreDone: given.requested && !wantsRestore(given, now)}}, now})
		}
		return all
	case TakeStore:
		if then.adoptedStore = true; given.storeState != relation.Adopted {
			then.violation = "a store is adopted without --adopt"
		}
		return append(next(StoreAdopted), append(outcomesOf(now, StoreUnavailable), outcomesOf(then, StoreUnavailable)...)...)
	case LogLoss:
		return append(append(next(""), outcomesOf(now, Missing)...), untrusted)
	case FlushSpool:
		then.spoolUploaded = true
		return append(append(next(""), outcomesOf(now, Stuck)...), outcome{StoreResponded, Facts{StoreFacts: StoreFacts{Answer: StoreUnreachable}}, now})
	case FlushVolume:
		then.volumeUploaded = true
		return next(Flushed)
	case FindEnd, EndAdopted:
		return append(next(""), outcomesOf(now, StoreUnavailable)...)
	case CheckSpace:
		return next(EnoughSpace, NoSpace)
	case BuildData:
		then.built = true
		if slices.Contains([]StoreState{relation.OtherCluster, relation.OtherOwner, relation.Unidentified, relation.Adopted}, given.storeState) {
			then.violation = "the data of another cluster is restored"
		}
		return append(append(next(Built), outcomesOf(now, StoreUnavailable, BackupsDamaged, NoSpace, Missing, MultiMemberBackup)...), untrusted)
	case ValidateBuilt:
		then.verified = true
		return append(next(Validated), outcomesOf(now, ValidationFailed, Diverged)...)
	case RecordClaim:
		then.announced, then.recorded = true, true
		return next("")
	case ClaimGeneration:
		return claimOutcomes(given, now)
	case PreserveData:
		return preserveOutcomes(given, now)
	case InstallData:
		return installOutcomes(given, now)
	case RecordRestore:
		then.recorded, then.idRecorded = false, true
		return next(Installed)
	}
	return nil
}

// outageOutcome returns the outcome if the store has been unreachable for so long that valid data is served.
func outageOutcome(given input, now actualState) outcome {
	now.uncompared = (given.alone || given.unidentified) && !wantsRestore(given, now)
	return outcome{StoreResponded, Facts{StoreFacts: StoreFacts{Answer: StoreLongUnreachable}}, now}
}

func validationOutcomes(given input, now actualState) []outcome {
	now.validated = true
	condition := given.volume
	switch now.data {
	case "":
		condition = VolumeEmpty
	case "restored":
		condition = VolumeValid
	}
	return []outcome{
		{Examined, Facts{VolumeFacts: VolumeFacts{Volume: condition, Alone: given.alone, Joins: given.joins, Peers: given.peers, Remains: holdsData(given, now), Unidentified: given.unidentified && condition == VolumeValid && now.data == "original" && !now.adoptedStore}, Asked: given.requested && !now.idRecorded}, now},
		{Failed, Facts{}, now},
	}
}

// storeOutcomes returns the outcomes of a query to the store. If another process has created a generation, the volume
// is behind the store.
func storeOutcomes(given input, now actualState) []outcome {
	now.allReported, now.uncompared = false, false
	if given.storeState == StoreUnverified && now.data != "restored" && (!given.alone || given.volume != VolumeValid || given.behind || wantsRestore(given, now)) {
		return []outcome{{event: StoreResponded, payload: Facts{StoreFacts: StoreFacts{Answer: StoreDamaged}}, after: now}}
	}
	behind := (given.behind || now.overtaken || now.claimed) && now.data != "restored"
	owner := given.storeState
	if now.data == "restored" || now.adoptedStore {
		owner = relation.Ours // the store has the generation of this volume
	}
	if owner == relation.Ours && !given.restorable {
		owner = StoreNoBackup
	}
	return []outcome{{StoreResponded, Facts{StoreFacts: StoreFacts{Answer: owner, Behind: behind, RestoreDone: given.requested && !wantsRestore(given, now)}}, now}}
}

// holdsData reports whether the data directory exists.
func holdsData(given input, now actualState) bool {
	return now.data == "restored" || now.data == "original" && (given.volume != VolumeEmpty || given.remains)
}

// wantsRestore reports whether a requested restore is still pending, according to the store.
func wantsRestore(given input, now actualState) bool {
	return given.requested && !now.idRecorded && (given.alone || !now.overtaken)
}

// surveyOutcomes returns the possible responses of the peers: the actual state with or without an obstacle to a
// replacement, responses without a quorum, and no response.
func surveyOutcomes(given input, now actualState) (all []outcome) {
	runs := now.listing == peers.Added || now.listing == peers.Started || now.listing == peers.Unlisted
	byStore := given.behind && now.listing == peers.AllLost
	outdated := given.volume == VolumeValid && now.data == "original" && (byStore || runs && (given.behind && now.listing == peers.Started || now.overtaken))
	asked := now
	asked.replaceable = runs
	listing := now.listing
	if listing == peers.RestoreAgreed && !wantsRestore(given, now) {
		listing = peers.Unknown
	}
	allHere := listing == peers.AllLost || listing == peers.AllEmpty || listing == peers.RestoreAgreed
	asked.allReported = now.allReported || allHere
	all = append(all, outcome{PeersResponded, Facts{PeerFacts: PeerFacts{Listing: listing, Outdated: outdated, Free: true, AllUploaded: true, Settled: true}}, asked})
	asked.allReported = now.allReported
	if allHere {
		if listing != peers.RestoreAgreed {
			all = append(all, outcome{PeersResponded, Facts{PeerFacts: PeerFacts{Listing: listing, Outdated: outdated, Free: true, AllUploaded: true}}, asked})
		}
		all = append(all, outcome{PeersResponded, Facts{PeerFacts: PeerFacts{Listing: listing, Outdated: outdated, Free: true}}, asked})
	}
	asked.replaceable = false
	if now.listing == peers.Started || now.listing == peers.Unlisted {
		all = append(all, outcome{PeersResponded, Facts{PeerFacts: PeerFacts{Listing: now.listing, Outdated: outdated}}, asked})
	}
	if runs {
		all = append(all, outcome{PeersResponded, Facts{PeerFacts: PeerFacts{Listing: peers.NoQuorum, Free: true}}, asked})
	}
	outdated = outdated && byStore
	return append(all, outcome{PeersResponded, Facts{PeerFacts: PeerFacts{Listing: peers.Unknown, Outdated: outdated, Free: true}}, asked}, outcome{Failed, Facts{}, now})
}

// membershipOutcomes returns the outcomes of a membership change.
func membershipOutcomes(given input, now actualState, from, to PeerState) []outcome {
	then := now
	then.listing, then.replaceable = to, false
	switch {
	case now.listing != from:
		then.violation = "the member is removed or added twice"
	case !now.replaceable:
		then.violation = "the membership is changed although no survey has shown that the member can be replaced"
	case holdsData(given, now):
		then.violation = "the member is replaced before its old data is moved"
	case given.never:
		then.violation = "the membership is changed despite --recover=never"
	}
	return slices.Concat(outcomesOf(then, Changed), outcomesOf(now, PeersUnavailable), outcomesOf(then, PeersUnavailable), brokeOutcomes(now, then))
}

func claimOutcomes(given input, now actualState) []outcome {
	then, lost := now, now
	then.claimed = true
	if !given.alone && (!now.allReported || !now.announced && !now.claimed) {
		then.violation = "a multi-member cluster is replaced before all members have reported, or before this member has announced it"
	}
	if !now.spoolUploaded {
		then.violation = "a restore is claimed before the queued segments are uploaded"
	}
	if !given.alone && given.requested && given.volume == VolumeValid && now.data == "original" && !now.volumeUploaded {
		then.violation = "a restore is claimed before the data that only the volume has is uploaded"
	}
	if !given.alone && now.peersReturned {
		then.violation = "a cluster is replaced although its members have their data again"
	}
	if !now.verified || !now.recorded {
		then.violation = "a generation is claimed for data that was not verified, or before the claim is recorded"
	}
	if !given.alone && !now.claimed && now.peersReturned { // the last survey detects the members that returned
		return append(outcomesOf(now, ClaimLost, PeersUnavailable, StoreUnavailable), brokeOutcomes(now)...)
	}
	all := slices.Concat(outcomesOf(then, Claimed, StoreUnavailable), outcomesOf(now, StoreUnavailable))
	if !given.alone {
		all = append(all, outcomesOf(now, PeersUnavailable)...)
	}
	if !now.overtaken {
		lost.overtaken = true
		if !given.alone { // another member claimed first and is the only running member
			lost.listing = peers.Unlisted
		}
		all = append(all, outcomesOf(lost, ClaimLost)...)
	}
	return append(all, brokeOutcomes(now, then)...)
}

func preserveOutcomes(given input, now actualState) []outcome {
	then := now
	then.data, then.preserved = "", now.preserved || now.data == "original"
	switch {
	case now.data == "restored":
		then.violation = "restored data is moved"
	case given.never && !given.requested:
		then.violation = "data is moved despite --recover=never"
	case !given.alone && !now.claimed && (!now.replaceable || given.volume == VolumeValid && !given.behind && !now.overtaken):
		then.violation = "data is moved although it is usable or the other members may not have it"
	case !given.alone && !now.claimed:
	case !now.claimed || !now.verified:
		then.violation = "data is moved without a claim"
	case given.volume == VolumeValid && !given.behind && !now.overtaken && !given.requested:
		then.violation = "valid data is moved although nothing is newer"
	}
	return append(outcomesOf(then, Moved), brokeOutcomes(now, then)...)
}

func installOutcomes(given input, now actualState) []outcome {
	then := now
	then.data, then.built, then.installedVerified = "restored", false, now.verified && now.built
	then.installCount++
	if !given.alone {
		then.listing = peers.Started // this member is listed by the members that have joined
	}
	switch {
	case now.data == "original":
		then.violation = "the original data is overwritten"
	case !now.verified || !now.built:
		then.violation = "data is installed that was not verified"
	case !now.claimed:
		then.violation = "data is installed without a claim, so revisions may be used twice"
	}
	return append(outcomesOf(then, ""), brokeOutcomes(now, then)...)
}
