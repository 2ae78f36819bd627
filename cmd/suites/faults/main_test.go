// Package faults_test tests the program under the faults that a pod may encounter: kills, power losses, full and
// broken disks, and lost quorums. By default it runs a short selection; -faults runs everything. At the end it
// prints a table of all trials.
package faults_test

import (
	"os"
	"testing"

	"etcd-wrapper/cmd/suites/harness"
)

func TestMain(m *testing.M) {
	status := harness.Main(m)
	tried.print(os.Stdout)
	os.Exit(status)
}
