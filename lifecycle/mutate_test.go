package lifecycle_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "etcd-wrapper/lifecycle"
)

// mutant is the table with one thing changed.
type mutant struct {
	where     string // the row or the default
	change    string
	table     []Row
	elsewhere []Default
}

// mutants change the table one way at a time.
func mutants() []mutant {
	var all []mutant
	for i, row := range Table {
		where := fmt.Sprintf("row %d (%s, %s [%s])", i, row.From, row.On, row.When)
		all = append(all, mutant{where, "dropped", slices.Delete(slices.Clone(Table), i, i+1), Elsewhere})
		all = append(all, redirected(i, where)...)
		all = append(all, reguarded(i, where)...)
		all = append(all, withOtherActions(i, where)...)
		// Guards of one state and event exclude each other, so only the row without a guard has a place of its own.
		if row.When == Always && i > 0 && Table[i-1].From == row.From && Table[i-1].On == row.On {
			all = append(all, mutant{where, "moved up", swapped(Table, i-1, i), Elsewhere})
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

func redirected(i int, where string) []mutant {
	var all []mutant
	for _, to := range stateNames() {
		if to != Table[i].To {
			all = append(all, mutant{where, "redirected to " + string(to), changed(i, func(r *Row) { r.To = to }), Elsewhere})
		}
	}
	return all
}

// reguarded rows have every other guard, none, or one that never holds.
func reguarded(i int, where string) []mutant {
	var all []mutant
	for _, guard := range append(declared[Guard](), "never") {
		if guard != Table[i].When {
			all = append(all, mutant{where, fmt.Sprintf("guarded by [%s]", guard), changed(i, func(r *Row) { r.When = guard }), Elsewhere})
		}
	}
	return all
}

func withOtherActions(i int, where string) []mutant {
	var all []mutant
	for k, action := range Table[i].Do {
		all = append(all, mutant{where, fmt.Sprintf("without %s", action), changed(i, func(r *Row) { r.Do = slices.Delete(r.Do, k, k+1) }), Elsewhere})
		if k > 0 {
			all = append(all, mutant{where, fmt.Sprintf("with %s earlier", action), changed(i, func(r *Row) { r.Do = swapped(r.Do, k-1, k) }), Elsewhere})
		}
	}
	return all
}

// withoutRow are the answers that need no row.
var withoutRow = slices.DeleteFunc(declared[Answer](), func(a Answer) bool { return a == Move || a == Stay })

// answeredElse leaves out the events that have a row in every state but the last: Elsewhere only describes them.
func answeredElse() []mutant {
	var all []mutant
	for i, answer := range Elsewhere {
		used := slices.ContainsFunc(stateNames(), func(s State) bool { return s != Terminated && !hasRow(s, answer.On) })
		for _, other := range withoutRow {
			if used && other != answer.Answer {
				elsewhere := slices.Clone(Elsewhere)
				elsewhere[i].Answer = other
				all = append(all, mutant{string(answer.On) + " elsewhere", fmt.Sprintf("answered with %s", other), Table, elsewhere})
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
	require.Empty(t, stepFailures(Table, Elsewhere), "the table itself must pass before its mutants can fail")
	require.Empty(t, explore(Table, Elsewhere).wrong, "the table itself must keep the promises before its mutants can break them")
	all, bySteps, byPromises := mutants(), 0, 0
	var survivors []mutant
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
		if !steps && !promised {
			survivors = append(survivors, m)
		}
	}
	for _, cause := range causes(survivors) {
		assert.Fail(t, cause, "write a sentence that tells them apart from the table (transition_test.go)")
	}
	t.Logf("%d mutants; killed by the transition tests: %d, by the promises of the exploration: %d", len(all), bySteps, byPromises)
}

// causes puts survivors together that share a row or a change, the largest group first, and describes each group.
func causes(survivors []mutant) []string {
	var texts []string
	for len(survivors) > 0 {
		shared := mostShared(survivors)
		var group []string
		survivors = slices.DeleteFunc(survivors, func(m mutant) bool {
			if m.where != shared && m.change != shared {
				return false
			}
			group = append(group, m.where+" "+m.change)
			return true
		})
		texts = append(texts, fmt.Sprintf("%d mutants survived, %q: %s", len(group), shared, strings.Join(group[:min(3, len(group))], "; ")))
	}
	return texts
}

// mostShared is the row or the change that most mutants have in common, the alphabetically first of equals.
func mostShared(mutants []mutant) string {
	count := map[string]int{}
	for _, m := range mutants {
		count[m.where]++
		count[m.change]++
	}
	most := ""
	for _, name := range slices.Sorted(maps.Keys(count)) {
		if count[name] > count[most] {
			most = name
		}
	}
	return most
}

func TestSurvivorsOfOneCauseAreReportedOnce(t *testing.T) {
	assert.Equal(t, []string{
		`4 mutants survived, "row 1": row 1 dropped; row 1 moved up; row 1 without y`,
		`2 mutants survived, "guarded by [x]": row 2 guarded by [x]; row 3 guarded by [x]`,
	}, causes([]mutant{
		{where: "row 1", change: "dropped"},
		{where: "row 1", change: "moved up"},
		{where: "row 2", change: "guarded by [x]"},
		{where: "row 1", change: "without y"},
		{where: "row 1", change: "guarded by [x]"},
		{where: "row 3", change: "guarded by [x]"},
	}))
}
