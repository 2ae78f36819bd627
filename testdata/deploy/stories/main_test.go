// Package stories applies the manifests of deploy to a real control plane and runs their pods.
package stories

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"etcd-wrapper/testdata/deploy/cluster"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := cluster.Build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
