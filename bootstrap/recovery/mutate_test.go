package recovery

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/lifecycle/machine"
)

// mutant is the table with one thing changed.
type mutant struct {
	what      string
	table     []Row
	elsewhere []machine.Default
}

// mutants change the table one way at a time.
func mutants() (all []mutant) {
	for i, row := range Table {
		add := func(change string, table []Row) {
			all = append(all, mutant{fmt.Sprintf("row %d (%s, %s) %s", i, row.From, row.Edge(), change), table, Elsewhere})
		}
		add("dropped", slices.Delete(slices.Clone(Table), i, i+1))
		for _, to := range states() {
			if to != row.To {
				add("redirected to "+string(to), changed(i, func(r *Row) { r.To = to }))
			}
		}
		for _, guard := range append(slices.Sorted(maps.Keys(conditions)), machine.Always, "nothing") {
			if guard != row.When {
				add(fmt.Sprintf("guarded by [%s]", guard), changed(i, func(r *Row) { r.When = guard }))
			}
		}
		for k, action := range row.Do {
			add("without "+string(action), changed(i, func(r *Row) { r.Do = slices.Delete(r.Do, k, k+1) }))
			if k > 0 {
				add("with "+string(action)+" earlier", changed(i, func(r *Row) { r.Do[k-1], r.Do[k] = r.Do[k], r.Do[k-1] }))
			}
		}
	}
	return append(all, answeredElse()...)
}

func changed(i int, change func(*Row)) []Row {
	table := slices.Clone(Table)
	table[i].Do = slices.Clone(table[i].Do)
	change(&table[i])
	return table
}

func answeredElse() (all []mutant) {
	for i, answer := range Elsewhere {
		elsewhere := slices.Clone(Elsewhere)
		elsewhere[i].Answer = machine.Ignore
		all = append(all, mutant{string(answer.On) + " ignored elsewhere", Table, elsewhere})
	}
	return all
}

// A mutant that nothing notices would be a change of behaviour that a reviewer never sees.
func TestNoMutantOfTheTableSurvives(t *testing.T) {
	require.Empty(t, stepFailures(Table, Elsewhere), "the table itself must pass before its mutants can fail")
	all, bySteps, byPromises := mutants(), 0, 0
	for _, m := range all {
		steps := len(stepFailures(m.table, m.elsewhere)) > 0
		promised := (!steps || testing.Verbose()) && len(explore(m.table, m.elsewhere).wrong) > 0
		if steps {
			bySteps++
		}
		if promised {
			byPromises++
		}
		assert.True(t, steps || promised, "%s: nothing notices; write a sentence that does (transition_test.go)", m.what)
	}
	t.Logf("%d mutants; noticed by the sentences: %d, by the promises of the exploration: %d", len(all), bySteps, byPromises)
}
