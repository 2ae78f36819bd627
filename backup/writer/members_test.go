package writer

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/storage/backend"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer/capture"
)

// cluster is several members with the same rows: one etcd, and a writer for each member.
type cluster struct {
	*stand
	leader  atomic.Int32
	members []*stand
	pauses  []*pausing
}

// one is a member as its own writer sees it.
type one struct {
	Etcd
	cluster *cluster
	number  int32
}

// both is a leader of its own to each member.
const both = -1

func (o one) IsLeader() bool {
	leader := o.cluster.leader.Load()
	return leader == o.number || leader == both
}

func (o one) MemberID() string { return fmt.Sprint(o.number) }

// pausing is a store whose uploads stop where a process is paused: before they arrive, or with the answer on its way.
type pausing struct {
	store.Store
	mu     sync.Mutex
	before chan struct{} // nil unless paused
	after  chan struct{}
	inside atomic.Int32 // uploads that are paused
}

func (p *pausing) wait(which *chan struct{}) {
	p.mu.Lock()
	gate := *which
	p.mu.Unlock()
	if gate != nil {
		p.inside.Add(1)
		<-gate
		p.inside.Add(-1)
	}
}

func (p *pausing) Put(ctx context.Context, name string, content io.Reader) error {
	if !strings.Contains(name, "/segment/") {
		return p.Store.Put(ctx, name, content)
	}
	p.wait(&p.before)
	err := p.Store.Put(context.WithoutCancel(ctx), name, content)
	p.wait(&p.after)
	return err
}

// pause stops uploads and returns what lets them go on.
func (p *pausing) pause(which *chan struct{}) (resume func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	gate := make(chan struct{})
	*which = gate
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		*which = nil
		close(gate)
	})
}

// newCluster has all of its members run.
func newCluster(t *testing.T, size int) *cluster {
	t.Helper()
	c := newMembers(t, size)
	for _, member := range c.members {
		member.run()
	}
	return c
}

func newMembers(t *testing.T, size int) *cluster {
	t.Helper()
	c := &cluster{stand: newStand(t)}
	c.leader.Store(1)
	for number := range size {
		member := &stand{T: t, etcd: c.etcd, store: c.store, log: c.log, options: c.options}
		paused := &pausing{Store: c.store}
		member.options.Etcd = one{Etcd: c.options.Etcd, cluster: c, number: int32(number + 1)}
		member.options.SpoolDir, member.options.DataDir = filepath.Join(t.TempDir(), "spool"), t.TempDir()
		member.is(clusterID, 1)
		member.options.Archive = archive.New(paused, keys)
		c.members, c.pauses = append(c.members, member), append(c.pauses, paused)
	}
	return c
}

// kept says that the store has one chain with everything in it.
func (c *cluster) requireOneChain() {
	c.Helper()
	last := c.put("last", "value")
	c.requireEventuallyStored(last)
	c.requireChains(1)
	c.requireAllKept()
}

func (c *cluster) requireEventuallyStored(revision int64) {
	c.Helper()
	require.Eventually(c, func() bool {
		head, err := archive.New(c.store, keys).Head(c.Context(), 1)
		return err == nil && !head.Empty() && head.Revision() >= revision
	}, patience, poll, "the chain has revision %d", revision)
}

func TestTheLeaderWritesAndTheOthersWatch(t *testing.T) {
	c := newCluster(t, 3)
	for range 20 {
		c.put("a", "1")
	}
	c.requireOneChain()
	c.members[1].eventually(func(f Facts) bool { return f.Role == Watching && f.Generation == 1 }, "it watches")
	assert.Zero(t, c.members[1].Facts().Segments)
	assert.Zero(t, c.members[2].Facts().Segments)
	_, err := c.members[1].FullNow(t.Context(), "asked for")
	require.ErrorIs(t, err, ErrNotWriter)
	require.ErrorIs(t, c.members[1].Flush(t.Context()), ErrNotWriter, "it has nothing to bring")
}

// asked is how often the store was, by all members.
func (c *cluster) asked(op memory.Op) (times int) {
	for _, call := range c.store.Calls() {
		if call.Op == op {
			times++
		}
	}
	return times
}

// A listing costs a dozen times as much as a read, and there may be a thousand members that look every ten seconds.
func TestAMemberThatWatchesListsNothingWhileTheChainHasAll(t *testing.T) {
	c := newCluster(t, 2)
	c.requireEventuallyStored(c.put("a", "1"))
	c.members[1].eventually(func(f Facts) bool { return f.Role == Watching && f.Stored == 2 }, "it has seen that")
	lists, reads := c.asked(memory.List), c.asked(memory.Get)
	require.Eventually(t, func() bool { return c.asked(memory.Get) >= reads+2 }, patience, poll, "it looks")
	assert.Equal(t, lists, c.asked(memory.List))
	stored := c.put("a", "2")
	c.members[1].eventually(func(f Facts) bool { return f.Stored == stored }, "what comes is seen all the same")
}

func TestANewLeaderGoesOnWhereTheOldOneEnded(t *testing.T) {
	c := newCluster(t, 3)
	for round := range 9 {
		c.leader.Store(int32(round%3 + 1))
		c.requireEventuallyStored(c.put("a", fmt.Sprint(round)))
	}
	c.requireOneChain()
}

func TestOthersTakeOverWhenTheLeaderDoesNotWriteAndStepBackWhenItDoes(t *testing.T) {
	c := newCluster(t, 2)
	c.requireEventuallyStored(c.put("a", "1"))
	resume := c.pauses[0].pause(&c.pauses[0].before)
	c.put("a", "2") // there is something to add when they look
	require.Eventually(t, func() bool { c.put("a", "3"); return c.members[1].Facts().Role == Writing }, patience, poll)
	c.requireEventuallyStored(c.put("a", "4"))
	resume()
	require.Eventually(t, func() bool { c.put("a", "5"); return c.members[1].Facts().Role == Watching }, patience, poll)
	c.requireOneChain()
}

func TestAWriterThatIsPausedAcrossItsUploadNeitherLosesNorDoublesRows(t *testing.T) {
	for name, which := range map[string]func(p *pausing) *chan struct{}{
		"before it arrives":          func(p *pausing) *chan struct{} { return &p.before },
		"with the answer on its way": func(p *pausing) *chan struct{} { return &p.after },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2)
			c.requireEventuallyStored(c.put("a", "1"))
			resume := c.pauses[0].pause(which(c.pauses[0]))
			for c.pauses[0].inside.Load() == 0 {
				c.put("a", "while it is paused")
			}
			c.leader.Store(2) // the others elect a new one
			for range 10 {
				c.requireEventuallyStored(c.put("a", "by the new leader"))
			}
			resume() // it believes it leads for a while
			c.leader.Store(1)
			for range 10 {
				c.put("a", "by both")
			}
			c.requireOneChain()
			c.leader.Store(2)
			c.requireOneChain()
		})
	}
}

func TestTwoWritersAtOnceMakeOneChain(t *testing.T) {
	c := newCluster(t, 2)
	c.requireEventuallyStored(c.put("a", "1"))
	c.leader.Store(both)
	require.Eventually(t, func() bool {
		c.put("a", "by whoever is first")
		return strings.Count(c.log.String(), "another member was first") > 5
	}, patience, poll)
	c.requireOneChain()
}

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
	s.full()
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
	past := s.paused()
	s.storeAUser()
	s.options.Etcd, s.options.SpoolDir = past, filepath.Join(t.TempDir(), "spool")
	s.run()
	s.eventually(func(f Facts) bool { return f.Role == Writing && f.Segments > 0 }, "it writes")
	s.requireUsers(0)
}
