// Package endtoend_test runs the program as a pod would. The tests cover how the program starts, works with its
// sidecar, serves, reports its state and stops.
package endtoend_test

import (
	"os"
	"testing"

	"etcd-wrapper/cmd/suites/harness"
)

func TestMain(m *testing.M) {
	*harness.DetectRaces = true // data races are detected here, because this suite covers all features of the program
	os.Exit(harness.Main(m))
}
