package statemachine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/statemachine"
)

// Take must return an error for two rows with the same name, because the library would silently replace the first
// row.
func TestChecker_refusesTwoRowsUnderOneName(t *testing.T) {
	table := []statemachine.Row{{From: "closed", On: "knocked", To: "open"}, {From: "closed", On: "knocked", To: "locked"}}
	assert.ErrorContains(t, statemachine.NewChecker(table, "closed").Take(&table[0]), "two rows with the same name")
	assert.NoError(t, statemachine.NewChecker(table, "closed").Take(&table[1]))
	assert.Error(t, statemachine.NewChecker(table, "open").Take(&table[1]), "the machine is not in the row's From state")
}

func TestConditions_unknownGuardNeverHolds(t *testing.T) {
	conditions := statemachine.Conditions[bool]{"lit": func(lit bool) bool { return lit }}
	assert.True(t, conditions.Evaluate("lit", true))
	assert.False(t, conditions.Evaluate("lit", false))
	assert.False(t, conditions.Evaluate("misspelled", true))
	assert.True(t, conditions.Evaluate(statemachine.Always, false))
}
