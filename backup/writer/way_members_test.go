package writer

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store/memory"
)

// A member has come without data while the store was away, and leads by now. One of the others remembers.
func TestAnotherMemberThatWasOnTheWayTakesOverFromALeaderThatWasNot(t *testing.T) {
	c := newMembers(t, 3)
	for _, member := range c.members[:2] {
		member.run()
	}
	c.requireEventuallyStored(c.put("a", "1"))
	c.members[1].eventually(func(f Facts) bool { return f.Role == Watching && f.Stored > 0 }, "it watches")
	require.FileExists(t, c.members[1].options.LineageFile)
	for _, member := range c.members[:2] {
		member.end()
	}
	c.put("a", "meanwhile")
	c.compact(c.write(10, "meanwhile"))
	c.leader.Store(3)
	c.members[2].run()
	c.members[2].eventually(func(f Facts) bool { return f.Trouble != nil && f.Role == Unknown }, "it is said")
	c.members[1].run()
	require.Eventually(t, func() bool { c.put("a", "2"); return c.members[1].Facts().Role == Writing }, patience, poll)
	c.requireEventuallyStored(c.put("a", "3"))
	c.members[2].eventually(func(f Facts) bool { return f.Role == Writing && f.Trouble == nil }, "the leader's data are on the way, as can be seen now")
	c.members[1].end()
	c.requireEventuallyStored(c.put("a", "4"))
	c.requireAllKept()
}

// What waits is the volume's, and it need not be these data's.
func TestWhatWaitsIsGoneOnWithBehindACompactionOnlyIfTheDataAreKnownToBeOfThatWay(t *testing.T) {
	for name, known := range map[string]bool{"known": true, "not known": false} {
		t.Run(name, func(t *testing.T) {
			s := begun(t)
			s.store.Inject(memory.Fault{Err: memory.ErrUnreachable})
			s.put("a", "waits")
			s.BeforeCompaction(t.Context())
			s.end()
			s.compact(s.put("a", "meanwhile"))
			if !known {
				require.NoError(t, os.Remove(s.options.LineageFile))
			}
			waited := s.segmentsOf(s.options.SpoolDir)
			_, err := New(s.options)
			require.NoError(t, err)
			if known {
				assert.Equal(t, waited, s.segmentsOf(s.options.SpoolDir))
			} else {
				assert.Empty(t, s.segmentsOf(s.options.SpoolDir))
				assert.Contains(t, s.log.String(), "is set aside")
			}
		})
	}
}

// Should it lead soon, and etcd be compacted, nothing but what it remembers tells that the chain is of its data.
func TestAMemberThatWatchesSeesSoonThatAChainHasBegun(t *testing.T) {
	c := newMembers(t, 2)
	watcher := c.members[1]
	watcher.tune = append(watcher.tune, func(s *Writer) { s.pace.watch = time.Hour })
	watcher.run()
	watcher.eventuallySawNone()
	c.members[0].run()
	require.Eventually(t, func() bool { _, err := os.Stat(watcher.options.LineageFile); return err == nil }, patience, poll)
	watcher.eventually(func(f Facts) bool { return f.Role == Watching }, "it watches")
}

func TestAMemberThatSawThereWasNoChainKnowsTheOneThatBegan(t *testing.T) {
	c := newMembers(t, 2)
	watcher := c.members[1]
	watcher.tune = append(watcher.tune, func(s *Writer) { s.pace.young = time.Hour })
	watcher.run()
	watcher.eventuallySawNone()
	c.members[0].run()
	c.requireEventuallyStored(c.put("a", "1"))
	c.members[0].end()
	c.put("a", "meanwhile")
	c.compact(c.write(10, "meanwhile"))
	require.NoError(t, watcher.tell(t.Context(), func() { watcher.pace.young, watcher.remote.after = 0, time.Time{} }))
	require.Eventually(t, func() bool { _, err := os.Stat(watcher.options.LineageFile); return err == nil }, patience, poll)
	watcher.eventually(func(f Facts) bool { return f.Role == Watching && f.Trouble == nil }, "it watches")
}

// eventuallySawNone waits until a member that does not lead has looked, and there was no chain.
func (s *stand) eventuallySawNone() {
	s.Helper()
	require.Eventually(s, func() bool {
		none := make(chan bool, 1)
		require.NoError(s, s.tell(s.Context(), func() { none <- s.remote.looked.none }))
		return <-none
	}, patience, poll, "it has looked, and there was no chain")
}
