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
	payload Facts
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

type rulesOf = statemachine.Rules[Facts, Facts]

// suite is what is tested: the machine's rules, and those that it decides by.
type suite struct {
	*rulesOf
	decisions []rule
}

var program = suite{NewRules(Table, Elsewhere), rules}

// steps are what an event leads to: where that is a decision, the result follows at once, and says why.
func (s suite) steps(from State, given Facts, on Event, payload Facts) []statemachine.Decision {
	core, first := s.Step(statemachine.Core[Facts]{State: from, Facts: given}, on, payload)
	if first.Row < 0 || first.To != Decide {
		return []statemachine.Decision{first}
	}
	decided := decideBy(s.decisions, core.Facts.caseOf())
	_, second := s.Step(core, decided.Result, Facts{})
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
	_, decision := rules.Step(statemachine.Core[Facts]{State: state}, event, Facts{})
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
	tested.AssertVocabulary(t, append(slices.Collect(maps.Keys(work)), PaceStore, PacePeers)...)
}

// What a member of several finds on its volume, and what the others answer.
var (
	ofPeers  = func(c VolumeState) Facts { return Facts{Peers: true, Volume: c, Remains: c != VolumeEmpty} }
	unborn   = Facts{Peers: true, Volume: VolumeEmpty, Remains: true}
	stored   = Facts{Peers: true, Volume: VolumeEmpty, Store: true}
	ofNever  = Facts{Peers: true, Volume: VolumeEmpty, Never: true}
	told     = func(l Listing) Facts { return Facts{Listing: l, Free: true} }
	hindered = func(l Listing) Facts { return Facts{Listing: l, Err: assert.AnError} }
	outdated = Facts{Listing: peers.Started, Outdated: true, Free: true}
	lagging  = func(l Listing) Facts { return Facts{Listing: l, Outdated: true, Free: true} }
	gone     = func(c VolumeState, l Listing) Facts {
		return Facts{Peers: true, Store: true, Volume: c, Remains: c != VolumeEmpty, Listing: l}
	}
	has = func(c VolumeState) Facts {
		return Facts{Peers: true, Store: true, Volume: c, Told: StoreOurs}
	}
	putBack  = Facts{Peers: true, Store: true, Volume: VolumeValid, Remains: true, Listing: peers.Gone, Outdated: true}
	together = func(c VolumeState) Facts { return Facts{Peers: true, Store: true, Volume: c, Asked: true} }
	unnamed  = Facts{Store: true, Volume: VolumeEmpty}
	anonym   = Facts{Peers: true, Store: true, Volume: VolumeValid, Unidentified: true}
	flushed  = []Action{FlushSpool, AskTheStore}
	moveAway = []Action{TellReturn, SetVolumeAside}
	askAgain = []Action{PacePeers}
)

