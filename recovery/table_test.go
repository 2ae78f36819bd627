package recovery

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
	"etcd-wrapper/statemachine/statemachinetest"
)

// sentence is one expectation of recovery: standing in a state and knowing one of these facts, when On happens with one of
// these payloads, the machine goes to an end. It is written down here a second time on purpose: a change of the table must be
// a change of a sentence that a reviewer reads.
type sentence struct {
	story string
	in    statemachine.Source
	given given
	on    Event
	with  given
	leads end
}

// row is a sentence of a state and an event that has many.
type row struct {
	story       string
	given, with given
	leads       end
}

func when(in State, on Event, rows []row) (all []sentence) {
	for _, r := range rows {
		all = append(all, sentence{r.story, in, r.given, on, r.with, r.leads})
	}
	return all
}

// given are facts of which a sentence holds alike.
type given interface{ each() []Facts }

func (f Facts) each() []Facts { return []Facts{f} }

type these []Facts

func (t these) each() []Facts { return t }

func each[T any](of func(T) Facts, values ...T) (all these) {
	for _, value := range values {
		all = append(all, of(value))
	}
	return all
}

// end is where a step leads, what is done there, and a part of what people are told if that tells it from others.
type end struct {
	to  State
	do  []Action
	why string
}

func (e end) because(why string) end {
	e.why = why
	return e
}

var sentences = slices.Concat(whenExamined, whenPeersTold, whenAnswered, otherwise)

// failures say how rules differ from the sentence.
func (s sentence) failures(by suite) (failures []string) {
	for from, decisions := range s.steps(by) {
		if differs := s.leads.differs(decisions[len(decisions)-1]); differs != "" {
			failures = append(failures, fmt.Sprintf("%s/%s: %s", from, s.story, differs))
		}
	}
	return failures
}

// steps are those that the sentence is about, by the state in which they begin.
func (s sentence) steps(by suite) iter.Seq2[State, []statemachine.Decision] {
	return func(yield func(State, []statemachine.Decision) bool) {
		for _, from := range s.in.States() {
			for _, given := range s.given.each() {
				for _, with := range s.with.each() {
					if !yield(from, by.steps(from, given, s.on, with)) {
						return
					}
				}
			}
		}
	}
}

