package recovery_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// quiet keeps the logs of many runs small.
const quiet = "--log-level=info"

// lifetime is how many disasters a cluster sees.
const lifetime = 12

// TestWhateverHappensToAMemberAlone has disasters happen to a member that is written to. After each of them it holds what
// is there against what clients know.
func TestWhateverHappensToAMemberAlone(t *testing.T) {
	t.Parallel()
	chaos(t, func(t *testing.T, _ string) store { return newDepot(t).store() })
}

// TestWhateverHappensToAMemberAloneWithServer is the same with a real S3 server, which can also be slow.
func TestWhateverHappensToAMemberAloneWithServer(t *testing.T) {
	t.Parallel()
	chaos(t, bucket(t))
}

func chaos(t *testing.T, kept func(t *testing.T, prefix string) store) {
	t.Helper()
	seed := *seeded
	if seed == 0 {
		seed = rand.Uint64()
	}
	for done := 0; done < *rounds; done += lifetime {
		t.Run(fmt.Sprintf("seed %d from %d", seed, done), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, kept(t, fmt.Sprint(done)), rand.New(rand.NewPCG(seed, uint64(done))))
			for range min(lifetime, *rounds-done) {
				c.suffers()
			}
			c.run.StopCleanly()
			sum.add(func(f *figures) { f.writes += c.book.acknowledged() })
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
	must     int64  // what the store has to have, as the program said
	restored int64  // what the program said since the disaster that it restores; 0 if it restored nothing
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
	disaster := disasters[c.dice.IntN(len(disasters))]
	for disaster.possible != nil && !disaster.possible(c) {
		disaster = disasters[c.dice.IntN(len(disasters))]
	}
	c.T.Logf("revision %d: %s", c.book.highest(), disaster.name)
	stop := c.writeOn()
	c.pass(2 * time.Second)
	began := time.Now()
	c.restored = 0
	ended := disaster.happens(c, stop)
	c.settle(&ended)
	sum.add(func(f *figures) {
		f.rounds++
		f.disasters[disaster.name]++
		f.longest = max(f.longest, time.Since(began))
	})
}

// pass lets a random time pass, or the process end.
func (c *cluster) pass(most time.Duration) {
	select {
	case <-time.After(time.Duration(c.dice.Int64N(int64(most)))):
	case <-c.run.Ended:
	}
}

// kill is SIGKILL, with what the program has said of the store just before.
func (c *cluster) kill(stop func()) {
	c.T.Helper()
	c.ask()
	c.run.Kill()
	stop()
}

// ask notes what the store has, as the program says.
func (c *cluster) ask() {
	if backup := c.run.Status().Backup; backup != nil {
		c.must = max(c.must, backup.Revision)
	}
}

// ended is how a disaster and the recovery from it went.
type ended struct {
	whole   bool  // the volume was left alone: nothing may be lost
	exactly int64 // the revision that was gone back to, if that was asked for
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

// steps waits until recovery has made so many, or the member is ready.
func (c *cluster) steps(count int) {
	c.T.Helper()
	harness.Eventually(c.T, "recovery goes on", func() bool {
		return len(c.run.Log.Containing(`"message":"recovery: `)) >= count || c.run.Readyz() == 200
	})
}

// listen notes what the run says that it restores. A later run of the same recovery may find that more is in the store.
func (c *cluster) listen() {
	for _, line := range c.run.Log.Matching(harness.Line{"message": "recovery: "}) {
		if of, has := line["restored_revision"].(float64); has {
			c.restored = int64(of)
		}
	}
}

// settle holds what is there against what clients know. There is none but them who writes.
func (c *cluster) settle(after *ended) {
	c.T.Helper()
	have, revision, cluster := c.everything()
	restored := c.id != "" && cluster != c.id
	at := revision
	if restored {
		at = c.restored
		c.requireNewHistory(revision)
		sum.add(func(f *figures) { f.restores++ })
	}
	if after != nil {
		c.requireWhatIsOwed(*after, restored, at)
	}
	require.GreaterOrEqual(c.T, revision, c.book.highest(), "revisions do not go back")
	wrong, undone := c.book.settle(have, at)
	require.Empty(c.T, wrong)
	c.book.saw(revision)
	if restored {
		c.must = at
	}
	c.id = cluster
	c.requireLeases(have)
	c.requireUser(at)
	c.informer.requireRight()
	c.watching = c.informer.listed()
	sum.add(func(f *figures) { f.undone += undone })
	c.tidy()
}

// everything is what etcd has, without what is soon gone.
func (c *cluster) everything() (have found, revision int64, cluster string) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), harness.Patience)
	defer cancel()
	reply, err := c.etcd.Get(ctx, "", clientv3.WithPrefix())
	require.NoError(c.T, err)
	have = found{}
	for _, kv := range reply.Kvs {
		if !strings.HasPrefix(string(kv.Key), "brief/") {
			have[string(kv.Key)] = kv
		}
	}
	return have, reply.Header.Revision, fmt.Sprintf("%x", reply.Header.ClusterId)
}

