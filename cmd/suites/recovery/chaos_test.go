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

// infoLevel limits the size of the logs, because the tests run the program many times.
const infoLevel = "--log-level=info"

// lifetime is the number of rounds after which a new cluster is created.
const lifetime = 12

// TestChaos_singleMember injects one fault at a time into a single member under load. After each fault, the test
// compares the data with the ledger of acknowledged writes.
func TestChaos_singleMember(t *testing.T) {
	t.Parallel()
	chaos(t, func(t *testing.T, _ string) store { return newDepot(t).store() })
}

// TestChaos_singleMemberWithServer is like TestChaos_singleMember but uses a real S3 server, which can also be slow.
func TestChaos_singleMemberWithServer(t *testing.T) {
	t.Parallel()
	chaos(t, bucket(t))
}

func chaos(t *testing.T, newStore func(t *testing.T, prefix string) store) {
	t.Helper()
	runClusters(t, func(t *testing.T, dice *rand.Rand, disasters int) {
		c := newCluster(t, newStore(t, fmt.Sprint(dice.Uint64())), dice)
		for range disasters {
			c.round()
		}
		c.run.Shutdown()
		sum.add(func(f *figures) { f.writes += c.ledger.acknowledged() })
	})
}

// runClusters calls run for each cluster, with the number of disasters to inject into it, which is at most lifetime.
func runClusters(t *testing.T, run func(t *testing.T, dice *rand.Rand, disasters int)) {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	for done := 0; done < *rounds; done += lifetime {
		t.Run(fmt.Sprintf("seed %d from %d", seed, done), func(t *testing.T) {
			t.Parallel()
			run(t, rand.New(rand.NewPCG(seed, uint64(done))), min(lifetime, *rounds-done))
		})
	}
}

// A cluster is a single member under load, together with what its clients know about its data.
type cluster struct {
	*harness.Pod
	store    store
	dice     *rand.Rand
	ledger   *ledger
	informer *informer
	listings int // number of times that the informer had listed all keys at the last verification

	etcd      *clientv3.Client // client for requests by the test itself
	run       *harness.Run
	id        string // cluster ID
	stored    int64  // revision that the program reported as stored
	restored  int64  // revision that the program has reported as restored since the fault; 0 if none
	user      int64  // revision in the segment that also contains the creation of a user
	oldVolume string // copy of the volume; empty if there is none
}

func newCluster(t *testing.T, store store, dice *rand.Rand) *cluster {
	c := &cluster{Pod: harness.NewStandalonePod(t, nil), store: store, dice: dice, ledger: newLedger()}
	store.configure(c.Pod)
	c.run = c.StartReady(infoLevel)
	c.etcd = c.Etcd()
	c.informer = newInformer(t, c.etcd)
	_, err := c.etcd.UserAdd(t.Context(), "user", "secret")
	require.NoError(t, err)
	reply, err := c.etcd.Put(t.Context(), "brief/first", "")
	require.NoError(t, err)
	c.user = reply.Header.Revision
	harness.Eventually(t, "the user is in the store", func() bool { // the segment that ends at c.user contains the user
		c.readStatus()
		return c.stored >= c.user
	})
	c.verify(nil)
	return c
}

// round injects a fault while clients are writing, waits until the member has recovered, and verifies the data.
func (c *cluster) round() {
	c.T.Helper()
	disaster := c.choose()
	c.T.Logf("revision %d: %s", c.ledger.highest(), disaster.name)
	stop := c.ledger.startWriting(c.Etcd(), c.dice)
	c.sleep(2 * time.Second)
	start := time.Now()
	c.restored = 0
	result := disaster.inject(c, stop)
	c.verify(&result)
	sum.add(func(f *figures) {
		f.rounds++
		f.disasters[disaster.name]++
		f.longest = max(f.longest, time.Since(start))
	})
}

func (c *cluster) choose() disaster {
	return choose(c.T, c.dice, disasters, "disaster", *only, func(one disaster) (string, bool) {
		return one.name, one.isPossible == nil || one.isPossible(c)
	})
}

// choose returns a random element that is currently possible and whose name contains part, which is the value of the
// given flag. It draws from all elements until one qualifies, so that each draw of the same seed yields the same
// element, whichever elements qualify.
func choose[T any](t *testing.T, dice *rand.Rand, all []T, flag, part string, about func(T) (name string, possible bool)) T {
	t.Helper()
	qualifies := func(one T) bool {
		name, possible := about(one)
		return possible && strings.Contains(name, part)
	}
	require.True(t, slices.ContainsFunc(all, qualifies),
		"-%[2]s=%[1]s: no name that contains %[1]q is possible now; use a value that also matches a fault which must occur before", part, flag)
	for {
		if one := all[dice.IntN(len(all))]; qualifies(one) {
			return one
		}
	}
}

// sleep waits for a random time, or until the process exits if that is sooner.
func (c *cluster) sleep(most time.Duration) {
	select {
	case <-time.After(time.Duration(c.dice.Int64N(int64(most)))):
	case <-c.run.Ended:
	}
}

// kill records the revision that the program reports as stored, kills the program, and then stops the clients.
func (c *cluster) kill(stop func()) {
	c.T.Helper()
	c.readStatus()
	c.run.Kill()
	stop()
}

// readStatus records the revision that the program reports as stored.
func (c *cluster) readStatus() {
	if backup := c.run.Status().Backup; backup != nil {
		c.stored = max(c.stored, backup.Revision)
	}
}

// An outcome describes which data must exist after a fault. If no field is set, all stored revisions must exist.
type outcome struct {
	intact  bool  // the volume is intact, so that no write may be lost and nothing may be restored
	exactly int64 // the requested revision, if a restore to a revision was requested
}

// recover starts the program and waits until the member is ready. Before that, it starts and kills the program up to
// twice, possibly in the middle of a recovery.
func (c *cluster) recover(flags ...string) {
	c.T.Helper()
	for range c.dice.IntN(3) {
		c.run = c.Start(append(flags, infoLevel)...)
		c.awaitSteps(c.dice.IntN(12))
		c.killRecovery()
	}
	c.run = c.StartReady(append(flags, infoLevel)...)
	c.readRestored()
}

// killRecovery kills a run, possibly in the middle of a recovery.
func (c *cluster) killRecovery() {
	c.run.Kill()
	c.readRestored()
	sum.add(func(f *figures) { f.killed++ })
}

// awaitSteps waits until recovery has completed the given number of steps or the member is ready.
func (c *cluster) awaitSteps(count int) {
	c.T.Helper()
	harness.Eventually(c.T, "recovery has logged the step or the member is ready", func() bool {
		return len(c.run.Log.FindText(`"message":"recovery: `)) >= count || c.run.Readyz() == 200
	})
}

// readRestored records the revision that a run reports as restored. Subsequent runs of the same recovery may find a
// higher revision.
func (c *cluster) readRestored() {
	for _, line := range c.run.Log.Matching(harness.Line{"message": "recovery: "}) {
		if revision, has := line["restored_revision"].(float64); has {
			c.restored = int64(revision)
		}
	}
}
