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

// cluster simulates a cluster with several members, each with its own writer and spool. All members use the same etcd
// server and therefore have the same rows.
type cluster struct {
	*harness
	leader  atomic.Int32 // number of the leader, counted from 1; allLead or 0 for none
	members []*harness
	pauses  []*pausing
}

// allLead means that every member considers itself the leader.
const allLead = -1

// pausing wraps a store and can pause uploads before they take effect or before they return.
type pausing struct {
	store.Store
	substr string                        // only uploads of objects whose names contain substr are paused
	after  bool                          // pause uploads after they take effect instead of before
	gate   atomic.Pointer[chan struct{}] // closed to resume uploads; nil unless uploads are paused
	inside atomic.Int32                  // number of uploads that are currently paused
	ended  <-chan struct{}               // closed when the test ends
}

func (p *pausing) Put(ctx context.Context, name string, content io.Reader) error {
	if !strings.Contains(name, p.substr) {
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

// pause blocks uploads until resume is called. after determines whether the uploads take effect before they are
// blocked.
func (p *pausing) pause(after bool) (resume func()) {
	gate := make(chan struct{})
	p.after = after
	p.gate.Store(&gate)
	return sync.OnceFunc(func() {
		p.gate.Store(nil)
		close(gate)
	})
}

// newCluster returns a cluster whose writers are running and whose leader has stored a key.
func newCluster(t *testing.T, size int) *cluster {
	t.Helper()
	c := newMembers(t, size)
	for _, member := range c.members {
		member.run()
	}
	c.requireEventuallyStored(c.put("a", "1"))
	return c
}

// newMembers returns a cluster whose writers have not been started. The first member is the leader.
func newMembers(t *testing.T, size int) *cluster {
	t.Helper()
	c := &cluster{harness: newHarness(t)}
	c.leader.Store(1)
	c.addMembers(size)
	return c
}

func (c *cluster) addMembers(size int) {
	for number := range size {
		member := &harness{T: c.T, etcd: c.etcd, store: c.store, log: c.log, options: c.options, tune: c.tune}
		paused := &pausing{Store: c.store, substr: "/segment/", ended: c.Context().Done()}
		member.options.Etcd = &fakeEtcd{Etcd: c.options.Etcd, id: fmt.Sprint(number + 1), isLeader: func() bool {
			leader := c.leader.Load()
			return leader == int32(number+1) || leader == allLead
		}}
		member.options.SpoolDir, member.options.DataDir = filepath.Join(c.TempDir(), "spool"), c.TempDir()
		member.setIdentity(clusterID, 1)
		member.options.Archive, member.delay = archive.New(paused, keys), paused
		c.members, c.pauses = append(c.members, member), append(c.pauses, paused)
	}
}

func (c *cluster) requireEventuallyStored(revision int64) {
	c.Helper()
	require.Eventually(c, func() bool { return c.chainHas(revision) }, patience, poll, "the chain contains revision %d", revision)
}

func (s *harness) chainHas(revision int64) bool {
	head, err := s.backups().Head(s.Context(), 1)
	return err == nil && !head.Empty() && head.Revision() >= revision
}

func TestStandby_reportsNoLag(t *testing.T) {
	standby := newCluster(t, 2).members[1]
	standby.eventually(func(f Facts) bool { return f.Role == facts.Standby }, "the second member knows that it is not the writer")
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

// lagging returns a copy of etcd's current state under the identity of a follower that does not apply any later
// changes.
func (s *harness) lagging() Etcd {
	return s.openCopy(capture.Identity{MemberID: "2", Term: Server(s.etcd.Server).Identity().Term})
}

func TestLeader_waitsUntilItsLogIsApplied(t *testing.T) {
	s := newStartedHarness(t)
	var caughtUp atomic.Bool
	live, lagging := s.options.Etcd, s.lagging()
	current := func() Etcd {
		if caughtUp.Load() {
			return live
		}
		return lagging
	}
	etcd := &fakeEtcd{
		Etcd: live, backend: func() backend.Backend { return current().Backend() }, applied: func() uint64 { return current().AppliedIndex() },
	}
	s.storeAUser()

	before := s.names()
	s.options.Etcd, s.options.SpoolDir = etcd, filepath.Join(t.TempDir(), "spool")
	s.run(waitToCatchUp)
	s.eventually(func(f Facts) bool { return f.Role == facts.Writer && f.Revision > 0 }, "the member is the writer")
	require.NoError(t, s.Flush(t.Context()), "no revision is left to store")
	s.do(func() { assert.False(t, s.snapshots.isReady()) })
	assert.Equal(t, before, s.names())

	caughtUp.Store(true)
	s.full()
	head := s.head()
	assert.Nil(t, head.Segment)
	assert.Equal(t, etcd.AppliedIndex(), head.Applied, "the full snapshot contains everything that etcd has applied")
	s.addUser("someone else")
	require.NoError(t, s.Flush(t.Context()))
	s.requireUsers(2)
}

// paused returns a copy of etcd's current state under the identity of a previous leader that was paused and still
// considers itself the leader.
func (s *harness) paused() Etcd {
	return s.openCopy(capture.Identity{MemberID: "1", Leader: true, Term: Server(s.etcd.Server).Identity().Term - 1})
}

func (s *harness) addUser(name string) {
	s.Helper()
	_, err := s.etcd.Client.UserAdd(s.Context(), name, "secret")
	require.NoError(s, err)
}

// requireUsers requires that a restore contains the given number of users.
func (s *harness) requireUsers(count int) {
	s.Helper()
	s.requireEntries("authUsers", count)
}

// requireEntries requires that a small bucket has the given number of entries in the segments of a restore.
func (s *harness) requireEntries(name string, count int) {
	s.Helper()
	_, reading, _ := restoreTarget(s.T, s.store, archive.Target{})
	for _, bucket := range reading.Buckets {
		if bucket.Name == name {
			require.Equal(s, count, bucket.Len())
			return
		}
	}
	require.Fail(s, "no segment contains the bucket", name)
}

// waitToCatchUp makes the writer wait until the data has caught up with the store. Otherwise, the writer would soon
// conclude that data behind the store was rolled back.
func waitToCatchUp(s *Writer) { s.pace.ahead = patience }

// storeAUser creates a user, waits until it is stored, and stops the writer.
func (s *harness) storeAUser() {
	s.Helper()
	s.addUser("someone")
	require.NoError(s, s.Flush(s.Context()))
	s.stop()
	s.requireUsers(1)
}

// If a member that is no longer the writer has older users in its spool than the next writer has stored, the member
// must not upload them.
func TestSpool_outdatedUsersAreNotUploaded(t *testing.T) {
	for name, test := range map[string]func(s *harness) (first Etcd, then func() Etcd){
		"leader that lost leadership": func(s *harness) (Etcd, func() Etcd) {
			previousLeader := fakeEtcd{Etcd: s.options.Etcd, term: s.options.Etcd.Identity().Term - 1}
			follower := previousLeader
			follower.isLeader = func() bool { return false }
			return &previousLeader, func() Etcd { return &follower }
		},
		"member that lags behind": func(s *harness) (Etcd, func() Etcd) { return s.options.Etcd, s.lagging },
	} {
		t.Run(name, func(t *testing.T) {
			s := newHarness(t)
			next := s.options
			next.SpoolDir = filepath.Join(t.TempDir(), "spool")
			first, then := test(s)
			s.options.Etcd = first
			s.run()
			s.putAndFlush("a", "1")
			s.store.Inject(memory.Fault{Err: memory.ErrUnreachable})
			for i, name := range []string{"one", "two"} {
				s.addUser(name)
				s.eventually(func(Facts) bool { s.BeforeCompaction(t.Context()); return s.queuedSegments() > i }, "a segment is queued")
			}
			s.stop()
			s.store.ClearFaults()
			previous := s.options
			previous.Etcd = then()
			for _, name := range []string{"one", "two"} {
				_, err := s.etcd.Client.UserDelete(t.Context(), name)
				require.NoError(t, err)
			}
			s.options = next
			s.run()
			require.NoError(t, s.Flush(t.Context()))
			s.stop()
			s.requireUsers(0)

			before := s.names()
			s.options = previous
			s.run()
			s.eventually(func(f Facts) bool { return f.Role == facts.Standby && f.Revision > 0 && s.queuedSegments() == 0 }, "the spool of the previous writer is empty")
			assert.Equal(t, before, s.names())
			s.requireUsers(0)
		})
	}
}

// If another member stores a segment while this process is suspended, and the segment is merged and deleted, the
// writer must not use the position again even though the object name is unused.
func TestWriter_readsTheEndAgainAfterASuspension(t *testing.T) {
	for name, finish := range map[string]func(w *Writer, head archive.Head){
		"during an upload": func(w *Writer, head archive.Head) {
			w.health.requestedAt = time.Now().Add(-w.pace.headValid)
			w.uploads.finish(Spooled{Manifest: *head.Segment}, nil)
		},
		"during an inspection": func(w *Writer, head archive.Head) {
			w.take(expired, payload{})
			w.health.requestedAt = time.Now().Add(-requestTimeout)
			result := inspection{storeView: w.remote.storeView}
			result.head = head
			w.handleResult(result, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStartedHarness(t)
			// The first put may be part of the full snapshot, so put another key to create a segment.
			s.putAndFlush("in", "a segment")
			s.do(func() {
				require.True(t, s.remote.isEndKnown())
				finish(s.Writer, s.remote.head)
				assert.False(t, s.remote.isEndKnown())
			})
			s.requireWhole()
		})
	}
}
