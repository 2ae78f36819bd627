package recovery

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
	"etcd-wrapper/statemachine/statemachinetest"
)

// sentence is one expectation of recovery: standing in a state and knowing Given, when On happens with its payload, the
// machine goes to To and does Do. It is written down here a second time on purpose: a change of the table must be a change
// of a sentence that a reviewer reads.
type sentence struct {
	story   string
	in      statemachine.Source
	given   Facts
	on      Event
	payload Payload
	to      State
	do      []Action
}

var sentences = slices.Concat(sentencesOfPeers, sentencesOfStore)

// failure says how rules differ from the sentence in one of its states; empty if they don't.
func (s sentence) failure(by suite, from State) string {
	decisions := by.steps(from, s.given, s.on, s.payload)
	decision := decisions[len(decisions)-1]
	switch {
	case decision.Row < 0:
		return fmt.Sprintf("no row answers; the event is %sed", decision.Answer)
	case decision.To != s.to:
		return fmt.Sprintf("goes to %s, not to %s", decision.To, s.to)
	case !slices.Equal(decision.Do, s.do):
		return fmt.Sprintf("does %q, not %q", decision.Do, s.do)
	}
	return ""
}

type rulesOf = statemachine.Rules[Facts, Payload]

// suite is what is tested: the machine's rules, and those that it decides by.
type suite struct {
	*rulesOf
	decisions []rule
}

var program = suite{NewRules(Table, Elsewhere), rules}

// steps are what an event leads to: where that is a decision, the result follows at once, and says why.
func (s suite) steps(from State, given Facts, on Event, payload Payload) []statemachine.Decision {
	core, first := s.Step(statemachine.Core[Facts]{State: from, Facts: given}, on, payload)
	if first.Row < 0 || first.To != Decide {
		return []statemachine.Decision{first}
	}
	decided := decideBy(s.decisions, core.Facts.caseOf())
	_, second := s.Step(core, decided.Result, Payload{})
	second.Why = decided.Why
	return []statemachine.Decision{first, second}
}

func TestEveryStepOfRecovery(t *testing.T) {
	for _, s := range sentences {
		for _, from := range s.in.Each() {
			t.Run(fmt.Sprintf("%s/%s", from, s.story), func(t *testing.T) {
				assert.Empty(t, s.failure(program, from))
			})
		}
	}
}

func TestEveryRowIsTakenAndEveryGuardIsRefused(t *testing.T) {
	for i, row := range Table {
		taken, refused := false, row.When == statemachine.Always
		for _, s := range sentences {
			for _, from := range s.in.Each() {
				for _, decision := range program.steps(from, s.given, s.on, s.payload) {
					taken = taken || decision.Row == i
					refused = refused || decision.Row > i && Table[decision.Row].From == row.From && Table[decision.Row].On == row.On
				}
			}
		}
		assert.True(t, taken, "no sentence takes the row %s, %s [%s]", row.From, row.On, row.When)
		assert.True(t, refused, "no sentence is refused by the guard of %s, %s [%s]", row.From, row.On, row.When)
	}
}

// Where there is no row: at the end nothing matters any more, all else cannot come.
func TestWhatHasNoRowIsIgnoredOrRejected(t *testing.T) {
	for _, state := range states() {
		for _, event := range events() {
			if !hasRow(state, event) {
				assert.Empty(t, restFailure(program.rulesOf, state, event), "%s, %s", state, event)
			}
		}
	}
}

func restFailure(rules *rulesOf, state State, event Event) string {
	want := statemachine.Reject
	if state == Ready {
		want = statemachine.Ignore
	}
	_, decision := rules.Step(statemachine.Core[Facts]{State: state}, event, Payload{})
	switch {
	case decision.Answer != want:
		return fmt.Sprintf("is answered with %s, not %s", decision.Answer, want)
	case decision.Why == "":
		return "gives no reason"
	}
	return ""
}

// stepFailures is everything that the tests above have against a table.
func stepFailures(table []Row, elsewhere []statemachine.Default) (failures []string) {
	changed := suite{NewRules(table, elsewhere), rules}
	failures = changed.failures()
	for _, state := range states() {
		for _, event := range events() {
			if hasRow(state, event) {
				continue
			}
			if failure := restFailure(changed.rulesOf, state, event); failure != "" {
				failures = append(failures, fmt.Sprintf("%s, %s %s", state, event, failure))
			}
		}
	}
	return failures
}

// failures are what the sentences and the reasons have against a suite.
func (s suite) failures() (failures []string) {
	failures = reasonFailures(s)
	for _, told := range sentences {
		for _, from := range told.in.Each() {
			if failure := told.failure(s, from); failure != "" {
				failures = append(failures, told.story+": "+failure)
			}
		}
	}
	return failures
}

func states() (names []State) {
	for _, state := range States {
		names = append(names, state.Name)
	}
	return names
}

func events() (names []Event) {
	for _, answer := range Elsewhere {
		names = append(names, answer.On)
	}
	return names
}

func hasRow(state State, event Event) bool {
	return slices.ContainsFunc(Table, func(row Row) bool { return row.From == state && row.On == event })
}

// tested is the machine for what every machine's tests ask.
var tested = statemachinetest.Machine{Table: Table, Elsewhere: Elsewhere, States: States, Guards: slices.Collect(maps.Keys(conditions))}

func TestTheTableIsWhole(t *testing.T) {
	tested.AssertOnlyLastUnguarded(t)
	tested.AssertLegality(t)
	statemachinetest.AssertTogether(t, written)
}

func TestEveryStateIsReachedAndLeadsToAnEnd(t *testing.T) {
	assert.ElementsMatch(t, states(), tested.Reachable(Resume))
	for _, state := range states() {
		if state != Ready && state != Refused {
			assert.Contains(t, tested.Reachable(state), Ready, "from %s", state)
		}
	}
}

