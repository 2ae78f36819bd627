package writer

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/internal/preserved"
)

// slowFulls is a store that takes its time for the data of fulls.
type slowFulls struct {
	store.Store
	until chan struct{}
}

func (s slowFulls) Put(ctx context.Context, name string, content io.Reader) error {
	if strings.HasSuffix(name, "/data") {
		<-s.until
	}
	return s.Store.Put(ctx, name, content)
}

// slowly has a member's fulls take until the returned function is called.
func (c *cluster) slowly(member *stand) (stored func()) {
	until := make(chan struct{})
	slow := archive.New(slowFulls{c.store, until}, keys)
	member.options.Open = func(context.Context) (*archive.Archive, error) { return slow, nil }
	return func() { close(until) }
}

func storesItsCopy(f Facts) bool {
	return f.FullRunning != nil && f.FullRunning.Doing == "stores the copy"
}

// The first full of all takes longer than the others wait for it, so another member makes one, too.
func TestOfTwoFirstFullsTheLaterOneDoesNotCount(t *testing.T) {
	c := newMembers(t, 2)
	first, second := c.members[0], c.members[1]
	stored, storedToo := c.slowly(first), c.slowly(second)
	first.run()
	first.eventually(storesItsCopy, "the leader begins")
	c.put("a", "behind the first one")
	second.run()
	second.eventually(storesItsCopy, "the other one takes over")
	c.put("a", "behind both")
	stored()
	c.requireEventuallyStored(c.put("a", "of the leader"))
	storedToo()
	second.eventually(func(f Facts) bool { return f.FullRunning == nil && f.Role == Watching }, "it gives its own up")
	assert.Nil(t, second.Facts().LastFull)
	c.requireOneChain()
	path := c.requireAllKept()
	assert.Equal(t, first.Facts().LastFull.Revision, path.Full.Revision)
}

// A full that somebody waits for is made all the same, within the chain that goes on.
func TestWhoAskedForAFullThatDoesNotCountGetsAnotherOne(t *testing.T) {
	c := newMembers(t, 2)
	first, second := c.members[0], c.members[1]
	c.leader.Store(0)
	stored := c.slowly(first)
	first.run()
	asked := due{reason: "asked for", done: make(chan fullResult, 1)}
	require.NoError(t, first.tell(t.Context(), func() { first.askForFull(asked) }))
	c.leader.Store(both)
	first.eventually(storesItsCopy, "it begins a chain with what was asked for")
	second.run()
	second.eventually(func(f Facts) bool { return f.LastFull != nil }, "and so does the other one")
	c.requireEventuallyStored(c.put("a", "of the other one"))
	stored()
	var result fullResult
	require.Eventually(t, func() bool {
		select {
		case result = <-asked.done:
			return true
		default:
			return false
		}
	}, patience, poll, "it is made")
	require.NoError(t, result.err)
	c.requireOneChain()
	assert.Equal(t, result.Revision, c.requireAllKept().Full.Revision)
}

// The chain may go on elsewhere: who lost its office meanwhile does not end it.
func TestWhoNoLongerWritesDoesNotEndTheChain(t *testing.T) {
	c := newMembers(t, 2)
	first := c.members[0]
	first.run()
	c.requireEventuallyStored(c.put("a", "1"))
	first.end()
	stored := c.slowly(first)
	c.compact(c.put("a", "nobody captures this"))
	first.run()
	first.eventually(storesItsCopy, "it begins a chain behind the gap")
	c.leader.Store(2)
	stored()
	first.eventually(func(f Facts) bool { return f.FullRunning == nil && f.Role == Watching }, "it gives it up")
	c.requireChains(1)
	assert.Zero(t, first.Facts().Fulls)
	c.members[1].run()
	c.requireEventuallyStored(c.put("a", "2"))
	c.requireAllKept()
}

// Where there is no chain at all, a full of whoever had begun one is better than none.
func TestAFirstFullCountsThoughItsMemberNoLongerWrites(t *testing.T) {
	c := newMembers(t, 1)
	stored := c.slowly(c.members[0])
	c.members[0].run()
	c.members[0].eventually(storesItsCopy, "it begins")
	c.leader.Store(0)
	stored()
	c.members[0].eventually(func(f Facts) bool { return f.Fulls == 1 }, "it is stored")
	c.requireChains(1)
}

// The answer to the manifest was lost: a second try finds the full as the beginning of the chain.
func TestAnOpeningFullIsNotInItsOwnWay(t *testing.T) {
	s := newStand(t)
	s.store.Inject(
		memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", After: 1, Times: 1, Err: memory.ErrUnreachable, ReplyLost: true},
		memory.Fault{Op: memory.Get, Prefix: "gen/000001/full/", Times: 1, Err: memory.ErrUnreachable})
	s.run()
	s.awaitStored(s.put("a", "1"))
	require.EqualValues(t, 1, s.Facts().Failures)
	assert.EqualValues(t, 1, s.Facts().Fulls)
	s.requireChains(1)
	s.requireAllKept()
}

// What the store has of the chain before is no remains that anybody has to look at.
func TestAMemberThatIsKilledWhileItBeginsAChainSetsNothingAside(t *testing.T) {
	c := newMembers(t, 1)
	member := c.members[0]
	member.run()
	c.requireEventuallyStored(c.put("a", "perhaps within the full already"))
	c.requireEventuallyStored(c.put("a", "1"))
	require.NoError(t, member.Flush(t.Context()))
	require.NotEmpty(t, member.segmentsOf(member.options.SpoolDir), "where to go on")
	c.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Hang: true})
	capturesAfter := func(interval time.Duration) {
		require.NoError(t, member.tell(t.Context(), func() { member.Writer.options.Interval = interval }))
	}
	capturesAfter(100 * patience)
	c.compact(c.put("a", "nobody captures this"))
	capturesAfter(member.options.Interval)
	member.eventually(storesItsCopy, "it begins a chain behind the gap")
	c.put("a", "2")
	member.eventually(func(Facts) bool { return member.waits() > 0 }, "what comes behind it waits")
	member.end()
	_, err := New(member.options)
	require.NoError(t, err)
	assert.Empty(t, preserved.Copies(member.options.SpoolDir))
	assert.NotContains(t, c.log.String(), "set aside")
}
