// Package endtoend_test holds the program to what it promises in a pod: how it starts, agrees with its sidecar, serves,
// reports its state, and stops.
package endtoend_test

import (
	"os"
	"testing"

	"etcd-wrapper/cmd/suites/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
