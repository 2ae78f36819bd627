// Package upkeep_test holds the program to what it promises of a cluster that looks after itself: defragmentations and
// snapshots under load that no writer notices, and nothing lost.
package upkeep_test

import (
	"flag"
	"os"
	"testing"

	"etcd-wrapper/cmd/suites/harness"
)

var (
	whole = flag.Bool("upkeep", false, "run the whole day in fast motion, which takes minutes")
	inUse = flag.Int("in-use", 200, "mebibytes that are in use of each member's database during the day")
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
