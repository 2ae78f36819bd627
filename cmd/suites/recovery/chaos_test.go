package recovery_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// quiet keeps the logs of many runs small.
const quiet = "--log-level=info"

// lifetime is the number of disasters of a cluster.
const lifetime = 12

// TestChaos_singleMember has disasters happen to a member that is written to. After each of them it holds what
// is there against what clients know. Only here disasters follow one another, with acknowledged writes in a ledger.
func TestChaos_singleMember(t *testing.T) {
	t.Parallel()
	chaos(t, func(t *testing.T, _ string) store { return newDepot(t).store() })
}

// TestChaos_singleMemberWithServer is the same with a real S3 server, which can also be slow.
func TestChaos_singleMemberWithServer(t *testing.T) {
	t.Parallel()
	chaos(t, bucket(t))
}

func chaos(t *testing.T, kept func(t *testing.T, prefix string) store) {
	t.Helper()
	rollOut(t, func(t *testing.T, dice *rand.Rand, disasters int) {
		c := newCluster(t, kept(t, fmt.Sprint(dice.Uint64())), dice)
		for range disasters {
			c.suffers()
		}
		c.run.StopCleanly()
		sum.add(func(f *figures) { f.writes += c.book.acknowledged() })
	})
}

// rollOut has clusters of their own see all disasters.
func rollOut(t *testing.T, life func(t *testing.T, dice *rand.Rand, disasters int)) {
	t.Helper()
	seed := *seeded
	if seed == 0 {
		seed = rand.Uint64()
	}
	for done := 0; done < *rounds; done += lifetime {
		t.Run(fmt.Sprintf("seed %d from %d", seed, done), func(t *testing.T) {
			t.Parallel()
			life(t, rand.New(rand.NewPCG(seed, uint64(done))), min(lifetime, *rounds-done))
		})
	}
}

// cluster is a member alone that disasters happen to, and what its clients know.
type cluster struct {
	*harness.Pod
	store    store
	dice     *rand.Rand
	book     *ledger
	informer *informer
	watching int // how often the informer had listed when it was last settled

	etcd     *clientv3.Client // of the test itself
	run      *harness.Run
	id       string // the cluster's
	must     int64  // the writes that the program reported as stored
	restored int64  // the revision that the program has reported to restore since the disaster; 0 if none
	user     int64  // the revision at which there was a user
	old      string // a copy of the volume; empty if there is none
}

func newCluster(t *testing.T, kept store, dice *rand.Rand) *cluster {
	c := &cluster{Pod: harness.NewStandalonePod(t, nil), store: kept, dice: dice, book: newLedger()}
	kept.use(c.Pod)
	c.run = c.StartReady(quiet)
	c.etcd = c.Etcd()
	c.informer = newInformer(t, c.etcd)
	_, err := c.etcd.UserAdd(t.Context(), "somebody", "secret")
	require.NoError(t, err)
	reply, err := c.etcd.Put(t.Context(), "brief/first", "")
	require.NoError(t, err)
	c.user = reply.Header.Revision
	harness.Eventually(t, "the user is in the store", func() bool { // in a segment that ends there
		c.ask()
		return c.must >= c.user
	})
	c.settle(nil)
	return c
}

// suffers is a round: clients write, a disaster happens, and afterwards everything is as it has to be.
func (c *cluster) suffers() {
	c.T.Helper()
	disaster := c.draw()
	c.T.Logf("revision %d: %s", c.book.highest(), disaster.name)
	stop := c.book.writeOn(c.Etcd(), c.dice)
	c.pass(2 * time.Second)
	start := time.Now()
	c.restored = 0
	result := disaster.strike(c, stop)
	c.settle(&result)
	sum.add(func(f *figures) {
		f.rounds++
		f.disasters[disaster.name]++
		f.longest = max(f.longest, time.Since(start))
	})
}

func (c *cluster) draw() disaster {
	return draw(c.T, c.dice, disasters, "disaster", *only, func(one disaster) (string, bool) {
		return one.name, one.possible == nil || one.possible(c)
	})
}

// draw draws one whose name has a part and that is possible now. The choices of a seed do not depend on the number of
// possibilities.
func draw[T any](t *testing.T, dice *rand.Rand, all []T, flag, part string, about func(T) (name string, possible bool)) T {
	t.Helper()
	fits := func(one T) bool {
		name, possible := about(one)
		return possible && strings.Contains(name, part)
	}
	require.True(t, slices.ContainsFunc(all, fits),
		"nothing with %q in its name can happen now (-%s): choose a part of another name, or one that fits what has to happen before, too", part, flag)
	for {
		if drawn := all[dice.IntN(len(all))]; fits(drawn) {
			return drawn
		}
	}
}

// pass lets a random time pass, or the process end.
func (c *cluster) pass(most time.Duration) {
	select {
	case <-time.After(time.Duration(c.dice.Int64N(int64(most)))):
	case <-c.run.Ended:
	}
}

// kill sends SIGKILL, after it has read the program's report on the store.
func (c *cluster) kill(stop func()) {
	c.T.Helper()
	c.ask()
	c.run.Kill()
	stop()
}

// ask records what the store has, as the program reports.
func (c *cluster) ask() {
	if backup := c.run.Status().Backup; backup != nil {
		c.must = max(c.must, backup.Revision)
	}
}

// ended describes how a disaster and the recovery from it ended.
type outcome struct {
	whole   bool  // the volume was not touched: nothing may be lost
	exactly int64 // the restored revision, if a restore was requested
}

// recover starts the program until it is ready. Some of these starts are killed.
func (c *cluster) recover(flags ...string) {
	c.T.Helper()
	for range c.dice.IntN(3) {
		c.run = c.Start(append(flags, quiet)...)
		c.steps(c.dice.IntN(12))
		c.cutOff()
	}
	c.run = c.StartReady(append(flags, quiet)...)
	c.listen()
}

// cutOff kills a run that may be recovering.
func (c *cluster) cutOff() {
	c.run.Kill()
	c.listen()
	sum.add(func(f *figures) { f.killed++ })
}

// steps waits until recovery has made the given number of steps, or the member is ready.
func (c *cluster) steps(count int) {
	c.T.Helper()
	harness.Eventually(c.T, "recovery goes on", func() bool {
		return len(c.run.Log.Containing(`"message":"recovery: `)) >= count || c.run.Readyz() == 200
	})
}

// listen records the reported restore of a run. A later run of the same recovery may find more in the store.
func (c *cluster) listen() {
	for _, line := range c.run.Log.Matching(harness.Line{"message": "recovery: "}) {
		if of, has := line["restored_revision"].(float64); has {
			c.restored = int64(of)
		}
	}
}
