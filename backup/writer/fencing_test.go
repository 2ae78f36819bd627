package writer

import (
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer/capture"
)

// paused is etcd as a leader of the term before sees it that was paused at this moment: it hears of nothing that comes.
func (s *stand) paused() Etcd {
	s.Helper()
	is := Server(s.etcd.Server)
	etcd, err := capture.OpenClosed(s.copied(), capture.Identity{MemberID: "1", ClusterID: is.ClusterID(), Leader: true, Term: is.Term() - 1})
	require.NoError(s, err)
	s.Cleanup(func() { _ = etcd.Close() })
	return etcd
}

func (s *stand) addUser(name string) {
	s.Helper()
	_, err := s.etcd.Client.UserAdd(s.Context(), name, "secret")
	require.NoError(s, err)
}

// requireUsers says how many users a restore brings back.
func (s *stand) requireUsers(count int) {
	s.Helper()
	_, reading, _ := kept(s.T, s.store, archive.Target{})
	for _, bucket := range reading.Buckets {
		if bucket.Name == "authUsers" {
			require.Equal(s, count, bucket.Len())
			return
		}
	}
	require.Fail(s, "the users are not stated")
}

// slowToHear has a deposed leader believe that it leads for as long as the test takes.
func slowToHear(s *Writer) { s.pace.ahead = patience }

// storeAUser has the store know of a user, and ends: whatever is remembered of the etcd before does not have it.
func (s *stand) storeAUser() {
	s.Helper()
	s.addUser("someone")
	require.NoError(s, s.Flush(s.Context()))
	s.end()
	s.requireUsers(1)
}

func TestALeaderThatWakesUpDeposedStatesNothingThatItKnewOfUsers(t *testing.T) {
	s := begun(t)
	require.NoError(t, s.Flush(t.Context()))
	past := s.paused()
	s.storeAUser()

	before := s.names()
	s.options.Etcd, s.options.SpoolDir = past, filepath.Join(t.TempDir(), "spool")
	s.tune = append(s.tune, slowToHear)
	s.run()
	s.eventually(func(f Facts) bool { return f.Role == Watching && f.Stored > 0 }, "it notices")
	require.ErrorIs(t, s.Flush(t.Context()), ErrNotWriter)
	assert.Equal(t, before, s.names())
	s.requireUsers(1)
}

// It has the same rows on the way as its successor, and leases and users that are older.
func TestALeaderThatWakesUpDeposedAcrossItsUploadStatesNothingBehindItsSuccessor(t *testing.T) {
	c := newMembers(t, 2)
	woken, successor := c.members[0], c.members[1]
	c.leader.Store(2)
	successor.run()
	c.requireEventuallyStored(c.put("a", "1"))
	require.NoError(t, successor.Flush(t.Context()))
	successor.end()
	c.put("a", "2")
	woken.options.Etcd = c.paused()
	woken.tune = append(woken.tune, slowToHear)
	c.addUser("someone")
	resume := c.pauses[0].pause(&c.pauses[0].before)
	woken.run()
	require.Eventually(t, func() bool { return c.pauses[0].inside.Load() == 1 }, patience, poll, "it has newer rows to bring")
	successor.run()
	require.NoError(t, successor.Flush(t.Context()))
	successor.end()
	c.requireUsers(1)

	before := c.names()
	resume()
	woken.eventually(func(f Facts) bool { return f.Role == Watching }, "it notices")
	require.ErrorIs(t, woken.Flush(t.Context()), ErrNotWriter)
	assert.Equal(t, before, c.names())
	c.requireUsers(1)
}

// termed is etcd as in another term.
type termed struct {
	Etcd
	term  uint64
	leads atomic.Bool
}

func (e *termed) Term() uint64   { return e.term }
func (e *termed) IsLeader() bool { return e.leads.Load() }

func TestWhatWaitsOfADeposedLeaderAndStatesNothingNewerIsNotAddedBehindItsSuccessor(t *testing.T) {
	s := newStand(t)
	deposed := &termed{Etcd: s.options.Etcd, term: s.options.Etcd.Term() - 1}
	deposed.leads.Store(true)
	successor := s.options
	successor.SpoolDir = filepath.Join(t.TempDir(), "spool")
	s.options.Etcd = deposed
	s.run()
	s.awaitStored(s.put("a", "1"))
	require.NoError(t, s.Flush(t.Context()))
	s.store.Inject(memory.Fault{Err: memory.ErrUnreachable})
	for i, name := range []string{"one", "two"} {
		s.addUser(name)
		s.eventually(func(Facts) bool { s.BeforeCompaction(t.Context()); return s.waits() > i }, "it waits")
	}
	s.end()
	s.store.Heal()
	for _, name := range []string{"one", "two"} {
		_, err := s.etcd.Client.UserDelete(t.Context(), name)
		require.NoError(t, err)
	}
	former := s.options
	s.options = successor
	s.run()
	require.NoError(t, s.Flush(t.Context()))
	s.end()
	s.requireUsers(0)

	before := s.names()
	s.options = former
	deposed.leads.Store(false)
	s.run()
	s.eventually(func(f Facts) bool { return f.Role == Watching && f.Stored > 0 && s.waits() == 0 }, "it waits for nothing")
	assert.Equal(t, before, s.names())
	s.requireUsers(0)
}

// A volume that was put back, to when there were as many revisions: nobody else leads.
func TestALeaderWhoseTermIsBehindGoesOnWhenItHearsOfNobody(t *testing.T) {
	s := begun(t)
	require.NoError(t, s.Flush(t.Context()))
	past := s.paused()
	s.storeAUser()
	s.options.Etcd, s.options.SpoolDir = past, filepath.Join(t.TempDir(), "spool")
	s.run()
	s.eventually(func(f Facts) bool { return f.Role == Writing && f.Segments > 0 }, "it writes")
	s.requireUsers(0)
}
