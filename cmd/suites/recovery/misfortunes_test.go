package recovery_test

import (
	"fmt"
	"strconv"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"etcd-wrapper/cmd/suites/harness"
)

// misfortune happens to a member of three. It leaves all three running.
type misfortune struct {
	name     string
	possible func(c *trio) bool // nil for always
	strike   func(c *trio, victim *member)
	restores bool // the cluster comes back from the store
}

var misfortunes = []misfortune{
	{"killed", nil, func(c *trio, m *member) {
		m.run.Kill()
		m.old = keep(m.Pod)
		c.start(m)
	}, false},
	{"volume lost", nil, func(c *trio, m *member) {
		m.run.Kill()
		lose(m.Pod)
		c.start(m)
	}, false},
	{"leader's volume lost", nil, func(c *trio, _ *member) {
		m := c.leader()
		m.run.Kill()
		lose(m.Pod)
		c.start(m)
	}, false},
	{"database damaged", nil, func(c *trio, m *member) {
		m.run.Kill()
		breakDatabase(m.Pod)
		c.start(m)
	}, false},
	{"log damaged", nil, func(c *trio, m *member) {
		m.run.Kill()
		harness.FlipBits(m.T, lastOfLog(m.Pod), 1000, 1000)
		c.start(m)
	}, false},
	{"volume rolled back", (*trio).hasCopy, func(c *trio, _ *member) {
		for _, m := range c.members {
			if m.old != "" {
				m.run.Kill()
				putBack(m.Pod, m.old)
				c.start(m)
				return
			}
		}
	}, false},
	{"volume empty for a moment", nil, func(c *trio, m *member) {
		m.run.Kill()
		m.old = keep(m.Pod)
		lose(m.Pod)
		m.run = m.Start(quiet)
		c.pass(8 * time.Second)
		m.run.Kill()
		putBack(m.Pod, m.old)
		c.start(m)
	}, false},
	{"volume lost while there is no space", nil, func(c *trio, m *member) {
		c.raiseNoSpace(m)
		m.run.Kill()
		lose(m.Pod)
		c.start(m)
	}, false},
	{"clock set", nil, func(c *trio, m *member) {
		m.run.Kill()
		setClock(m.Pod, time.Duration(c.dice.IntN(3)-1)*time.Hour)
		c.start(m)
	}, false},
	{"cut off", nil, func(c *trio, m *member) {
		c.net.cut(m.number)
		c.pass(8 * time.Second)
		c.net.join(m.number)
	}, false},
	{"volume lost, and cut off on its way back", nil, func(c *trio, m *member) {
		m.run.Kill()
		lose(m.Pod)
		m.run = m.Start(quiet)
		c.pass(4 * time.Second)
		c.net.cut(m.number)
		c.pass(8 * time.Second)
		c.net.join(m.number)
	}, false},
	{"volume lost, and another killed on the way back", nil, func(c *trio, m *member) {
		m.run.Kill()
		lose(m.Pod)
		m.run = m.Start(quiet)
		c.pass(4 * time.Second)
		other := c.other(m)
		other.run.Kill()
		c.pass(2 * time.Second)
		other.run = other.Start(quiet)
	}, false},
	{"store away, volume lost", nil, func(c *trio, m *member) {
		c.depot.away()
		m.run.Kill()
		lose(m.Pod)
		m.run = m.Start(quiet)
		c.pass(4 * time.Second)
		require.NotEqual(c.t, 200, m.run.Readyz(), "nothing but the store tells whose member this is")
		c.depot.back()
		m.awaitReady()
	}, false},
	{"two killed", nil, func(c *trio, m *member) {
		for _, each := range []*member{m, c.other(m)} {
			each.run.Kill()
			each.run = each.Start(quiet)
		}
	}, false},
	{"all killed", nil, func(c *trio, _ *member) {
		for _, each := range c.members {
			each.run.Kill()
			each.old = keep(each.Pod)
		}
		for _, each := range c.members {
			each.run = each.Start(quiet)
		}
	}, false},
	{"all volumes lost", nil, func(c *trio, _ *member) {
		for _, each := range c.members {
			each.run.Kill()
			lose(each.Pod)
		}
		c.startAll()
	}, true},
	{"all volumes lost, store away", nil, func(c *trio, _ *member) {
		c.depot.away()
		for _, each := range c.members {
			each.run.Kill()
			lose(each.Pod)
		}
		c.startAll()
		c.depot.back()
	}, true},
	{"all volumes rolled back", nil, func(c *trio, _ *member) {
		c.rollBack(c.members...)
		c.startAll()
	}, true},
	{"two volumes rolled back", nil, func(c *trio, m *member) {
		victims := []*member{m, c.other(m)}
		c.rollBack(victims...)
		for _, each := range victims {
			each.run = each.Start(quiet)
		}
		c.requestRestoreOfAll()
	}, true},
	{"two volumes lost", nil, func(c *trio, m *member) {
		for _, each := range []*member{m, c.other(m)} {
			each.run.Kill()
			lose(each.Pod)
		}
		c.requestRestoreOfAll()
	}, true},
}

