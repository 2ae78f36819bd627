package stories

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/testdata/deploy/cluster"
	"etcd-wrapper/testdata/deploy/node"
)

// disk is the volume size in these tests. Backups leave 256 MB for etcd, which preallocates 64 MB for its log and
// needs more for large values.
const disk = 768 << 20

// etcd exits when its volume is full. Once space has been freed, the member must return with all acknowledged writes.
func TestFullDisk_memberReturns(t *testing.T) {
	w := newEnvironment(t, node.SmallDisks(disk))
	w.apply(one)
	w.awaitReady(1)
	w.greet()
	freeSpace := w.fillDisk("etcd-main-0")
	writes := w.startWriter()
	w.writeUntilExit("etcd-main-0")
	freeSpace()
	w.awaitReady(1)
	assert.True(t, w.greeted())
	w.check(writes)
}

// If the volume of one of three members is full, the other members must not be affected.
func TestFullDisk_clientsAreNotDelayed(t *testing.T) {
	w := newEnvironmentWithBucket(t, node.SmallDisks(disk))
	w.apply(three)
	w.awaitReady(3)
	freeSpace := w.fillDisk("etcd-main-1")
	writes := w.startWriter()
	w.writeUntilExit("etcd-main-1")
	w.greet()
	freeSpace()
	w.awaitReady(3)
	assert.True(t, w.greeted())
	w.checkBackups("etcd-main-0", writes)
}

// fillDisk fills a member's volume and returns a function that frees the space.
func (w *environment) fillDisk(member string) (freeSpace func()) {
	w.t.Helper()
	ballast := filepath.Join(w.node.Disk(w.t, w.pods()[member], "etcd-main-"+member), "ballast")
	require.Error(w.t, os.WriteFile(ballast, make([]byte, disk), 0o600), "the volume must be full, so the write must fail")
	return func() { require.NoError(w.t, os.Remove(ballast)) }
}

// writeUntilExit writes the same large key until the member exits, which quickly fills etcd's log.
func (w *environment) writeUntilExit(member string) {
	w.t.Helper()
	client, large := w.etcd(), string(make([]byte, 1<<20))
	cluster.Eventually(w.t, "the member exits", func() error {
		if w.restarts(member) > 0 {
			return nil
		}
		return errors.Join(tryPut(client, "large", large, 5*time.Second), errNotYet)
	})
}
