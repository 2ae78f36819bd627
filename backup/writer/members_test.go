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

// both is a leader of its own to each member.
const both = -1

// pausing is a store whose uploads stop where a process is paused: before they arrive, or with the answer on its way.
type pausing struct {
	store.Store
	of     string                        // the parts of the names of stops
	after  bool                          // with the answer on its way
	gate   atomic.Pointer[chan struct{}] // nil unless paused
	inside atomic.Int32                  // uploads that are paused
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
		<-*gate
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

func (p *pausing) awaitInside(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return p.inside.Load() == 1 }, patience, poll, "an upload is paused")
}

// newCluster has all of its members run, and its leader has stored something.
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
	for number := range size {
		member := &stand{T: t, etcd: c.etcd, store: c.store, log: c.log, options: c.options}
		paused := &pausing{Store: c.store, of: "/segment/"}
		member.options.Etcd = &faked{Etcd: c.options.Etcd, id: fmt.Sprint(number + 1), isLeader: func() bool {
			leader := c.leader.Load()
			return leader == int32(number+1) || leader == both
		}}
		member.options.SpoolDir, member.options.DataDir = filepath.Join(t.TempDir(), "spool"), t.TempDir()
		member.is(clusterID, 1)
		member.options.Archive = archive.New(paused, keys)
		c.members, c.pauses = append(c.members, member), append(c.pauses, paused)
	}
	return c
}

// pausedMember is the only one of a cluster that has stored something, and stops at its next upload.
func pausedMember(t *testing.T, after bool) (c *cluster, member *stand, resume func()) {
	t.Helper()
	c = newCluster(t, 1)
	require.NoError(t, c.members[0].Flush(t.Context()))
	return c, c.members[0], c.pauses[0].pause(after)
}

// requireOneChain checks that the store has one chain with everything in it.
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
		head, err := c.backups().Head(c.Context(), 1)
		return err == nil && !head.Empty() && head.Revision() >= revision
	}, patience, poll, "the chain has revision %d", revision)
}

func TestMembers_onlyTheLeaderWrites(t *testing.T) {
	c := newCluster(t, 3)
	for range 20 {
		c.put("a", "1")
	}
	c.requireOneChain()
	c.members[1].eventually(func(f Facts) bool { return f.Role == facts.Standby && f.Generation == 1 }, "it watches")
	assert.Zero(t, c.members[1].Facts().Segments)
	assert.Zero(t, c.members[2].Facts().Segments)
	standby := c.members[1]
	standby.do(func() {
		standby.chain.revision += 1000
		standby.publish()
		assert.Zero(t, standby.Facts().LagRevisions, "the writer reports the lag")
	})
	_, err := c.members[1].FullNow(t.Context(), "asked for")
	require.ErrorIs(t, err, ErrNotWriter)
	require.ErrorIs(t, c.members[1].Flush(t.Context()), ErrNotWriter, "it has nothing to bring")
}

// A listing costs a dozen times as much as a read, and there may be a thousand members that look every ten seconds.
func TestMembers_followersDoNotList(t *testing.T) {
	c := newCluster(t, 2)
	c.members[1].eventually(func(f Facts) bool { return f.Role == facts.Standby && f.Revision == 2 }, "it has seen that")
	lists, reads := c.store.CountCalls(memory.List, ""), c.store.CountCalls(memory.Get, "")
	require.Eventually(t, func() bool { return c.store.CountCalls(memory.Get, "") >= reads+2 }, patience, poll, "it looks")
	assert.Equal(t, lists, c.store.CountCalls(memory.List, ""))
	stored := c.put("a", "2")
	c.members[1].eventually(func(f Facts) bool { return f.Revision == stored }, "what comes is seen all the same")
}

func TestMembers_newLeaderContinues(t *testing.T) {
	c := newCluster(t, 3)
	for round := range 9 {
		c.leader.Store(int32(round%3 + 1))
		c.requireEventuallyStored(c.put("a", fmt.Sprint(round)))
	}
	c.requireOneChain()
}

func TestMembers_takeOverFromAStuckLeader(t *testing.T) {
	c := newCluster(t, 2)
	resume := c.pauses[0].pause(false)
	c.put("a", "2") // there is something to add when they look
	require.Eventually(t, func() bool { c.put("a", "3"); return c.members[1].Facts().Role == facts.Writer }, patience, poll)
	c.requireEventuallyStored(c.put("a", "4"))
	resume()
	require.Eventually(t, func() bool { c.put("a", "5"); return c.members[1].Facts().Role == facts.Standby }, patience, poll)
	c.requireOneChain()
}

