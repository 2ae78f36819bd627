package statemachinetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/statemachine"
)

// A Check returns the failures of a test suite against a table.
type Check func(table []statemachine.Row, elsewhere []statemachine.Default) []string

// mutant is a table with one change.
type mutant struct {
	where     string // the row or the default
	change    string
	table     []statemachine.Row
	elsewhere []statemachine.Default
}

// AssertMutantsFail changes the table in every way, one change at a time, and checks that a test notices. sentences test
// single steps, promises all reachable places. Promises are slow, so they run only where the sentences notice nothing.
func (m Machine) AssertMutantsFail(t *testing.T, sentences, promises Check) {
	t.Helper()
	require.Empty(t, sentences(m.Table, m.Elsewhere), "the table itself must pass before its mutants can fail")
	require.Empty(t, promises(m.Table, m.Elsewhere), "the table itself must keep the promises before its mutants can break them")
	all, bySentences := m.mutants(), 0
	var survivors []string
	for _, changed := range all {
		switch {
		case len(sentences(changed.table, changed.elsewhere)) > 0:
			bySentences++
		case len(promises(changed.table, changed.elsewhere)) == 0:
			survivors = append(survivors, changed.where+" "+changed.change)
		}
	}
	assert.Empty(t, survivors, "add sentences to the table's test that fail for these mutants")
	t.Logf("%d mutants; noticed by the sentences: %d, by the promises alone: %d", len(all), bySentences, len(all)-bySentences-len(survivors))
}

// Mutants returns the number of mutants.
func (m Machine) Mutants() int { return len(m.mutants()) }

// mutants returns the table with each possible change.
func (m Machine) mutants() (all []mutant) {
	for i, row := range m.Table {
		add := func(change string, table []statemachine.Row) {
			all = append(all, mutant{fmt.Sprintf("row %d (%s, %s)", i, row.From, row.Edge()), change, table, m.Elsewhere})
		}
		add("dropped", slices.Delete(slices.Clone(m.Table), i, i+1))
		for _, to := range m.StateNames() {
			if to != row.To {
				add("redirected to "+string(to), m.withRow(i, func(r *statemachine.Row) { r.To = to }))
			}
		}
		m.changeGuard(i, add)
		m.changeActions(i, add)
		// Guards of one state and event exclude each other, so only the row without a guard has a place of its own.
		if row.When == statemachine.Always && i > 0 && m.Table[i-1].From == row.From && m.Table[i-1].On == row.On {
			add("moved up", swap(m.Table, i-1, i))
		}
	}
	return append(all, m.changeDefaults()...)
}

// withRow returns the table with one row changed.
func (m Machine) withRow(i int, change func(*statemachine.Row)) []statemachine.Row {
	table := slices.Clone(m.Table)
	table[i].Do = slices.Clone(table[i].Do)
	change(&table[i])
	return table
}

// changeGuard replaces the guard of a row by every other guard, by none, and by one that never holds.
func (m Machine) changeGuard(i int, add func(change string, table []statemachine.Row)) {
	for _, guard := range slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(m.Guards), statemachine.Always, "never")))) {
		if guard != m.Table[i].When {
			add(fmt.Sprintf("guarded by [%s]", guard), m.withRow(i, func(r *statemachine.Row) { r.When = guard }))
		}
	}
}

// changeActions drops each action of a row, and swaps it with the one before.
func (m Machine) changeActions(i int, add func(change string, table []statemachine.Row)) {
	for k, action := range m.Table[i].Do {
		add("without "+string(action), m.withRow(i, func(r *statemachine.Row) { r.Do = slices.Delete(r.Do, k, k+1) }))
		if k > 0 {
			add("with "+string(action)+" earlier", m.withRow(i, func(r *statemachine.Row) { r.Do = swap(r.Do, k-1, k) }))
		}
	}
}

// changeDefaults changes the answer of each default that a state uses. Other defaults only document an event.
func (m Machine) changeDefaults() (all []mutant) {
	for i, answer := range m.Elsewhere {
		used := slices.ContainsFunc(m.States, func(s statemachine.StateInfo) bool { return s.Bound != statemachine.AtEnd && !m.Has(s.Name, answer.On) })
		for _, other := range []statemachine.Answer{statemachine.Ignore, statemachine.Reject} { // those that need no row
			if used && other != answer.Answer {
				elsewhere := slices.Clone(m.Elsewhere)
				elsewhere[i].Answer = other
				all = append(all, mutant{string(answer.On) + " elsewhere", fmt.Sprintf("answered with %s", other), m.Table, elsewhere})
			}
		}
	}
	return all
}

func swap[T any](of []T, i, k int) []T {
	copied := slices.Clone(of)
	copied[i], copied[k] = copied[k], copied[i]
	return copied
}
