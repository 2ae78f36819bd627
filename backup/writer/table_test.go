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

// tested describes the writer's state machine to package statemachinetest.
var tested = statemachinetest.Machine{Table: Table, Elsewhere: Elsewhere, States: States, Guards: slices.Collect(maps.Keys(conditions))}

func TestTable_isComplete(t *testing.T) {
	statemachinetest.AssertConsistent(t, tested, written)
	for _, state := range tested.StateNames() {
		assert.Equal(t, state != drained, tested.Has(state, tick), "only drained handles no ticks: %s", state)
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

// Each action in the table must have an implementation in Writer.actions, and vice versa.
func TestTable_usesEveryAction(t *testing.T) {
	tested.AssertNames(t, slices.Collect(maps.Keys((&Writer{}).actions()))...)
}

func TestCommittedFiles_showTheTable(t *testing.T) {
	tested.AssertCommitted(t, Diagram, rules.Matrix(States), "../../docs/backup.dot", "../../testdata/backup.golden", "backup.svg")
	assert.True(t, strings.HasPrefix(Diagram.SVG(), "<svg"))
}

// stepTest is the expected result of one event.
type stepTest statemachinetest.Case[memberState, payload]

var (
	leader       = memberState{leads: true}
	follower     = memberState{}
	deputy       = memberState{tookOver: true, refusesOverwrite: true} // took over from the leader
	overwriting  = memberState{tookOver: true}                         // took over, but must not write because the store overwrites objects
	closedMember = memberState{leads: true, closed: true}
	noOverwrite  = payload{refusesOverwrite: true}
	otherWrote   = payload{refusesOverwrite: true, grew: true}
)

var stepTests = []stepTest{
	{"a leader captures changes before the store is read, but uploads nothing", unknown, leader, tick, payload{}, unknown, []Action{inspectStore, captureRows}},
	{"a follower only inspects the store", unknown, follower, tick, payload{}, unknown, []Action{inspectStore}},
	{"a follower inspects the store and uploads its own spool", watching, follower, tick, payload{}, watching, []Action{findSuccessor, inspectStore, storeFull, storeSegment}},
	{"a leader captures changes while the end is unknown, but uploads no segment", aligning, leader, tick, payload{}, aligning, []Action{findSuccessor, inspectStore, storeFull, captureRows}},
	{"a member that took over captures changes while the end is unknown", aligning, deputy, tick, payload{}, aligning, []Action{findSuccessor, inspectStore, storeFull, captureRows}},
	{"a follower captures nothing while the end is unknown", aligning, follower, tick, payload{}, aligning, []Action{findSuccessor, inspectStore, storeFull}},
	{"a member that took over captures nothing if the store overwrites objects", aligning, overwriting, tick, payload{}, aligning, []Action{findSuccessor, inspectStore, storeFull}},
	{"the leader writes without inspecting the store", writing, leader, tick, payload{}, writing, []Action{checkStored, storeFull, makeFull, captureRows, storeSegment}},
	{"a member that took over also inspects the store, because the leader may resume", writing, deputy, tick, payload{}, writing, []Action{checkStored, inspectStore, storeFull, makeFull, captureRows, storeSegment}},
	{"the state writing does not depend on leadership", writing, follower, tick, payload{}, writing, []Action{checkStored, storeFull, makeFull, captureRows, storeSegment}},
	{"without a chain, no changes are captured", opening, leader, tick, payload{}, opening, []Action{findSuccessor, storeFull, makeFull, storeSegment}},
	{"while a chain is started, changes are captured but no segment is uploaded", starting, leader, tick, payload{}, starting, []Action{findSuccessor, storeFull, captureRows}},
	{"a member that took over captures changes while it starts a chain", starting, deputy, tick, payload{}, starting, []Action{findSuccessor, storeFull, captureRows}},
	{"a member that lost leadership stops capturing changes for its new chain", starting, follower, tick, payload{}, starting, []Action{findSuccessor, storeFull}},
	{"a store that belongs to another cluster is inspected again", foreign, leader, tick, payload{}, foreign, []Action{inspectStore, storeFull}},

	{"a new leader inspects the store soon", endUnknown, follower, elected, payload{}, "", []Action{inspectSoon}},
	{"a new leader reads the end of the chain again", endKnown, follower, elected, payload{}, aligning, []Action{inspectSoon}},
	{"an election does not interrupt the start of a chain", starting, follower, elected, payload{}, starting, nil},
	{"a member that lost leadership inspects the store soon", endUnknown, leader, lostLeadership, payload{}, "", []Action{inspectSoon}},
	{"a member that lost leadership reads the end of the chain again", endKnown, leader, lostLeadership, payload{}, aligning, []Action{inspectSoon}},
	{"a loss of leadership does not interrupt the upload of a full snapshot", starting, leader, lostLeadership, payload{}, starting, nil},
	{"a follower takes over if the leader does not initialize the store", unknown, follower, stalled, payload{}, unknown, []Action{takeOver}},
	{"a follower takes over from a leader that does not upload", watching, follower, stalled, payload{}, aligning, []Action{takeOver}},

	{"a follower waits until the leader initializes the store", inspecting, follower, storeUnused, payload{}, unknown, []Action{watchLeader}},
	{"a member that took over waits until its next inspection", inspecting, deputy, storeUnused, payload{}, unknown, []Action{watchLeader}},
	{"a closed etcd does not initialize the store", inspecting, closedMember, storeUnused, payload{}, drained, []Action{finish}},
	{"the leader extends the chain", inspecting, leader, chainFound, noOverwrite, writing, []Action{continueChain}},
	{"a member that took over extends the chain", inspecting, overwriting, chainFound, noOverwrite, writing, []Action{continueChain}},
	{"a member that took over only watches if the store overwrites objects", inspecting, deputy, chainFound, payload{}, watching, []Action{continueChain}},
	{"a member that took over stops writing when another member extends the chain", inspecting, deputy, chainFound, otherWrote, watching, []Action{continueChain}},
	{"the leader continues when another member has extended the chain", inspecting, leader, chainFound, otherWrote, writing, []Action{continueChain}},
	{"a follower watches the chain", inspecting, follower, chainFound, noOverwrite, watching, []Action{continueChain}},
	{"the leader starts a chain", inspecting, leader, noChain, noOverwrite, opening, []Action{clearChain, openChain}},
	{"a member that took over starts a chain", inspecting, overwriting, noChain, noOverwrite, opening, []Action{clearChain, openChain}},
	{"a follower waits until the leader starts a chain", inspecting, follower, noChain, noOverwrite, watching, []Action{clearChain, watchLeader}},
	{"a closed etcd does not start a chain", inspecting, closedMember, noChain, noOverwrite, drained, []Action{finish}},
	{"the leader starts a chain after a damaged end", inspecting, leader, endDamaged, noOverwrite, opening, []Action{abandonEnd}},
	{"a member that took over starts a chain after a damaged end", inspecting, overwriting, endDamaged, noOverwrite, opening, []Action{abandonEnd}},
	{"a follower leaves a damaged end to the leader", inspecting, follower, endDamaged, noOverwrite, aligning, []Action{keepWatching}},
	{"a closed etcd leaves a damaged end to the leader", inspecting, closedMember, endDamaged, noOverwrite, drained, []Action{finish}},
	{"a leader does not write to another cluster's store", inspecting, leader, refused, payload{}, foreign, []Action{refuse}},
	{"a follower does not write to another cluster's store", inspecting, follower, refused, payload{}, foreign, []Action{refuse}},
	{"a new chain is canceled if the store belongs to another cluster", starting, leader, refused, payload{}, foreign, []Action{leaveChain, refuse}},
	{"a follower keeps watching until it catches up with the store", watching, follower, storeAhead, payload{}, watching, []Action{await}},
	{"a leader that is behind the store first applies its log", statemachine.Group{unknown, aligning, writing, opening, foreign}, leader, storeAhead, payload{}, aligning, []Action{await}},
	{"an emptied store is initialized again", inspecting, leader, emptied, payload{}, unknown, []Action{forgetStore}},
	{"a closed etcd is done if the store has all of its rows", inspecting, closedMember, fullyStored, payload{}, drained, []Action{finish}},

	{"the leader stops when the generation is superseded", serving, leader, superseded, payload{}, ended, []Action{endGeneration}},
	{"a follower stops when the generation is superseded", serving, follower, superseded, payload{}, ended, []Action{endGeneration}},
	{"nothing is done after the generation has ended", ended, leader, tick, payload{}, ended, nil},
	{"an election after the end of the generation has no effect", ended, follower, elected, payload{}, ended, nil},
	{"a loss of leadership after the end of the generation has no effect", ended, leader, lostLeadership, payload{}, ended, nil},

	{"an end that was read too long ago is read again", endKnown, leader, expired, payload{}, aligning, nil},
	{"after a loss of objects, the end is read again", endKnown, leader, objectsLost, payload{}, aligning, nil},
	{"after a collision, the end is read again", endKnown, leader, collided, payload{}, aligning, nil},
	{"changes lost from the spool are captured again", endKnown, leader, spoolLost, payload{}, aligning, []Action{dropSpool}},
	{"a gap in the chain requires a new chain", writing, leader, chainBroken, payload{}, opening, []Action{openChain}},
	{"a broken chain is replaced regardless of leadership", writing, follower, chainBroken, payload{}, opening, []Action{openChain}},
	{"a closed etcd does not start a chain after a gap", writing, closedMember, chainBroken, payload{}, drained, []Action{finish}},
	{"a chain starts when the database is copied", opening, leader, copyStarted, payload{}, starting, nil},
	{"a full snapshot that failed is requested again", opening, leader, fullLost, payload{}, opening, []Action{openChain}},
	{"a new chain is inspected, because another member may have started one too", starting, leader, chainStarted, payload{}, aligning, nil},
	{"a new chain is canceled if another member has extended the backups", starting, leader, overtaken, payload{}, aligning, []Action{leaveChain}},
	{"a lost full snapshot is made again", starting, leader, fullLost, payload{}, opening, []Action{openChain}},
	{"a member that took over makes a lost full snapshot again", starting, deputy, fullLost, payload{}, opening, []Action{openChain}},
	{"a follower does not make a lost full snapshot again", starting, follower, fullLost, payload{}, aligning, []Action{dropSpool}},
}

// suite checks every row of the table against stepTests.
var suite = func() statemachinetest.Suite[memberState, payload] {
	all := statemachinetest.Suite[memberState, payload]{Machine: tested, Final: drained, Known: []memberState{follower, leader, deputy, closedMember}, Rest: rest}
	for _, s := range stepTests {
		all.Cases = append(all.Cases, statemachinetest.Case[memberState, payload](s))
	}
	return all
}()

// rest returns the expected response to an event without a row in the table: an event that cannot occur in a state is
// rejected, and an event that is late is ignored.
func rest(state State, event Event) statemachine.Answer {
	if state != drained && slices.Contains([]Event{tick, elected, lostLeadership, stalled, chainBroken, copyStarted}, event) {
		return statemachine.Reject
	}
	return statemachine.Ignore
}

func TestTable_everyStep(t *testing.T) { suite.Assert(t) }

// node is a state of the machine together with the facts that determine which events are possible.
type node struct {
	core       statemachine.Core[memberState]
	chain      bool // the start of the next capture is known
	endIsKnown bool // the end of the backups is known
}

// invariants must hold in every reachable node, regardless of the order of events.
var invariants = []struct {
	name  string
	holds func(node, []Action) bool
}{
	{"segments are uploaded only while the end of the backups is known", func(n node, do []Action) bool {
		return !slices.Contains(do, storeSegment) || n.endIsKnown
	}},
	{"only the writer captures changes, starts a chain or makes full snapshots", func(n node, do []Action) bool {
		writes := []Action{captureRows, openChain, makeFull}
		return n.core.Facts.isWriter() || !slices.ContainsFunc(do, func(a Action) bool { return slices.Contains(writes, a) })
	}},
	{"only the writer is in the states writing and opening", func(n node, _ []Action) bool {
		return n.core.State != writing && n.core.State != opening || n.core.Facts.isWriter()
	}},
	{"a closed etcd does not start a chain", func(n node, do []Action) bool {
		return !n.core.Facts.closed || !slices.Contains(do, openChain) && !slices.Contains(do, abandonEnd)
	}},
	{"nothing is written to another cluster's store", func(n node, do []Action) bool {
		return n.core.State != foreign || !slices.Contains(do, storeSegment) && !slices.Contains(do, openChain)
	}},
	{"nothing is done after the end of a generation", func(n node, do []Action) bool {
		return n.core.State != ended || len(do) == 0 || slices.Equal(do, []Action{endGeneration})
	}},
	{"the state writing implies a chain", func(n node, _ []Action) bool { return n.core.State != writing || n.chain }},
}

// possible reports whether an event can occur in this node.
func (n node) possible(event Event) bool {
	conditions := map[Event]bool{
		elected:        !n.core.Facts.leads,
		lostLeadership: n.core.Facts.leads,
		stalled:        !n.core.Facts.leads && !n.core.Facts.tookOver && (n.core.State == watching || n.core.State == unknown),
		chainBroken:    n.core.State == writing,
		copyStarted:    n.core.State == opening,
		chainStarted:   n.core.State == starting,
		overtaken:      n.core.State == starting,
		fullLost:       n.core.State == opening || n.core.State == starting,
	}
	met, isLimited := conditions[event]
	return met || !isLimited
}

// explore visits all nodes that are reachable from an initial node. It returns them, and descriptions of violated
// invariants and rejected events.
func explore() (seen map[node]bool, violations []string) {
	rules := statemachine.NewRules[memberState, payload](Table, Elsewhere, drained)
	seen = map[node]bool{}
	var queue []node
	for _, initial := range []memberState{{}, {closed: true}} {
		queue = append(queue, node{core: statemachine.Core[memberState]{State: unknown, Facts: initial}})
	}
	for len(queue) > 0 && len(violations) == 0 {
		current := queue[0]
		queue = queue[1:]
		if seen[current] {
			continue
		}
		seen[current] = true
		for _, event := range tested.Events() {
			for _, data := range []payload{{}, noOverwrite, otherWrote} {
				if !current.possible(event) {
					continue
				}
				core, decision := rules.Step(current.core, event, data)
				if decision.Answer == statemachine.Reject {
					violations = append(violations, fmt.Sprintf("%q is rejected in %+v", event, current))
				}
				successor := current.after(core, decision)
				for _, invariant := range invariants {
					if !invariant.holds(successor, decision.Do) {
						violations = append(violations, fmt.Sprintf("%s: violated in %+v after %q", invariant.name, successor, event))
					}
				}
				queue = append(queue, successor)
			}
		}
	}
	return seen, violations
}

// after returns the node that a decision leads to.
func (n node) after(core statemachine.Core[memberState], decision statemachine.Decision) node {
	from := n.core.State
	n.core = core
	for _, action := range decision.Do {
		switch action {
		case continueChain:
			n.chain, n.endIsKnown = core.Facts.isWriter(), true
		case clearChain, abandonEnd:
			n.chain, n.endIsKnown = false, true
		case openChain, leaveChain, dropSpool, takeOver:
			n.chain = false
		}
	}
	if from != core.State {
		n.endIsKnown = n.endIsKnown && !slices.Contains(statemachine.Group{aligning, unknown, foreign}, core.State)
		n.chain = n.chain || core.State == starting
	}
	return n
}

func TestInvariants_inEveryReachableState(t *testing.T) {
	seen, violations := explore()
	require.Empty(t, violations)
	visited := map[State]bool{}
	for n := range seen {
		visited[n.core.State] = true
	}
	assert.Len(t, visited, len(States), "every state is reachable")
	t.Logf("explored %d nodes with %d states and %d rows", len(seen), len(States), len(Table))
}
