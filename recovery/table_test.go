package recovery

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
	"etcd-wrapper/statemachine/statemachinetest"
)

var program = statemachine.NewRules[Facts](Table, Elsewhere, Ready)

// TestGuards covers the facts on which the guards depend. The golden file covers the rows of the table.
func TestGuards(t *testing.T) {
	withPeers := VolumeFacts{Peers: true}
	for _, c := range []struct {
		facts Facts
		hold  []statemachine.Guard
	}{
		{Facts{Store: true, VolumeFacts: VolumeFacts{Alone: true}}, nil},
		{Facts{VolumeFacts: VolumeFacts{Alone: true}}, []statemachine.Guard{NoStore}},
		{Facts{Store: true, VolumeFacts: withPeers}, []statemachine.Guard{Several}},
		{Facts{Store: true, VolumeFacts: withPeers, Asked: true}, []statemachine.Guard{Several, StillAsked}},
		{Facts{Store: true, VolumeFacts: withPeers, Heard: true}, []statemachine.Guard{Several, PeersHeard}},
		{Facts{Store: true, VolumeFacts: withPeers, PeerFacts: PeerFacts{Listing: peers.Started}}, []statemachine.Guard{Several, StillListed}},
		{Facts{Store: true, VolumeFacts: withPeers, PeerFacts: PeerFacts{Listing: peers.Unlisted}}, []statemachine.Guard{Several, NotListed}},
		{Facts{Store: true, VolumeFacts: VolumeFacts{Peers: true, Remains: true}, PeerFacts: PeerFacts{Listing: peers.Started}}, []statemachine.Guard{Several, InItsPlace}},
		{Facts{Store: true, VolumeFacts: VolumeFacts{Peers: true, Remains: true}, PeerFacts: PeerFacts{Listing: peers.Unlisted}}, []statemachine.Guard{Several, InItsPlace}},
	} {
		hold := slices.DeleteFunc(slices.Clone(machine.Guards), func(guard statemachine.Guard) bool { return !c.facts.Holds(guard) })
		assert.ElementsMatch(t, c.hold, hold, "%+v", c.facts)
	}
}

func TestEventsWithoutARowAreIgnoredAtTheEndAndRejectedElsewhere(t *testing.T) {
	defaults.AssertDefaults(t)
}

var defaults = statemachinetest.Suite[Facts, Facts]{Machine: machine, Final: Ready, Rest: func(state State, _ Event) statemachine.Answer {
	if state == Ready {
		return statemachine.Ignore
	}
	return statemachine.Reject
}}

// machine describes the table for the tests shared by all state machines.
var machine = statemachinetest.Machine{Table: Table, Elsewhere: Elsewhere, States: States, Guards: slices.Collect(maps.Keys(conditions))}

func TestTableIsConsistent(t *testing.T) {
	statemachinetest.AssertConsistent(t, machine, written)
	actions := newRun(t.Context(), &environment{}, Member{}, nil, false).actions
	machine.AssertNames(t, append(slices.Collect(maps.Keys(actions)), DecideNow, PaceStore, PacePeers)...)
}

func TestEveryStateIsReachedAndLeadsToAnEnd(t *testing.T) {
	assert.ElementsMatch(t, machine.StateNames(), machine.Reachable(Resume))
	for _, state := range machine.StateNames() {
		if state != Ready && state != Refused {
			assert.Contains(t, machine.Reachable(state), Ready, "from %s", state)
		} else {
			assert.Equal(t, []State{state}, machine.Reachable(state))
		}
	}
}

// A waiting state must set a timer, and every other state must start with an action.
func TestEveryStateHasWorkOrATimer(t *testing.T) {
	for _, row := range Table {
		if row.To != Ready && row.To != Refused {
			assert.NotEmpty(t, row.Do, "%s would wait for nothing after %q in %s", row.To, row.On, row.From)
		}
		if slices.Contains(row.Do, PaceStore) {
			assert.True(t, machine.Has(row.To, Elapsed), "%s sets a timer that %s does not answer", row.On, row.To)
		}
	}
}

func TestEveryRefusalNamesTheWayOut(t *testing.T) {
	explained := map[Event]bool{ClaimFound: true, Stuck: true} // the row or the error already contains the way out
	refused := map[Event]bool{}
	for _, row := range Table {
		if row.To == Refused && row.On != Broke && row.From != Decide {
			refused[row.On] = true
			assert.NotEqual(t, explained[row.On], waysOut[row.On] != "", "%s, %s [%s]", row.From, row.On, row.When)
		}
	}
	for event := range waysOut {
		assert.True(t, refused[event], "nothing is refused for %v", event)
	}
	for _, r := range rules {
		if r.Result == Refuse || r.Result == Decline {
			assert.True(t, r.WayOut != "" || slices.Contains(r.volumes, VolumeCorrupt), r.Why) // the validation error contains the way out
		}
	}
}

func TestCommittedFilesShowTheTable(t *testing.T) {
	machine.AssertCommitted(t, Diagram, program.Matrix(States), "../docs/recovery.dot", "../testdata/recovery.golden", "recovery.svg")
}
