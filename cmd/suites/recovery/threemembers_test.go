package recovery_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// TestChaos_threeMembers injects faults into the members of a cluster under load. Each member has its own network
// namespace. After each fault, all members must have every acknowledged write.
func TestChaos_threeMembers(t *testing.T) {
	t.Parallel()
	if !*whole {
		t.Skip("skipped: part of make test-recovery")
	}
	harness.NeedStrace(t) // strace simulates slow disks
	runClusters(t, func(t *testing.T, dice *rand.Rand, disasters int) {
		c := newThreeMembers(t, dice)
		for range disasters {
			c.round()
		}
		for _, m := range c.members {
			m.run.Kill()
		}
		sum.add(func(f *figures) { f.writes += c.ledger.acknowledged() })
	})
}

// threeMembers is a cluster of three members under load, together with what its clients know about its data.
type threeMembers struct {
	t        *testing.T
	net      *network
	depot    depot
	dice     *rand.Rand
	members  []*member
	ledger   *ledger
	etcd     *clientv3.Client // client for requests by the test itself
	informer *informer
	id       uint64 // cluster ID
	listings int    // number of times that the informer had listed all keys at the last verification
	stored   int64  // revision reported as stored by the members
	restored int64  // highest revision reported as restored by the members since the fault
}

// A member is one of the three members of a cluster.
type member struct {
	*harness.Pod
	number    int
	run       *harness.Run
	oldVolume string // path of an older copy of the volume; empty if there is none
}

func newThreeMembers(t *testing.T, dice *rand.Rand) *threeMembers {
	t.Helper()
	c := &threeMembers{t: t, net: newNetwork(t), depot: newDepot(t), dice: dice, ledger: newLedger()}
	pods := harness.StandaloneMembers(t, 3)
	c.net.setPeers(pods)
	for i, p := range pods {
		c.net.addNamespace(p, i)
		c.depot.store().configure(p)
		m := &member{Pod: p, number: i}
		m.run = p.Start(infoLevel)
		c.members = append(c.members, m)
	}
	c.awaitReady()
	c.etcd = c.client()
	c.informer = newInformer(t, c.etcd)
	c.verify()
	return c
}

// client returns a client that knows the endpoints of all members.
func (c *threeMembers) client() *clientv3.Client {
	c.t.Helper()
	var endpoints []string
	for _, m := range c.members {
		endpoints = append(endpoints, m.Endpoint())
	}
	return harness.NewClient(c.t, clientv3.Config{Endpoints: endpoints, DialKeepAliveTime: time.Second, DialKeepAliveTimeout: time.Second})
}

func (c *threeMembers) awaitReady() {
	c.t.Helper()
	for _, m := range c.members {
		m.awaitReady()
	}
}

// recoveryTimeout limits how long a member may take to become ready. The member may first have to wait for another
// member's response for a minute, and retries only every 30 s.
const recoveryTimeout = 3 * time.Minute

func (m *member) awaitReady() {
	m.T.Helper()
	for watch := harness.StartWatch(); m.run.Readyz() != 200; <-time.After(20 * time.Millisecond) {
		require.Less(m.T, watch.Duration(), recoveryTimeout, "%s is not ready", m.Config["name"])
		select {
		// The member exits if a member was killed that was the only one that could describe the cluster. Restart it,
		// as Kubernetes would.
		case <-m.run.Ended:
			require.NotEmpty(m.T, m.run.Log.FindText("the next start tries again"), "the process exited before it was ready")
			m.run = m.Run(m.run.Cmd.Args[1:]...)
		default:
		}
	}
}

// round injects a fault while clients are writing, waits until the members have recovered, and verifies the data.
func (c *threeMembers) round() {
	c.t.Helper()
	disaster := c.choose()
	victim := c.members[c.dice.IntN(len(c.members))]
	name, end := c.chooseCondition(disaster, victim)
	c.t.Logf("revision %d: %s, of %s", c.ledger.highest(), name, victim.Config["name"])
	stop := c.ledger.startWriting(c.client(), c.dice)
	c.sleep(2 * time.Second)
	if disaster.restores {
		c.readStatus()
		stop()
		c.restored = 0
	}
	start := time.Now()
	disaster.inject(c, victim)
	c.awaitReady()
	end()
	sum.add(func(f *figures) {
		f.rounds++
		f.disasters["of three: "+disaster.name]++
		f.longest = max(f.longest, time.Since(start))
	})
	c.sleep(time.Second)
	stop()
	if disaster.restores {
		c.requireRestored()
	}
	c.verify()
}

// readStatus records the revision that the members report as stored.
func (c *threeMembers) readStatus() {
	for _, m := range c.members {
		if backup := m.run.Status().Backup; backup != nil {
			c.stored = max(c.stored, backup.Revision)
		}
	}
}

func (c *threeMembers) choose() memberFault {
	return choose(c.t, c.dice, memberFaults, "disaster", *only, func(one memberFault) (string, bool) {
		return one.name, one.isPossible == nil || one.isPossible(c)
	})
}

// sleep waits for a random time.
func (c *threeMembers) sleep(most time.Duration) {
	<-time.After(time.Duration(c.dice.Int64N(int64(most))))
}
