package writer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/statemachine"
	"etcd-wrapper/statemachine/statemachinetest"
)

// tested adapts the state machine to the tests shared by all state machines.
var tested = statemachinetest.Machine{Table: Table, Elsewhere: Elsewhere, States: States, Guards: slices.Collect(maps.Keys(conditions))}

func TestTable_isComplete(t *testing.T) {
	statemachinetest.AssertConsistent(t, tested, written)
	for _, state := range tested.StateNames() {
		assert.Equal(t, state != drained, tested.Has(state, tick), "%s has work", state)
	}
}

func TestTable_everyStateLeadsToWriting(t *testing.T) {
	assert.ElementsMatch(t, tested.StateNames(), tested.Reachable(unknown))
	for _, state := range tested.StateNames() {
		if state != drained && state != ended {
			assert.Contains(t, tested.Reachable(state), writing, "from %s", state)
		}
	}
	assert.Equal(t, []State{drained}, tested.Reachable(drained))
	assert.Equal(t, []State{ended}, tested.Reachable(ended))
}

// Every action must be used, and every used action must be defined.
func TestTable_usesEveryAction(t *testing.T) {
	tested.AssertNames(t, slices.Collect(maps.Keys((&Writer{}).actions()))...)
}

func TestCommittedFiles_showTheTable(t *testing.T) {
	tested.AssertCommitted(t, Diagram, rules.Matrix(States), "../../docs/backup.dot", "../../testdata/backup.golden", "backup.svg")
	assert.True(t, strings.HasPrefix(Diagram.SVG(), "<svg"))
}

type sentence statemachinetest.Sentence[memberState, payload]

var (
	leader    = memberState{leads: true}
	follower  = memberState{}
	stepped   = memberState{tookOver: true, refusesOverwrite: true}
	overwrite = memberState{tookOver: true}
	bringer   = memberState{leads: true, closed: true}
	creating  = payload{refusesOverwrite: true}
	grown     = payload{refusesOverwrite: true, grew: true}
)

