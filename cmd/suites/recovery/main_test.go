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
	rounds = flag.Int("rounds", 3, "number of disasters in the chaos tests")
	seeded = flag.Uint64("seed", 1, "seed of the chaos tests; 0 for a random one")
	only   = flag.String("disaster", "", "inject only disasters whose names contain this")
	while  = flag.String("while", "", "combine each disaster of three members with a condition whose name contains this")
	whole  = flag.Bool("whole", false, "run the long tests as well")
)

func TestMain(m *testing.M) {
	status := harness.Main(m)
	sum.print(os.Stdout)
	os.Exit(status)
}

// some returns the step for a loop over the trials: apart by default, or 1 with -whole.
func some(apart int) int {
	if *whole {
		return 1
	}
	return apart
}
