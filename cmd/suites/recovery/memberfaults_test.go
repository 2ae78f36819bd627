package recovery_test

import (
	"fmt"
	"strconv"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"etcd-wrapper/cmd/suites/harness"
)

// A memberFault is a fault that affects one or more of three members. inject returns once all three members are
// running again.
type memberFault struct {
	name       string
	isPossible func(c *threeMembers) bool // nil means always possible
	inject     func(c *threeMembers, victim *member)
	restores   bool // whether the whole cluster must be restored from the store afterwards
}

var memberFaults = []memberFault{
	{"killed", nil, func(c *threeMembers, m *member) {
		m.run.Kill()
		m.oldVolume = copyVolume(m.Pod)
		c.start(m)
	}, false},
	{"volume lost", nil, func(c *threeMembers, m *member) {
		m.run.Kill()
		emptyVolume(m.Pod)
		c.start(m)
	}, false},
	{"leader's volume lost", nil, func(c *threeMembers, _ *member) {
		m := c.leader()
		m.run.Kill()
		emptyVolume(m.Pod)
		c.start(m)
	}, false},
	{"database damaged", nil, func(c *threeMembers, m *member) {
		m.run.Kill()
		breakDatabase(m.Pod)
		c.start(m)
	}, false},
	{"log damaged", nil, func(c *threeMembers, m *member) {
		m.run.Kill()
		harness.CorruptFile(m.T, lastSegment(m.Pod), 1000, 1000)
		c.start(m)
	}, false},
	{"volume rolled back", (*threeMembers).hasCopy, func(c *threeMembers, _ *member) {
		for _, m := range c.members {
			if m.oldVolume != "" {
				m.run.Kill()
				restoreVolume(m.Pod, m.oldVolume)
				c.start(m)
				return
			}
		}
	}, false},
	{"volume empty for a moment", nil, func(c *threeMembers, m *member) {
		m.run.Kill()
		m.oldVolume = copyVolume(m.Pod)
		emptyVolume(m.Pod)
		m.run = m.Start(infoLevel)
		c.sleep(8 * time.Second)
		m.run.Kill()
		restoreVolume(m.Pod, m.oldVolume)
		c.start(m)
	}, false},
	{"volume lost while there is no space", nil, func(c *threeMembers, m *member) {
		c.raiseNoSpace(m)
		m.run.Kill()
		emptyVolume(m.Pod)
		c.start(m)
	}, false},
	{"clock set", nil, func(c *threeMembers, m *member) {
		m.run.Kill()
		setClock(m.Pod, time.Duration(c.dice.IntN(3)-1)*time.Hour)
		c.start(m)
	}, false},
	{"disconnected", nil, func(c *threeMembers, m *member) {
		c.net.cut(m.number)
		c.sleep(8 * time.Second)
		c.net.join(m.number)
	}, false},
	{"volume lost, and disconnected while it rejoins", nil, func(c *threeMembers, m *member) {
		m.run.Kill()
		emptyVolume(m.Pod)
		m.run = m.Start(infoLevel)
		c.sleep(4 * time.Second)
		c.net.cut(m.number)
		c.sleep(8 * time.Second)
		c.net.join(m.number)
	}, false},
	{"volume lost, and another member killed while it rejoins", nil, func(c *threeMembers, m *member) {
		m.run.Kill()
		emptyVolume(m.Pod)
		m.run = m.Start(infoLevel)
		c.sleep(4 * time.Second)
		other := c.other(m)
		other.run.Kill()
		c.sleep(2 * time.Second)
		other.run = other.Start(infoLevel)
	}, false},
	{"store unreachable, volume lost", nil, func(c *threeMembers, m *member) {
		c.depot.disconnect()
		m.run.Kill()
		emptyVolume(m.Pod)
		m.run = m.Start(infoLevel)
		c.sleep(4 * time.Second)
		require.NotEqual(c.t, 200, m.run.Readyz(), "a member with an empty volume waits for the store, because only the store identifies its cluster")
		c.depot.reconnect()
		m.awaitReady()
	}, false},
	{"two killed", nil, func(c *threeMembers, m *member) {
		for _, each := range []*member{m, c.other(m)} {
			each.run.Kill()
			each.run = each.Start(infoLevel)
		}
	}, false},
	{"all killed", nil, func(c *threeMembers, _ *member) {
		for _, each := range c.members {
			each.run.Kill()
			each.oldVolume = copyVolume(each.Pod)
		}
		for _, each := range c.members {
			each.run = each.Start(infoLevel)
		}
	}, false},
	{"all volumes lost", nil, func(c *threeMembers, _ *member) {
		for _, each := range c.members {
			each.run.Kill()
			emptyVolume(each.Pod)
		}
		c.startAll()
	}, true},
	{"all volumes lost, store unreachable", nil, func(c *threeMembers, _ *member) {
		c.depot.disconnect()
		for _, each := range c.members {
			each.run.Kill()
			emptyVolume(each.Pod)
		}
		c.startAll()
		c.depot.reconnect()
	}, true},
	{"all volumes rolled back", nil, func(c *threeMembers, _ *member) {
		c.rollBack(c.members...)
		c.startAll()
	}, true},
	{"two volumes rolled back", nil, func(c *threeMembers, m *member) {
		victims := []*member{m, c.other(m)}
		c.rollBack(victims...)
		for _, each := range victims {
			each.run = each.Start(infoLevel)
		}
		c.requestRestoreOfAll()
	}, true},
	{"two volumes lost", nil, func(c *threeMembers, m *member) {
		for _, each := range []*member{m, c.other(m)} {
			each.run.Kill()
			emptyVolume(each.Pod)
		}
		c.requestRestoreOfAll()
	}, true},
}

