package faults_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// mount mounts for the length of the test, the mount point last; only root can.
func mount(t *testing.T, args ...string) {
	t.Helper()
	point := args[len(args)-1]
	if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
		t.Skipf("skipped: nothing can be mounted here: %v: %s", err, out)
	}
	t.Cleanup(func() { require.NoError(t, exec.Command("umount", "--lazy", point).Run()) })
}
