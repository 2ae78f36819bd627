package endtoend_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/cmd/suites/harness"
)

// Once the wrapper has waited for another process that has opened the data for writing, it must not write an exit
// record when it is stopped, because it cannot know how the other process will exit.
func TestDatabaseInUse_stop(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.StartAndStop("key", "value")

	second, release := p.StartAndLockDB()
	second.AwaitLine(harness.Line{"message": "the database is locked by another process"})
	status, took := second.Stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
	assert.Less(t, took, harness.AbortBudget)
	require.NoFileExists(t, p.RecordPath())

	release()
	third, release := p.StartAndLockDB()
	third.AwaitLine(harness.Line{"message": "the database is locked by another process"})
	release()
	third.AwaitReady()
	assert.Equal(t, "value", p.Get("key"))
	status, _ = third.Stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
	require.NoFileExists(t, p.RecordPath())
	p.StartAndStop()
	assert.Equal(t, []string{"full", "sanity", "full", "full"}, p.Sidecar.Modes())
}

func TestDatabaseInUse_reader(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.StartAndStop()
	p.Sidecar.Takes = harness.Forever
	run := p.Start()
	p.Sidecar.Await(harness.StartPath)
	reader, err := os.Open(p.DBPath())
	require.NoError(t, err)
	defer reader.Close()
	require.NoError(t, unix.Flock(int(reader.Fd()), unix.LOCK_SH))
	p.Sidecar.Finish()
	run.AwaitLine(harness.Line{"message": "the database is locked by another process"})
	status, _ := run.Stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
	assert.Equal(t, "terminated", p.Record())
}

func TestDatabaseInUse_twoVolumes(t *testing.T) {
	t.Parallel()
	first, second := harness.NewPod(t), harness.NewPod(t)
	owner := first.StartReady()
	second.WriteRecord("terminated")
	second.Config["data-dir"] = first.DataDir()
	waiting := second.Start()
	waiting.AwaitLine(harness.Line{"event": "data in use", "message": "is locked by another etcd-wrapper"})
	assert.NoFileExists(t, second.RecordPath())
	owner.Shutdown()
	waiting.AwaitReady()
	status, _ := waiting.Stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
	assert.NoFileExists(t, second.RecordPath())
}

// While another process uses the data, the wrapper must not request an initialization, because the sidecar deletes
// data that it considers corrupt. If the wrapper is killed while it waits, there must be no exit record.
func TestDatabaseInUse_noInitialization(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.StartAndStop()
	release := harness.LockFile(t, p.DBPath())
	second := p.Start()
	second.AwaitLine(harness.Line{"event": "data in use"})
	assert.Equal(t, "volume", second.Status().LastError.Class)
	second.AwaitLine(harness.Line{"event": "elapsed"})
	second.Kill()
	require.NoFileExists(t, p.RecordPath())
	assert.Equal(t, []string{"full"}, p.Sidecar.Modes())
	third := p.Start()
	third.AwaitLine(harness.Line{"event": "data in use"})
	release()
	third.AwaitReady()
	assert.Equal(t, []string{"full", "full"}, p.Sidecar.Modes())
	status, _ := third.Stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
}

func TestDatabaseInUse_readyTimeout(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.StartAndStop()
	second, _ := p.StartAndLockDB("--etcd-ready-timeout=1s")
	assert.Equal(t, 75, second.Exit(harness.Patience))
	assert.NoFileExists(t, p.RecordPath())
}
