package recovery_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/cmd/suites/harness"
)

// copied is another pod whose volume is a copy of this one's, with the same store.
func (l *storedMember) copied() *harness.Pod {
	l.T.Helper()
	other := harness.NewStandalonePod(l.T, nil)
	other.Flags = append(other.Flags, l.flag())
	require.NoError(l.T, os.RemoveAll(other.Volume))
	require.NoError(l.T, os.CopyFS(other.Volume, os.DirFS(l.Volume)))
	return other
}

// Both have the same rows at first, as two members of one cluster have: who writes finds what the other one has written.
func TestCopies_oneContinues(t *testing.T) {
	t.Parallel()
	l := newStoredMember(t)
	pods := []*harness.Pod{l.Pod, l.copied()}
	runs := []*harness.Run{pods[0].StartReady(), pods[1].StartReady()}
	pods[0].Put("key", "of the first")
	_ = pods[1].TryPut("key", "of the second", 5*time.Second) // a client of a process that has ended waits for another one
	stopped, running := 0, 1
	select {
	case <-runs[0].Ended:
	case <-runs[1].Ended:
		stopped, running = 1, 0
	case <-time.After(time.Minute):
		require.Fail(t, "both go on")
	}
	assert.Equal(t, 70, runs[stopped].Exit(time.Second))
	runs[stopped].AwaitLine(harness.Line{"message": "another copy of this data continues its backups", "level": "error"})
	runs[stopped].AwaitLine(harness.Line{"message": "start once with --adopt=", "level": "error"})
	assert.Equal(t, 200, runs[running].Readyz())
	pods[running].Put("key", "afterwards")
	runs[running].Shutdown()
	runs[running].AwaitLine(harness.Line{"message": "backups: all acknowledged writes are in the store"})
}

// Its data are kept, and are added to the store when an operator requests it, once.
func TestCopies_adoption(t *testing.T) {
	t.Parallel()
	l := newStoredMember(t)
	other := l.copied()
	run := l.StartReady()
	l.Put("key", "of the first")
	run.Shutdown()
	flags := other.Flags
	other.Flags = slices.DeleteFunc(slices.Clone(flags), func(flag string) bool { return flag == l.flag() })
	run = other.StartReady()
	other.Put("key", "of the copy")
	run.Shutdown()
	other.Flags = append(flags, "--recover=never")
	assert.Equal(t, 70, other.Start().Exit(time.Minute))

	identity, err := archive.ReadIdentity(other.DataDir())
	require.NoError(t, err)
	other.Flags = append(other.Flags, "--recover=auto", "--adopt="+identity.Cluster)
	run = other.StartReady()
	assert.Equal(t, "of the copy", other.Get("key"))
	harness.Eventually(t, "it makes backups of its own", func() bool {
		b := run.Status().Backup
		return b.Generation == 2 && b.LastFullSnapshot != nil && b.Problem == nil
	})
	run.Shutdown()
	require.NoError(t, os.RemoveAll(filepath.Join(other.Volume)))
	require.NoError(t, os.Mkdir(other.Volume, 0o700))
	run = other.StartReady()
	assert.Equal(t, "of the copy", other.Get("key"), "and comes back with them, though the flag is left in its place")
	harness.Eventually(t, "in the next generation", func() bool { return run.Status().Backup.Generation == 3 })
}

// The second time the first one's flag is still set. The flag that the program suggests works.
func TestCopies_consecutiveAdoptions(t *testing.T) {
	t.Parallel()
	l := newStoredMember(t)
	adopt := "--adopt="
	for generation := 2; generation <= 3; generation++ {
		value := fmt.Sprint("of the copy that generation ", generation, " is of")
		other := l.copied()
		flags := other.Flags
		other.Flags = slices.DeleteFunc(slices.Clone(flags), func(flag string) bool { return flag == l.flag() })
		run := other.StartReady()
		other.Put("key", value)
		run.Shutdown()
		run = l.StartReady()
		l.Put("key", "of the one that it is a copy of")
		run.Shutdown()

		other.Flags = append(flags, "--recover=never", adopt)
		run = other.Start()
		require.Equal(t, 70, run.Exit(time.Minute))
		said := regexp.MustCompile(`start once with (--adopt=[0-9a-f/]+)`).FindStringSubmatch(strings.Join(run.Log.FindText("start once with"), ""))
		require.Len(t, said, 2, "it says how")
		adopt = said[1]
		other.Flags = append(flags, adopt)
		run = other.StartReady()
		assert.Equal(t, value, other.Get("key"))
		harness.Eventually(t, "it makes backups of its own", func() bool {
			b := run.Status().Backup
			return b != nil && b.Generation == generation && b.LastFullSnapshot != nil && b.Problem == nil
		})
		run.Shutdown()
		l.Pod = other
	}
}
