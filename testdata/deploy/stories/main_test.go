// Package stories tests the chart in a real control plane. Each test installs the chart, and runs its pods if the test
// needs them.
package stories

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"etcd-wrapper/testdata/deploy/cluster"
	"etcd-wrapper/testdata/deploy/node"
)

// All tests share the control plane, the machines and the image, but each has a namespace of its own.
var (
	shared   *cluster.Cluster
	machines *node.Machines
	wrapper  *node.Image
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := node.Outside(cluster.Build); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(node.Contain(func() int { return runTests(m) }))
}

// runTests starts the control plane and the machines, runs all tests, and returns the exit status.
func runTests(m *testing.M) (status int) {
	files, err := os.MkdirTemp("", "image-")
	if err == nil {
		defer os.RemoveAll(files)
		wrapper, err = node.Unpack(filepath.Join(cluster.Checkout(), "bin/image"), filepath.Join(files, "wrapper"))
	}
	if err == nil {
		shared, err = cluster.Start(context.Background())
	}
	if err == nil {
		machines, err = node.Register(context.Background(), shared.Client)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if status = m.Run(); status == 0 {
		shared.Stop(nil)
	} else {
		shared.Stop(os.Stderr)
	}
	return status
}
