// Package faults_test exposes the program to faults that can affect a pod: kills, power losses, full and broken
// disks, and lost quorums. By default, only a selection of the tests runs. -faults runs all tests. A table of all
// trials is printed at the end.
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
