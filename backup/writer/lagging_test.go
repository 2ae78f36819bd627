package writer

import (
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/storage/backend"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer/capture"
)

// lagging is etcd as a member sees it that is slow to apply what the leader has: it stays where it is at this moment.
func (s *stand) lagging() Etcd {
	s.Helper()
	is := Server(s.etcd.Server)
	etcd, err := capture.OpenClosed(s.copied(), capture.Identity{MemberID: "2", ClusterID: is.ClusterID(), Term: is.Term()})
	require.NoError(s, err)
	s.Cleanup(func() { _ = etcd.Close() })
	return etcd
}

// overtaken has a member that lags take over, and the leader store the rows that are on its way, together with a user that the member
// has not heard of. It returns what lets the member go on.
func (c *cluster) overtaken() (resume func()) {
	c.Helper()
	leader, lagging := c.members[0], c.members[1]
	leader.run()
	c.requireEventuallyStored(c.put("a", "1"))
	require.NoError(c, leader.Flush(c.Context()))
	leader.end()
	c.put("a", "2")
	lagging.options.Etcd = c.lagging()
	resume = c.pauses[1].pause(&c.pauses[1].before)
	lagging.run()
	require.Eventually(c, func() bool { return c.pauses[1].inside.Load() == 1 }, patience, poll, "it has taken over")
	c.addUser("someone")
	leader.run()
	require.NoError(c, leader.Flush(c.Context()))
	leader.end()
	c.requireUsers(1)
	return resume
}

func TestAMemberThatLagsStatesNothingBehindWhatTheLeaderHasStated(t *testing.T) {
	c := newMembers(t, 2)
	resume := c.overtaken()
	before := c.names()
	resume()
	c.members[1].eventually(func(f Facts) bool { return f.Role == Watching }, "it leaves the rest to others")
	assert.Equal(t, before, c.names())
	c.requireUsers(1)
}

// behind is etcd that leads and has not applied all of its log yet.
type behind struct {
	Etcd
	past     Etcd
	caughtUp atomic.Bool
}

func (b *behind) now() Etcd {
	if b.caughtUp.Load() {
		return b.Etcd
	}
	return b.past
}

func (b *behind) Backend() backend.Backend { return b.now().Backend() }
func (b *behind) AppliedIndex() uint64     { return b.now().AppliedIndex() }

func TestALeaderThatHasNotAppliedItsLogStatesNothingAndMakesNoFull(t *testing.T) {
	s := begun(t)
	require.NoError(t, s.Flush(t.Context()))
	etcd := &behind{Etcd: s.options.Etcd, past: s.lagging()}
	s.storeAUser()

	before := s.names()
	s.options.Etcd, s.options.SpoolDir = etcd, filepath.Join(t.TempDir(), "spool")
	s.tune = append(s.tune, slowToHear)
	s.run()
	s.eventually(func(f Facts) bool { return f.Role == Writing && f.Stored > 0 }, "it writes")
	require.NoError(t, s.Flush(t.Context()), "the chain has all that it has")
	ready := make(chan bool, 1)
	require.NoError(t, s.tell(t.Context(), func() { ready <- s.readyForFull() }))
	assert.False(t, <-ready)
	assert.Equal(t, before, s.names())

	etcd.caughtUp.Store(true)
	_, err := s.FullNow(t.Context(), "asked for")
	require.NoError(t, err)
	head, err := archive.New(s.store, keys).Head(t.Context(), 1)
	require.NoError(t, err)
	assert.Nil(t, head.Segment)
	assert.Equal(t, etcd.AppliedIndex(), head.Applied, "it is said how new they are in the full")
	s.addUser("someone else")
	require.NoError(t, s.Flush(t.Context()))
	s.requireUsers(2)
}

func TestWhatWaitsOfAMemberThatLaggedIsNotAddedBehindWhatTheLeaderHasStated(t *testing.T) {
	s := begun(t)
	require.NoError(t, s.Flush(t.Context()))
	s.store.Inject(memory.Fault{Err: memory.ErrUnreachable})
	for i, name := range []string{"one", "two"} {
		s.addUser(name)
		s.eventually(func(Facts) bool { s.BeforeCompaction(t.Context()); return s.waits() > i }, "it waits")
	}
	s.end()
	s.store.Heal()
	former := s.options
	former.Etcd = s.lagging()
	for _, name := range []string{"one", "two"} {
		_, err := s.etcd.Client.UserDelete(t.Context(), name)
		require.NoError(t, err)
	}
	s.options.SpoolDir = filepath.Join(t.TempDir(), "spool")
	s.run()
	require.NoError(t, s.Flush(t.Context()))
	s.end()
	s.requireUsers(0)

	before := s.names()
	s.options = former
	s.run()
	s.eventually(func(f Facts) bool { return f.Role == Watching && f.Stored > 0 && s.waits() == 0 }, "it waits for nothing")
	assert.Equal(t, before, s.names())
	s.requireUsers(0)
}
