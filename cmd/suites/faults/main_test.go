// Package faults_test drives the program through what a pod meets: kills, power losses, full and broken disks, lost
// quorums. A short selection runs by default, everything with -faults; the table at the end lists what was tried.
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