func TestNothingLeadsOutOfAnEnd(t *testing.T) {
	assert.Equal(t, []State{Ready}, tested.Reachable(Ready))
	assert.Equal(t, []State{Refused}, tested.Reachable(Refused))
}

// A visit that waits has its timer set, any other begins with work: nothing waits for nothing.
func TestEveryVisitBeginsWithATimerOrWithWork(t *testing.T) {
	for _, row := range Table {
		if row.To != Ready && row.To != Refused {
			assert.NotEmpty(t, row.Do, "%s would wait for nothing after %q in %s", row.To, row.On, row.From)
		}
		if slices.Contains(row.Do, PaceStore) {
			assert.True(t, hasRow(row.To, Elapsed), "%s sets a timer that %s does not answer", row.On, row.To)
		}
	}
}

// What was wrong, or the row or the rule itself, says it where there is no way out beside it.
func TestEveryRefusalNamesTheWayOut(t *testing.T) {
	by := map[Event]bool{ClaimFound: true, Stuck: true}
	refused := map[Event]bool{}
	for _, row := range Table {
		if row.To == Refused && row.On != Broke && row.From != Decide {
			refused[row.On] = true
			assert.NotEqual(t, by[row.On], wayOut[row.On] != "", "%s, %s [%s]", row.From, row.On, row.When)
		}
	}
	for is := range wayOut {
		assert.True(t, refused[is], "nothing is refused for %v", is)
	}
	for _, r := range rules {
		says := slices.Contains(r.volume, VolumeCorrupt) // what is wrong with the data says it
		if r.Result == Refuse || r.Result == Decline {
			assert.True(t, r.WayOut != "" || says, r.Why)
		}
	}
}

// The vocabulary is what the table uses and no more.
func TestNoWordIsForgotten(t *testing.T) {
	usedGuards, usedActions := map[Guard]bool{statemachine.Always: true}, map[Action]bool{}
	for _, row := range Table {
		usedGuards[row.When] = true
		for _, action := range row.Do {
			usedActions[action] = true
		}
		assert.Contains(t, events(), row.On)
		assert.NotEmpty(t, row.Why)
	}
	for guard := range conditions {
		assert.True(t, usedGuards[guard], "guard %q is in no row", guard)
	}
	for guard := range usedGuards {
		assert.True(t, guard == statemachine.Always || conditions[guard] != nil, "guard %q means nothing", guard)
	}
	for action := range usedActions {
		assert.True(t, action == PaceStore || action == PacePeers || work[action] != nil, "action %q does nothing", action)
	}
	for action := range work {
		assert.True(t, usedActions[action], "action %q is in no row", action)
	}
}

// What a member of several finds on its volume, and what the others answer.
var (
	ofPeers  = func(c Condition) Facts { return Facts{Peers: true, Condition: c, Remains: c != Empty} }
	unborn   = Facts{Peers: true, Condition: Empty, Remains: true}
	stored   = Facts{Peers: true, Condition: Empty, Store: true}
	ofNever  = Facts{Peers: true, Condition: Empty, Never: true}
	told     = func(l Listing) Payload { return Payload{Listing: l, Free: true} }
	hindered = func(l Listing) Payload { return Payload{Listing: l, Err: assert.AnError} }
	outdated = Payload{Listing: peers.Started, Outdated: true, Free: true}
	lagging  = func(l Listing) Payload { return Payload{Listing: l, Outdated: true, Free: true} }
	gone     = func(c Condition, l Listing) Facts {
		return Facts{Peers: true, Store: true, Condition: c, Remains: c != Empty, Listing: l}
	}
	has = func(c Condition) Facts {
		return Facts{Peers: true, Store: true, Condition: c, Owner: Ours, Kept: true}
	}
	putBack  = Facts{Peers: true, Store: true, Condition: Valid, Remains: true, Listing: peers.Gone, Outdated: true}
	together = func(c Condition) Facts { return Facts{Peers: true, Store: true, Condition: c, Asked: true} }
	unnamed  = Facts{Store: true, Condition: Empty}
	anonym   = Facts{Peers: true, Store: true, Condition: Valid, Unidentified: true}
	flushed  = []Action{FlushSpool, AskTheStore}
	moveAway = []Action{TellReturn, SetVolumeAside}
	askAgain = []Action{PacePeers}
)

