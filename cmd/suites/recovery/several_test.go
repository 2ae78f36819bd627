package recovery_test

import (
	"context"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"etcd-wrapper/cmd/suites/harness"
)

// TestWhateverHappensToThreeMembers has disasters happen to members of a cluster that is written to, each in a network
// namespace of its own. Whatever a quorum has acknowledged is there afterwards, on all members.
func TestWhateverHappensToThreeMembers(t *testing.T) {
	t.Parallel()
	if !*whole {
		t.Skip("skipped: part of make test-recovery")
	}
	rollOut(t, func(t *testing.T, dice *rand.Rand, disasters int) {
		c := newTrio(t, dice)
		for range disasters {
			c.suffers()
		}
		for _, m := range c.members {
			m.run.Kill()
		}
		sum.add(func(f *figures) { f.writes += c.book.acknowledged() })
	})
}

// trio is a cluster of three, and what its clients know.
type trio struct {
	t        *testing.T
	net      *network
	depot    depot
	dice     *rand.Rand
	members  []*member
	book     *ledger
	etcd     *clientv3.Client // of the test itself
	informer *informer
	id       uint64 // the cluster's
	watching int    // how often the informer had listed when it was last settled
	must     int64  // what the store has to have, as the members said
	restored int64  // what members said since the disaster that they restore
}

// member is one of them.
type member struct {
	*harness.Pod
	number int
	run    *harness.Run
	old    string // a copy of the volume; empty if there is none
}

func newTrio(t *testing.T, dice *rand.Rand) *trio {
	t.Helper()
	c := &trio{t: t, net: newNetwork(t), depot: newDepot(t), dice: dice, book: newLedger()}
	pods := harness.StandaloneMembers(t, 3)
	c.net.introduce(pods)
	for i, p := range pods {
		c.net.house(p, i)
		c.depot.store().use(p)
		m := &member{Pod: p, number: i}
		m.run = p.Start(quiet)
		c.members = append(c.members, m)
	}
	c.awaitReady()
	c.etcd = c.client()
	c.informer = newInformer(t, c.etcd)
	c.settle()
	return c
}

// client is one of all members.
func (c *trio) client() *clientv3.Client {
	c.t.Helper()
	var endpoints []string
	for _, m := range c.members {
		endpoints = append(endpoints, m.Endpoint())
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: harness.Patience, Logger: zap.NewNop(),
		DialKeepAliveTime: time.Second, DialKeepAliveTimeout: time.Second,
	})
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = client.Close() }) // nothing is asked any more
	return client
}

func (c *trio) awaitReady() {
	c.t.Helper()
	for _, m := range c.members {
		m.awaitReady()
	}
}

// returning is how long a member may take to come back: it may have to be watched for a minute, and between two looks there is
// up to half of one.
const returning = 3 * time.Minute

func (m *member) awaitReady() {
	m.T.Helper()
	for watch := harness.StartWatch(); m.run.Readyz() != 200; <-time.After(20 * time.Millisecond) {
		require.Less(m.T, watch.Took(), returning, "%s is back", m.Config["name"])
		select {
		case <-m.run.Ended:
			require.FailNow(m.T, "the process ended before it was ready")
		default:
		}
	}
}

// suffers is a round: clients write, a disaster happens, they go on until it is over, and afterwards everything is as it has
// to be.
func (c *trio) suffers() {
	c.t.Helper()
	disaster := c.draw()
	victim := c.members[c.dice.IntN(len(c.members))]
	c.t.Logf("revision %d: %s, of %s", c.book.highest(), disaster.name, victim.Config["name"])
	stop := c.book.writeOn(c.client(), c.dice)
	c.pass(2 * time.Second)
	if disaster.restores {
		c.ask()
		stop()
		c.restored = 0
	}
	began := time.Now()
	disaster.happens(c, victim)
	c.awaitReady()
	sum.add(func(f *figures) {
		f.rounds++
		f.disasters["of three: "+disaster.name]++
		f.longest = max(f.longest, time.Since(began))
	})
	c.pass(time.Second)
	stop()
	if disaster.restores {
		c.requireRestored()
	}
	c.settle()
}

// ask notes what the store has, as the members say.
func (c *trio) ask() {
	for _, m := range c.members {
		if backup := m.run.Status().Backup; backup != nil {
			c.must = max(c.must, backup.Revision)
		}
	}
}

