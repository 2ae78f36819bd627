package lifecycle_test

import (
	"testing"

	. "etcd-wrapper/lifecycle"
)

func TestNoMutantOfTheTableSurvives(t *testing.T) {
	tested.AssertNoMutantSurvives(t, stepFailures, func(table []Row, elsewhere []Default) []string { return explore(table, elsewhere).wrong })
}