var sentencesOfPeers = []sentence{
	// Resume: what an earlier run left
	{"a run first looks for one that was cut off", Resume, alone, Begun, Payload{}, Resume, []Action{ReadPosition}},
	{"one that claimed nothing is begun again", Resume, alone, NothingBegun, Payload{}, Examine, []Action{DropUnfinished, ValidateVolume}},
	{"one that may have claimed is for people where no store tells", Resume, Facts{Peers: true}, ClaimFound, Payload{}, Refused, nil},
	{"also if it is alone", Resume, Facts{Alone: true}, ClaimFound, Payload{}, Refused, nil},
	{"one that may have claimed goes on with what it built", Resume, alone, ClaimFound, Payload{}, Prove, []Action{ProveData}},
	{"one that has installed only has to remember it", Resume, alone, InstallFound, Payload{}, Install, []Action{Remember}},

	// Examine: a member of several
	{"a valid member of several starts as ever", Examine, Facts{}, Examined, Payload{Condition: Valid}, Ready, nil},
	{"an empty member of several starts as ever", Examine, Facts{}, Examined, Payload{Condition: Empty}, Ready, nil},
	{"a broken member of several is refused as ever", Examine, Facts{}, Examined, Payload{Condition: Corrupt}, Refused, nil},
	{"a member of several cannot go back alone", Examine, Facts{}, Examined, Payload{Condition: Valid, Asked: true}, Refused, nil},
	{"nor if it is broken", Examine, Facts{}, Examined, Payload{Condition: Corrupt, Asked: true}, Refused, nil},

	{"a store may know better than one whose peers are not named", Examine, Facts{Store: true}, Examined, Payload{Condition: Empty}, AskStore, flushed},
	{"but restores nothing to one, as the others would not go back", Examine, Facts{Store: true}, Examined, Payload{Condition: Corrupt}, Refused, nil},
	{"one that has data is not compared", Examine, Facts{Store: true}, Examined, Payload{Condition: Valid}, Ready, nil},
	{"or joins a cluster that exists", Examine, Facts{Store: true}, Examined, Payload{Condition: Empty, Joins: true}, Ready, nil},
	{"--recover=never begins it no more a second time", Examine, Facts{Store: true, Never: true}, Examined, Payload{Condition: Empty}, AskStore, flushed},

	{"one whose peers are named asks them", Examine, Facts{}, Examined, Payload{Condition: Empty, Peers: true}, AskPeers, []Action{AskThePeers}},
	{"so does one with valid data, which may have been put back", Examine, Facts{}, Examined, Payload{Condition: Valid, Peers: true}, AskPeers, []Action{AskThePeers}},
	{"so does a broken one", Examine, Facts{}, Examined, Payload{Condition: Corrupt, Peers: true}, AskPeers, []Action{AskThePeers}},
	{"--recover=never starts valid data as ever", Examine, Facts{Never: true}, Examined, Payload{Condition: Valid, Peers: true}, Ready, nil},
	{"--recover=never refuses broken data as ever", Examine, Facts{Never: true}, Examined, Payload{Condition: Corrupt, Peers: true}, Refused, nil},
	{"--recover=never asks about an empty volume, which must not be begun anew", Examine, Facts{Never: true}, Examined, Payload{Condition: Empty, Peers: true}, AskPeers, []Action{AskThePeers}},
	{"without a store there is nothing to go back to", Examine, Facts{}, Examined, Payload{Condition: Empty, Peers: true, Asked: true}, Refused, nil},
	{"whatever they have said", Examine, Facts{Listing: peers.Asking}, Examined, Payload{Condition: Valid, Asked: true}, Refused, nil},
	{"nor with others that are not named", Examine, Facts{Store: true}, Examined, Payload{Condition: Valid, Asked: true}, Refused, nil},
	{"several go back together: the store comes first", Examine, Facts{Store: true}, Examined, Payload{Condition: Valid, Peers: true, Asked: true}, AskStore, flushed},
	{"also with --recover=never", Examine, Facts{Store: true, Never: true}, Examined, Payload{Condition: Empty, Peers: true, Asked: true}, AskStore, flushed},

	// AskPeers: valid data
	{"data that the others know are started", AskPeers, ofPeers(Valid), PeersTold, told(peers.Started), Ready, nil},
	{"also if nobody answers", AskPeers, ofPeers(Valid), PeersTold, told(peers.Unknown), Ready, nil},
	{"or if they have removed the member", AskPeers, ofPeers(Valid), PeersTold, told(peers.Unlisted), Ready, nil},
	{"data that were put back make way", AskPeers, ofPeers(Valid), PeersTold, outdated, GiveWay, moveAway},
	{"but not while something is in the way", AskPeers, ofPeers(Valid), PeersTold, Payload{Listing: peers.Started, Outdated: true}, AskPeers, askAgain},

	{"data that the store has more than are not opened alone", AskPeers, ofPeers(Valid), PeersTold, lagging(peers.Unknown), AskPeers, askAgain},
	{"nor with one that is no quorum", AskPeers, ofPeers(Valid), PeersTold, lagging(peers.Claimed), AskPeers, askAgain},

	// AskPeers: broken data
	{"broken data make way where the others have all of them", AskPeers, ofPeers(Corrupt), PeersTold, told(peers.Started), GiveWay, moveAway},
	{"or where the member was added since", AskPeers, ofPeers(Corrupt), PeersTold, told(peers.Added), GiveWay, moveAway},
	{"or removed", AskPeers, ofPeers(Corrupt), PeersTold, told(peers.Unlisted), GiveWay, moveAway},
	{"but not while something is in the way", AskPeers, ofPeers(Corrupt), PeersTold, hindered(peers.Started), AskPeers, askAgain},
	{"without a quorum they stay where they are", AskPeers, ofPeers(Corrupt), PeersTold, told(peers.Unknown), AskPeers, askAgain},
	{"also if one of the others knows the member", AskPeers, ofPeers(Corrupt), PeersTold, told(peers.Claimed), AskPeers, askAgain},
	{"broken data of a member that never started are for people", AskPeers, ofPeers(Corrupt), PeersTold, told(peers.Expected), Refused, nil},

	// AskPeers: no data
	{"a member that was lost leaves under its old identity", AskPeers, ofPeers(Empty), PeersTold, told(peers.Started), Leave, []Action{TellReturn, RemoveMember}},
	{"as soon as nothing is in the way", AskPeers, ofPeers(Empty), PeersTold, hindered(peers.Started), AskPeers, askAgain},
	{"one that is not listed is taken in", AskPeers, ofPeers(Empty), PeersTold, told(peers.Unlisted), Enter, []Action{TellReturn, AddMember}},
	{"one at a time", AskPeers, ofPeers(Empty), PeersTold, hindered(peers.Unlisted), AskPeers, askAgain},
	{"one that was added joins", AskPeers, ofPeers(Empty), PeersTold, told(peers.Added), Ready, []Action{AdoptCluster}},
	{"what an etcd left that had just begun makes way first", AskPeers, unborn, PeersTold, told(peers.Added), GiveWay, moveAway},
	{"also if the member is lost", AskPeers, unborn, PeersTold, told(peers.Started), GiveWay, moveAway},
	{"one that never started is founded with the others", AskPeers, ofPeers(Empty), PeersTold, told(peers.Expected), Ready, nil},
	{"one of a cluster in which nobody has data is begun as ever", AskPeers, ofPeers(Empty), PeersTold, told(peers.Founding), Ready, nil},
	{"while somebody may have data it waits", AskPeers, ofPeers(Empty), PeersTold, told(peers.Unknown), AskPeers, askAgain},
	{"a store may know better", AskPeers, stored, PeersTold, told(peers.Founding), AskStore, flushed},
	{"a quorum in which nobody has data begins as ever", AskPeers, ofPeers(Empty), PeersTold, told(peers.Partial), Ready, nil},
	{"a store may know better than a quorum", AskPeers, stored, PeersTold, told(peers.Partial), AskStore, flushed},
	{"one that a single peer knows waits for a quorum", AskPeers, ofPeers(Empty), PeersTold, told(peers.Claimed), AskPeers, askAgain},
	{"a single member does not wait for any", AskPeers, alone, PeersTold, Payload{}, AskStore, flushed},
	{"so does what nothing is known of", AskPeers, ofPeers(Empty), PeersTold, Payload{}, AskPeers, askAgain},
	{"the peers are asked again", AskPeers, alone, Elapsed, Payload{}, AskPeers, []Action{AskThePeers}},

	// AskPeers: --recover=never
	{"never: a lost member is not begun anew", AskPeers, ofNever, PeersTold, told(peers.Started), Refused, nil},
	{"never: nor where one peer knows it", AskPeers, ofNever, PeersTold, told(peers.Claimed), Refused, nil},
	{"never: a first start is one", AskPeers, ofNever, PeersTold, told(peers.Expected), Ready, nil},
	{"never: what nobody knows starts as ever", AskPeers, ofNever, PeersTold, told(peers.Founding), Ready, nil},
	{"never: whoever added the member has configured it", AskPeers, ofNever, PeersTold, told(peers.Added), Ready, nil},
	{"never: nor does it add itself", AskPeers, ofNever, PeersTold, told(peers.Unlisted), Ready, nil},
	{"never: unless a store may know better", AskPeers, Facts{Peers: true, Condition: Empty, Never: true, Store: true}, PeersTold, told(peers.Founding), AskStore, flushed},

	// The way back
	{"the others are asked again when the place is free", GiveWay, alone, Moved, Payload{}, AskPeers, []Action{AskThePeers}},
	{"and when the old identity is gone", Leave, alone, Left, Payload{}, AskPeers, []Action{AskThePeers}},
	{"and when that is not known", Leave, alone, PeersSilent, Payload{}, AskPeers, askAgain},
	{"and when the member was taken in", Enter, alone, Entered, Payload{}, AskPeers, []Action{AskThePeers}},
	{"and when that is not known, either", Enter, alone, PeersSilent, Payload{}, AskPeers, askAgain},

	// AskPeers: all are gone, or ask
	{"all gone: the store is asked", AskPeers, gone(Corrupt, ""), PeersTold, told(peers.Gone), AskStore, flushed},
	{"also by one that has nothing", AskPeers, gone(Empty, ""), PeersTold, told(peers.Gone), AskStore, flushed},
	{"all gone, and no store", AskPeers, ofPeers(Corrupt), PeersTold, told(peers.Gone), Refused, nil},
	{"all still gone when the store was asked: it is restored", AskPeers, has(Empty), PeersTold, brought(peers.Founding), MakeRoom, restoreNow},
	{"but not before late mounts had the time to come", AskPeers, has(Empty), PeersTold, Payload{Listing: peers.Founding, Free: true, AllBrought: true}, AskPeers, askAgain},
	{"also if some are broken", AskPeers, has(Corrupt), PeersTold, brought(peers.Gone), MakeRoom, restoreNow},
	{"not if one has data by then", AskPeers, has(Empty), PeersTold, told(peers.Unknown), AskPeers, askAgain},
	{"but if it is a cluster by then, that is joined", AskPeers, has(Empty), PeersTold, told(peers.Unlisted), Enter, []Action{TellReturn, AddMember}},
	{"all are older than the store: it is asked", AskPeers, gone(Valid, ""), PeersTold, lagging(peers.Gone), AskStore, flushed},
	{"all still older when it was asked: it is restored", AskPeers, has(Valid), PeersTold, Payload{Listing: peers.Gone, Outdated: true, Free: true, AllBrought: true, Settled: true}, MakeRoom, restoreNow},
	{"who has data of use is not gone", AskPeers, gone(Valid, ""), PeersTold, told(peers.Gone), Ready, nil},
	{"all ask: what a valid volume has comes into the store first", AskPeers, together(Valid), PeersTold, told(peers.Asking), Flush, []Action{TellLoss, FlushVolume}},
	{"whatever else is known", AskPeers, Facts{Store: true, Asked: true, Condition: Valid, Kept: true}, PeersTold, told(peers.Asking), Flush, []Action{TellLoss, FlushVolume}},
	{"all ask: of a broken one nothing can be read", AskPeers, together(Corrupt), PeersTold, brought(peers.Asking), MakeRoom, restoreNow},
	{"all ask: nor of an empty one", AskPeers, together(Empty), PeersTold, brought(peers.Asking), MakeRoom, restoreNow},
	{"all ask: others may have more than the store", AskPeers, together(Corrupt), PeersTold, told(peers.Asking), AskPeers, askAgain},
	{"all ask: a valid volume has brought what it has", AskPeers, Facts{Store: true, Asked: true, Condition: Valid, Brought: true}, PeersTold, brought(peers.Asking), MakeRoom, restoreNow},
	{"all ask: and waits for the others", AskPeers, Facts{Store: true, Asked: true, Condition: Valid, Brought: true}, PeersTold, told(peers.Asking), AskPeers, askAgain},
	{"all ask: what the others have brought is not all", AskPeers, together(Valid), PeersTold, brought(peers.Asking), Flush, []Action{TellLoss, FlushVolume}},
	{"all gone: others may have more than the store", AskPeers, has(Empty), PeersTold, told(peers.Founding), AskPeers, askAgain},
	{"all gone: also if this one is broken", AskPeers, has(Corrupt), PeersTold, told(peers.Gone), AskPeers, askAgain},
	{"as long as not all ask, they are waited for", AskPeers, together(Valid), PeersTold, told(peers.Unknown), AskPeers, askAgain},
	{"also if they run", AskPeers, together(Valid), PeersTold, told(peers.Started), AskPeers, askAgain},
	{"also if data are lost", AskPeers, together(Empty), PeersTold, told(peers.Unlisted), AskPeers, askAgain},
	{"also if all are gone", AskPeers, together(Empty), PeersTold, told(peers.Gone), AskPeers, askAgain},
	{"also if nobody has data", AskPeers, together(Empty), PeersTold, told(peers.Founding), AskPeers, askAgain},
	{"also if the member is expected", AskPeers, together(Empty), PeersTold, told(peers.Expected), AskPeers, askAgain},
	{"also if it is broken", AskPeers, together(Corrupt), PeersTold, told(peers.Expected), AskPeers, askAgain},
	{"also if it was put back", AskPeers, together(Valid), PeersTold, outdated, AskPeers, askAgain},
	{"who has heard all does not ask the store again", AskPeers, Facts{Asked: true, Store: true, Peers: true, Listing: peers.Asking}, Elapsed, Payload{}, AskPeers, []Action{AskThePeers}},
	{"the store may know by now that it was done", AskPeers, together(Valid), Elapsed, Payload{}, AskStore, []Action{AskTheStore}},
}