var sentences = []sentence{
	{"nothing is stored before the store is known, but captured", unknown, leader, tick, payload{}, unknown, []Action{inspectStore, captureRows}},
	{"who does not write captures nothing", unknown, follower, tick, payload{}, unknown, []Action{inspectStore}},
	{"a watcher looks, and stores what waits on its volume", watching, follower, tick, payload{}, watching, []Action{findSuccessor, inspectStore, storeFull, storeSegment}},
	{"nothing is stored before the end is known, but captured", aligning, leader, tick, payload{}, aligning, []Action{findSuccessor, inspectStore, storeFull, captureRows}},
	{"so does a guest", aligning, stepped, tick, payload{}, aligning, []Action{findSuccessor, inspectStore, storeFull, captureRows}},
	{"who does not write captures nothing", aligning, follower, tick, payload{}, aligning, []Action{findSuccessor, inspectStore, storeFull}},
	{"nor where the store overwrites", aligning, overwrite, tick, payload{}, aligning, []Action{findSuccessor, inspectStore, storeFull}},
	{"the leader writes and looks for nobody", writing, leader, tick, payload{}, writing, []Action{checkStored, storeFull, makeFull, captureRows, storeSegment}},
	{"a guest writes and looks whether the leader does", writing, stepped, tick, payload{}, writing, []Action{checkStored, inspectStore, storeFull, makeFull, captureRows, storeSegment}},
	{"who writes is not asked again", writing, follower, tick, payload{}, writing, []Action{checkStored, storeFull, makeFull, captureRows, storeSegment}},
	{"without a chain nothing is captured", opening, leader, tick, payload{}, opening, []Action{findSuccessor, storeFull, makeFull, storeSegment}},
	{"no segment is stored before its chain", starting, leader, tick, payload{}, starting, []Action{findSuccessor, storeFull, captureRows}},
	{"by a guest as well", starting, stepped, tick, payload{}, starting, []Action{findSuccessor, storeFull, captureRows}},
	{"who leads no longer captures nothing behind it", starting, follower, tick, payload{}, starting, []Action{findSuccessor, storeFull}},
	{"a store that is another's is looked at again", foreign, leader, tick, payload{}, foreign, []Action{inspectStore, storeFull}},

	{"a new leader looks at once", endUnknown, follower, elected, payload{}, "", []Action{inspectSoon}},
	{"a new leader sees where the last one ended", endKnown, follower, elected, payload{}, aligning, []Action{inspectSoon}},
	{"a chain that begins goes on beginning", starting, follower, elected, payload{}, starting, nil},
	{"who leads no longer looks", endUnknown, leader, lostLeadership, payload{}, "", []Action{inspectSoon}},
	{"who leads no longer leaves the end to others", endKnown, leader, lostLeadership, payload{}, aligning, []Action{inspectSoon}},
	{"a full snapshot on its way is asked about when it is there", starting, leader, lostLeadership, payload{}, starting, nil},
	{"a follower founds the store when the leader does not", unknown, follower, stalled, payload{}, unknown, []Action{takeOver}},
	{"a follower takes over from a leader that stores nothing", watching, follower, stalled, payload{}, aligning, []Action{takeOver}},

	{"a follower waits for a founder", inspecting, follower, storeUnused, payload{}, unknown, []Action{countSilence}},
	{"so does a guest, until the look after this one", inspecting, stepped, storeUnused, payload{}, unknown, []Action{countSilence}},
	{"a closed etcd founds nothing", inspecting, bringer, storeUnused, payload{}, drained, []Action{finish}},
	{"the leader extends the chain", inspecting, leader, chainFound, creating, writing, []Action{continueChain}},
	{"so does a guest", inspecting, overwrite, chainFound, creating, writing, []Action{continueChain}},
	{"not where the store overwrites", inspecting, stepped, chainFound, payload{}, watching, []Action{continueChain}},
	{"a guest steps back when another member writes", inspecting, stepped, chainFound, grown, watching, []Action{continueChain}},
	{"the leader does not", inspecting, leader, chainFound, grown, writing, []Action{continueChain}},
	{"a follower watches", inspecting, follower, chainFound, creating, watching, []Action{continueChain}},
	{"the leader begins a chain", inspecting, leader, noChain, creating, opening, []Action{clearChain, openChain}},
	{"so does a guest", inspecting, overwrite, noChain, creating, opening, []Action{clearChain, openChain}},
	{"a follower waits for a chain", inspecting, follower, noChain, creating, watching, []Action{clearChain, countSilence}},
	{"a closed etcd begins no chain", inspecting, bringer, noChain, creating, drained, []Action{finish}},
	{"behind a damaged end a chain begins", inspecting, leader, endDamaged, creating, opening, []Action{abandonEnd}},
	{"by a guest as well", inspecting, overwrite, endDamaged, creating, opening, []Action{abandonEnd}},
	{"a follower leaves a damaged end to the leader", inspecting, follower, endDamaged, creating, aligning, []Action{keepWatching}},
	{"so does a closed etcd", inspecting, bringer, endDamaged, creating, drained, []Action{finish}},
	{"a store of another cluster is left alone", inspecting, leader, refused, payload{}, foreign, []Action{refuse}},
	{"also by a follower", inspecting, follower, refused, payload{}, foreign, []Action{refuse}},
	{"and what was about to begin is given up", starting, leader, refused, payload{}, foreign, []Action{leaveChain, refuse}},
	{"a slow follower goes on watching", watching, follower, storeAhead, payload{}, watching, []Action{await}},
	{"a leader applies what it has first", statemachine.Group{unknown, aligning, writing, opening, foreign}, leader, storeAhead, payload{}, aligning, []Action{await}},
	{"a store that was emptied is founded again", inspecting, leader, emptied, payload{}, unknown, []Action{forgetStore}},
	{"a closed etcd whose rows are there is done", inspecting, bringer, fullyStored, payload{}, drained, []Action{finish}},

	{"a cluster that another one was restored from ends", serving, leader, succeeded, payload{}, ended, []Action{endGeneration}},
	{"so does each member", serving, follower, succeeded, payload{}, ended, []Action{endGeneration}},
	{"and does nothing more", ended, leader, tick, payload{}, ended, nil},
	{"whoever leads it", ended, follower, elected, payload{}, ended, nil},
	{"or no longer", ended, leader, lostLeadership, payload{}, ended, nil},

	{"what was seen long ago is seen again", endKnown, leader, expired, payload{}, aligning, nil},
	{"what is gone is looked for, and whose the store is", endKnown, leader, storeLost, payload{}, aligning, nil},
	{"who comes second goes on behind the first", endKnown, leader, collided, payload{}, aligning, nil},
	{"what the volume lost is captured again", endKnown, leader, spoolLost, payload{}, aligning, []Action{dropSpool}},
	{"behind a gap a chain begins", writing, leader, chainBroken, payload{}, opening, []Action{openChain}},
	{"who writes is not asked again", writing, follower, chainBroken, payload{}, opening, []Action{openChain}},
	{"not by a closed etcd", writing, bringer, chainBroken, payload{}, drained, []Action{finish}},
	{"with its revision a chain begins", opening, leader, copyStarted, payload{}, starting, nil},
	{"a full snapshot that fails is made again", opening, leader, fullLost, payload{}, opening, []Action{openChain}},
	{"of two chains the newest counts", starting, leader, chainStarted, payload{}, aligning, nil},
	{"where another member goes on, a chain is given up", starting, leader, overtaken, payload{}, aligning, []Action{leaveChain}},
	{"a full snapshot that is lost is made again", starting, leader, fullLost, payload{}, opening, []Action{openChain}},
	{"also by a guest", starting, stepped, fullLost, payload{}, opening, []Action{openChain}},
	{"not by who leads no longer", starting, follower, fullLost, payload{}, aligning, []Action{dropSpool}},
}

// suite contains the expected results of single steps.
var suite = func() statemachinetest.Suite[memberState, payload] {
	all := statemachinetest.Suite[memberState, payload]{Machine: tested, Final: drained, Known: []memberState{follower, leader, stepped, bringer}, Rest: rest}
	for _, s := range sentences {
		all.Sentences = append(all.Sentences, statemachinetest.Sentence[memberState, payload](s))
	}
	return all
}()