// requireRestored holds that a new cluster has what the store had, and that clients of the old one are told to list again.
func (c *trio) requireRestored() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), harness.Patience)
	defer cancel()
	c.requireVoters()
	reply, err := c.etcd.Get(ctx, "", clientv3.WithPrefix())
	require.NoError(c.t, err)
	require.NotEqual(c.t, c.id, reply.Header.ClusterId, "it is a new cluster")
	require.Greater(c.t, reply.Header.Revision, c.book.highest(), "no revision is handed out twice")
	_, err = c.etcd.Get(ctx, "key", clientv3.WithRev(c.book.highest()))
	require.ErrorIs(c.t, err, rpctypes.ErrCompacted)
	harness.Eventually(c.t, "the informer has listed again", func() bool { return c.informer.listed() > c.watching })
	for _, m := range c.members {
		c.listen(m)
	}
	at := c.restored
	require.GreaterOrEqual(c.t, at, c.must, "what the store had is back")
	wrong, undone := c.book.settle(lasting(reply.Kvs), at, true)
	require.Empty(c.t, wrong)
	c.id, c.must = reply.Header.ClusterId, at
	sum.add(func(f *figures) { f.undone, f.restores = f.undone+undone, f.restores+1 })
}

// listen notes the revision that a member says it brings the cluster back with. All of them find the same in the store.
func (c *trio) listen(m *member) {
	for _, line := range m.run.Log.Matching(harness.Line{"message": "recovery: "}) {
		if of, has := line["restored_revision"].(float64); has {
			c.restored = max(c.restored, int64(of))
		}
	}
}

// lasting is what etcd has, without what is soon gone.
func lasting(kvs []*mvccpb.KeyValue) found {
	have := found{}
	for _, kv := range kvs {
		if !strings.HasPrefix(string(kv.Key), "brief/") {
			have[string(kv.Key)] = kv
		}
	}
	return have
}

func (c *trio) draw() misfortune {
	for {
		drawn := misfortunes[c.dice.IntN(len(misfortunes))]
		if strings.Contains(drawn.name, *only) && (drawn.possible == nil || drawn.possible(c)) {
			return drawn
		}
	}
}

// pass lets a random time pass.
func (c *trio) pass(most time.Duration) { <-time.After(time.Duration(c.dice.Int64N(int64(most)))) }

// settle holds what is there against what clients know. There is none but them who writes.
func (c *trio) settle() {
	c.t.Helper()
	c.requireVoters()
	ctx, cancel := context.WithTimeout(c.t.Context(), harness.Patience)
	defer cancel()
	reply, err := c.etcd.Get(ctx, "", clientv3.WithPrefix())
	require.NoError(c.t, err)
	if c.id == 0 {
		c.id = reply.Header.ClusterId
	}
	require.Equal(c.t, c.id, reply.Header.ClusterId, "it is the same cluster")
	require.GreaterOrEqual(c.t, reply.Header.Revision, c.book.highest(), "revisions do not go back")
	wrong, undone := c.book.settle(lasting(reply.Kvs), reply.Header.Revision, false)
	require.Empty(c.t, wrong)
	require.Zero(c.t, undone)
	c.book.saw(reply.Header.Revision)
	c.requireEqual()
	c.informer.requireRight()
	c.watching = c.informer.listed()
	c.requireTidy()
}

// requireVoters waits until all three have a vote.
func (c *trio) requireVoters() {
	c.t.Helper()
	harness.Eventually(c.t, "there are three voters", func() bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), patience)
		defer cancel()
		list, err := c.etcd.MemberList(ctx)
		if err != nil || len(list.Members) != 3 {
			return false
		}
		for _, m := range list.Members {
			if m.IsLearner || m.Name == "" {
				return false
			}
		}
		return true
	})
}

// requireEqual holds that all members have the same, by etcd's own hash of all revisions since the last compaction.
func (c *trio) requireEqual() {
	c.t.Helper()
	harness.Eventually(c.t, "all members have the same", func() bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), patience)
		defer cancel()
		hashes := map[[3]int64]int{}
		for _, m := range c.members {
			reply, err := c.etcd.HashKV(ctx, m.Endpoint(), 0)
			if err != nil {
				return false
			}
			hashes[[3]int64{reply.Header.Revision, reply.CompactRevision, int64(reply.Hash)}]++
		}
		return len(hashes) == 1
	})
}

// requireTidy removes what was set aside: each takes as much room as the data.
func (c *trio) requireTidy() {
	c.t.Helper()
	for _, m := range c.members {
		for _, aside := range asides(m.Pod) {
			require.NoError(c.t, os.RemoveAll(aside))
		}
		assert.Empty(c.t, halves(m.Pod), "nothing half-done is left")
	}
}