// requireWhatIsOwed holds the revision that is back against what had to survive.
func (c *cluster) requireWhatIsOwed(after ended, restored bool, at int64) {
	c.T.Helper()
	switch {
	case after.exactly != 0:
		require.True(c.T, restored)
		require.Equal(c.T, after.exactly, at, "what was asked for is back")
	case after.whole:
		require.False(c.T, restored, "the volume had everything")
	default:
		require.GreaterOrEqual(c.T, at, c.must, "what the store had is back")
	}
}

// requireNewHistory holds what clients of the old cluster meet after a restore: they are told to list again.
func (c *cluster) requireNewHistory(revision int64) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), harness.Patience)
	defer cancel()
	seen := c.book.highest()
	require.Greater(c.T, revision, seen, "no revision is handed out twice")
	_, err := c.etcd.Get(ctx, "key", clientv3.WithRev(seen))
	require.ErrorIs(c.T, err, rpctypes.ErrCompacted)
	answer, open := <-c.etcd.Watch(ctx, "key", clientv3.WithRev(seen+1))
	require.True(c.T, open)
	require.ErrorIs(c.T, answer.Err(), rpctypes.ErrCompacted)
	harness.Eventually(c.T, "the informer has listed again", func() bool { return c.informer.listed() > c.watching })
}

// requireLeases holds that keys have their leases, with all of their time, and that what should be gone goes.
func (c *cluster) requireLeases(have found) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), harness.Patience)
	defer cancel()
	leases := map[clientv3.LeaseID]bool{}
	for _, kv := range have {
		leases[clientv3.LeaseID(kv.Lease)] = kv.Lease != 0
	}
	for lease, has := range leases {
		if !has {
			continue
		}
		left, err := c.etcd.TimeToLive(ctx, lease)
		require.NoError(c.T, err)
		assert.EqualValues(c.T, leaseTime, left.GrantedTTL)
		assert.Greater(c.T, left.TTL, int64(leaseTime/2), "a lease has its time")
	}
	harness.Eventually(c.T, "what had a lease of some seconds is gone", func() bool {
		reply, err := c.etcd.Get(ctx, "brief/", clientv3.WithRange("brief/9"))
		return err == nil && len(reply.Kvs) == 0
	})
}

func (c *cluster) requireUser(at int64) {
	c.T.Helper()
	users, err := c.etcd.UserList(c.T.Context())
	require.NoError(c.T, err)
	if at >= c.user {
		require.Equal(c.T, []string{"somebody"}, users.Users)
	}
}

// tidy removes what was set aside, but the newest, and perhaps keeps a copy of the volume for later.
func (c *cluster) tidy() {
	c.T.Helper()
	asides, err := filepath.Glob(c.DataDir() + ".aside-*")
	require.NoError(c.T, err)
	for _, aside := range asides[:max(0, len(asides)-1)] {
		require.NoError(c.T, os.RemoveAll(aside))
	}
	left, err := filepath.Glob(c.DataDir() + ".restor*")
	require.NoError(c.T, err)
	require.Empty(c.T, left, "nothing half-done is left")
}

// copyVolume keeps a copy of the volume of a process that has ended.
func (c *cluster) copyVolume() {
	c.T.Helper()
	c.old = filepath.Join(c.Dir, "old")
	require.NoError(c.T, os.RemoveAll(c.old))
	c.cp(c.Volume, c.old)
}

// cp copies a directory, without the zeros that etcd has its log begin with.
func (c *cluster) cp(from, to string) {
	c.T.Helper()
	out, err := exec.Command("cp", "-a", "--sparse=always", from, to).CombinedOutput()
	require.NoError(c.T, err, string(out))
}

// empty leaves a volume without anything, as one that was made anew.
func (c *cluster) empty() {
	c.T.Helper()
	require.NoError(c.T, os.RemoveAll(c.Volume))
	require.NoError(c.T, os.Mkdir(c.Volume, 0o700))
}
