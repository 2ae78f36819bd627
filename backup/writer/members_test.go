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
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/storage/backend"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer/capture"
)

// cluster contains multiple members, each with its own writer. The members share one etcd and therefore have the same
// rows.
type cluster struct {
	*stand
	leader  atomic.Int32
	members []*stand
	pauses  []*pausing
}

// both means that every member considers itself the leader.
const both = -1

// pausing is a store that can pause uploads before they take effect or before they return.
type pausing struct {
	store.Store
	of     string                        // substring of the object names whose uploads are paused
	after  bool                          // pause uploads after they take effect but before they return
	gate   atomic.Pointer[chan struct{}] // nil unless paused
	inside atomic.Int32                  // number of paused uploads
	ended  <-chan struct{}               // closed when the test ends
}

func (p *pausing) Put(ctx context.Context, name string, content io.Reader) error {
	if !strings.Contains(name, p.of) {
		return p.Store.Put(ctx, name, content)
	}
	p.wait(false)
	err := p.Store.Put(context.WithoutCancel(ctx), name, content)
	p.wait(true)
	return err
}

func (p *pausing) wait(after bool) {
	if gate := p.gate.Load(); gate != nil && p.after == after {
		p.inside.Add(1)
		select {
		case <-*gate:
		case <-p.ended:
		}
		p.inside.Add(-1)
	}
}

// pause blocks uploads until resume is called.
func (p *pausing) pause(after bool) (resume func()) {
	gate := make(chan struct{})
	p.after = after
	p.gate.Store(&gate)
	return sync.OnceFunc(func() {
		p.gate.Store(nil)
		close(gate)
	})
}

// newCluster returns a running cluster whose leader has stored a key.
func newCluster(t *testing.T, size int) *cluster {
	t.Helper()
	c := newMembers(t, size)
	for _, member := range c.members {
		member.run()
	}
	c.requireEventuallyStored(c.put("a", "1"))
	return c
}

func newMembers(t *testing.T, size int) *cluster {
	t.Helper()
	c := &cluster{stand: newStand(t)}
	c.leader.Store(1)
	c.addMembers(size)
	return c
}

func (c *cluster) addMembers(size int) {
	for number := range size {
		member := &stand{T: c.T, etcd: c.etcd, store: c.store, log: c.log, options: c.options, tune: c.tune}
		paused := &pausing{Store: c.store, of: "/segment/", ended: c.Context().Done()}
		member.options.Etcd = &faked{Etcd: c.options.Etcd, id: fmt.Sprint(number + 1), isLeader: func() bool {
			leader := c.leader.Load()
			return leader == int32(number+1) || leader == both
		}}
		member.options.SpoolDir, member.options.DataDir = filepath.Join(c.TempDir(), "spool"), c.TempDir()
		member.is(clusterID, 1)
		member.options.Archive, member.delay = archive.New(paused, keys), paused
		c.members, c.pauses = append(c.members, member), append(c.pauses, paused)
	}
}

func (c *cluster) requireEventuallyStored(revision int64) {
	c.Helper()
	require.Eventually(c, func() bool { return c.chainHas(revision) }, patience, poll, "the chain has revision %d", revision)
}

func (s *stand) chainHas(revision int64) bool {
	head, err := s.backups().Head(s.Context(), 1)
	return err == nil && !head.Empty() && head.Revision() >= revision
}

func TestStandby_reportsNoLag(t *testing.T) {
	standby := newCluster(t, 2).members[1]
	standby.eventually(func(f Facts) bool { return f.Role == facts.Standby }, "another member writes")
	standby.do(func() {
		standby.chain.revision += 1000
		standby.publish()
		assert.Zero(t, standby.Facts().LagRevisions)
	})
}

// Followers must not list the store, because a listing costs about twelve times as much as a read, and a thousand
// members may inspect the same store every ten seconds.
func TestMembers_followersDoNotList(t *testing.T) {
	c := newCluster(t, 2)
	c.members[1].eventually(func(f Facts) bool { return f.Role == facts.Standby && f.Revision == 2 }, "the follower knows the end of the chain")
	lists, reads := c.store.CountCalls(memory.List, ""), c.store.CountCalls(memory.Get, "")
	require.Eventually(t, func() bool { return c.store.CountCalls(memory.Get, "") >= reads+2 }, patience, poll, "the store is inspected")
	assert.Equal(t, lists, c.store.CountCalls(memory.List, ""))
	stored := c.put("a", "2")
	c.members[1].eventually(func(f Facts) bool { return f.Revision == stored }, "new segments are found without a listing")
}

// lagging returns etcd's current state, as a slow follower will see it later.
func (s *stand) lagging() Etcd {
	return s.frozen(capture.Identity{MemberID: "2", Term: Server(s.etcd.Server).Identity().Term})
}

