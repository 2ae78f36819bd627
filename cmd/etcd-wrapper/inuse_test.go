package main_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestStopWhileAnotherProcessHoldsTheDatabase(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	first := p.start()
	first.awaitReady()
	p.put("key", "value")
	first.stopCleanly()

	second, release := p.startAndLockTheDatabase()
	second.awaitLine(line{"message": "another process holds the database"})
	status, took := second.stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
	assert.Less(t, took, abortBudget)
	require.Equal(t, "terminated", p.record(), "etcd was not opened")

	release()
	third, release := p.startAndLockTheDatabase()
	third.awaitLine(line{"message": "another process holds the database"})
	release()
	third.awaitReady()
	assert.Equal(t, "value", p.get("key"))
	third.stopCleanly()
	assert.Equal(t, []string{"full", "sanity", "sanity"}, p.sidecar.modes())
}

// startAndLockTheDatabase has another process open the database between the sidecar's validation and etcd's start.
func (p *place) startAndLockTheDatabase(flags ...string) (w *wrapper, release func()) {
	p.t.Helper()
	p.sidecar.takes = time.Second
	asked := len(p.sidecar.requests(startPath))
	w = p.start(flags...)
	eventually(p.t, "the validation begins", func() bool { return len(p.sidecar.requests(startPath)) > asked })
	return w, lockFile(p.t, p.database())
}

// The sidecar deletes what it finds corrupt, so it must not be sent to data that is in use.
func TestNoInitializationIsAskedForWhileAnEtcdHasTheDataOpen(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	first := p.start()
	first.awaitReady()
	first.stopCleanly()
	release := lockFile(t, p.database())
	asked := len(p.sidecar.requests(startPath))
	second := p.start()
	second.awaitLine(line{"event": "not accepted"})
	second.awaitLine(line{"event": "elapsed"})
	assert.Len(t, p.sidecar.requests(startPath), asked)
	release()
	second.awaitReady()
	assert.Len(t, p.sidecar.requests(startPath), asked+1)
	second.stopCleanly()
}

func TestReadyTimeoutWhileAnotherProcessHoldsTheDatabaseKeepsTheRecord(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	first := p.start()
	first.awaitReady()
	first.stopCleanly()
	second, _ := p.startAndLockTheDatabase("--etcd-ready-timeout=1s")
	assert.Equal(t, 75, second.exit(soon))
	assert.Equal(t, "terminated", p.record(), "etcd was not opened")
}
