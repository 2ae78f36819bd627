package recovery_test

import (
	"fmt"
	"os"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// A disaster is a fault of a cluster with a single member. Clients write until inject calls stop. inject returns once
// the member has recovered.
type disaster struct {
	name       string
	isPossible func(c *cluster) bool // nil means always possible
	inject     func(c *cluster, stop func()) outcome
}

var disasters = []disaster{
	{"killed", nil, func(c *cluster, stop func()) outcome {
		c.kill(stop)
		c.copyVolume()
		return c.recoverIntact()
	}},
	{"stopped", nil, func(c *cluster, stop func()) outcome {
		c.shutdown(stop)
		c.copyVolume()
		return c.recoverIntact()
	}},
	{"volume lost", nil, func(c *cluster, stop func()) outcome {
		c.kill(stop)
		emptyVolume(c.Pod)
		return c.recoverAll()
	}},
	{"volume lost after a stop", nil, func(c *cluster, stop func()) outcome {
		c.shutdown(stop)
		c.stored = c.ledger.highest() // the clean stop has uploaded all writes
		emptyVolume(c.Pod)
		return c.recoverAll()
	}},
	{"database damaged", nil, func(c *cluster, stop func()) outcome {
		c.kill(stop)
		c.damage(c.DBPath())
		return c.recoverAll()
	}},
	{"log damaged", nil, func(c *cluster, stop func()) outcome {
		c.kill(stop)
		c.damage(lastSegment(c.Pod))
		return c.recoverAll()
	}},
	{"volume rolled back", (*cluster).hasCopy, func(c *cluster, stop func()) outcome {
		c.awaitNewerThanCopy()
		c.kill(stop)
		restoreVolume(c.Pod, c.oldVolume)
		return c.recoverAll()
	}},
	{"store unreachable, killed", nil, func(c *cluster, stop func()) outcome {
		c.loseStore()
		c.kill(stop)
		c.waitForStore()
		return c.recoverIntact()
	}},
	{"store unreachable, volume lost", nil, func(c *cluster, stop func()) outcome {
		c.loseStore()
		c.kill(stop)
		emptyVolume(c.Pod)
		c.waitForStore()
		return c.recoverAll()
	}},
	{"store unreachable, database damaged", nil, func(c *cluster, stop func()) outcome {
		c.loseStore()
		c.kill(stop)
		breakDatabase(c.Pod)
		c.waitForStore() // damaged data cannot be replaced without the store
		return c.recoverAll()
	}},
	{"store slow, volume lost", (*cluster).canBeSlow, func(c *cluster, stop func()) outcome {
		c.store.slow()
		c.sleep(2 * time.Second)
		c.kill(stop)
		emptyVolume(c.Pod)
		c.recover()
		c.store.reconnect()
		return outcome{}
	}},
	{"restore requested", nil, (*cluster).restoreToRevision},
}

// recoverIntact recovers a member whose volume is intact.
func (c *cluster) recoverIntact() outcome {
	c.recover()
	return outcome{intact: true}
}

// recoverAll recovers a member whose volume is lost, damaged or rolled back.
func (c *cluster) recoverAll() outcome {
	c.recover()
	return outcome{}
}

func (c *cluster) hasCopy() bool { return c.oldVolume != "" }

func (c *cluster) canBeSlow() bool { return c.store.slow != nil }

func (c *cluster) copyVolume() {
	if c.dice.IntN(2) == 0 {
		c.oldVolume = copyVolume(c.Pod)
	}
}

// awaitNewerThanCopy waits until the store contains a revision that is missing from the copy of the volume.
// Otherwise, recovery could not detect that the volume was rolled back: it would look as if etcd had been killed when
// the copy was made.
func (c *cluster) awaitNewerThanCopy() {
	c.T.Helper()
	copied := highestRevision(c.Pod, c.oldVolume)
	harness.Eventually(c.T, "the store contains a revision that the copy does not", func() bool {
		c.readStatus()
		return c.stored > copied
	})
}

// shutdown stops the clients and then the program, and requires that all acknowledged writes are in the store.
func (c *cluster) shutdown(stop func()) {
	c.T.Helper()
	stop()
	c.run.Shutdown()
	c.run.AwaitLine(harness.Line{"message": "backups: all acknowledged writes are in the store"})
}

// damage corrupts a random number of bytes, either at the start of a file or at a random offset.
func (c *cluster) damage(path string) {
	c.T.Helper()
	info, err := os.Stat(path)
	require.NoError(c.T, err)
	const most = 16 << 10
	from, size := int64(0), c.dice.IntN(most)+1
	if c.dice.IntN(2) == 0 {
		from = c.dice.Int64N(min(info.Size(), 1<<20) - most)
	}
	harness.CorruptFile(c.T, path, from, size)
}

// loseStore makes the store unreachable and lets clients write for a while.
func (c *cluster) loseStore() {
	c.T.Helper()
	c.readStatus()
	c.store.disconnect()
	c.sleep(2 * time.Second)
}

// waitForStore starts the program, requires that it waits for the store, makes the store reachable again and kills the
// program.
func (c *cluster) waitForStore() {
	c.T.Helper()
	c.run = c.Start(infoLevel)
	c.run.AwaitLine(harness.Line{"message": "recovery: the store cannot be read, so it is unknown whether data was lost or rolled back"})
	require.NotEqual(c.T, 200, c.run.Readyz())
	c.store.reconnect()
	if c.dice.IntN(2) == 0 {
		c.run.AwaitReady()
	}
	c.killRecovery()
}

// restoreToRevision restores a random revision from the store.
func (c *cluster) restoreToRevision(stop func()) outcome {
	c.T.Helper()
	stop()
	harness.Eventually(c.T, "the status shows the restore points and all revisions are stored", func() bool {
		backup := c.run.Status().Backup
		return backup != nil && backup.Window != nil && backup.Revision >= backup.Window.FromRevision && backup.LagRevisions == 0
	})
	window := c.run.Status().Backup.Window
	to := window.FromRevision + c.dice.Int64N(window.ToRevision-window.FromRevision+1)
	c.run.Kill()
	c.recover(fmt.Sprintf("--restore-to=revision:%d", to), fmt.Sprintf("--restore-id=at-%d", c.ledger.highest()))
	return outcome{exactly: to}
}
