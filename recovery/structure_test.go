package recovery

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/statemachine"
	"etcd-wrapper/statemachine/statemachinetest"
)

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
		if r.Verdict == Refuse || r.Verdict == Decline {
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
