package endtoend_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

func TestStopWhileAnotherProcessHoldsTheDatabase(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	first := p.StartReady()
	p.Put("key", "value")
	first.StopCleanly()

	second, release := p.StartAndLockTheDatabase()
	second.AwaitLine(harness.Line{"message": "another process holds the database"})
	status, took := second.Stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
	assert.Less(t, took, harness.AbortBudget)
	require.Equal(t, "terminated", p.Record(), "etcd was not opened")

	release()
	third, release := p.StartAndLockTheDatabase()
	third.AwaitLine(harness.Line{"message": "another process holds the database"})
	release()
	third.AwaitReady()
	assert.Equal(t, "value", p.Get("key"))
	third.StopCleanly()
	assert.Equal(t, []string{"full", "sanity", "sanity"}, p.Sidecar.Modes())
}

// The sidecar deletes what it finds corrupt, so it must not be sent to data that is in use.
func TestNoInitializationIsAskedForWhileAnEtcdHasTheDataOpen(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.StartAndStop()
	release := harness.LockFile(t, p.Database())
	asked := len(p.Sidecar.Requests(harness.StartPath))
	second := p.Start()
	second.AwaitLine(harness.Line{"event": "not accepted"})
	second.AwaitLine(harness.Line{"event": "elapsed"})
	assert.Len(t, p.Sidecar.Requests(harness.StartPath), asked)
	release()
	second.AwaitReady()
	assert.Len(t, p.Sidecar.Requests(harness.StartPath), asked+1)
	second.StopCleanly()
}

func TestReadyTimeoutWhileAnotherProcessHoldsTheDatabaseKeepsTheRecord(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.StartAndStop()
	second, _ := p.StartAndLockTheDatabase("--etcd-ready-timeout=1s")
	assert.Equal(t, 75, second.Exit(harness.Patience))
	assert.Equal(t, "terminated", p.Record(), "etcd was not opened")
}
