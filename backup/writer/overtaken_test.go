package writer

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/memory"
)

// The winner has captured the same rows, and looked at users a moment before one was added.
func TestWhatTheFirstWriterLacksBesideTheRowsIsBroughtByTheSecond(t *testing.T) {
	c := newCluster(t, 1)
	c.requireEventuallyStored(c.put("a", "1"))
	member := c.members[0]
	require.NoError(t, member.Flush(t.Context()))
	resume := c.pauses[0].pause(&c.pauses[0].before)
	require.NoError(t, member.tell(t.Context(), func() { member.Writer.options.Interval = patience * 100 })) // one capture, when it is asked for
	last := c.put("a", "2")
	_, err := c.etcd.Client.UserAdd(t.Context(), "someone", "secret")
	require.NoError(t, err)
	flushed := make(chan error, 1)
	go func() { flushed <- member.Flush(t.Context()) }()
	require.Eventually(t, func() bool { return c.pauses[0].inside.Load() == 1 }, patience, poll)
	own := c.current()
	c.other(own[len(own)-1])
	resume()
	require.NoError(t, <-flushed)
	_, reading, path := kept(t, c.store, archive.Target{})
	assert.Equal(t, last, path.Revision)
	users := func(b *format.Bucket) bool { return b.Name == "authUsers" && b.Len() == 1 }
	assert.True(t, slices.ContainsFunc(reading.Buckets, users), "the user is in the store")
	c.requireChains(1)
}

// A restore could begin with such a full, and would find no segment that goes on from it.
func TestAFullThatOthersHaveCutTheChainBesideIsMadeAnew(t *testing.T) {
	c := newCluster(t, 1)
	c.requireEventuallyStored(c.put("a", "1"))
	member := c.members[0]
	require.NoError(t, member.Flush(t.Context()))
	resume := c.pauses[0].pause(&c.pauses[0].before)
	c.put("a", "2")
	require.Eventually(t, func() bool { return c.pauses[0].inside.Load() == 1 }, patience, poll)
	asked := make(chan FullDone, 1)
	go func() {
		done, err := member.FullNow(t.Context(), "asked for")
		assert.NoError(t, err)
		asked <- done
	}()
	waits := func(f Facts) bool {
		return f.FullRunning != nil && f.FullRunning.Doing == "waits until what is before it is stored"
	}
	member.eventually(waits, "the database is copied")
	c.put("a", "3")
	own := c.current()
	c.other(own[len(own)-2:]...)
	resume()
	done := <-asked
	c.requireEventuallyStored(c.put("a", "4"))
	require.NoError(t, member.Flush(t.Context()))
	path := c.requireAllKept()
	assert.Equal(t, done.Name, path.Full.Name())
	c.requireChains(1)
}

func TestWhoeverWaitsForAFullIsToldWhenAnotherMemberWrites(t *testing.T) {
	c := newCluster(t, 2)
	c.requireEventuallyStored(c.put("a", "1"))
	member := c.members[0]
	resume := c.pauses[0].pause(&c.pauses[0].before)
	defer resume()
	c.put("a", "2")
	require.Eventually(t, func() bool { return c.pauses[0].inside.Load() == 1 }, patience, poll)
	asked := make(chan error, 2)
	ask := func() { _, err := member.FullNow(t.Context(), "asked for"); asked <- err }
	go ask()
	waits := func(f Facts) bool {
		return f.FullRunning != nil && f.FullRunning.Doing == "waits until what is before it is stored"
	}
	member.eventually(waits, "the database is copied")
	go ask() // which waits for its turn
	c.leader.Store(2)
	require.ErrorIs(t, <-asked, ErrNotWriter)
	require.ErrorIs(t, <-asked, ErrNotWriter)
}

func TestWhoeverWaitsForAFullIsToldWhatKeepsItFromBeingMade(t *testing.T) {
	s := newStand(t)
	s.tune = append(s.tune, func(s *Writer) { s.pace.bear = 300 * time.Millisecond })
	s.run()
	s.awaitStored(s.put("a", "1"))
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Err: memory.ErrDenied}) // a young etcd still settles its version
	_, err := s.FullNow(t.Context(), "asked for")
	require.ErrorContains(t, err, "one when it is over: cannot store the full of revision")
	require.ErrorContains(t, err, "permission denied")
	s.store.Heal()
	s.eventually(func(f Facts) bool { return f.Fulls == 2 }, "it is made all the same")
}

func TestAMemberThatDoesNotWriteAnyLongerHasNoTroubleWithWriting(t *testing.T) {
	c := newCluster(t, 2)
	c.requireEventuallyStored(c.put("a", "1"))
	member := c.members[0]
	c.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrDenied})
	c.put("a", "2")
	member.eventually(func(f Facts) bool { return f.Trouble != nil }, "it cannot store")
	c.store.Heal()
	c.leader.Store(2)
	c.requireEventuallyStored(c.put("a", "3"))
	member.eventually(func(f Facts) bool { return f.Role == Watching && f.Trouble == nil }, "it is another's")
}

// Of two clusters of one configuration, say, whose last rows happen to be the same.
func TestASegmentWithOtherRowsThatEndsAlikeIsOfACopy(t *testing.T) {
	c := newCluster(t, 1)
	c.requireEventuallyStored(c.put("a", "1"))
	member := c.members[0]
	require.NoError(t, member.Flush(t.Context()))
	resume := c.pauses[0].pause(&c.pauses[0].before)
	require.NoError(t, member.tell(t.Context(), func() { member.Writer.options.Interval = patience * 100 })) // one capture, when it is asked for
	c.put("b", "of this one")
	c.put("c", "of both")
	flushed := make(chan error, 1)
	go func() { flushed <- member.Flush(t.Context()) }()
	require.Eventually(t, func() bool { return c.pauses[0].inside.Load() == 1 }, patience, poll)
	own := c.current()
	theirs := own[len(own)-2:]
	theirs[0].Value = []byte("of the other one")
	c.other(theirs...)
	resume()
	require.ErrorContains(t, <-flushed, "another copy of these data")
	member.eventually(func(f Facts) bool { return f.Trouble != nil && f.Role == Unknown }, "it stays so")
}
