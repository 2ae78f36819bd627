package backups_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// mountFreezable puts the store on a file system of its own and returns functions that freeze and thaw it. Writes to
// a frozen file system block uninterruptibly, as they do on a network file system whose server is unreachable.
func (m *member) mountFreezable() (freeze, thaw func()) {
	m.T.Helper()
	image := filepath.Join(m.Dir, "disk")
	require.NoError(m.T, os.WriteFile(image, nil, 0o600))
	require.NoError(m.T, os.Truncate(image, 64<<20))
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", image).CombinedOutput(); err != nil {
		m.T.Skipf("skipped: cannot create an ext4 file system: %v: %s", err, out)
	}
	harness.Mount(m.T, "-o", "loop", image, m.mount)
	require.NoError(m.T, os.Mkdir(m.dir, 0o700))
	run := func(flag string) func() {
		return func() { require.NoError(m.T, exec.Command("fsfreeze", flag, m.mount).Run()) }
	}
	m.T.Cleanup(func() { _ = exec.Command("fsfreeze", "-u", m.mount).Run() }) // fails if the file system is not frozen
	return run("-f"), run("-u")
}

func TestHangingFolder_etcdServes(t *testing.T) {
	t.Parallel()
	requireWholeFlag(t)
	m := newMember(t)
	freeze, thaw := m.mountFreezable()
	run := m.StartReady()
	run.AwaitStored(m.write("key", "in the store"))
	freeze()
	last := m.write("key", "while the store hangs")
	awaitBackupStatus(run, "the status reports that a request hangs", hasProblem)
	for i := range 100 {
		last = m.write("key", fmt.Sprint("still hanging ", i))
	}
	m.compact()
	assert.Equal(t, 200, run.Readyz())
	assert.Positive(t, backupStatus(run).SpoolBytes, "captured changes are queued on the volume")
	thaw()
	run.AwaitStored(last)
	awaitBackupStatus(run, "backups continue", recovered)
	run.Shutdown()
	require.Len(t, m.requireSound(t), 1, "the chain has no gap")
}