var sentencesOfPeers = []sentence{
	// Resume: what an earlier run left
	{"a run first looks for one that was cut off", Resume, alone, Begun, Facts{}, Resume, []Action{ReadPosition}},
	{"one that claimed nothing is begun again", Resume, alone, NothingBegun, Facts{}, Examine, []Action{DropUnfinished, ValidateVolume}},
	{"one that may have claimed is for people where no store tells", Resume, Facts{Peers: true}, ClaimFound, Facts{}, Refused, nil},
	{"also if it is alone", Resume, Facts{Alone: true}, ClaimFound, Facts{}, Refused, nil},
	{"one that may have claimed goes on with what it built", Resume, alone, ClaimFound, Facts{}, Prove, []Action{ProveData}},
	{"one that has installed only has to remember it", Resume, alone, InstallFound, Facts{}, Install, []Action{Remember}},

	// Examine: a member of several
	{"a valid member of several starts as ever", Examine, Facts{}, Examined, Facts{Volume: VolumeValid}, Ready, nil},
	{"an empty member of several starts as ever", Examine, Facts{}, Examined, Facts{Volume: VolumeEmpty}, Ready, nil},
	{"a broken member of several is refused as ever", Examine, Facts{}, Examined, Facts{Volume: VolumeCorrupt}, Refused, nil},
	{"a member of several cannot go back alone", Examine, Facts{}, Examined, Facts{Volume: VolumeValid, Asked: true}, Refused, nil},
	{"nor if it is broken", Examine, Facts{}, Examined, Facts{Volume: VolumeCorrupt, Asked: true}, Refused, nil},

	{"a store may know better than one whose peers are not named", Examine, Facts{Store: true}, Examined, Facts{Volume: VolumeEmpty}, AskStore, flushed},
	{"but restores nothing to one, as the others would not go back", Examine, Facts{Store: true}, Examined, Facts{Volume: VolumeCorrupt}, Refused, nil},
	{"one that has data is not compared", Examine, Facts{Store: true}, Examined, Facts{Volume: VolumeValid}, Ready, nil},
	{"or joins a cluster that exists", Examine, Facts{Store: true}, Examined, Facts{Volume: VolumeEmpty, Joins: true}, Ready, nil},
	{"--recover=never begins it no more a second time", Examine, Facts{Store: true, Never: true}, Examined, Facts{Volume: VolumeEmpty}, AskStore, flushed},

	{"one whose peers are named asks them", Examine, Facts{}, Examined, Facts{Volume: VolumeEmpty, Peers: true}, AskPeers, []Action{AskThePeers}},
	{"so does one with valid data, which may have been put back", Examine, Facts{}, Examined, Facts{Volume: VolumeValid, Peers: true}, AskPeers, []Action{AskThePeers}},
	{"so does a broken one", Examine, Facts{}, Examined, Facts{Volume: VolumeCorrupt, Peers: true}, AskPeers, []Action{AskThePeers}},
	{"--recover=never starts valid data as ever", Examine, Facts{Never: true}, Examined, Facts{Volume: VolumeValid, Peers: true}, Ready, nil},
	{"--recover=never refuses broken data as ever", Examine, Facts{Never: true}, Examined, Facts{Volume: VolumeCorrupt, Peers: true}, Refused, nil},
	{"--recover=never asks about an empty volume, which must not be begun anew", Examine, Facts{Never: true}, Examined, Facts{Volume: VolumeEmpty, Peers: true}, AskPeers, []Action{AskThePeers}},
	{"without a store there is nothing to go back to", Examine, Facts{}, Examined, Facts{Volume: VolumeEmpty, Peers: true, Asked: true}, Refused, nil},
	{"whatever they have said", Examine, Facts{Listing: peers.Asking}, Examined, Facts{Volume: VolumeValid, Asked: true}, Refused, nil},
	{"nor with others that are not named", Examine, Facts{Store: true}, Examined, Facts{Volume: VolumeValid, Asked: true}, Refused, nil},
	{"several go back together: the store comes first", Examine, Facts{Store: true}, Examined, Facts{Volume: VolumeValid, Peers: true, Asked: true}, AskStore, flushed},
	{"also with --recover=never", Examine, Facts{Store: true, Never: true}, Examined, Facts{Volume: VolumeEmpty, Peers: true, Asked: true}, AskStore, flushed},

	// AskPeers: valid data
	{"data that the others know are started", AskPeers, ofPeers(VolumeValid), PeersTold, told(peers.Started), Ready, nil},
	{"also if nobody answers", AskPeers, ofPeers(VolumeValid), PeersTold, told(peers.Unknown), Ready, nil},
	{"or if they have removed the member", AskPeers, ofPeers(VolumeValid), PeersTold, told(peers.Unlisted), Ready, nil},
	{"data that were put back make way", AskPeers, ofPeers(VolumeValid), PeersTold, outdated, GiveWay, moveAway},
	{"but not while something is in the way", AskPeers, ofPeers(VolumeValid), PeersTold, Facts{Listing: peers.Started, Outdated: true}, AskPeers, askAgain},

	{"data that the store has more than are not opened alone", AskPeers, ofPeers(VolumeValid), PeersTold, lagging(peers.Unknown), AskPeers, askAgain},
	{"nor with one that is no quorum", AskPeers, ofPeers(VolumeValid), PeersTold, lagging(peers.Claimed), AskPeers, askAgain},

	// AskPeers: broken data
	{"broken data make way where the others have all of them", AskPeers, ofPeers(VolumeCorrupt), PeersTold, told(peers.Started), GiveWay, moveAway},
	{"or where the member was added since", AskPeers, ofPeers(VolumeCorrupt), PeersTold, told(peers.Added), GiveWay, moveAway},
	{"or removed", AskPeers, ofPeers(VolumeCorrupt), PeersTold, told(peers.Unlisted), GiveWay, moveAway},
	{"but not while something is in the way", AskPeers, ofPeers(VolumeCorrupt), PeersTold, hindered(peers.Started), AskPeers, askAgain},
	{"without a quorum they stay where they are", AskPeers, ofPeers(VolumeCorrupt), PeersTold, told(peers.Unknown), AskPeers, askAgain},
	{"also if one of the others knows the member", AskPeers, ofPeers(VolumeCorrupt), PeersTold, told(peers.Claimed), AskPeers, askAgain},
	{"broken data of a member that never started are for people", AskPeers, ofPeers(VolumeCorrupt), PeersTold, told(peers.Expected), Refused, nil},

	// AskPeers: no data
	{"a member that was lost leaves under its old identity", AskPeers, ofPeers(VolumeEmpty), PeersTold, told(peers.Started), Leave, []Action{TellReturn, RemoveMember}},
	{"as soon as nothing is in the way", AskPeers, ofPeers(VolumeEmpty), PeersTold, hindered(peers.Started), AskPeers, askAgain},
	{"one that is not listed is taken in", AskPeers, ofPeers(VolumeEmpty), PeersTold, told(peers.Unlisted), Enter, []Action{TellReturn, AddMember}},
	{"one at a time", AskPeers, ofPeers(VolumeEmpty), PeersTold, hindered(peers.Unlisted), AskPeers, askAgain},
	{"one that was added joins", AskPeers, ofPeers(VolumeEmpty), PeersTold, told(peers.Added), Ready, []Action{AdoptCluster}},
	{"what an etcd left that had just begun makes way first", AskPeers, unborn, PeersTold, told(peers.Added), GiveWay, moveAway},
	{"also if the member is lost", AskPeers, unborn, PeersTold, told(peers.Started), GiveWay, moveAway},
	{"one that never started is founded with the others", AskPeers, ofPeers(VolumeEmpty), PeersTold, told(peers.Expected), Ready, nil},
	{"one of a cluster in which nobody has data is begun as ever", AskPeers, ofPeers(VolumeEmpty), PeersTold, told(peers.Founding), Ready, nil},
	{"while somebody may have data it waits", AskPeers, ofPeers(VolumeEmpty), PeersTold, told(peers.Unknown), AskPeers, askAgain},
	{"a store may know better", AskPeers, stored, PeersTold, told(peers.Founding), AskStore, flushed},
	{"a quorum in which nobody has data begins as ever", AskPeers, ofPeers(VolumeEmpty), PeersTold, told(peers.Partial), Ready, nil},
	{"a store may know better than a quorum", AskPeers, stored, PeersTold, told(peers.Partial), AskStore, flushed},
	{"one that a single peer knows waits for a quorum", AskPeers, ofPeers(VolumeEmpty), PeersTold, told(peers.Claimed), AskPeers, askAgain},
	{"a single member does not wait for any", AskPeers, alone, PeersTold, Facts{}, AskStore, flushed},
	{"so does what nothing is known of", AskPeers, ofPeers(VolumeEmpty), PeersTold, Facts{}, AskPeers, askAgain},
	{"the peers are asked again", AskPeers, alone, Elapsed, Facts{}, AskPeers, []Action{AskThePeers}},

	// AskPeers: --recover=never
	{"never: a lost member is not begun anew", AskPeers, ofNever, PeersTold, told(peers.Started), Refused, nil},
	{"never: nor where one peer knows it", AskPeers, ofNever, PeersTold, told(peers.Claimed), Refused, nil},
	{"never: a first start is one", AskPeers, ofNever, PeersTold, told(peers.Expected), Ready, nil},
	{"never: what nobody knows starts as ever", AskPeers, ofNever, PeersTold, told(peers.Founding), Ready, nil},
	{"never: whoever added the member has configured it", AskPeers, ofNever, PeersTold, told(peers.Added), Ready, nil},
	{"never: nor does it add itself", AskPeers, ofNever, PeersTold, told(peers.Unlisted), Ready, nil},
	{"never: unless a store may know better", AskPeers, Facts{Peers: true, Volume: VolumeEmpty, Never: true, Store: true}, PeersTold, told(peers.Founding), AskStore, flushed},

	// The way back
	{"the others are asked again when the place is free", GiveWay, alone, Moved, Facts{}, AskPeers, []Action{AskThePeers}},
	{"and when the old identity is gone", Leave, alone, Left, Facts{}, AskPeers, []Action{AskThePeers}},
	{"and when that is not known", Leave, alone, PeersSilent, Facts{}, AskPeers, askAgain},
	{"and when the member was taken in", Enter, alone, Entered, Facts{}, AskPeers, []Action{AskThePeers}},
	{"and when that is not known, either", Enter, alone, PeersSilent, Facts{}, AskPeers, askAgain},

	// AskPeers: all are gone, or ask
	{"all gone: the store is asked", AskPeers, gone(VolumeCorrupt, ""), PeersTold, told(peers.Gone), AskStore, flushed},
	{"also by one that has nothing", AskPeers, gone(VolumeEmpty, ""), PeersTold, told(peers.Gone), AskStore, flushed},
	{"all gone, and no store", AskPeers, ofPeers(VolumeCorrupt), PeersTold, told(peers.Gone), Refused, nil},
	{"all still gone when the store was asked: it is restored", AskPeers, has(VolumeEmpty), PeersTold, brought(peers.Founding), MakeRoom, restoreNow},
	{"but not before late mounts had the time to come", AskPeers, has(VolumeEmpty), PeersTold, Facts{Listing: peers.Founding, Free: true, AllBrought: true}, AskPeers, askAgain},
	{"also if some are broken", AskPeers, has(VolumeCorrupt), PeersTold, brought(peers.Gone), MakeRoom, restoreNow},
	{"not if one has data by then", AskPeers, has(VolumeEmpty), PeersTold, told(peers.Unknown), AskPeers, askAgain},
	{"but if it is a cluster by then, that is joined", AskPeers, has(VolumeEmpty), PeersTold, told(peers.Unlisted), Enter, []Action{TellReturn, AddMember}},
	{"all are older than the store: it is asked", AskPeers, gone(VolumeValid, ""), PeersTold, lagging(peers.Gone), AskStore, flushed},
	{"all still older when it was asked: it is restored", AskPeers, has(VolumeValid), PeersTold, Facts{Listing: peers.Gone, Outdated: true, Free: true, AllBrought: true, Settled: true}, MakeRoom, restoreNow},
	{"who has data of use is not gone", AskPeers, gone(VolumeValid, ""), PeersTold, told(peers.Gone), Ready, nil},
	{"all ask: what a valid volume has comes into the store first", AskPeers, together(VolumeValid), PeersTold, told(peers.Asking), Flush, []Action{TellLoss, FlushVolume}},
	{"whatever else is known", AskPeers, Facts{Store: true, Asked: true, Volume: VolumeValid, Told: StoreOurs}, PeersTold, told(peers.Asking), Flush, []Action{TellLoss, FlushVolume}},
	{"all ask: of a broken one nothing can be read", AskPeers, together(VolumeCorrupt), PeersTold, brought(peers.Asking), MakeRoom, restoreNow},
	{"all ask: nor of an empty one", AskPeers, together(VolumeEmpty), PeersTold, brought(peers.Asking), MakeRoom, restoreNow},
	{"all ask: others may have more than the store", AskPeers, together(VolumeCorrupt), PeersTold, told(peers.Asking), AskPeers, askAgain},
	{"all ask: a valid volume has brought what it has", AskPeers, Facts{Store: true, Asked: true, Volume: VolumeValid, Brought: true}, PeersTold, brought(peers.Asking), MakeRoom, restoreNow},
	{"all ask: and waits for the others", AskPeers, Facts{Store: true, Asked: true, Volume: VolumeValid, Brought: true}, PeersTold, told(peers.Asking), AskPeers, askAgain},
	{"all ask: what the others have brought is not all", AskPeers, together(VolumeValid), PeersTold, brought(peers.Asking), Flush, []Action{TellLoss, FlushVolume}},
	{"all gone: others may have more than the store", AskPeers, has(VolumeEmpty), PeersTold, told(peers.Founding), AskPeers, askAgain},
	{"all gone: also if this one is broken", AskPeers, has(VolumeCorrupt), PeersTold, told(peers.Gone), AskPeers, askAgain},
	{"as long as not all ask, they are waited for", AskPeers, together(VolumeValid), PeersTold, told(peers.Unknown), AskPeers, askAgain},
	{"also if they run", AskPeers, together(VolumeValid), PeersTold, told(peers.Started), AskPeers, askAgain},
	{"also if data are lost", AskPeers, together(VolumeEmpty), PeersTold, told(peers.Unlisted), AskPeers, askAgain},
	{"also if all are gone", AskPeers, together(VolumeEmpty), PeersTold, told(peers.Gone), AskPeers, askAgain},
	{"also if nobody has data", AskPeers, together(VolumeEmpty), PeersTold, told(peers.Founding), AskPeers, askAgain},
	{"also if the member is expected", AskPeers, together(VolumeEmpty), PeersTold, told(peers.Expected), AskPeers, askAgain},
	{"also if it is broken", AskPeers, together(VolumeCorrupt), PeersTold, told(peers.Expected), AskPeers, askAgain},
	{"also if it was put back", AskPeers, together(VolumeValid), PeersTold, outdated, AskPeers, askAgain},
	{"who has heard all does not ask the store again", AskPeers, Facts{Asked: true, Store: true, Peers: true, Listing: peers.Asking}, Elapsed, Facts{}, AskPeers, []Action{AskThePeers}},
	{"the store may know by now that it was done", AskPeers, together(VolumeValid), Elapsed, Facts{}, AskStore, []Action{AskTheStore}},
}