// rollBack kills members and replaces their volumes with older copies. It first makes copies of volumes that have
// none, and lets clients write until the store contains revisions that are missing from all copies.
func (c *threeMembers) rollBack(victims ...*member) {
	var highest int64
	for _, each := range victims {
		each.run.Kill()
		if each.oldVolume == "" {
			each.oldVolume = copyVolume(each.Pod)
		}
		highest = max(highest, highestRevision(each.Pod, each.oldVolume))
	}
	for _, each := range victims {
		each.run = each.Start(infoLevel)
	}
	c.awaitReady()
	c.writeUntilStored(highest)
	for _, each := range victims {
		each.run.Kill()
		restoreVolume(each.Pod, each.oldVolume)
		each.oldVolume = ""
	}
}

// raiseNoSpace raises the NOSPACE alarm on behalf of a member, although there is enough space.
func (c *threeMembers) raiseNoSpace(m *member) {
	c.t.Helper()
	id, err := strconv.ParseUint(m.run.Status().MemberID, 16, 64)
	require.NoError(c.t, err)
	harness.Eventually(c.t, "the alarm is raised", func() bool { // there may be no leader for a short time
		_, err := etcdserverpb.NewMaintenanceClient(c.etcd.ActiveConnection()).Alarm(c.t.Context(), &etcdserverpb.AlarmRequest{
			Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE, MemberID: id,
		})
		return err == nil
	})
}

// writeUntilStored lets clients write until the store contains a later revision than the given one.
func (c *threeMembers) writeUntilStored(revision int64) {
	c.t.Helper()
	stop := c.ledger.startWriting(c.client(), c.dice)
	defer stop()
	harness.Eventually(c.t, "the store contains a later revision than the copies", func() bool {
		c.readStatus()
		return c.stored > revision
	})
}

// requestRestoreOfAll restarts all members with the same restore request, as the runbook recommends if the quorum is
// lost.
func (c *threeMembers) requestRestoreOfAll() {
	c.sleep(4 * time.Second)
	for _, each := range c.members {
		each.run.Kill()
	}
	c.startAll("--restore-to=latest", fmt.Sprintf("--restore-id=at-%d", c.ledger.highest()))
}

// startAll starts all members. It then restarts a random member up to twice, possibly in the middle of a recovery.
func (c *threeMembers) startAll(flags ...string) {
	flags = append(flags, infoLevel)
	for _, each := range c.members {
		each.run = each.Start(flags...)
	}
	for range c.dice.IntN(3) {
		c.sleep(8 * time.Second)
		restarted := c.members[c.dice.IntN(len(c.members))]
		restarted.run.Kill()
		c.readRestored(restarted)
		restarted.run = restarted.Start(flags...)
		sum.add(func(f *figures) { f.killed++ })
	}
}

// start starts a member and waits until it is ready. Before that, it starts and kills the member up to twice.
func (c *threeMembers) start(m *member) {
	m.T.Helper()
	for range c.dice.IntN(3) {
		m.run = m.Start(infoLevel)
		c.sleep(4 * time.Second)
		m.run.Kill()
		sum.add(func(f *figures) { f.killed++ })
	}
	m.run = m.Start(infoLevel)
	m.awaitReady()
}

// other returns a random member other than m.
func (c *threeMembers) other(m *member) *member {
	return c.members[(m.number+1+c.dice.IntN(len(c.members)-1))%len(c.members)]
}

// leader returns the member that claims to be the leader, or the first member if there is none.
func (c *threeMembers) leader() *member {
	for _, m := range c.members {
		if document := m.run.Status(); document.MemberID != "" && document.MemberID == document.Leader {
			return m
		}
	}
	return c.members[0]
}

func (c *threeMembers) hasCopy() bool {
	for _, m := range c.members {
		if m.oldVolume != "" {
			return true
		}
	}
	return false
}
