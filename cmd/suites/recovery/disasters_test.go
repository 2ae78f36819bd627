package recovery_test

import (
	"fmt"
	"os"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// disaster happens to a member under load until stop is called. It leaves the member recovered.
type disaster struct {
	name     string
	possible func(c *cluster) bool // nil for always
	strike   func(c *cluster, stop func()) outcome
}

var disasters = []disaster{
	{"killed", nil, func(c *cluster, stop func()) outcome {
		c.kill(stop)
		c.maybeCopy()
		return c.whole()
	}},
	{"stopped in order", nil, func(c *cluster, stop func()) outcome {
		c.stopInOrder(stop)
		c.maybeCopy()
		return c.whole()
	}},
	{"volume lost", nil, func(c *cluster, stop func()) outcome {
		c.kill(stop)
		lose(c.Pod)
		return c.back()
	}},
	{"volume lost after an orderly stop", nil, func(c *cluster, stop func()) outcome {
		c.stopInOrder(stop)
		c.must = c.book.highest() // everything is in the store
		lose(c.Pod)
		return c.back()
	}},
	{"database damaged", nil, func(c *cluster, stop func()) outcome {
		c.kill(stop)
		c.damage(c.Database())
		return c.back()
	}},
	{"log damaged", nil, func(c *cluster, stop func()) outcome {
		c.kill(stop)
		c.damage(lastOfLog(c.Pod))
		return c.back()
	}},
	{"volume rolled back", (*cluster).hasCopy, func(c *cluster, stop func()) outcome {
		c.awaitNewerThanCopy()
		c.kill(stop)
		putBack(c.Pod, c.old)
		return c.back()
	}},
	{"store away, killed", nil, func(c *cluster, stop func()) outcome {
		c.loseStore()
		c.kill(stop)
		c.waitForStore()
		return c.whole()
	}},
	{"store away, volume lost", nil, func(c *cluster, stop func()) outcome {
		c.loseStore()
		c.kill(stop)
		lose(c.Pod)
		c.waitForStore()
		return c.back()
	}},
	{"store away, database damaged", nil, func(c *cluster, stop func()) outcome {
		c.loseStore()
		c.kill(stop)
		breakDatabase(c.Pod)
		c.waitForStore() // only data that are valid need not
		return c.back()
	}},
	{"store slow, volume lost", (*cluster).canBeSlow, func(c *cluster, stop func()) outcome {
		c.store.slow()
		c.pass(2 * time.Second)
		c.kill(stop)
		lose(c.Pod)
		c.recover()
		c.store.back()
		return outcome{}
	}},
	{"asked to go back", nil, (*cluster).restoreToRevision},
}

// whole is a recovery of a volume that nothing has happened to.
func (c *cluster) whole() outcome {
	c.recover()
	return outcome{whole: true}
}

// back is a recovery of one that something has happened to.
func (c *cluster) back() outcome {
	c.recover()
	return outcome{}
}

func (c *cluster) hasCopy() bool { return c.old != "" }

func (c *cluster) canBeSlow() bool { return c.store.slow != nil }

func (c *cluster) maybeCopy() {
	if c.dice.IntN(2) == 0 {
		c.old = keep(c.Pod)
	}
}

// awaitNewerThanCopy waits until the store has what the copy of the volume lacks. Before that, nothing distinguishes a volume that is
// rolled back to that copy from one that was killed when the copy was made.
func (c *cluster) awaitNewerThanCopy() {
	c.T.Helper()
	copied := highestIn(c.Pod, c.old)
	harness.Eventually(c.T, "the store has what the copy lacks", func() bool {
		c.ask()
		return c.must > copied
	})
}

// stopInOrder has the clients stop first: the store then has everything that was acknowledged.
func (c *cluster) stopInOrder(stop func()) {
	c.T.Helper()
	stop()
	c.run.StopCleanly()
	c.run.AwaitLine(harness.Line{"message": "backups: all acknowledged writes are in the store"})
}

// damage inverts bytes somewhere in a file: in its beginning, or anywhere.
func (c *cluster) damage(path string) {
	c.T.Helper()
	info, err := os.Stat(path)
	require.NoError(c.T, err)
	const most = 16 << 10
	from, size := int64(0), c.dice.IntN(most)+1
	if c.dice.IntN(2) == 0 {
		from = c.dice.Int64N(min(info.Size(), 1<<20) - most)
	}
	harness.FlipBits(c.T, path, from, size)
}

// loseStore takes the store away while clients write.
func (c *cluster) loseStore() {
	c.T.Helper()
	c.ask()
	c.store.away()
	c.pass(2 * time.Second)
}

// waitForStore checks that a start waits for the store, and makes that reachable again.
func (c *cluster) waitForStore() {
	c.T.Helper()
	c.run = c.Start(quiet)
	c.run.AwaitLine(harness.Line{"message": "recovery: the store cannot be read, and may show that the data are lost or were rolled back"})
	require.NotEqual(c.T, 200, c.run.Readyz())
	c.store.back()
	if c.dice.IntN(2) == 0 {
		c.run.AwaitReady()
	}
	c.cutOff()
}

// restoreToRevision asks for a revision that the store has.
func (c *cluster) restoreToRevision(stop func()) outcome {
	c.T.Helper()
	stop()
	harness.Eventually(c.T, "the window is known", func() bool {
		backup := c.run.Status().Backup
		return backup != nil && backup.Window != nil && backup.Revision >= backup.Window.FromRevision && backup.LagRevisions == 0
	})
	window := c.run.Status().Backup.Window
	to := window.FromRevision + c.dice.Int64N(window.ToRevision-window.FromRevision+1)
	c.run.Kill()
	c.recover(fmt.Sprintf("--restore-to=revision:%d", to), fmt.Sprintf("--restore-id=at-%d", c.book.highest()))
	return outcome{exactly: to}
}
