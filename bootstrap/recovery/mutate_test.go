package recovery

import (
	"testing"

	"etcd-wrapper/lifecycle/machine"
)

func TestNoMutantOfTheTableSurvives(t *testing.T) {
	tested.AssertNoMutantSurvives(t, stepFailures, func(table []Row, elsewhere []machine.Default) []string { return explore(table, elsewhere).wrong })
}
