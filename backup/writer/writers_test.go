package writer

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
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
		member.options.Open = func(context.Context) (*archive.Archive, error) { return archive.New(paused, keys), nil }
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
