package recovery_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// TestChaos_threeMembers has disasters happen to members of a cluster that is written to, each in a network
// namespace of its own. Everything that a quorum has acknowledged is there afterwards, on all members.
func TestChaos_threeMembers(t *testing.T) {
	t.Parallel()
	if !*whole {
		t.Skip("skipped: part of make test-recovery")
	}
	harness.NeedStrace(t) // for slow disks
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
	must     int64  // the writes that the members reported as stored
	restored int64  // the revisions that members have reported to restore since the disaster
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
	return harness.NewClient(c.t, clientv3.Config{Endpoints: endpoints, DialKeepAliveTime: time.Second, DialKeepAliveTimeout: time.Second})
}

func (c *trio) awaitReady() {
	c.t.Helper()
	for _, m := range c.members {
		m.awaitReady()
	}
}

// returning bounds how long a member may take to return: it may have to be watched for a minute, and between two looks there is
// up to half of one.
const returning = 3 * time.Minute

func (m *member) awaitReady() {
	m.T.Helper()
	for watch := harness.StartWatch(); m.run.Readyz() != 200; <-time.After(20 * time.Millisecond) {
		require.Less(m.T, watch.Took(), returning, "%s is back", m.Config["name"])
		select {
		case <-m.run.Ended: // the only member that knew its cluster was killed: an orchestrator starts it again
			require.NotEmpty(m.T, m.run.Log.Containing("the next start asks them again"), "the process ended before it was ready")
			m.run = m.Run(m.run.Cmd.Args[1:]...)
		default:
		}
	}
}

// suffers is a round: clients write during a disaster and its recovery, and afterwards everything is as it has
// to be.
func (c *trio) suffers() {
	c.t.Helper()
	disaster := c.draw()
	victim := c.members[c.dice.IntN(len(c.members))]
	name, ends := c.under(disaster, victim)
	c.t.Logf("revision %d: %s, of %s", c.book.highest(), name, victim.Config["name"])
	stop := c.book.writeOn(c.client(), c.dice)
	c.pass(2 * time.Second)
	if disaster.restores {
		c.ask()
		stop()
		c.restored = 0
	}
	start := time.Now()
	disaster.strike(c, victim)
	c.awaitReady()
	ends()
	sum.add(func(f *figures) {
		f.rounds++
		f.disasters["of three: "+disaster.name]++
		f.longest = max(f.longest, time.Since(start))
	})
	c.pass(time.Second)
	stop()
	if disaster.restores {
		c.requireRestored()
	}
	c.settle()
}

// ask records what the store has, as the members report.
func (c *trio) ask() {
	for _, m := range c.members {
		if backup := m.run.Status().Backup; backup != nil {
			c.must = max(c.must, backup.Revision)
		}
	}
}

func (c *trio) draw() misfortune {
	return draw(c.t, c.dice, misfortunes, "disaster", *only, func(one misfortune) (string, bool) {
		return one.name, one.possible == nil || one.possible(c)
	})
}

// pass lets a random time pass.
func (c *trio) pass(most time.Duration) { <-time.After(time.Duration(c.dice.Int64N(int64(most)))) }