func TestLeader_waitsUntilItsLogIsApplied(t *testing.T) {
	s := startedStand(t)
	var caughtUp atomic.Bool
	is, past := s.options.Etcd, s.lagging()
	now := func() Etcd {
		if caughtUp.Load() {
			return is
		}
		return past
	}
	etcd := &faked{Etcd: is, backend: func() backend.Backend { return now().Backend() }, applied: func() uint64 { return now().AppliedIndex() }}
	s.storeAUser()

	before := s.names()
	s.options.Etcd, s.options.SpoolDir = etcd, filepath.Join(t.TempDir(), "spool")
	s.run(slowToHear)
	s.eventually(func(f Facts) bool { return f.Role == facts.Writer && f.Revision > 0 }, "this member writes")
	require.NoError(t, s.Flush(t.Context()), "nothing is left to store")
	s.do(func() { assert.False(t, s.snapshots.isReady()) })
	assert.Equal(t, before, s.names())

	caughtUp.Store(true)
	s.full()
	head := s.head()
	assert.Nil(t, head.Segment)
	assert.Equal(t, etcd.AppliedIndex(), head.Applied, "the full snapshot has the applied index")
	s.addUser("someone else")
	require.NoError(t, s.Flush(t.Context()))
	s.requireUsers(2)
}

// paused returns etcd's current state, as seen by a paused leader of the previous term.
func (s *stand) paused() Etcd {
	return s.frozen(capture.Identity{MemberID: "1", Leader: true, Term: Server(s.etcd.Server).Identity().Term - 1})
}

func (s *stand) addUser(name string) {
	s.Helper()
	_, err := s.etcd.Client.UserAdd(s.Context(), name, "secret")
	require.NoError(s, err)
}

// requireUsers requires the given number of users after a restore.
func (s *stand) requireUsers(count int) {
	s.Helper()
	s.requireEntries("authUsers", count)
}

// requireEntries requires the given number of entries of a small bucket in the restored segments.
func (s *stand) requireEntries(name string, count int) {
	s.Helper()
	_, reading, _ := kept(s.T, s.store, archive.Target{})
	for _, bucket := range reading.Buckets {
		if bucket.Name == name {
			require.Equal(s, count, bucket.Len())
			return
		}
	}
	require.Fail(s, "no segment has the bucket", name)
}

// slowToHear lets a member that has lost leadership consider itself the leader for the whole test.
func slowToHear(s *Writer) { s.pace.ahead = patience }

// storeAUser creates and stores a user, and stops the writer.
func (s *stand) storeAUser() {
	s.Helper()
	s.addUser("someone")
	require.NoError(s, s.Flush(s.Context()))
	s.end()
	s.requireUsers(1)
}

func TestSpool_nothingNewerThanTheNextWriter(t *testing.T) {
	for name, test := range map[string]func(s *stand) (first Etcd, then func() Etcd){
		"of a leader that is deposed": func(s *stand) (Etcd, func() Etcd) {
			deposed := faked{Etcd: s.options.Etcd, term: s.options.Etcd.Identity().Term - 1}
			then := deposed
			then.isLeader = func() bool { return false }
			return &deposed, func() Etcd { return &then }
		},
		"of a member that lags": func(s *stand) (Etcd, func() Etcd) { return s.options.Etcd, s.lagging },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			next := s.options
			next.SpoolDir = filepath.Join(t.TempDir(), "spool")
			first, then := test(s)
			s.options.Etcd = first
			s.run()
			s.putAndFlush("a", "1")
			s.store.Inject(memory.Fault{Err: memory.ErrUnreachable})
			for i, name := range []string{"one", "two"} {
				s.addUser(name)
				s.eventually(func(Facts) bool { s.BeforeCompaction(t.Context()); return s.waits() > i }, "a segment is queued")
			}
			s.end()
			s.store.ClearFaults()
			former := s.options
			former.Etcd = then()
			for _, name := range []string{"one", "two"} {
				_, err := s.etcd.Client.UserDelete(t.Context(), name)
				require.NoError(t, err)
			}
			s.options = next
			s.run()
			require.NoError(t, s.Flush(t.Context()))
			s.end()
			s.requireUsers(0)

			before := s.names()
			s.options = former
			s.run()
			s.eventually(func(f Facts) bool { return f.Role == facts.Standby && f.Revision > 0 && s.waits() == 0 }, "nothing is queued")
			assert.Equal(t, before, s.names())
			s.requireUsers(0)
		})
	}
}

// If another member stores a segment while this process is suspended, and the segment is merged and deleted, the
// writer must not use the position again even though the object name is unused.
func TestWriter_doesNotTrustTheEndThatItKnewBeforeItWasSuspended(t *testing.T) {
	for name, ends := range map[string]func(w *Writer, head archive.Head){
		"in an upload": func(w *Writer, head archive.Head) {
			w.health.requestedAt = time.Now().Add(-w.pace.headValid)
			w.uploads.finish(Spooled{Manifest: *head.Segment}, nil)
		},
		"in an inspection": func(w *Writer, head archive.Head) {
			w.take(expired, payload{})
			w.health.requestedAt = time.Now().Add(-requestTimeout)
			result := inspection{storeView: w.remote.storeView}
			result.head = head
			w.handleResult(result, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startedStand(t)
			// The first put may be part of the full snapshot.
			s.putAndFlush("in", "a segment")
			s.do(func() {
				require.True(t, s.remote.isEndKnown())
				ends(s.Writer, s.remote.head)
				assert.False(t, s.remote.isEndKnown())
			})
			s.requireWhole()
		})
	}
}