// What a member that is alone finds on its volume, and what its store answers.
var (
	alone       = Facts{Alone: true, Store: true}
	never       = Facts{Alone: true, Store: true, Never: true}
	asVolume    = func(c VolumeState) Facts { return Facts{Alone: true, Store: true, Volume: c} }
	asNever     = func(c VolumeState) Facts { return Facts{Alone: true, Store: true, Volume: c, Never: true} }
	nothing     = Facts{Told: StoreEmpty}
	unread      = Facts{Told: StoreUnverified}
	kept        = Facts{Told: StoreOurs}
	ahead       = Facts{Told: StoreOurs, Behind: true}
	certificate = Facts{Told: StoreBare, Behind: true}
	asked       = Facts{Told: StoreOurs, Asked: true}
	bringBack   = []Action{TellLoss, MeasureRoom}
	restoreNow  = []Action{FindEnd, TellLoss, MeasureRoom}
	brought     = func(l Listing) Facts { return Facts{Listing: l, Free: true, AllBrought: true, Settled: true} }
)

var sentencesOfStore = []sentence{
	// AskStore: several
	{"several: without a certificate it is a new cluster", AskStore, gone(VolumeEmpty, peers.Founding), Answered, nothing, Ready, nil},
	{"several: with one, and a backup, it comes back", AskStore, gone(VolumeEmpty, peers.Founding), Answered, ahead, AskPeers, []Action{AskThePeers}},
	{"several: whatever they have brought", AskStore, Facts{Peers: true, Volume: VolumeEmpty, Listing: peers.Gone, AllBrought: true}, Answered, ahead, AskPeers, []Action{AskThePeers}},
	{"several: also if some are broken", AskStore, gone(VolumeEmpty, peers.Gone), Answered, ahead, AskPeers, []Action{AskThePeers}},
	{"several: also if this one is", AskStore, gone(VolumeCorrupt, peers.Gone), Answered, kept, AskPeers, []Action{AskThePeers}},
	{"several: also if all are older", AskStore, putBack, Answered, ahead, AskPeers, []Action{AskThePeers}},
	{"several: a quorum without data begins a new cluster", AskStore, gone(VolumeEmpty, peers.Partial), Answered, nothing, Ready, nil},
	{"several: and restores nothing, as the rest may have data", AskStore, gone(VolumeEmpty, peers.Partial), Answered, ahead, AskPeers, askAgain},
	{"several: also without a backup", AskStore, gone(VolumeEmpty, peers.Partial), Answered, certificate, AskPeers, askAgain},
	{"several: --recover=never waits for nobody", AskStore, Facts{Peers: true, Volume: VolumeEmpty, Never: true, Listing: peers.Partial}, Answered, ahead, Refused, nil},
	{"several: the rest is waited for", AskPeers, has(VolumeEmpty), PeersTold, told(peers.Partial), AskPeers, askAgain},
	{"several: without a backup it is refused", AskStore, gone(VolumeEmpty, peers.Founding), Answered, certificate, Refused, nil},
	{"several: broken data do not become a new cluster", AskStore, gone(VolumeEmpty, peers.Gone), Answered, nothing, Refused, nil},
	{"several: nor by whom they were", AskStore, gone(VolumeCorrupt, peers.Gone), Answered, nothing, Refused, nil},
	{"several: another cluster's", AskStore, gone(VolumeCorrupt, peers.Gone), Answered, Facts{Told: StoreOthers}, Refused, nil},
	{"several: another owner's", AskStore, gone(VolumeEmpty, peers.Founding), Answered, Facts{Told: StoreNotOwned}, Refused, nil},
	{"several: a founded one is gone on with", AskStore, gone(VolumeEmpty, peers.Founding), Answered, Facts{Told: StoreFounded}, Ready, nil},
	{"several: a volume that names no cluster asks the store for it", AskPeers, anonym, PeersTold, told(peers.Started), AskStore, flushed},
	{"several: also if the others are not named", Examine, Facts{Store: true}, Examined, Facts{Volume: VolumeValid, Unidentified: true}, AskStore, flushed},
	{"several: --recover=never asks nobody for it", AskPeers, Facts{Peers: true, Store: true, Volume: VolumeValid, Never: true, Unidentified: true}, PeersTold, told(peers.Started), Ready, nil},
	{"several: where the store is empty it is this cluster's", AskStore, anonym, Answered, nothing, AskPeers, []Action{AskThePeers}},
	{"several: where it has a cluster that is not told to be this one it is refused", AskStore, anonym, Answered, Facts{Told: StoreUnclaimed}, Refused, nil},
	{"several: where it is away it is waited for", AskStore, anonym, Answered, Facts{Told: StoreAway}, AskStore, []Action{PaceStore}},
	{"several: but not for long", AskPeers, Facts{Peers: true, Store: true, Volume: VolumeValid, Unidentified: true, Told: StoreLongAway}, PeersTold, told(peers.Started), Ready, nil},
	{"several: --recover=never does not bring it back", AskStore, Facts{Peers: true, Volume: VolumeEmpty, Never: true, Listing: peers.Founding}, Answered, ahead, Refused, nil},
	{"several: nor wait for the store", AskStore, Facts{Peers: true, Volume: VolumeEmpty, Never: true, Listing: peers.Founding}, Answered, Facts{Told: StoreAway}, Refused, nil},
	{"several: while the store is away the peers are asked, who may come back", AskStore, gone(VolumeEmpty, peers.Founding), Answered, Facts{Told: StoreAway}, AskPeers, askAgain},
	{"several: also if some are broken", AskStore, gone(VolumeCorrupt, peers.Gone), Answered, Facts{Told: StoreAway}, AskPeers, askAgain},
	{"several: before they were asked it is waited for", AskStore, Facts{Peers: true, Asked: true, Volume: VolumeValid}, Answered, Facts{Told: StoreAway}, AskStore, []Action{PaceStore}},
	{"several: what is asked for and kept needs all", AskStore, together(VolumeValid), Answered, asked, AskPeers, []Action{AskThePeers}},
	{"several: not from another owner's", AskStore, together(VolumeEmpty), Answered, Facts{Told: StoreNotOwned, Asked: true}, Refused, nil},
	{"several: what is not kept moves nothing", AskStore, together(VolumeValid), Answered, Facts{Told: StoreBare, Asked: true}, Refused, nil},
	{"several: what was done is not done again", AskStore, together(VolumeValid), Answered, kept, AskPeers, []Action{AskThePeers}},
	{"several: whoever was not there comes from the others", AskStore, together(VolumeEmpty), Answered, ahead, AskPeers, []Action{AskThePeers}},
	{"several: another cluster's is refused before they are asked", AskStore, together(VolumeValid), Answered, Facts{Told: StoreOthers}, Refused, nil},

	// AskStore: several that are not named
	{"unnamed: nothing was ever kept", AskStore, unnamed, Answered, nothing, Ready, nil},
	{"unnamed: new is said once", AskStore, unnamed, Answered, ahead, Refused, nil},
	{"unnamed: also without a backup", AskStore, unnamed, Answered, certificate, Refused, nil},
	{"unnamed: also if it is another owner's", AskStore, unnamed, Answered, Facts{Told: StoreNotOwned}, Refused, nil},
	{"unnamed: a founded one is gone on with", AskStore, unnamed, Answered, Facts{Told: StoreFounded}, Ready, nil},
	{"unnamed: also if the store is not believed", AskStore, unnamed, Answered, unread, Refused, nil},
	{"unnamed: valid data wait for it no longer than others", AskStore, Facts{Store: true, Volume: VolumeValid, Unidentified: true}, Answered, Facts{Told: StoreLongAway}, Ready, nil},
	{"unnamed: nor less", AskStore, Facts{Store: true, Volume: VolumeValid, Unidentified: true}, Answered, Facts{Told: StoreAway}, AskStore, []Action{PaceStore}},
	{"unnamed: the store is waited for", AskStore, unnamed, Answered, Facts{Told: StoreAway}, AskStore, []Action{PaceStore}},

	// Examine: a member alone
	{"without a store valid data start", Examine, Facts{}, Examined, Facts{Alone: true, Volume: VolumeValid}, Ready, nil},
	{"without a store an empty volume is a new cluster", Examine, Facts{}, Examined, Facts{Alone: true, Volume: VolumeEmpty}, Ready, nil},
	{"without a store broken data are for people", Examine, Facts{}, Examined, Facts{Alone: true, Volume: VolumeCorrupt}, Refused, nil},
	{"--recover=never changes nothing about that", Examine, Facts{Never: true}, Examined, Facts{Alone: true, Volume: VolumeCorrupt}, Refused, nil},
	{"nor about that", Examine, Facts{Never: true}, Examined, Facts{Alone: true, Volume: VolumeValid}, Ready, nil},
	{"a valid volume is compared with the store, when that has what waits for it", Examine, alone, Examined, Facts{Alone: true, Volume: VolumeValid}, AskStore, flushed},
	{"so is an empty one", Examine, alone, Examined, Facts{Alone: true, Volume: VolumeEmpty}, AskStore, flushed},
	{"so is a broken one", Examine, alone, Examined, Facts{Alone: true, Volume: VolumeCorrupt}, AskStore, flushed},
	{"--recover=never starts a valid volume without asking", Examine, never, Examined, Facts{Alone: true, Volume: VolumeValid}, Ready, nil},
	{"--recover=never asks about an empty one, which may be a loss", Examine, never, Examined, Facts{Alone: true, Volume: VolumeEmpty}, AskStore, flushed},
	{"--recover=never asks about a broken one, to say what could be had", Examine, never, Examined, Facts{Alone: true, Volume: VolumeCorrupt}, AskStore, flushed},
	{"a restore that is asked for counts in spite of --recover=never", Examine, never, Examined, Facts{Alone: true, Volume: VolumeValid, Asked: true}, AskStore, flushed},

	// AskStore: no answer
	{"a valid volume waits for the store, which may know better", AskStore, asVolume(VolumeValid), Answered, Facts{Told: StoreAway}, AskStore, []Action{PaceStore}},
	{"so does an empty one", AskStore, asVolume(VolumeEmpty), Answered, Facts{Told: StoreAway}, AskStore, []Action{PaceStore}},
	{"so does a broken one", AskStore, asVolume(VolumeCorrupt), Answered, Facts{Told: StoreAway}, AskStore, []Action{PaceStore}},
	{"a valid volume is served after a while", AskStore, asVolume(VolumeValid), Answered, Facts{Told: StoreLongAway}, Ready, nil},
	{"an empty one is not", AskStore, asVolume(VolumeEmpty), Answered, Facts{Told: StoreLongAway}, AskStore, []Action{PaceStore}},
	{"nor is a broken one", AskStore, asVolume(VolumeCorrupt), Answered, Facts{Told: StoreLongAway}, AskStore, []Action{PaceStore}},
	{"nor does a restore that is asked for wait less", AskStore, Facts{Alone: true, Store: true, Volume: VolumeValid, Asked: true}, Answered, Facts{Told: StoreLongAway}, AskStore, []Action{PaceStore}},
	{"--recover=never does not wait", AskStore, asNever(VolumeEmpty), Answered, Facts{Told: StoreAway}, Refused, nil},
	{"the store is asked again", AskStore, alone, Elapsed, Facts{}, AskStore, flushed},

	// AskStore: backups that go on
	{"a cluster that lives keeps its store", AskStore, asVolume(VolumeEmpty), Answered, Facts{Told: StoreInUse}, AskStore, []Action{PaceStore}},
	{"several: its members may be back", AskStore, gone(VolumeEmpty, peers.Founding), Answered, Facts{Told: StoreInUse}, AskPeers, askAgain},
	{"several: also if all ask", AskStore, Facts{Peers: true, Store: true, Asked: true, Listing: peers.Asking, Heard: true}, Answered, Facts{Told: StoreInUse}, AskPeers, askAgain},
	{"several: not before they were asked", AskStore, together(VolumeValid), Answered, Facts{Told: StoreInUse}, AskStore, []Action{PaceStore}},

	// AskStore: another cluster's
	{"another cluster's store is refused by a valid volume", AskStore, asVolume(VolumeValid), Answered, Facts{Told: StoreOthers}, Refused, nil},
	{"also if a restore is asked for", AskStore, asVolume(VolumeValid), Answered, Facts{Told: StoreOthers, Asked: true}, Refused, nil},
	{"and if its target is not kept", AskStore, asVolume(VolumeCorrupt), Answered, Facts{Told: StoreOthers, Asked: true}, Refused, nil},
	{"another owner's store is refused by an empty volume", AskStore, asVolume(VolumeEmpty), Answered, Facts{Told: StoreNotOwned}, Refused, nil},
	{"also if a restore is asked for", AskStore, asVolume(VolumeEmpty), Answered, Facts{Told: StoreNotOwned, Asked: true}, Refused, nil},
	{"a founded store is gone on with", AskStore, asVolume(VolumeEmpty), Answered, Facts{Told: StoreFounded}, Ready, nil},
	{"a volume that names no cluster does not go on with a store that has one", AskStore, asVolume(VolumeValid), Answered, Facts{Told: StoreUnclaimed}, Refused, nil},
	{"unless a person has named that", AskStore, asVolume(VolumeValid), Answered, Facts{Told: StoreAdopted}, Adopt, []Action{TakeStore}},

	// Adopt
	{"the data go on in the store", Adopt, alone, Taken, Facts{}, Ready, nil},
	{"a store that is silent is asked again", Adopt, alone, StoreSilent, Facts{}, AskStore, []Action{PaceStore}},

	// AskStore: the column of a member alone, each cell
	{"valid, nothing kept: start", AskStore, asVolume(VolumeValid), Answered, nothing, Ready, nil},
	{"valid, not behind: start", AskStore, asVolume(VolumeValid), Answered, kept, Ready, nil},
	{"valid, not behind, no chain yet: start", AskStore, asVolume(VolumeValid), Answered, Facts{Told: StoreBare}, Ready, nil},
	{"valid, store not believed: start", AskStore, asVolume(VolumeValid), Answered, unread, Ready, nil},
	{"broken, store not believed: refuse", AskStore, asVolume(VolumeCorrupt), Answered, unread, Refused, nil},
	{"empty, store not believed: no new cluster", AskStore, asVolume(VolumeEmpty), Answered, unread, Refused, nil},
	{"valid, store not believed: nothing is gone back to", AskStore, asVolume(VolumeValid), Answered, Facts{Told: StoreUnverified, Asked: true}, Refused, nil},
	{"what the store says of itself is damaged", AskStore, alone, Answered, Facts{Told: StoreDamaged}, Refused, nil},
	{"several: also if all are here", AskStore, gone(VolumeEmpty, peers.Founding), Answered, Facts{Told: StoreDamaged}, Refused, nil},
	{"valid, behind: restore", AskStore, asVolume(VolumeValid), Answered, ahead, MakeRoom, bringBack},
	{"valid, behind, no chain: refuse", AskStore, asVolume(VolumeValid), Answered, certificate, Refused, nil},
	{"broken, chain: restore", AskStore, asVolume(VolumeCorrupt), Answered, kept, MakeRoom, bringBack},
	{"broken, no chain: refuse", AskStore, asVolume(VolumeCorrupt), Answered, Facts{Told: StoreBare}, Refused, nil},
	{"broken, nothing kept: refuse", AskStore, asVolume(VolumeCorrupt), Answered, nothing, Refused, nil},
	{"empty, chain: restore", AskStore, asVolume(VolumeEmpty), Answered, ahead, MakeRoom, bringBack},
	{"empty, certificate without a chain: refuse, for new is said once", AskStore, asVolume(VolumeEmpty), Answered, certificate, Refused, nil},
	{"empty, no certificate: new", AskStore, asVolume(VolumeEmpty), Answered, nothing, Ready, nil},

	// AskStore: --recover=never
	{"never: broken data stay, and what could be had is said", AskStore, asNever(VolumeCorrupt), Answered, kept, Refused, nil},
	{"never: lost data stay lost, and no new cluster is begun", AskStore, asNever(VolumeEmpty), Answered, ahead, Refused, nil},
	{"never: an empty volume without a certificate is a new cluster", AskStore, asNever(VolumeEmpty), Answered, nothing, Ready, nil},
	{"never: the id was used, so a valid volume starts", AskStore, asNever(VolumeValid), Answered, kept, Ready, nil},

	// AskStore: a restore that is asked for
	{"what a valid volume has comes into the store before it goes back", AskStore, asVolume(VolumeValid), Answered, asked, Flush, []Action{TellLoss, FlushVolume}},
	{"of a broken one nothing can be read", AskStore, asVolume(VolumeCorrupt), Answered, asked, MakeRoom, bringBack},
	{"of an empty one neither", AskStore, asVolume(VolumeEmpty), Answered, asked, MakeRoom, bringBack},
	{"a target that is not kept moves nothing", AskStore, asVolume(VolumeValid), Answered, Facts{Told: StoreBare, Asked: true}, Refused, nil},
	{"nor is what nobody is known to have written gone back to", AskStore, asVolume(VolumeCorrupt), Answered, Facts{Told: StoreEmpty, Asked: true}, Refused, nil},
	{"nor does one in a store that has nothing", AskStore, asVolume(VolumeEmpty), Answered, Facts{Told: StoreEmpty, Asked: true}, Refused, nil},

	// Decide: a result is carried out, whatever else is known
	{"the peers are asked", Decide, alone, ConsultPeers, Facts{}, AskPeers, []Action{AskThePeers}},
	{"or waited for", Decide, Facts{Peers: true, Heard: true}, Wait, Facts{}, AskPeers, askAgain},
	{"the store is waited for where they were not heard", Decide, Facts{Peers: true, Store: true}, Wait, Facts{}, AskStore, []Action{PaceStore}},
	{"what all have brought is looked for anew, also where they were not heard since", Decide, Facts{Peers: true}, RestoreData, Facts{}, MakeRoom, restoreNow},
	{"or joined again", Decide, alone, Rejoin, Facts{}, Ready, []Action{AdoptCluster}},
	{"what stands in the place of the data makes way", Decide, Facts{Alone: true, Remains: true}, Rejoin, Facts{}, GiveWay, moveAway},
	{"what the volume has comes into the store", Decide, alone, FlushFirst, Facts{}, Flush, []Action{TellLoss, FlushVolume}},
	{"what cannot be is declined", Decide, alone, Decline, Facts{}, Refused, nil},
	{"also where all ask", Decide, Facts{Asked: true, Listing: peers.Asking}, Decline, Facts{}, Refused, nil},

	// On the way
	{"several: the others are heard again", Flush, together(VolumeValid), Flushed, Facts{}, AskPeers, []Action{AskThePeers}},
	{"several: whatever else is known", Flush, Facts{Volume: VolumeValid}, Flushed, Facts{}, AskPeers, []Action{AskThePeers}},
	{"flushed or not, it is set aside later", Flush, alone, Flushed, Facts{Err: assert.AnError}, MakeRoom, []Action{FindEnd, TellLoss, MeasureRoom}},
	{"a store that does not tell what was brought is asked again", MakeRoom, alone, StoreSilent, Facts{}, AskStore, []Action{PaceStore}},
	{"with room it is built", MakeRoom, alone, RoomEnough, Facts{}, Build, []Action{BuildData}},
	{"without room nothing is fetched", MakeRoom, alone, RoomLacking, Facts{}, Refused, nil},
	{"what is built is proved", Build, alone, Built, Facts{}, Prove, []Action{ProveData}},
	{"a store that goes away is asked again", Build, alone, StoreSilent, Facts{}, AskStore, []Action{PaceStore}},
	{"what is missing may come: it is looked for again before anything older is taken", weighing, alone, Missing, Facts{}, AskStore, []Action{PaceStore}},
	{"what nobody trusts is not damaged: nothing older is taken", weighing, alone, Answered, Facts{Told: StoreLocked}, Refused, nil},
	{"what waits and cannot be brought is for people: a restore would lose it", AskStore, alone, Stuck, Facts{}, Refused, nil},
	{"nor where nothing else is trusted", AskStore, alone, Answered, Facts{Told: StoreLocked}, Refused, nil},
	{"a volume that becomes full is no damaged backup", Build, alone, RoomLacking, Facts{}, Refused, nil},
	{"damaged backups are refused", Build, alone, Unbuildable, Facts{}, Refused, nil},
	{"one of several is not made a cluster of one, unless somebody says so", Build, alone, Grown, Facts{}, Refused, []Action{DropUnfinished}},
	{"the position is durable before the claim", Prove, alone, Proved, Facts{}, Claim, []Action{TellPeers, NotePosition, ClaimGeneration}},
	{"what is not valid is never claimed", Prove, alone, Unproved, Facts{}, Refused, []Action{ForgetClaim}},
	{"good data are not given up for another history", Prove, alone, Diverged, Facts{}, Refused, []Action{ForgetClaim, DropUnfinished}},
	{"only what is claimed takes the place", Claim, alone, Claimed, Facts{}, SetAside, []Action{SetVolumeAside}},
	{"who comes second begins again", Claim, alone, ClaimLost, Facts{}, Examine, []Action{ForgetClaim, DropUnfinished, ValidateVolume}},
	{"a claim that got no answer is made again", Claim, alone, StoreSilent, Facts{}, Claim, []Action{PaceStore}},
	{"whoever is missing when all are called once more is waited for", Claim, alone, PeersSilent, Facts{}, Claim, askAgain},
	{"after a while", Claim, alone, Elapsed, Facts{}, Claim, []Action{ClaimGeneration}},
	{"the old data are out of the way before the new ones come", SetAside, alone, Moved, Facts{}, Install, []Action{InstallData, Remember}},
	{"restored data may be opened", Install, alone, Installed, Facts{}, Ready, nil},
	{"what was asked for is done", Install, Facts{Alone: true, Asked: true}, Installed, Facts{}, Ready, nil},
	{"what is asked for since is done first", Install, alone, Installed, Facts{Asked: true}, Examine, []Action{ValidateVolume}},
	{"also if all have asked for the one before", Install, Facts{Listing: peers.Asking}, Installed, Facts{Asked: true}, Examine, []Action{ValidateVolume}},
	{"whatever was kept of what was asked for before", Install, Facts{Alone: true, Told: StoreOurs}, Installed, Facts{Asked: true}, Examine, []Action{ValidateVolume}},
	{"what the volume cannot do ends the run", working, alone, Broke, Facts{}, Refused, nil},
}