func TestPausedWriter_noLostOrDuplicateRows(t *testing.T) {
	for name, after := range map[string]bool{"before it arrives": false, "with the answer on its way": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2)
			resume := c.pauses[0].pause(after)
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

func TestTwoWriters_oneChain(t *testing.T) {
	c := newCluster(t, 2)
	c.leader.Store(both)
	require.Eventually(t, func() bool {
		c.put("a", "by whoever is first")
		return strings.Count(c.log.String(), "another member was first") > 5
	}, patience, poll)
	c.requireOneChain()
}

// The winner has captured the same rows, or further ones, and read the users a moment before one was added.
func TestFlush_addsMissingUsers(t *testing.T) {
	for name, further := range map[string]int{"the same rows": 0, "further rows": 1} {
		t.Run(name, func(t *testing.T) {
			var last int64
			c, flushed := raced(t, func(c *cluster) {
				last = c.put("a", "2")
				c.addUser("someone")
			}, func(c *cluster) []format.Row {
				if further > 0 {
					last = c.write(further, "further")
				}
				own := c.current()
				return own[len(own)-1-further:]
			})
			require.NoError(t, flushed)
			_, _, path := kept(t, c.store, archive.Target{})
			assert.Equal(t, last, path.Revision)
			c.requireUsers(1)
			c.requireChains(1)
		})
	}
}

// raced returns a cluster in which another member has stored rows at the position of a flush.
func raced(t *testing.T, write func(*cluster), theirs func(*cluster) []format.Row) (c *cluster, flushed error) {
	t.Helper()
	c, member, resume := pausedMember(t, false)
	member.do(func() { member.Writer.options.Interval = patience * 100 }) // one capture, on request
	write(c)
	done := make(chan error, 1)
	go func() { done <- member.Flush(t.Context()) }()
	c.pauses[0].awaitInside(t)
	c.other(theirs(c)...)
	resume()
	return c, <-done
}

// A restore could start from such a full snapshot, and no segment would follow.
func TestFullSnapshot_conflictingSegmentsOfOthers(t *testing.T) {
	c, member, resume := pausedMember(t, false)
	c.put("a", "2")
	c.pauses[0].awaitInside(t)
	asked := member.asked()
	member.eventually(waitsForSegments, "the database is copied")
	c.put("a", "3")
	own := c.current()
	c.other(own[len(own)-2:]...)
	resume()
	require.NoError(t, <-asked)
	c.requireEventuallyStored(c.put("a", "4"))
	require.NoError(t, member.Flush(t.Context()))
	path := c.requireAllKept()
	assert.Equal(t, member.Facts().LastFull.Name(), path.Full.Name())
	c.requireChains(1)
}

func TestRequestedFullSnapshot_anotherWriter(t *testing.T) {
	c := newCluster(t, 2)
	member := c.members[0]
	resume := c.pauses[0].pause(false)
	defer resume()
	c.put("a", "2")
	c.pauses[0].awaitInside(t)
	asked := member.asked()
	member.eventually(waitsForSegments, "the database is copied")
	another := member.asked() // which waits for its turn
	c.leader.Store(2)
	require.ErrorIs(t, <-asked, ErrNotWriter)
	require.ErrorIs(t, <-another, ErrNotWriter)
}

func TestRequestedFullSnapshot_reportsTheObstacle(t *testing.T) {
	s := newStand(t).run(func(s *Writer) { s.pace.fullPatience = 300 * time.Millisecond })
	s.awaitStored(s.put("a", "1"))
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Err: memory.ErrDenied}) // a young etcd still settles its version
	_, err := s.FullNow(t.Context(), "asked for")
	require.ErrorContains(t, err, "is made when this is resolved: cannot store the full snapshot of revision")
	require.ErrorContains(t, err, "permission denied")
	s.store.ClearFaults()
	s.eventually(func(f Facts) bool { return f.Fulls == 2 }, "it is made all the same")
}

func TestFormerWriter_hasNoProblems(t *testing.T) {
	c := newCluster(t, 2)
	member := c.members[0]
	c.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrDenied})
	c.put("a", "2")
	member.eventually(func(f Facts) bool { return f.Problem != nil }, "it cannot store")
	c.store.ClearFaults()
	c.leader.Store(2)
	c.requireEventuallyStored(c.put("a", "3"))
	member.eventually(func(f Facts) bool { return f.Role == facts.Standby && f.Problem == nil }, "it is another's")
}

// Two clusters with one configuration may have identical last rows.
func TestSegment_sameEndButOtherRows(t *testing.T) {
	c, flushed := raced(t, func(c *cluster) {
		c.put("b", "of this one")
		c.put("c", "of both")
	}, func(c *cluster) []format.Row {
		own := c.current()
		own[len(own)-2].Value = []byte("of the other one")
		return own[len(own)-2:]
	})
	require.ErrorContains(t, flushed, "another copy of this data")
	c.members[0].eventually(func(f Facts) bool { return f.Problem != nil && f.Role == facts.Waiting }, "it stays so")
}

// lagging returns etcd as a slow follower sees it: it applies nothing more.
func (s *stand) lagging() Etcd {
	return s.frozen(capture.Identity{MemberID: "2", Term: Server(s.etcd.Server).Identity().Term})
}

