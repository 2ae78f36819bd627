package lifecycle_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	. "etcd-wrapper/lifecycle"
)

// mutant is the table with one thing changed.
type mutant struct {
	what      string
	table     []Row
	elsewhere []Default
}

// mutants change the table one way at a time.
func mutants() []mutant {
	var all []mutant
	for i, row := range Table {
		name := fmt.Sprintf("row %d (%s, %s [%s])", i, row.From, row.On, row.When)
		all = append(all, mutant{name + " dropped", slices.Delete(slices.Clone(Table), i, i+1), Elsewhere})
		all = append(all, redirected(i, name)...)
		all = append(all, reguarded(i, name)...)
		all = append(all, withOtherActions(i, name)...)
		// Guards of one pair exclude each other, so only the row without a guard has a place of its own.
		if row.When == Always && i > 0 && Table[i-1].From == row.From && Table[i-1].On == row.On {
			all = append(all, mutant{name + " moved up", swapped(Table, i-1, i), Elsewhere})
		}
	}
	return append(all, answeredElse()...)
}

// changed is the table with one row changed.
func changed(i int, change func(*Row)) []Row {
	table := slices.Clone(Table)
	table[i].Do = slices.Clone(table[i].Do)
	change(&table[i])
	return table
}

func redirected(i int, name string) []mutant {
	var all []mutant
	for _, to := range stateNames() {
		if to != Table[i].To {
			all = append(all, mutant{name + " redirected to " + string(to), changed(i, func(r *Row) { r.To = to }), Elsewhere})
		}
	}
	return all
}

// reguarded rows have every other guard, none, or one that never holds.
func reguarded(i int, name string) []mutant {
	var all []mutant
	for _, guard := range []Guard{Always, SaysNew, SaysSuccessful, ConfigKept, SaysFailed, NeverOpened, CleanStop, SecondSignal, "never"} {
		if guard != Table[i].When {
			all = append(all, mutant{fmt.Sprintf("%s guarded by [%s]", name, guard), changed(i, func(r *Row) { r.When = guard }), Elsewhere})
		}
	}
	return all
}

func withOtherActions(i int, name string) []mutant {
	var all []mutant
	for k, action := range Table[i].Do {
		all = append(all, mutant{fmt.Sprintf("%s without %s", name, action), changed(i, func(r *Row) { r.Do = slices.Delete(r.Do, k, k+1) }), Elsewhere})
		if k > 0 {
			all = append(all, mutant{fmt.Sprintf("%s with %s earlier", name, action), changed(i, func(r *Row) { r.Do = swapped(r.Do, k-1, k) }), Elsewhere})
		}
	}
	return all
}

// answeredElse leaves out the events that have a row in every state but the last: Elsewhere only describes them.
func answeredElse() []mutant {
	var all []mutant
	for i, answer := range Elsewhere {
		used := slices.ContainsFunc(stateNames(), func(s State) bool { return s != Terminated && !hasRow(Table, s, answer.On) })
		for _, other := range []Answer{Ignore, Reject} {
			if used && other != answer.Answer {
				elsewhere := slices.Clone(Elsewhere)
				elsewhere[i].Answer = other
				all = append(all, mutant{fmt.Sprintf("%s answered with %s elsewhere", answer.On, other), Table, elsewhere})
			}
		}
	}
	return all
}

func swapped[T any](of []T, i, k int) []T {
	copied := slices.Clone(of)
	copied[i], copied[k] = copied[k], copied[i]
	return copied
}

// The table is data, so it is mutated in process. A mutant that nothing notices would be a change of behaviour that a
// reviewer never sees.
func TestNoMutantOfTheTableSurvives(t *testing.T) {
	all, bySteps, byPromises := mutants(), 0, 0
	for _, m := range all {
		steps := len(stepFailures(m.table, m.elsewhere)) > 0
		// Exploring takes a while; where the steps have noticed already it is done for the figure only.
		promised := (!steps || testing.Verbose()) && len(explore(m.table, m.elsewhere).wrong) > 0
		if steps {
			bySteps++
		}
		if promised {
			byPromises++
		}
		assert.True(t, steps || promised, "survived: %s", m.what)
	}
	t.Logf("%d mutants; killed by the transition tests: %d, by the promises of the exploration: %d", len(all), bySteps, byPromises)
}
