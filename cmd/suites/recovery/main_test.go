// Package recovery_test runs the real program and checks its guarantees about recovery. After a volume or a store has
// failed, every acknowledged write that must survive has to exist, there must be no other data, and no client may see
// the revision decrease. By default, only a selection of the tests runs. -whole runs all tests.
package recovery_test

import (
	"flag"
	"os"
	"testing"

	"etcd-wrapper/cmd/suites/harness"
)

var (
	rounds   = flag.Int("rounds", 3, "number of disasters in each chaos test, and of takeovers in each takeover test")
	seedFlag = flag.Uint64("seed", 1, "seed of the chaos tests; 0 for a random one")
	only     = flag.String("disaster", "", "inject only disasters whose names contain this text")
	while    = flag.String("while", "", "combine each disaster of three members with a condition whose name contains this text")
	whole    = flag.Bool("whole", false, "also run the slow tests")
)

func TestMain(m *testing.M) {
	status := harness.Main(m)
	sum.print(os.Stdout)
	os.Exit(status)
}

// stepUnlessWhole returns the step of a loop over all trials: 1 with -whole, so that all trials run, and the given
// step otherwise.
func stepUnlessWhole(step int) int {
	if *whole {
		return 1
	}
	return step
}
