// Package statemachinetest is what the tests of every machine ask of its table: that it is whole, that no change of it goes
// unnoticed, and that what is generated from it is current. The tests of the lifecycle and of recovery call it, and say
// beside that what is particular to theirs.
package statemachinetest

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/statemachine"
)

// Machine is a table, with the words that it is written in.
type Machine struct {
	Table     []statemachine.Row
	Elsewhere []statemachine.Default // answers every event
	States    []statemachine.StateInfo
	Guards    []statemachine.Guard // that mean something
}

// StateNames are those of all states, in their order.
func (m Machine) StateNames() (names []statemachine.State) {
	for _, state := range m.States {
		names = append(names, state.Name)
	}
	return names
}

// Events are all that there are.
func (m Machine) Events() (names []statemachine.Event) {
	for _, answer := range m.Elsewhere {
		names = append(names, answer.On)
	}
	return names
}

// Rows are those for a state and an event.
func (m Machine) Rows(state statemachine.State, event statemachine.Event) (rows []statemachine.Row) {
	for _, row := range m.Table {
		if row.From == state && row.On == event {
			rows = append(rows, row)
		}
	}
	return rows
}

// Has tells whether there is a row for a state and an event.
func (m Machine) Has(state statemachine.State, event statemachine.Event) bool {
	return len(m.Rows(state, event)) > 0
}

// Reachable are the states that a way leads to, the first one included.
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

// AssertOnlyLastUnguarded holds that the last row of a state and an event answers whatever the others leave, and that none
// comes after it.
func (m Machine) AssertGuards(t *testing.T) {
	t.Helper()
	for _, state := range m.StateNames() {
		for _, event := range m.Events() {
			rows := m.Rows(state, event)
			for i, row := range rows {
				assert.Equal(t, i == len(rows)-1, row.When == statemachine.Always, "%s, %s, row %d of %d", state, event, i+1, len(rows))
			}
		}
	}
}

// AssertVocabulary holds that the table uses the guards that mean something, the actions that do something, and no others, that each of
// its events is answered elsewhere, and that each row says why.
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
	assert.ElementsMatch(t, m.Guards, distinct(guards))
	assert.ElementsMatch(t, actions, distinct(does))
}

func distinct[T cmp.Ordered](names []T) []T {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

// AssertTogether holds that rows of one state and one event stand one behind the other where the table is written: in two
// places they would be read as if they did not depend on each other.
func AssertGrouped[E statemachine.Written](t *testing.T, written []E) {
	t.Helper()
	type cell struct {
		from statemachine.State
		on   statemachine.Event
	}
	last := map[cell]int{}
	for i, e := range written {
		entry := statemachine.Entry(e)
		for _, from := range entry.From.States() {
			key := cell{from, entry.On}
			if before, seen := last[key]; seen {
				assert.Equal(t, i-1, before, "%v stands in two places", key)
			}
			last[key] = i
		}
	}
}

// AssertLegality holds that the library's machine has exactly the table's edges.
func (m Machine) AssertLegality(t *testing.T) {
	t.Helper()
	for _, state := range m.StateNames() {
		var want []string
		for _, row := range m.Table {
			if row.From == state {
				want = append(want, row.Edge()+" to "+string(row.To))
			}
		}
		assert.ElementsMatch(t, want, statemachine.Edges(m.Table, state), "%s", state)
	}
}
