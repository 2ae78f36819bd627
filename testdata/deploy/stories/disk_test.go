package stories

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/testdata/deploy/cluster"
	"etcd-wrapper/testdata/deploy/node"
)

// A volume that is full ends etcd. When there is room again the member comes back, with all that was acknowledged.
func TestAMemberComesBackWhenItsFullDiskHasRoomAgain(t *testing.T) {
	w := newWorld(t, node.SmallDisks(256<<20))
	w.apply("deploy/standalone")
	w.awaitReady(1)
	w.greet()
	ballast := filepath.Join(w.node.Disk(t, w.pods()["etcd-main-0"], "etcd-main-etcd-main-0"), "ballast")
	require.Error(t, os.WriteFile(ballast, make([]byte, 256<<20), 0o600), "the disk is full now")
	writes := w.startWriter()
	cluster.Eventually(t, "etcd ends", func() error {
		status := w.pods()["etcd-main-0"].Status.ContainerStatuses[0]
		if status.RestartCount == 0 {
			return tooLong(w)
		}
		return nil
	})
	require.NoError(t, os.Remove(ballast))
	w.awaitReady(1)
	assert.True(t, w.greeted())
	cluster.Eventually(t, "it takes writes", func() error { return tryPut(w.etcd(), "after", "all", 5*time.Second) })
	w.check(writes)
}

// tooLong writes what fills a log sooner than a small key does.
func tooLong(w *world) error {
	if err := tryPut(w.etcd(), "large", string(make([]byte, 1<<20)), 5*time.Second); err != nil {
		return err
	}
	return errNotYet
}
