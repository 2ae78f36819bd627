package recovery

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/lifecycle/machine"
)

func TestEveryStateIsReachedAndLeadsToAnEnd(t *testing.T) {
	assert.ElementsMatch(t, states(), reachable(Resume))
	for _, state := range states() {
		if state != Ready && state != Refused {
			assert.Contains(t, reachable(state), Ready, "from %s", state)
		}
	}
}

func TestNothingLeadsOutOfAnEnd(t *testing.T) {
	assert.Equal(t, []State{Ready}, reachable(Ready))
	assert.Equal(t, []State{Refused}, reachable(Refused))
}

func reachable(from State) []State {
	found := []State{from}
	for i := 0; i < len(found); i++ {
		for _, row := range Table {
			if row.From == found[i] && !slices.Contains(found, row.To) {
				found = append(found, row.To)
			}
		}
	}
	return found
}

// The last row of a state and an event answers whatever the others leave; rows of one state and event stand together.
func TestOnlyTheLastRowOfAStateAndAnEventIsUnguarded(t *testing.T) {
	for _, state := range states() {
		for _, event := range events() {
			var rows []int
			for i, row := range Table {
				if row.From == state && row.On == event {
					rows = append(rows, i)
				}
			}
			for k, i := range rows {
				// Examine answers every finding by a guard or by asking the store.
				assert.Equal(t, k == len(rows)-1, Table[i].When == machine.Always, "%s, %s, row %d of %d", state, event, k+1, len(rows))
				assert.Equal(t, rows[0]+k, i, "rows of %s, %s stand in two places", state, event)
			}
		}
	}
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

func TestTheLibrarysMachineHasExactlyTheTablesEdges(t *testing.T) {
	for _, state := range states() {
		var want []string
		for _, row := range Table {
			if row.From == state {
				want = append(want, row.Edge()+" to "+string(row.To))
			}
		}
		assert.ElementsMatch(t, want, machine.Edges(Table, state), "%s", state)
	}
}

// The vocabulary is what the table uses and no more.
func TestNoWordIsForgotten(t *testing.T) {
	usedGuards, usedActions := map[Guard]bool{machine.Always: true}, map[Action]bool{}
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
		assert.True(t, guard == machine.Always || conditions[guard] != nil, "guard %q means nothing", guard)
	}
	for action := range usedActions {
		assert.True(t, action == PaceStore || action == PacePeers || work[action] != nil, "action %q does nothing", action)
	}
	for action := range work {
		assert.True(t, usedActions[action], "action %q is in no row", action)
	}
}