// It has the same rows on its way as the one that writes, and leases and users that are older.
func TestUsers_olderStateIsNotUploaded(t *testing.T) {
	for name, test := range map[string]func(c *cluster) (slow, writer int){
		"it lags, and has taken over": func(c *cluster) (int, int) {
			c.members[1].options.Etcd = c.lagging()
			return 1, 0
		},
		"it was paused across its upload, and wakes up deposed": func(c *cluster) (int, int) {
			c.leader.Store(2)
			c.members[0].options.Etcd = c.paused()
			c.members[0].tune = append(c.members[0].tune, slowToHear)
			return 0, 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newMembers(t, 2)
			writer := c.members[0]
			writer.run()
			c.requireEventuallyStored(c.put("a", "1"))
			require.NoError(t, writer.Flush(t.Context()))
			writer.end()
			c.put("a", "2")
			slow, other := test(c)
			late, paused := c.members[slow], c.pauses[slow]
			writer = c.members[other]
			resume := paused.pause(false)
			late.run()
			paused.awaitInside(t)
			c.addUser("someone")
			writer.run()
			require.NoError(t, writer.Flush(t.Context()))
			writer.end()
			c.requireUsers(1)

			before := c.names()
			resume()
			late.eventually(func(f Facts) bool { return f.Role == facts.Standby }, "it leaves the rest to others")
			require.ErrorIs(t, late.Flush(t.Context()), ErrNotWriter)
			assert.Equal(t, before, c.names())
			c.requireUsers(1)
		})
	}
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
	s.eventually(func(f Facts) bool { return f.Role == facts.Writer && f.Revision > 0 }, "it writes")
	require.NoError(t, s.Flush(t.Context()), "the chain has all that it has")
	s.do(func() { assert.False(t, s.snapshots.isReady()) })
	assert.Equal(t, before, s.names())

	caughtUp.Store(true)
	s.full()
	head := s.head()
	assert.Nil(t, head.Segment)
	assert.Equal(t, etcd.AppliedIndex(), head.Applied, "it is said how new they are in the full")
	s.addUser("someone else")
	require.NoError(t, s.Flush(t.Context()))
	s.requireUsers(2)
}

// paused returns etcd as a leader of the previous term sees it that is paused at this moment.
func (s *stand) paused() Etcd {
	return s.frozen(capture.Identity{MemberID: "1", Leader: true, Term: Server(s.etcd.Server).Identity().Term - 1})
}

func (s *stand) addUser(name string) {
	s.Helper()
	_, err := s.etcd.Client.UserAdd(s.Context(), name, "secret")
	require.NoError(s, err)
}

// requireUsers checks the number of users after a restore.
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

// slowToHear lets a deposed leader consider itself the leader for the whole test.
func slowToHear(s *Writer) { s.pace.ahead = patience }

// storeAUser stores a user and stops. A frozen etcd from before lacks that user.
func (s *stand) storeAUser() {
	s.Helper()
	s.addUser("someone")
	require.NoError(s, s.Flush(s.Context()))
	s.end()
	s.requireUsers(1)
}

// past returns a stand whose leader is of the previous term and lacks a stored user.
func past(t *testing.T) *stand {
	t.Helper()
	s := startedStand(t)
	paused := s.paused()
	s.storeAUser()
	s.options.Etcd, s.options.SpoolDir = paused, filepath.Join(t.TempDir(), "spool")
	return s
}

func TestLostLeader_uploadsNoUsers(t *testing.T) {
	s := past(t)
	before := s.names()
	s.run(slowToHear)
	s.eventually(func(f Facts) bool { return f.Role == facts.Standby && f.Revision > 0 }, "it notices")
	require.ErrorIs(t, s.Flush(t.Context()), ErrNotWriter)
	assert.Equal(t, before, s.names())
	s.requireUsers(1)
}

// Rows have revisions, which order them: a leader of an older term adds those that the chain lacks.
func TestLostLeader_uploadsNewerRows(t *testing.T) {
	s := startedStand(t)
	s.end()
	last := s.put("a", "newer than the chain")
	s.options.Etcd, s.options.SpoolDir = s.paused(), filepath.Join(t.TempDir(), "spool")
	s.run(func(s *Writer) { s.pace.ahead, s.pace.watch = 10*patience, 10*patience }) // nor does it take over
	s.awaitStored(last)
	s.requireAllKept()
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
				s.eventually(func(Facts) bool { s.BeforeCompaction(t.Context()); return s.waits() > i }, "it waits")
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
			s.eventually(func(f Facts) bool { return f.Role == facts.Standby && f.Revision > 0 && s.waits() == 0 }, "it waits for nothing")
			assert.Equal(t, before, s.names())
			s.requireUsers(0)
		})
	}
}

// A volume was rolled back to the same revision: no other member leads.
func TestLeader_olderTermWithoutAnotherLeader(t *testing.T) {
	s := past(t).run()
	s.eventually(func(f Facts) bool { return f.Role == facts.Writer && f.Segments > 0 }, "it writes")
	s.requireUsers(0)
}

// What is stored while a process is suspended may be merged and deleted by the time it continues: the position is free again, but used.
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
			s.putAndFlush("in", "a segment") // the first put may be in the full snapshot
			s.do(func() {
				require.True(t, s.remote.isEndKnown())
				ends(s.Writer, s.remote.head)
				assert.False(t, s.remote.isEndKnown())
			})
			s.requireWhole()
		})
	}
}
