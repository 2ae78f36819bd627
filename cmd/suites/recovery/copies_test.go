package recovery_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/cmd/suites/harness"
)

// copied returns a second pod that has a copy of the volume and uses the same store.
func (l *storedMember) copied() *harness.Pod {
	l.T.Helper()
	other := harness.NewStandalonePod(l.T, nil)
	other.Flags = append(other.Flags, l.flag())
	require.NoError(l.T, os.RemoveAll(other.Volume))
	require.NoError(l.T, os.CopyFS(other.Volume, os.DirFS(l.Volume)))
	return other
}

// If two pods run with copies of the same data, only one of them may continue the backups. The pod that uploads second
// must find the other pod's writes in the store, and exit.
func TestCopies_oneContinues(t *testing.T) {
	t.Parallel()
	l := newStoredMember(t)
	pods := []*harness.Pod{l.Pod, l.copied()}
	runs := []*harness.Run{pods[0].StartReady(), pods[1].StartReady()}
	pods[0].Put("key", "written by the first pod")
	_ = pods[1].TryPut("key", "written by the second pod", 5*time.Second) // fails if the process has exited
	stopped, running := 0, 1
	select {
	case <-runs[0].Ended:
	case <-runs[1].Ended:
		stopped, running = 1, 0
	case <-time.After(time.Minute):
		require.Fail(t, "neither pod has exited")
	}
	assert.Equal(t, 70, runs[stopped].Exit(time.Second))
	runs[stopped].AwaitLine(harness.Line{"message": "another copy of this data is writing to the same backups", "level": "error"})
	runs[stopped].AwaitLine(harness.Line{"message": "start once with --adopt=", "level": "error"})
	assert.Equal(t, 200, runs[running].Readyz())
	pods[running].Put("key", "afterwards")
	runs[running].Shutdown()
	runs[running].AwaitLine(harness.Line{"message": "backups: all acknowledged writes are in the store"})
}

// A pod with a rejected copy must keep its data. With --adopt, it must store the data in a new generation. A later
// start with the same flag must restore this generation instead of adopting again.
func TestCopies_adoption(t *testing.T) {
	t.Parallel()
	l := newStoredMember(t)
	other := l.copied()
	run := l.StartReady()
	l.Put("key", "written by the first pod")
	run.Shutdown()
	flags := other.Flags
	other.Flags = slices.DeleteFunc(slices.Clone(flags), func(flag string) bool { return flag == l.flag() })
	run = other.StartReady()
	other.Put("key", "written to the copy")
	run.Shutdown()
	other.Flags = append(flags, "--recover=never")
	assert.Equal(t, 70, other.Start().Exit(time.Minute))

	identity, err := archive.ReadIdentity(other.DataDir())
	require.NoError(t, err)
	other.Flags = append(other.Flags, "--recover=auto", "--adopt="+identity.Cluster)
	run = other.StartReady()
	assert.Equal(t, "written to the copy", other.Get("key"))
	harness.Eventually(t, "the copy has a full snapshot in a generation of its own", func() bool {
		b := run.Status().Backup
		return b.Generation == 2 && b.LastFullSnapshot != nil && b.Problem == nil
	})
	run.Shutdown()
	require.NoError(t, os.RemoveAll(filepath.Join(other.Volume)))
	require.NoError(t, os.Mkdir(other.Volume, 0o700))
	run = other.StartReady()
	assert.Equal(t, "written to the copy", other.Get("key"), "the adopted data is restored although --adopt is still set")
	harness.Eventually(t, "the restored member has the next generation", func() bool { return run.Status().Backup.Generation == 3 })
}
