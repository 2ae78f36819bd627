// Package recovery_test checks what recovery promises, with the real program as a process: whatever happens to
// volumes and stores, what was acknowledged and had to survive is there afterwards, nothing else is, and no client sees a
// revision decrease. A short selection runs by default, everything with -whole.
package recovery_test

import (
	"flag"
	"os"
	"testing"

	"etcd-wrapper/cmd/suites/harness"
)

var (
	rounds = flag.Int("rounds", 3, "how many disasters the chaos run has")
	seeded = flag.Uint64("seed", 1, "of what the chaos run draws; 0 draws something else each time")
	only   = flag.String("disaster", "", "have only disasters with this in their names")
	while  = flag.String("while", "", "have each disaster of three members happen while something with this in its name holds")
	whole  = flag.Bool("whole", false, "run what takes longer, too")
)

func TestMain(m *testing.M) {
	status := harness.Main(m)
	sum.print(os.Stdout)
	os.Exit(status)
}

// some returns a stride, or 1 if everything is to be run.
func some(apart int) int {
	if *whole {
		return 1
	}
	return apart
}