// rollBack kills members and has their volumes be as they were once: when they were killed some time ago, if they were, and else
// as they are now, before clients continue.
func (c *trio) rollBack(victims ...*member) {
	var highest int64
	for _, each := range victims {
		each.run.Kill()
		if each.old == "" {
			each.old = keep(each.Pod)
		}
		highest = max(highest, highestIn(each.Pod, each.old))
	}
	for _, each := range victims {
		each.run = each.Start(quiet)
	}
	c.awaitReady()
	c.writeUntilStored(highest)
	for _, each := range victims {
		each.run.Kill()
		putBack(each.Pod, each.old)
		each.old = ""
	}
}

// raiseNoSpace makes a member raise the alarm, until there is room again.
func (c *trio) raiseNoSpace(m *member) {
	c.t.Helper()
	id, err := strconv.ParseUint(m.run.Status().MemberID, 16, 64)
	require.NoError(c.t, err)
	harness.Eventually(c.t, "the alarm is raised", func() bool { // there may be no leader for a moment
		_, err := etcdserverpb.NewMaintenanceClient(c.etcd.ActiveConnection()).Alarm(c.t.Context(), &etcdserverpb.AlarmRequest{
			Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE, MemberID: id,
		})
		return err == nil
	})
}

// writeUntilStored has clients write until the store is beyond a revision.
func (c *trio) writeUntilStored(revision int64) {
	c.t.Helper()
	stop := c.book.writeOn(c.client(), c.dice)
	defer stop()
	harness.Eventually(c.t, "the store has more than the copies", func() bool {
		c.ask()
		return c.must > revision
	})
}

// requestRestoreOfAll restarts all members with the same restore request, as without a quorum.
func (c *trio) requestRestoreOfAll() {
	c.pass(4 * time.Second)
	for _, each := range c.members {
		each.run.Kill()
	}
	c.startAll("--restore-to=latest", fmt.Sprintf("--restore-id=at-%d", c.book.highest()))
}

// startAll starts all members, and kills and starts some of them once more.
func (c *trio) startAll(flags ...string) {
	flags = append(flags, quiet)
	for _, each := range c.members {
		each.run = each.Start(flags...)
	}
	for range c.dice.IntN(3) {
		c.pass(8 * time.Second)
		again := c.members[c.dice.IntN(len(c.members))]
		again.run.Kill()
		c.listen(again)
		again.run = again.Start(flags...)
		sum.add(func(f *figures) { f.killed++ })
	}
}

// start starts a member until it is ready. Some of these starts are killed.
func (c *trio) start(m *member) {
	m.T.Helper()
	for range c.dice.IntN(3) {
		m.run = m.Start(quiet)
		c.pass(4 * time.Second)
		m.run.Kill()
		sum.add(func(f *figures) { f.killed++ })
	}
	m.run = m.Start(quiet)
	m.awaitReady()
}

// other is one that is not m.
func (c *trio) other(m *member) *member {
	return c.members[(m.number+1+c.dice.IntN(len(c.members)-1))%len(c.members)]
}

// leader is the one that the members believe to lead; any if they do not agree.
func (c *trio) leader() *member {
	for _, m := range c.members {
		if document := m.run.Status(); document.MemberID != "" && document.MemberID == document.Leader {
			return m
		}
	}
	return c.members[0]
}

func (c *trio) hasCopy() bool {
	for _, m := range c.members {
		if m.old != "" {
			return true
		}
	}
	return false
}
