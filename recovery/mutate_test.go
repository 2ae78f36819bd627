package recovery

import (
	"testing"

	"etcd-wrapper/statemachine"
)

func TestNoMutantOfTheTableSurvives(t *testing.T) {
	tested.AssertNoMutantSurvives(t, stepFailures, func(table []Row, elsewhere []statemachine.Default) []string { return explore(table, elsewhere).wrong })
}