// rest returns the default response to an event without a row: an error if the event is impossible, and nothing if it
// is late.
func rest(state State, event Event) statemachine.Answer {
	if state != drained && slices.Contains([]Event{tick, elected, lostLeadership, stalled, chainBroken, copyStarted}, event) {
		return statemachine.Reject
	}
	return statemachine.Ignore
}

func TestTable_everyStep(t *testing.T) { suite.Assert(t) }

// place is a state of the machine together with the facts that determine which events are possible.
type place struct {
	core    statemachine.Core[memberState]
	chain   bool // the start of the next capture is known
	settled bool // the end of the backups is known
}

// promises must hold in every place, regardless of the order of events.
var promises = []struct {
	what string
	kept func(place, []Action) bool
}{
	{"a segment is stored only where the end is known", func(p place, do []Action) bool { return !slices.Contains(do, storeSegment) || p.settled }},
	{"only the member that writes captures, begins a chain or makes full snapshots", func(p place, do []Action) bool {
		writes := []Action{captureRows, openChain, makeFull}
		return p.core.Facts.isWriter() || !slices.ContainsFunc(do, func(a Action) bool { return slices.Contains(writes, a) })
	}},
	{"who writes or opens a chain is the one to write", func(p place, _ []Action) bool {
		return p.core.State != writing && p.core.State != opening || p.core.Facts.isWriter()
	}},
	{"a closed etcd begins nothing", func(p place, do []Action) bool {
		return !p.core.Facts.closed || !slices.Contains(do, openChain) && !slices.Contains(do, abandonEnd)
	}},
	{"another cluster's store is only looked at", func(p place, do []Action) bool {
		return p.core.State != foreign || !slices.Contains(do, storeSegment) && !slices.Contains(do, openChain)
	}},
	{"nothing is done behind the end of a generation", func(p place, do []Action) bool {
		return p.core.State != ended || len(do) == 0 || slices.Equal(do, []Action{endGeneration})
	}},
	{"who writes has a chain", func(p place, _ []Action) bool { return p.core.State != writing || p.chain }},
}

// possible reports whether an event can happen in this place.
func (p place) possible(event Event) bool {
	only := map[Event]bool{
		elected:        !p.core.Facts.leads,
		lostLeadership: p.core.Facts.leads,
		stalled:        !p.core.Facts.leads && !p.core.Facts.tookOver && (p.core.State == watching || p.core.State == unknown),
		chainBroken:    p.core.State == writing,
		copyStarted:    p.core.State == opening,
		chainStarted:   p.core.State == starting,
		overtaken:      p.core.State == starting,
		fullLost:       p.core.State == opening || p.core.State == starting,
	}
	can, bound := only[event]
	return can || !bound
}

// explore visits every place reachable from an initial state, trying every event in every place.
func explore() (seen map[place]bool, wrong []string) {
	rules := statemachine.NewRules[memberState, payload](Table, Elsewhere, drained)
	seen = map[place]bool{}
	var queue []place
	for _, given := range []memberState{{}, {closed: true}} {
		queue = append(queue, place{core: statemachine.Core[memberState]{State: unknown, Facts: given}})
	}
	for len(queue) > 0 && len(wrong) == 0 {
		here := queue[0]
		queue = queue[1:]
		if seen[here] {
			continue
		}
		seen[here] = true
		for _, event := range tested.Events() {
			for _, told := range []payload{{}, creating, grown} {
				if !here.possible(event) {
					continue
				}
				core, decision := rules.Step(here.core, event, told)
				if decision.Answer == statemachine.Reject {
					wrong = append(wrong, fmt.Sprintf("%q is rejected in %+v", event, here))
				}
				successor := here.after(core, decision)
				for _, promise := range promises {
					if !promise.kept(successor, decision.Do) {
						wrong = append(wrong, fmt.Sprintf("broken: %s: in %+v, on %q", promise.what, successor, event))
					}
				}
				queue = append(queue, successor)
			}
		}
	}
	return seen, wrong
}

// after returns the place reached by a decision.
func (p place) after(core statemachine.Core[memberState], decision statemachine.Decision) place {
	from := p.core.State
	p.core = core
	for _, action := range decision.Do {
		switch action {
		case continueChain:
			p.chain, p.settled = core.Facts.isWriter(), true
		case clearChain, abandonEnd:
			p.chain, p.settled = false, true
		case openChain, leaveChain, dropSpool, takeOver:
			p.chain = false
		}
	}
	if from != core.State {
		p.settled = p.settled && !slices.Contains(statemachine.Group{aligning, unknown, foreign}, core.State)
		p.chain = p.chain || core.State == starting
	}
	return p
}

func TestInvariants_inEveryReachableState(t *testing.T) {
	seen, wrong := explore()
	require.Empty(t, wrong)
	visited := map[State]bool{}
	for p := range seen {
		visited[p.core.State] = true
	}
	assert.Len(t, visited, len(States), "every state was visited")
	t.Logf("explored %d places of %d states and %d rows", len(seen), len(States), len(Table))
}