func (e end) differs(decision statemachine.Decision) string {
	switch {
	case decision.Row < 0:
		return fmt.Sprintf("no row answers; the event is %sed", decision.Answer)
	case decision.To != e.to:
		return fmt.Sprintf("goes to %s, not to %s", decision.To, e.to)
	case !slices.Equal(decision.Do, e.do):
		return fmt.Sprintf("does %q, not %q", decision.Do, e.do)
	case !strings.Contains(decision.Why, e.why):
		return fmt.Sprintf("says %q, and not %q", decision.Why, e.why)
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
	decided := evaluateRules(s.decisions, core.Facts.caseOf())
	_, second := s.Step(core, decided.Result, Facts{})
	second.Why = decided.Why
	return []statemachine.Decision{first, second}
}

func TestEveryStepOfRecovery(t *testing.T) {
	for _, s := range sentences {
		t.Run(s.story, func(t *testing.T) { assert.Empty(t, s.failures(program)) })
	}
}

func TestEveryRowIsTakenAndEveryGuardIsRefused(t *testing.T) {
	taken, refused := map[int]bool{}, map[int]bool{}
	for _, s := range sentences {
		for _, decisions := range s.steps(program) {
			for _, decision := range decisions {
				row := Table[decision.Row]
				taken[decision.Row] = true
				for i := decision.Row - 1; i >= 0 && Table[i].From == row.From && Table[i].On == row.On; i-- {
					refused[i] = true
				}
			}
		}
	}
	for i, row := range Table {
		assert.True(t, taken[i], "no sentence takes the row %s, %s [%s]", row.From, row.On, row.When)
		assert.True(t, refused[i] || row.When == statemachine.Always, "no sentence is refused by the guard of %s, %s [%s]", row.From, row.On, row.When)
	}
}

// Where there is no row: at the end nothing matters any more, all else cannot come.
func TestWhatHasNoRowIsIgnoredOrRejected(t *testing.T) {
	assert.Empty(t, resting.Check(Table, Elsewhere))
}

var resting = statemachinetest.Suite[Facts, Facts]{Machine: tested, Final: Ready, Rest: func(state State, _ Event) statemachine.Answer {
	if state == Ready {
		return statemachine.Ignore
	}
	return statemachine.Reject
}}

// stepFailures is everything that the tests above have against a table.
func stepFailures(table []Row, elsewhere []statemachine.Default) []string {
	return append(suite{NewRules(table, elsewhere), rules}.failures(), resting.Check(table, elsewhere)...)
}

// failures are what the sentences have against a suite.
func (s suite) failures() (failures []string) {
	for _, told := range sentences {
		failures = append(failures, told.failures(s)...)
	}
	return failures
}

// tested is the machine for what every machine's tests ask.
var tested = statemachinetest.Machine{Table: Table, Elsewhere: Elsewhere, States: States, Guards: slices.Collect(maps.Keys(conditions))}

func TestTheTableIsWhole(t *testing.T) {
	tested.AssertGuards(t)
	tested.AssertLegality(t)
	statemachinetest.AssertGrouped(t, written)
}

func TestEveryStateIsReachedAndLeadsToAnEnd(t *testing.T) {
	assert.ElementsMatch(t, tested.StateNames(), tested.Reachable(Resume))
	for _, state := range tested.StateNames() {
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
			assert.True(t, tested.Has(row.To, Elapsed), "%s sets a timer that %s does not answer", row.On, row.To)
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
			assert.NotEqual(t, by[row.On], waysOut[row.On] != "", "%s, %s [%s]", row.From, row.On, row.When)
		}
	}
	for is := range waysOut {
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
	tested.AssertNames(t, append(slices.Collect(maps.Keys(newRun(t.Context(), &environment{}, Member{}, nil, false).actions)), DecideNow, PaceStore, PacePeers)...)
}

// What a member of several finds on its volume, and what the others answer.
var (
	ofPeers  = func(c VolumeState) Facts { return Facts{Peers: true, Volume: c, Remains: c != VolumeEmpty} }
	unborn   = Facts{Peers: true, Volume: VolumeEmpty, Remains: true}
	stored   = Facts{Peers: true, Volume: VolumeEmpty, Store: true}
	ofNever  = Facts{Peers: true, Volume: VolumeEmpty, Never: true}
	useless  = each(ofPeers, VolumeEmpty, VolumeCorrupt)
	told     = func(l Membership) Facts { return Facts{Listing: l, Free: true} }
	hindered = func(l Membership) Facts { return Facts{Listing: l, Err: assert.AnError} }
	lagging  = func(l Membership) Facts { return Facts{Listing: l, Outdated: true, Free: true} }
	brought  = func(l Membership) Facts { return Facts{Listing: l, Free: true, AllBrought: true, Settled: true} }
	gone     = func(c VolumeState, l Membership) Facts {
		return Facts{Peers: true, Store: true, Volume: c, Remains: c != VolumeEmpty, Listing: l}
	}
	allLost = these{gone(VolumeEmpty, peers.Founding), gone(VolumeEmpty, peers.Gone), gone(VolumeCorrupt, peers.Gone)}
	has     = func(c VolumeState) Facts {
		return Facts{Peers: true, Store: true, Volume: c, Told: StoreOurs}
	}
	noQuorum         = these{told(peers.Unknown), told(peers.Claimed), lagging(peers.Claimed)}
	notAll           = append(each(told, peers.Unknown, peers.Started, peers.Unlisted, peers.Gone, peers.Founding, peers.Expected), each(lagging, peers.Started, peers.Unknown)...)
	justLost         = these{{Listing: peers.Founding, Free: true, AllBrought: true}, {Listing: peers.Founding, AllBrought: true}}
	neverNew         = func(l Membership) Facts { return Facts{Peers: true, Volume: VolumeEmpty, Never: true, Listing: l} }
	hasBrought       = Facts{Peers: true, Volume: VolumeEmpty, Listing: peers.Gone, AllBrought: true}
	unflushed        = these{togetherAnswered(VolumeValid), {Store: true, Asked: true, Volume: VolumeValid, Told: StoreOurs}}
	putBack          = Facts{Peers: true, Store: true, Volume: VolumeValid, Remains: true, Listing: peers.Gone, Outdated: true}
	together         = func(c VolumeState) Facts { return Facts{Peers: true, Store: true, Volume: c, Asked: true} }
	togetherAnswered = func(c VolumeState) Facts {
		return Facts{Peers: true, Store: true, Volume: c, Asked: true, Told: StoreOurs}
	}
	hasFlushed = Facts{Store: true, Asked: true, Volume: VolumeValid, Brought: true, Told: StoreOurs}
	unnamed    = Facts{Store: true, Volume: VolumeEmpty}
	anonym     = Facts{Peers: true, Store: true, Volume: VolumeValid, Unidentified: true}
	rejected   = Facts{Peers: true, Store: true, Volume: VolumeValid, Rejected: true}
)

// What a member that is alone finds on its volume, and what its store answers.
var (
	alone       = Facts{Alone: true, Store: true}
	never       = Facts{Alone: true, Store: true, Never: true}
	asVolume    = func(c VolumeState) Facts { return Facts{Alone: true, Store: true, Volume: c} }
	asNever     = func(c VolumeState) Facts { return Facts{Alone: true, Store: true, Volume: c, Never: true} }
	found       = func(c VolumeState) Facts { return Facts{Alone: true, Volume: c} }
	isTold      = func(s StoreState) Facts { return Facts{Told: s} }
	wasDone     = func(s StoreState) Facts { return Facts{Told: s, RestoreDone: true} }
	asAny       = each(asVolume, VolumeValid, VolumeEmpty, VolumeCorrupt)
	asking      = func(c VolumeState) Facts { return Facts{Alone: true, Store: true, Volume: c, Asked: true} }
	wants       = asking(VolumeValid)
	anothers    = these{isTold(StoreOthers), {Told: StoreOthers, Behind: true}}
	finished    = these{alone, {Listing: peers.Asking}, {Alone: true, Told: StoreOurs}}
	kept        = Facts{Told: StoreOurs}
	ahead       = Facts{Told: StoreOurs, Behind: true}
	certificate = Facts{Told: StoreBare, Behind: true}
)

// Where steps lead.
var (
	starts      = end{to: Ready}
	isRefused   = end{to: Refused}
	asksPeers   = end{to: AskPeers, do: []Action{AskThePeers}}
	awaitsPeers = end{to: AskPeers, do: []Action{PacePeers}}
	asksStore   = end{to: AskStore, do: []Action{FlushSpool, AskTheStore}}
	awaitsStore = end{to: AskStore, do: []Action{PaceStore}}
	makesWay    = end{to: GiveWay, do: []Action{TellReturn, SetVolumeAside}}
	leaves      = end{to: Leave, do: []Action{TellReturn, RemoveMember}}
	enters      = end{to: Enter, do: []Action{TellReturn, AddMember}}
	joins       = end{to: Ready, do: []Action{AdoptCluster}}
	brings      = end{to: Flush, do: []Action{TellLoss, FlushVolume}}
	restores    = end{to: MakeRoom, do: []Action{TellLoss, MeasureRoom}}
	restoresAll = end{to: MakeRoom, do: []Action{FindEnd, TellLoss, MeasureRoom}}
)

var whenExamined = when(Examine, Examined, []row{
	// a member of several
	{"a member of several starts as ever", Facts{}, these{{Volume: VolumeValid}, {Volume: VolumeEmpty}}, starts},
	{"a broken one is refused as ever", Facts{}, Facts{Volume: VolumeCorrupt}, isRefused.because("the others would keep newer data")},
	{"one cannot go back alone", Facts{}, these{{Volume: VolumeValid, Asked: true}, {Volume: VolumeCorrupt, Asked: true}}, isRefused},
	{"a store may know better than one whose peers are not named", Facts{Store: true}, these{{Volume: VolumeEmpty}, {Volume: VolumeValid, Unidentified: true}}, asksStore},
	{"but restores nothing to one, as the others would not go back", Facts{Store: true}, Facts{Volume: VolumeCorrupt}, isRefused},
	{"one that has data is not compared, or joins a cluster that exists", Facts{Store: true}, these{{Volume: VolumeValid}, {Volume: VolumeEmpty, Joins: true}}, starts},
	{"--recover=never begins it no more a second time", Facts{Store: true, Never: true}, Facts{Volume: VolumeEmpty}, asksStore},
	{"one whose peers are named asks them, also about valid data, which may have been put back", Facts{}, each(ofPeers, VolumeEmpty, VolumeValid, VolumeCorrupt), asksPeers},
	{"--recover=never starts valid data as ever", Facts{Never: true}, ofPeers(VolumeValid), starts},
	{"--recover=never refuses broken data as ever", Facts{Never: true}, ofPeers(VolumeCorrupt), isRefused},
	{"--recover=never asks about an empty volume, which must not be begun anew", Facts{Never: true}, ofPeers(VolumeEmpty), asksPeers},
	{"without a store there is nothing to go back to", Facts{}, Facts{Volume: VolumeEmpty, Peers: true, Asked: true}, isRefused},
	{"whatever they have said", Facts{Listing: peers.Asking}, Facts{Volume: VolumeValid, Asked: true}, isRefused},
	{"nor with others that are not named", Facts{Store: true}, Facts{Volume: VolumeValid, Asked: true}, isRefused},
	{"several go back together: the store comes first", these{{Store: true}, {Store: true, Never: true}}, each(together, VolumeValid, VolumeEmpty), asksStore},
	{"several: nor do they replace data that one of them has lost", Facts{}, Facts{Volume: VolumeEmpty, Lost: true}, isRefused.because("no new cluster replaces lost data")},
	// a member alone
	{"a member alone that is to join others has nobody to join", Facts{Alone: true}, Facts{Alone: true, Joins: true, Volume: VolumeEmpty}, isRefused.because("initial-cluster-state: existing")},
	{"its store may have its data", alone, Facts{Alone: true, Joins: true, Volume: VolumeEmpty}, asksStore},
	{"data that were served and are gone are no new cluster", these{{}, {Never: true}}, Facts{Alone: true, Volume: VolumeEmpty, Lost: true}, isRefused.because("no new cluster replaces lost data")},
	{"without a store valid data start", these{{}, {Never: true}}, found(VolumeValid), starts},
	{"because nobody has more", Facts{}, found(VolumeValid), starts.because("nothing is known to have more")},
	{"without a store an empty volume is a new cluster", Facts{}, found(VolumeEmpty), starts},
	{"without a store broken data are for people", these{{}, {Never: true}}, found(VolumeCorrupt), isRefused.because("there is no backup")},
	{"a volume is compared with the store, when that has what waits for it", alone, each(found, VolumeValid, VolumeEmpty, VolumeCorrupt), asksStore},
	{"--recover=never starts a valid volume without asking", never, found(VolumeValid), starts.because("opened as they are")},
	{"--recover=never asks about an empty one, which may be a loss, and a broken one, to say what could be had", never, each(found, VolumeEmpty, VolumeCorrupt), asksStore},
	{"a restore that is asked for counts in spite of --recover=never", never, Facts{Alone: true, Volume: VolumeValid, Asked: true}, asksStore},
})

var whenPeersTold = when(AskPeers, PeersTold, []row{
	// valid data
	{"data that the others know are started, also if nobody answers, or they have removed the member", ofPeers(VolumeValid), each(told, peers.Started, peers.Unknown, peers.Unlisted), starts},
	{"data that were put back make way", ofPeers(VolumeValid), lagging(peers.Started), makesWay},
	{"but not while something is in the way", ofPeers(VolumeValid), Facts{Listing: peers.Started, Outdated: true}, awaitsPeers.because("rejoins as soon as")},
	{"what the store has more than is not opened without a quorum", ofPeers(VolumeValid), each(lagging, peers.Unknown, peers.Claimed), awaitsPeers.because("which has what this one lacks")},
	// broken data
	{"broken data make way where the others have all, or have changed the member since", ofPeers(VolumeCorrupt), each(told, peers.Started, peers.Added, peers.Unlisted), makesWay},
	{"without a quorum they stay where they are", ofPeers(VolumeCorrupt), noQuorum, awaitsPeers.because("waiting for a quorum of the other members")},
	{"broken data of a member that never started are for people", ofPeers(VolumeCorrupt), told(peers.Expected), isRefused.because("have never seen this member with data")},
	// no data
	{"a member that was lost leaves under its old identity", ofPeers(VolumeEmpty), told(peers.Started), leaves},
	{"as soon as nothing is in the way, and one at a time", useless, each(hindered, peers.Started, peers.Unlisted), awaitsPeers.because("rejoins as soon as")},
	{"one that is not listed is taken in", ofPeers(VolumeEmpty), told(peers.Unlisted), enters},
	{"one that was added joins", ofPeers(VolumeEmpty), told(peers.Added), joins},
	{"what an etcd left that had just begun makes way first", unborn, each(told, peers.Added, peers.Started), makesWay},
	{"one that never started is founded with the others, or where nobody has data", ofPeers(VolumeEmpty), each(told, peers.Expected, peers.Founding, peers.Partial), starts},
	{"while somebody may have data it waits", ofPeers(VolumeEmpty), told(peers.Unknown), awaitsPeers.because("another member may have data")},
	{"a store may know better", stored, each(told, peers.Founding, peers.Partial), asksStore},
	{"one that a single peer knows waits for a quorum", ofPeers(VolumeEmpty), told(peers.Claimed), awaitsPeers.because("waiting for a quorum of the other members")},
	{"so does what nothing is known of", ofPeers(VolumeEmpty), Facts{}, awaitsPeers},
	{"a single member does not wait for any", alone, Facts{}, asksStore},
	// --recover=never
	{"never: a lost member is not begun anew, nor where one peer knows it", ofNever, each(told, peers.Started, peers.Claimed), isRefused.because("but --recover=never")},
	{"never: a first start is one, also of what nobody knows, or somebody has added and configured", ofNever, each(told, peers.Expected, peers.Founding, peers.Added, peers.Unlisted), starts},
	{"never: unless a store may know better", Facts{Peers: true, Volume: VolumeEmpty, Never: true, Store: true}, told(peers.Founding), asksStore},
	// all are gone, or ask
	{"all gone: the store is asked", these{gone(VolumeCorrupt, ""), gone(VolumeEmpty, "")}, told(peers.Gone), asksStore},
	{"all gone, and no store", ofPeers(VolumeCorrupt), told(peers.Gone), isRefused.because("there is no backup")},
	{"all still gone when the store was asked: it is restored", each(has, VolumeEmpty, VolumeCorrupt), each(brought, peers.Founding, peers.Gone), restoresAll},
	{"but not before late mounts had the time to come", has(VolumeEmpty), justLost, awaitsPeers.because("waiting 10 s for volumes that are mounted late")},
	{"not if one has data by then", has(VolumeEmpty), told(peers.Unknown), awaitsPeers},
	{"but if it is a cluster by then, that is joined", has(VolumeEmpty), told(peers.Unlisted), enters},
	{"all are older than the store: it is asked", gone(VolumeValid, ""), lagging(peers.Gone), asksStore},
	{"all still older when it was asked: it is restored", has(VolumeValid), Facts{Listing: peers.Gone, Outdated: true, Free: true, AllBrought: true, Settled: true}, restoresAll},
	{"who has data of use is not gone", gone(VolumeValid, ""), told(peers.Gone), starts},
	{"all ask: what a valid volume has comes into the store first", unflushed, these{told(peers.Asking), brought(peers.Asking)}, brings},
	{"all ask: nothing can be read of a useless one, and a valid one has brought what it has", these{togetherAnswered(VolumeCorrupt), togetherAnswered(VolumeEmpty), hasFlushed}, brought(peers.Asking), restoresAll},
	{"all ask: others may have more than the store", these{togetherAnswered(VolumeCorrupt), hasFlushed}, told(peers.Asking), awaitsPeers.because("have uploaded")},
	{"all gone: others may have more than the store", each(has, VolumeEmpty, VolumeCorrupt), each(told, peers.Founding, peers.Gone), awaitsPeers.because("have uploaded")},
	{"as long as not all ask, they are waited for", each(togetherAnswered, VolumeValid, VolumeEmpty, VolumeCorrupt), notAll, awaitsPeers.because("when every member is stopped")},
	{"after a pause the store is asked first: another member may have done the restore, or the store is no longer in use", each(together, VolumeValid, VolumeEmpty, VolumeCorrupt), append(notAll, told(peers.Asking), brought(peers.Asking)), asksStore},
	{"several: the rest is waited for", has(VolumeEmpty), told(peers.Partial), awaitsPeers},
	{"several: a volume that names no cluster asks the store for it", anonym, told(peers.Started), asksStore},
	{"several: --recover=never asks nobody for it", Facts{Peers: true, Store: true, Volume: VolumeValid, Never: true, Unidentified: true}, told(peers.Started), starts},
	{"several: but not for long", Facts{Peers: true, Store: true, Volume: VolumeValid, Unidentified: true, Told: StoreLongAway}, told(peers.Started), starts},
	{"several: what the store has refused before is shown to it again", rejected, told(peers.Started), asksStore.because("compared again")},
	{"several: with --recover=never it is not", Facts{Peers: true, Store: true, Volume: VolumeValid, Rejected: true, Never: true}, told(peers.Started), starts},
})

var whenAnswered = when(AskStore, Answered, []row{
	// several
	{"several: without a certificate it is a new cluster, and a founded store is gone on with", gone(VolumeEmpty, peers.Founding), each(isTold, StoreEmpty, StoreFounded), starts},
	{"several: with one, and a backup, it comes back, whatever they have brought, and if all are older", append(allLost, putBack, hasBrought), these{kept, ahead}, asksPeers},
	{"several: a quorum without data begins a new cluster", gone(VolumeEmpty, peers.Partial), isTold(StoreEmpty), starts},
	{"several: and restores nothing, as the rest may have data", gone(VolumeEmpty, peers.Partial), these{ahead, certificate}, awaitsPeers},
	{"several: --recover=never waits for nobody, and brings nothing back", each(neverNew, peers.Partial, peers.Founding), ahead, isRefused},
	{"several: without a backup it is refused", gone(VolumeEmpty, peers.Founding), certificate, isRefused},
	{"several: broken data do not become a new cluster, nor by whom they were", allLost[1:], isTold(StoreEmpty), isRefused.because("there is no backup")},
	{"several: another cluster's", these{gone(VolumeCorrupt, peers.Gone), together(VolumeValid)}, isTold(StoreOthers), isRefused},
	{"several: another owner's", gone(VolumeEmpty, peers.Founding), isTold(StoreNotOwned), isRefused.because("another owner")},
	{"several: where the store is empty it is this cluster's", anonym, isTold(StoreEmpty), asksPeers},
	{"several: where it has a cluster that is not told to be this one it is refused", anonym, isTold(StoreUnclaimed), isRefused},
	{"several: where it is away the store cannot be read, as before they were asked", these{anonym, {Peers: true, Asked: true, Volume: VolumeValid}}, isTold(StoreAway), awaitsStore},
	{"several: --recover=never does not wait for the store", neverNew(peers.Founding), isTold(StoreAway), isRefused},
	{"several: while the store is away, or somebody writes, the peers are asked, who may come back", allLost, each(isTold, StoreAway, StoreInUse), awaitsPeers},
	{"several: also if all ask", Facts{Peers: true, Store: true, Asked: true, Listing: peers.Asking, Heard: true}, isTold(StoreInUse), awaitsPeers},
	{"several: the others may be the ones that write", each(together, VolumeValid, VolumeEmpty), isTold(StoreInUse), asksPeers},
	{"several: what is asked for needs all, and so does what was done, for whoever was not there", each(together, VolumeValid, VolumeEmpty), these{kept, ahead, wasDone(StoreOurs), {Told: StoreOurs, Behind: true, RestoreDone: true}}, asksPeers},
	{"several: a restore that was done before is not asked for any more, although the store is in use", Facts{Peers: true, Store: true, Asked: true, Listing: peers.Started, Heard: true, Free: true}, wasDone(StoreInUse), awaitsPeers.because("wrote the backups less than")},
	{"several: as long as not all ask, it does not matter that somebody writes", Facts{Peers: true, Store: true, Asked: true, Listing: peers.Started, Heard: true}, isTold(StoreInUse), awaitsPeers.because("when every member is stopped")},
	{"several: not from another owner's", together(VolumeEmpty), isTold(StoreNotOwned), isRefused},
	{"several: what is not kept moves nothing", together(VolumeValid), isTold(StoreBare), isRefused.because("the target cannot be restored")},
	// several that are not named
	{"unnamed: nothing was ever kept", unnamed, each(isTold, StoreEmpty, StoreFounded), starts.because("a new cluster")},
	{"unnamed: new is said once, also without a backup", unnamed, these{ahead, certificate}, isRefused.because("to a cluster that exists")},
	{"unnamed: another owner's, or one that is not believed", unnamed, each(isTold, StoreNotOwned, StoreUnverified), isRefused},
	{"unnamed: valid data wait for it no longer than others", Facts{Store: true, Volume: VolumeValid, Unidentified: true}, isTold(StoreLongAway), starts},
	{"refused before: however long the store is away", Facts{Alone: true, Store: true, Volume: VolumeValid, Rejected: true}, each(isTold, StoreAway, StoreLongAway), awaitsStore},
	{"refused before, of several: whose peers are asked meanwhile", Facts{Peers: true, Heard: true, Listing: peers.Started, Store: true, Volume: VolumeValid, Rejected: true, Free: true}, isTold(StoreLongAway), awaitsPeers},
	{"refused before: what the store says by now counts", Facts{Alone: true, Store: true, Volume: VolumeValid, Rejected: true}, kept, starts},
	{"unnamed: nor less", these{unnamed, {Store: true, Volume: VolumeValid, Unidentified: true}}, isTold(StoreAway), awaitsStore},
	// no answer
	{"a volume waits for the store, which may know better, and for who may write there", asAny, each(isTold, StoreAway, StoreInUse), awaitsStore},
	{"a valid volume is served after a while", asVolume(VolumeValid), isTold(StoreLongAway), starts},
	{"one without data is not, nor does a restore that is asked for wait less", these{asVolume(VolumeEmpty), asVolume(VolumeCorrupt), wants}, isTold(StoreLongAway), awaitsStore},
	{"--recover=never does not wait", asNever(VolumeEmpty), isTold(StoreAway), isRefused},
	// another cluster's
	{"another cluster's store is refused, also if a restore is asked for", append(each(asVolume, VolumeValid, VolumeCorrupt), wants), anothers, isRefused.because("backups of another cluster")},
	{"another owner's store is refused by an empty volume", these{asVolume(VolumeEmpty), asking(VolumeEmpty)}, isTold(StoreNotOwned), isRefused.because("another owner")},
	{"a founded store is gone on with", asVolume(VolumeEmpty), isTold(StoreFounded), starts},
	{"a volume that names no cluster does not go on with a store that has one", asVolume(VolumeValid), isTold(StoreUnclaimed), isRefused.because("name no cluster")},
	{"unless a person has named that", asVolume(VolumeValid), isTold(StoreAdopted), end{to: Adopt, do: []Action{TakeStore}}},
	// the column of a member alone, each cell
	{"valid, not behind, and whatever is not kept or not believed: start", asVolume(VolumeValid), each(isTold, StoreEmpty, StoreOurs, StoreBare, StoreUnverified), starts},
	{"valid, behind: restore", asVolume(VolumeValid), ahead, restores},
	{"valid, behind, no chain: refuse", asVolume(VolumeValid), certificate, isRefused},
	{"broken, chain: restore", asVolume(VolumeCorrupt), kept, restores},
	{"broken, and nothing to come back that is believed: refuse", asVolume(VolumeCorrupt), each(isTold, StoreEmpty, StoreUnverified), isRefused.because("there is no backup")},
	{"empty, chain: restore", asVolume(VolumeEmpty), ahead, restores},
	{"empty or broken, and no backup of a known cluster: refuse, for a cluster is founded once", asVolume(VolumeEmpty), these{certificate, isTold(StoreBare)}, isRefused.because("no new cluster is created")},
	{"empty, and the store is not believed: refuse", asVolume(VolumeEmpty), isTold(StoreUnverified), isRefused.because("there is no backup")},
	{"empty, and joins: restore, or name the key that is in the way", Facts{Alone: true, Store: true, Joins: true, Volume: VolumeEmpty}, ahead, restores},
	{"empty, joins, and nothing was ever kept", Facts{Alone: true, Store: true, Joins: true, Volume: VolumeEmpty}, each(isTold, StoreEmpty, StoreFounded), isRefused.because("initial-cluster-state: existing")},
	{"lost: restored where there is a backup", Facts{Alone: true, Store: true, Lost: true, Volume: VolumeEmpty}, ahead, restores},
	{"lost, and nothing was ever kept", Facts{Alone: true, Store: true, Lost: true, Volume: VolumeEmpty}, each(isTold, StoreEmpty, StoreFounded), isRefused.because("no new cluster replaces lost data")},
	{"empty, no certificate: new", asVolume(VolumeEmpty), isTold(StoreEmpty), starts},
	{"what the store says of itself is damaged, also if all are here", these{alone, gone(VolumeEmpty, peers.Founding)}, isTold(StoreDamaged), isRefused},
	// --recover=never
	{"never: data stay lost, no new cluster is begun, and what could be had is said", each(asNever, VolumeCorrupt, VolumeEmpty), these{kept, ahead}, isRefused.because("but --recover=never")},
	{"never: an empty volume without a certificate is a new cluster", asNever(VolumeEmpty), isTold(StoreEmpty), starts},
	{"never: the id was used, so a valid volume starts", Facts{Alone: true, Store: true, Volume: VolumeValid, Never: true, Asked: true}, wasDone(StoreOurs), starts},
	// a restore that is asked for
	{"what a valid volume has comes into the store before it goes back", wants, kept, brings},
	{"of a broken or an empty one nothing can be read", each(asking, VolumeCorrupt, VolumeEmpty), kept, restores},
	{"a target that is not kept, or not believed, moves nothing", each(asking, VolumeValid, VolumeEmpty, VolumeCorrupt), each(isTold, StoreBare, StoreUnverified, StoreEmpty), isRefused.because("the target cannot be restored")},
})

var otherwise = []sentence{
	// Resume: what an earlier run left
	{"a run first looks for one that was cut off", Resume, alone, Begun, Facts{}, end{to: Resume, do: []Action{ReadPosition}}},
	{"one that claimed nothing is begun again", Resume, alone, NothingBegun, Facts{}, end{to: Examine, do: []Action{DropUnfinished, ValidateVolume}}},
	{"one that may have claimed is for people where no store tells", Resume, these{{Peers: true}, {Alone: true}}, ClaimFound, Facts{}, isRefused},
	{"one that may have claimed goes on with what it built", Resume, alone, ClaimFound, Facts{}, end{to: Prove, do: []Action{ProveData}}},
	{"one that has installed only has to remember it", Resume, alone, InstallFound, Facts{}, end{to: Install, do: []Action{Remember}}},
	{"the peers are asked again", AskPeers, alone, Elapsed, Facts{}, asksPeers},
	// The way back
	{"the others are asked again when the place is free", GiveWay, alone, Moved, Facts{}, asksPeers},
	{"and when the old identity is gone", Leave, alone, Left, Facts{}, asksPeers},
	{"and when the member was taken in", Enter, alone, Entered, Facts{}, asksPeers},
	{"and when that is not known", statemachine.Group{Leave, Enter}, alone, PeersSilent, Facts{}, awaitsPeers},
	{"nor does one that asks for a restore ask the store first", AskPeers, Facts{Peers: true, Store: true, Asked: true, Told: StoreInUse}, Elapsed, Facts{}, asksPeers},
	{"the store is asked again", AskStore, alone, Elapsed, Facts{}, asksStore},
	// Adopt
	{"the data go on in the store", Adopt, alone, Taken, Facts{}, starts},
	{"a store that is silent is asked again", statemachine.Group{Adopt, MakeRoom, Build}, alone, StoreSilent, Facts{}, awaitsStore},
	// Decide: a result is carried out, whatever else is known
	{"the peers are asked", Decide, alone, ConsultPeers, Facts{}, asksPeers},
	{"or waited for", Decide, Facts{Peers: true, Heard: true}, Wait, Facts{}, awaitsPeers},
	{"the store is waited for where they were not heard", Decide, Facts{Peers: true, Store: true}, Wait, Facts{}, awaitsStore},
	{"what all have brought is looked for anew, also where they were not heard since", Decide, Facts{Peers: true}, RestoreData, Facts{}, restoresAll},
	{"or joined again", Decide, alone, Rejoin, Facts{}, joins},
	{"what stands in the place of the data makes way", Decide, Facts{Alone: true, Remains: true}, Rejoin, Facts{}, makesWay},
	{"what the volume has comes into the store", Decide, alone, FlushFirst, Facts{}, brings},
	{"what cannot be is declined", Decide, these{alone, {Asked: true, Listing: peers.Asking}}, Decline, Facts{}, isRefused},
	// On the way
	{"several: the others are heard again", Flush, these{together(VolumeValid), {Volume: VolumeValid}}, Flushed, Facts{}, asksPeers},
	{"flushed or not, it is set aside later", Flush, alone, Flushed, Facts{Err: assert.AnError}, restoresAll},
	{"with room it is built", MakeRoom, alone, RoomEnough, Facts{}, end{to: Build, do: []Action{EndAdopted, BuildData}}},
	{"without room nothing is fetched, and a volume that becomes full is no damaged backup", statemachine.Group{MakeRoom, Build}, alone, RoomLacking, Facts{}, isRefused},
	{"what is built is proved", Build, alone, Built, Facts{}, end{to: Prove, do: []Action{ProveData}}},
	{"what is missing may come: it is searched again before anything older is taken", weighing, alone, Missing, Facts{}, awaitsStore},
	{"what nobody trusts is not damaged: nothing older is taken", append(weighing, AskStore), alone, Answered, isTold(StoreLocked), isRefused},
	{"what waits and cannot be brought is for people: a restore would lose it", AskStore, alone, Stuck, Facts{}, isRefused},
	{"damaged backups are refused", Build, alone, Unbuildable, Facts{}, isRefused},
	{"one of several is not made a cluster of one, unless somebody says so", Build, alone, Grown, Facts{}, end{to: Refused, do: []Action{DropUnfinished}}},
	{"the position is durable before the claim", Prove, alone, Proved, Facts{}, end{to: Claim, do: []Action{TellPeers, NotePosition, ClaimGeneration}}},
	{"what is not valid is never claimed", Prove, alone, Unproved, Facts{}, end{to: Refused, do: []Action{ForgetClaim}}},
	{"good data are not given up for another history", Prove, alone, Diverged, Facts{}, end{to: Refused, do: []Action{ForgetClaim, DropUnfinished}}},
	{"only what is claimed takes the place", Claim, alone, Claimed, Facts{}, end{to: SetAside, do: []Action{SetVolumeAside}}},
	{"who comes second begins again", Claim, alone, ClaimLost, Facts{}, end{to: Examine, do: []Action{ForgetClaim, DropUnfinished, ValidateVolume}}},
	{"a claim that got no answer is made again", Claim, alone, StoreSilent, Facts{}, end{to: Claim, do: []Action{PaceStore}}},
	{"whoever is missing when all are called once more is waited for", Claim, alone, PeersSilent, Facts{}, end{to: Claim, do: []Action{PacePeers}}},
	{"after a while", Claim, alone, Elapsed, Facts{}, end{to: Claim, do: []Action{ClaimGeneration}}},
	{"the old data are out of the way before the new ones come", SetAside, alone, Moved, Facts{}, end{to: Install, do: []Action{InstallData, Remember}}},
	{"restored data may be opened, and what was asked for is done", Install, these{alone, {Alone: true, Asked: true}}, Installed, Facts{}, starts},
	{"what is asked for since is done first, whatever was asked for, or kept, before", Install, finished, Installed, Facts{Asked: true}, end{to: Examine, do: []Action{ValidateVolume}}},
	{"what the volume cannot do ends the run", working, alone, Broke, Facts{}, isRefused},
}
