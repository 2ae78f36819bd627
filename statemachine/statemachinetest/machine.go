// Package statemachinetest provides the tests that every table must pass. The tests check that the table is complete,
// that a change of any row makes a test fail, and that the generated files are up to date.
package statemachinetest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/statemachine"
)

// Machine is a table with its states, events and guards.
type Machine struct {
	Table     []statemachine.Row
	Elsewhere []statemachine.Default // default answers, one for every event
	States    []statemachine.StateInfo
	Guards    []statemachine.Guard // all guards of the table, except Always
}

// StateNames returns the names of all states, in order.
func (m Machine) StateNames() (names []statemachine.State) {
	for _, state := range m.States {
		names = append(names, state.Name)
	}
	return names
}

// Events returns all events.
func (m Machine) Events() (names []statemachine.Event) {
	for _, answer := range m.Elsewhere {
		names = append(names, answer.On)
	}
	return names
}

// Rows returns the rows for a state and an event.
func (m Machine) Rows(state statemachine.State, event statemachine.Event) (rows []statemachine.Row) {
	for _, row := range m.Table {
		if row.From == state && row.On == event {
			rows = append(rows, row)
		}
	}
	return rows
}

// Has reports whether there is a row for a state and an event.
func (m Machine) Has(state statemachine.State, event statemachine.Event) bool {
	return len(m.Rows(state, event)) > 0
}

// Reachable returns the states that can be reached from a state, including the state itself.
func (m Machine) Reachable(from statemachine.State) []statemachine.State {
	found := []statemachine.State{from}
	for i := 0; i < len(found); i++ {
		for _, row := range m.Table {
			if row.From == found[i] && !slices.Contains(found, row.To) {
				found = append(found, row.To)
			}
		}
	}
	return found
}

// AssertConsistent checks a table and its source. For each state and event, only the last row may lack a guard, and
// the rows must be adjacent in the source, because rows in different places would look independent. The Checker
// must accept every row.
func AssertConsistent(t *testing.T, m Machine, written statemachine.Entries) {
	t.Helper()
	for _, state := range m.StateNames() {
		for _, event := range m.Events() {
			rows := m.Rows(state, event)
			for i, row := range rows {
				assert.Equal(t, i == len(rows)-1, row.When == statemachine.Always, "%s, %s, row %d of %d", state, event, i+1, len(rows))
				assert.NoError(t, statemachine.NewChecker(m.Table, state).Take(&row))
			}
		}
	}
	last := map[string]int{}
	for i, entry := range written {
		for _, from := range entry.From.States() {
			key := string(from) + ", " + string(entry.On)
			if before, seen := last[key]; seen {
				assert.Equal(t, i-1, before, "the rows for %s are not adjacent", key)
			}
			last[key] = i
		}
	}
}

// AssertNames checks that the table uses exactly the declared guards and actions, that every event has a default, and
// that every row has a reason.
func (m Machine) AssertNames(t *testing.T, actions ...statemachine.Action) {
	t.Helper()
	var guards []statemachine.Guard
	var does []statemachine.Action
	for _, row := range m.Table {
		if row.When != statemachine.Always {
			guards = append(guards, row.When)
		}
		does = append(does, row.Do...)
		assert.Contains(t, m.Events(), row.On)
		assert.NotEmpty(t, row.Why)
	}
	slices.Sort(guards)
	slices.Sort(does)
	assert.ElementsMatch(t, m.Guards, slices.Compact(guards))
	assert.ElementsMatch(t, actions, slices.Compact(does))
}
