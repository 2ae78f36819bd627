// Package backups_test runs the real program in a separate process and checks its guarantees about backups. Every
// write that etcd has acknowledged must reach the store and be restorable, even if the program is killed or suspended
// or the store is unreachable.
package backups_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"etcd-wrapper/cmd/suites/harness"
)

var (
	cycles = flag.Int("cycles", 5, "number of times that the crash loop kills the program")
	whole  = flag.Bool("whole", false, "also run the slow tests")
)

func TestMain(m *testing.M) {
	for _, cloud := range clouds {
		for _, set := range cloud.credentials {
			name, value, _ := strings.Cut(set, "=")
			_ = os.Setenv(name, value) // affects only the tests, because the program gets its own environment
		}
	}
	os.Exit(harness.Main(m))
}

// requireWholeFlag skips a slow test unless -whole is set.
func requireWholeFlag(t *testing.T) {
	t.Helper()
	if !*whole {
		t.Skip("skipped: part of make test-backup")
	}
}