// What a member that is alone finds on its volume, and what its store answers.
var (
	alone       = Facts{Alone: true, Store: true}
	never       = Facts{Alone: true, Store: true, Never: true}
	asVolume    = func(c Condition) Facts { return Facts{Alone: true, Store: true, Condition: c} }
	asNever     = func(c Condition) Facts { return Facts{Alone: true, Store: true, Condition: c, Never: true} }
	nothing     = Payload{Owner: Nobody}
	unread      = Payload{Owner: Unknown}
	kept        = Payload{Owner: Ours, Kept: true}
	ahead       = Payload{Owner: Ours, Kept: true, Behind: true}
	certificate = Payload{Owner: Ours, Behind: true}
	asked       = Payload{Owner: Ours, Kept: true, Asked: true}
	bringBack   = []Action{TellLoss, MeasureRoom}
	restoreNow  = []Action{FindEnd, TellLoss, MeasureRoom}
	brought     = func(l Listing) Payload { return Payload{Listing: l, Free: true, AllBrought: true, Settled: true} }
)

var sentencesOfStore = []sentence{
	// AskStore: several
	{"several: without a certificate it is a new cluster", AskStore, gone(Empty, peers.Founding), Answered, nothing, Ready, nil},
	{"several: with one, and a backup, it comes back", AskStore, gone(Empty, peers.Founding), Answered, ahead, AskPeers, []Action{AskThePeers}},
	{"several: whatever they have brought", AskStore, Facts{Peers: true, Condition: Empty, Listing: peers.Gone, AllBrought: true}, Answered, ahead, AskPeers, []Action{AskThePeers}},
	{"several: also if some are broken", AskStore, gone(Empty, peers.Gone), Answered, ahead, AskPeers, []Action{AskThePeers}},
	{"several: also if this one is", AskStore, gone(Corrupt, peers.Gone), Answered, kept, AskPeers, []Action{AskThePeers}},
	{"several: also if all are older", AskStore, putBack, Answered, ahead, AskPeers, []Action{AskThePeers}},
	{"several: a quorum without data begins a new cluster", AskStore, gone(Empty, peers.Partial), Answered, nothing, Ready, nil},
	{"several: and restores nothing, as the rest may have data", AskStore, gone(Empty, peers.Partial), Answered, ahead, AskPeers, askAgain},
	{"several: also without a backup", AskStore, gone(Empty, peers.Partial), Answered, certificate, AskPeers, askAgain},
	{"several: --recover=never waits for nobody", AskStore, Facts{Peers: true, Condition: Empty, Never: true, Listing: peers.Partial}, Answered, ahead, Refused, nil},
	{"several: the rest is waited for", AskPeers, has(Empty), PeersTold, told(peers.Partial), AskPeers, askAgain},
	{"several: without a backup it is refused", AskStore, gone(Empty, peers.Founding), Answered, certificate, Refused, nil},
	{"several: broken data do not become a new cluster", AskStore, gone(Empty, peers.Gone), Answered, nothing, Refused, nil},
	{"several: nor by whom they were", AskStore, gone(Corrupt, peers.Gone), Answered, nothing, Refused, nil},
	{"several: another cluster's", AskStore, gone(Corrupt, peers.Gone), Answered, Payload{Owner: Others, Kept: true}, Refused, nil},
	{"several: another owner's", AskStore, gone(Empty, peers.Founding), Answered, Payload{Owner: NotOwned, Kept: true}, Refused, nil},
	{"several: a founded one is gone on with", AskStore, gone(Empty, peers.Founding), Answered, Payload{Owner: Founded}, Ready, nil},
	{"several: a volume that names no cluster asks the store for it", AskPeers, anonym, PeersTold, told(peers.Started), AskStore, flushed},
	{"several: also if the others are not named", Examine, Facts{Store: true}, Examined, Payload{Condition: Valid, Unidentified: true}, AskStore, flushed},
	{"several: --recover=never asks nobody for it", AskPeers, Facts{Peers: true, Store: true, Condition: Valid, Never: true, Unidentified: true}, PeersTold, told(peers.Started), Ready, nil},
	{"several: where the store is empty it is this cluster's", AskStore, anonym, Answered, nothing, AskPeers, []Action{AskThePeers}},
	{"several: where it has a cluster that is not told to be this one it is refused", AskStore, anonym, Answered, Payload{Owner: Unclaimed, Kept: true}, Refused, nil},
	{"several: where it is away it is waited for", AskStore, anonym, StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"several: but not for long", AskPeers, Facts{Peers: true, Store: true, Condition: Valid, Unidentified: true, Trouble: StoreAway, Waited: true}, PeersTold, told(peers.Started), Ready, nil},
	{"several: --recover=never does not bring it back", AskStore, Facts{Peers: true, Condition: Empty, Never: true, Listing: peers.Founding}, Answered, ahead, Refused, nil},
	{"several: nor wait for the store", AskStore, Facts{Peers: true, Condition: Empty, Never: true, Listing: peers.Founding}, StoreSilent, Payload{}, Refused, nil},
	{"several: while the store is away the peers are asked, who may come back", AskStore, gone(Empty, peers.Founding), StoreSilent, Payload{}, AskPeers, askAgain},
	{"several: also if some are broken", AskStore, gone(Corrupt, peers.Gone), StoreSilent, Payload{}, AskPeers, askAgain},
	{"several: before they were asked it is waited for", AskStore, Facts{Peers: true, Asked: true, Condition: Valid}, StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"several: what is asked for and kept needs all", AskStore, together(Valid), Answered, asked, AskPeers, []Action{AskThePeers}},
	{"several: not from another owner's", AskStore, together(Empty), Answered, Payload{Owner: NotOwned, Kept: true, Asked: true}, Refused, nil},
	{"several: what is not kept moves nothing", AskStore, together(Valid), Answered, Payload{Owner: Ours, Asked: true}, Refused, nil},
	{"several: what was done is not done again", AskStore, together(Valid), Answered, kept, AskPeers, []Action{AskThePeers}},
	{"several: whoever was not there comes from the others", AskStore, together(Empty), Answered, ahead, AskPeers, []Action{AskThePeers}},
	{"several: another cluster's is refused before they are asked", AskStore, together(Valid), Answered, Payload{Owner: Others, Kept: true}, Refused, nil},

	// AskStore: several that are not named
	{"unnamed: nothing was ever kept", AskStore, unnamed, Answered, nothing, Ready, nil},
	{"unnamed: new is said once", AskStore, unnamed, Answered, ahead, Refused, nil},
	{"unnamed: also without a backup", AskStore, unnamed, Answered, certificate, Refused, nil},
	{"unnamed: also if it is another owner's", AskStore, unnamed, Answered, Payload{Owner: NotOwned, Kept: true}, Refused, nil},
	{"unnamed: a founded one is gone on with", AskStore, unnamed, Answered, Payload{Owner: Founded}, Ready, nil},
	{"unnamed: also if the store is not believed", AskStore, unnamed, Answered, unread, Refused, nil},
	{"unnamed: valid data wait for it no longer than others", AskStore, Facts{Store: true, Condition: Valid, Unidentified: true}, StoreSilent, Payload{Waited: true}, Ready, nil},
	{"unnamed: nor less", AskStore, Facts{Store: true, Condition: Valid, Unidentified: true}, StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"unnamed: the store is waited for", AskStore, unnamed, StoreSilent, Payload{}, AskStore, []Action{PaceStore}},

	// Examine: a member alone
	{"without a store valid data start", Examine, Facts{}, Examined, Payload{Alone: true, Condition: Valid}, Ready, nil},
	{"without a store an empty volume is a new cluster", Examine, Facts{}, Examined, Payload{Alone: true, Condition: Empty}, Ready, nil},
	{"without a store broken data are for people", Examine, Facts{}, Examined, Payload{Alone: true, Condition: Corrupt}, Refused, nil},
	{"--recover=never changes nothing about that", Examine, Facts{Never: true}, Examined, Payload{Alone: true, Condition: Corrupt}, Refused, nil},
	{"nor about that", Examine, Facts{Never: true}, Examined, Payload{Alone: true, Condition: Valid}, Ready, nil},
	{"a valid volume is compared with the store, when that has what waits for it", Examine, alone, Examined, Payload{Alone: true, Condition: Valid}, AskStore, flushed},
	{"so is an empty one", Examine, alone, Examined, Payload{Alone: true, Condition: Empty}, AskStore, flushed},
	{"so is a broken one", Examine, alone, Examined, Payload{Alone: true, Condition: Corrupt}, AskStore, flushed},
	{"--recover=never starts a valid volume without asking", Examine, never, Examined, Payload{Alone: true, Condition: Valid}, Ready, nil},
	{"--recover=never asks about an empty one, which may be a loss", Examine, never, Examined, Payload{Alone: true, Condition: Empty}, AskStore, flushed},
	{"--recover=never asks about a broken one, to say what could be had", Examine, never, Examined, Payload{Alone: true, Condition: Corrupt}, AskStore, flushed},
	{"a restore that is asked for counts in spite of --recover=never", Examine, never, Examined, Payload{Alone: true, Condition: Valid, Asked: true}, AskStore, flushed},

	// AskStore: no answer
	{"a valid volume waits for the store, which may know better", AskStore, asVolume(Valid), StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"so does an empty one", AskStore, asVolume(Empty), StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"so does a broken one", AskStore, asVolume(Corrupt), StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"a valid volume is served after a while", AskStore, asVolume(Valid), StoreSilent, Payload{Waited: true}, Ready, nil},
	{"an empty one is not", AskStore, asVolume(Empty), StoreSilent, Payload{Waited: true}, AskStore, []Action{PaceStore}},
	{"nor is a broken one", AskStore, asVolume(Corrupt), StoreSilent, Payload{Waited: true}, AskStore, []Action{PaceStore}},
	{"nor does a restore that is asked for wait less", AskStore, Facts{Alone: true, Store: true, Condition: Valid, Asked: true}, StoreSilent, Payload{Waited: true}, AskStore, []Action{PaceStore}},
	{"--recover=never does not wait", AskStore, asNever(Empty), StoreSilent, Payload{}, Refused, nil},
	{"the store is asked again", AskStore, alone, Elapsed, Payload{}, AskStore, flushed},

	// AskStore: backups that go on
	{"a cluster that lives keeps its store", AskStore, asVolume(Empty), Alive, Payload{}, AskStore, []Action{PaceStore}},
	{"several: its members may be back", AskStore, gone(Empty, peers.Founding), Alive, Payload{}, AskPeers, askAgain},
	{"several: also if all ask", AskStore, Facts{Peers: true, Store: true, Asked: true, Listing: peers.Asking, Heard: true}, Alive, Payload{}, AskPeers, askAgain},
	{"several: not before they were asked", AskStore, together(Valid), Alive, Payload{}, AskStore, []Action{PaceStore}},

	// AskStore: another cluster's
	{"another cluster's store is refused by a valid volume", AskStore, asVolume(Valid), Answered, Payload{Owner: Others, Kept: true}, Refused, nil},
	{"also if a restore is asked for", AskStore, asVolume(Valid), Answered, Payload{Owner: Others, Kept: true, Asked: true}, Refused, nil},
	{"and if its target is not kept", AskStore, asVolume(Corrupt), Answered, Payload{Owner: Others, Asked: true}, Refused, nil},
	{"another owner's store is refused by an empty volume", AskStore, asVolume(Empty), Answered, Payload{Owner: NotOwned, Kept: true}, Refused, nil},
	{"also if a restore is asked for", AskStore, asVolume(Empty), Answered, Payload{Owner: NotOwned, Kept: true, Asked: true}, Refused, nil},
	{"a founded store is gone on with", AskStore, asVolume(Empty), Answered, Payload{Owner: Founded}, Ready, nil},
	{"a volume that names no cluster does not go on with a store that has one", AskStore, asVolume(Valid), Answered, Payload{Owner: Unclaimed, Kept: true}, Refused, nil},
	{"unless a person has named that", AskStore, asVolume(Valid), Answered, Payload{Owner: Adopted, Kept: true}, Adopt, []Action{TakeStore}},

	// Adopt
	{"the data go on in the store", Adopt, alone, Taken, Payload{}, Ready, nil},
	{"a store that is silent is asked again", Adopt, alone, StoreSilent, Payload{}, AskStore, []Action{PaceStore}},

	// AskStore: the column of a member alone, each cell
	{"valid, nothing kept: start", AskStore, asVolume(Valid), Answered, nothing, Ready, nil},
	{"valid, not behind: start", AskStore, asVolume(Valid), Answered, kept, Ready, nil},
	{"valid, not behind, no chain yet: start", AskStore, asVolume(Valid), Answered, Payload{Owner: Ours}, Ready, nil},
	{"valid, store not believed: start", AskStore, asVolume(Valid), Answered, unread, Ready, nil},
	{"broken, store not believed: refuse", AskStore, asVolume(Corrupt), Answered, unread, Refused, nil},
	{"empty, store not believed: no new cluster", AskStore, asVolume(Empty), Answered, unread, Refused, nil},
	{"valid, store not believed: nothing is gone back to", AskStore, asVolume(Valid), Answered, Payload{Owner: Unknown, Asked: true}, Refused, nil},
	{"what the store says of itself is damaged", AskStore, alone, Disbelieved, Payload{}, Refused, nil},
	{"several: also if all are here", AskStore, gone(Empty, peers.Founding), Disbelieved, Payload{}, Refused, nil},
	{"valid, behind: restore", AskStore, asVolume(Valid), Answered, ahead, MakeRoom, bringBack},
	{"valid, behind, no chain: refuse", AskStore, asVolume(Valid), Answered, certificate, Refused, nil},
	{"broken, chain: restore", AskStore, asVolume(Corrupt), Answered, kept, MakeRoom, bringBack},
	{"broken, no chain: refuse", AskStore, asVolume(Corrupt), Answered, Payload{Owner: Ours}, Refused, nil},
	{"broken, nothing kept: refuse", AskStore, asVolume(Corrupt), Answered, nothing, Refused, nil},
	{"empty, chain: restore", AskStore, asVolume(Empty), Answered, ahead, MakeRoom, bringBack},
	{"empty, certificate without a chain: refuse, for new is said once", AskStore, asVolume(Empty), Answered, certificate, Refused, nil},
	{"empty, no certificate: new", AskStore, asVolume(Empty), Answered, nothing, Ready, nil},

	// AskStore: --recover=never
	{"never: broken data stay, and what could be had is said", AskStore, asNever(Corrupt), Answered, kept, Refused, nil},
	{"never: lost data stay lost, and no new cluster is begun", AskStore, asNever(Empty), Answered, ahead, Refused, nil},
	{"never: an empty volume without a certificate is a new cluster", AskStore, asNever(Empty), Answered, nothing, Ready, nil},
	{"never: the id was used, so a valid volume starts", AskStore, asNever(Valid), Answered, kept, Ready, nil},

	// AskStore: a restore that is asked for
	{"what a valid volume has comes into the store before it goes back", AskStore, asVolume(Valid), Answered, asked, Flush, []Action{TellLoss, FlushVolume}},
	{"of a broken one nothing can be read", AskStore, asVolume(Corrupt), Answered, asked, MakeRoom, bringBack},
	{"of an empty one neither", AskStore, asVolume(Empty), Answered, asked, MakeRoom, bringBack},
	{"a target that is not kept moves nothing", AskStore, asVolume(Valid), Answered, Payload{Owner: Ours, Asked: true}, Refused, nil},
	{"nor is what nobody is known to have written gone back to", AskStore, asVolume(Corrupt), Answered, Payload{Owner: Nobody, Kept: true, Asked: true}, Refused, nil},
	{"nor does one in a store that has nothing", AskStore, asVolume(Empty), Answered, Payload{Owner: Nobody, Asked: true}, Refused, nil},

	// Decide: a result is carried out, whatever else is known
	{"the peers are asked", Decide, alone, ConsultPeers, Payload{}, AskPeers, []Action{AskThePeers}},
	{"or waited for", Decide, Facts{Peers: true, Heard: true}, Wait, Payload{}, AskPeers, askAgain},
	{"the store is waited for where they were not heard", Decide, Facts{Peers: true, Store: true}, Wait, Payload{}, AskStore, []Action{PaceStore}},
	{"what all have brought is looked for anew, also where they were not heard since", Decide, Facts{Peers: true}, RestoreData, Payload{}, MakeRoom, restoreNow},
	{"or joined again", Decide, alone, Rejoin, Payload{}, Ready, []Action{AdoptCluster}},
	{"what stands in the place of the data makes way", Decide, Facts{Alone: true, Remains: true}, Rejoin, Payload{}, GiveWay, moveAway},
	{"what the volume has comes into the store", Decide, alone, FlushFirst, Payload{}, Flush, []Action{TellLoss, FlushVolume}},
	{"what cannot be is declined", Decide, alone, Decline, Payload{}, Refused, nil},
	{"also where all ask", Decide, Facts{Asked: true, Listing: peers.Asking}, Decline, Payload{}, Refused, nil},

	// On the way
	{"several: the others are heard again", Flush, together(Valid), Flushed, Payload{}, AskPeers, []Action{AskThePeers}},
	{"several: whatever else is known", Flush, Facts{Condition: Valid}, Flushed, Payload{}, AskPeers, []Action{AskThePeers}},
	{"flushed or not, it is set aside later", Flush, alone, Flushed, Payload{Err: assert.AnError}, MakeRoom, []Action{FindEnd, TellLoss, MeasureRoom}},
	{"a store that does not tell what was brought is asked again", MakeRoom, alone, StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"with room it is built", MakeRoom, alone, RoomEnough, Payload{}, Build, []Action{BuildData}},
	{"without room nothing is fetched", MakeRoom, alone, RoomLacking, Payload{}, Refused, nil},
	{"what is built is proved", Build, alone, Built, Payload{}, Prove, []Action{ProveData}},
	{"a store that goes away is asked again", Build, alone, StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"what is missing may come: it is looked for again before anything older is taken", weighing, alone, Missing, Payload{}, AskStore, []Action{PaceStore}},
	{"what nobody trusts is not damaged: nothing older is taken", weighing, alone, KeysLacking, Payload{}, Refused, nil},
	{"what waits and cannot be brought is for people: a restore would lose it", AskStore, alone, Stuck, Payload{}, Refused, nil},
	{"nor where nothing else is trusted", AskStore, alone, KeysLacking, Payload{}, Refused, nil},
	{"a volume that becomes full is no damaged backup", Build, alone, RoomLacking, Payload{}, Refused, nil},
	{"damaged backups are refused", Build, alone, Unbuildable, Payload{}, Refused, nil},
	{"one of several is not made a cluster of one, unless somebody says so", Build, alone, Grown, Payload{}, Refused, []Action{DropUnfinished}},
	{"the position is durable before the claim", Prove, alone, Proved, Payload{}, Claim, []Action{TellPeers, NotePosition, ClaimGeneration}},
	{"what is not valid is never claimed", Prove, alone, Unproved, Payload{}, Refused, []Action{ForgetClaim}},
	{"good data are not given up for another history", Prove, alone, Diverged, Payload{}, Refused, []Action{ForgetClaim, DropUnfinished}},
	{"only what is claimed takes the place", Claim, alone, Claimed, Payload{}, SetAside, []Action{SetVolumeAside}},
	{"who comes second begins again", Claim, alone, ClaimLost, Payload{}, Examine, []Action{ForgetClaim, DropUnfinished, ValidateVolume}},
	{"a claim that got no answer is made again", Claim, alone, StoreSilent, Payload{}, Claim, []Action{PaceStore}},
	{"whoever is missing when all are called once more is waited for", Claim, alone, PeersSilent, Payload{}, Claim, askAgain},
	{"after a while", Claim, alone, Elapsed, Payload{}, Claim, []Action{ClaimGeneration}},
	{"the old data are out of the way before the new ones come", SetAside, alone, Moved, Payload{}, Install, []Action{InstallData, Remember}},
	{"restored data may be opened", Install, alone, Installed, Payload{}, Ready, nil},
	{"what was asked for is done", Install, Facts{Alone: true, Asked: true}, Installed, Payload{}, Ready, nil},
	{"what is asked for since is done first", Install, alone, Installed, Payload{Asked: true}, Examine, []Action{ValidateVolume}},
	{"also if all have asked for the one before", Install, Facts{Listing: peers.Asking}, Installed, Payload{Asked: true}, Examine, []Action{ValidateVolume}},
	{"whatever was kept of what was asked for before", Install, Facts{Alone: true, Owner: Ours, Kept: true}, Installed, Payload{Asked: true}, Examine, []Action{ValidateVolume}},
	{"what the volume cannot do ends the run", working, alone, Broke, Payload{}, Refused, nil},
}
