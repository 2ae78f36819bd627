package writer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store/memory"
)

// newest returns the newest generation in the store and its head.
func (s *stand) newest() (archive.Generation, archive.Head) {
	s.Helper()
	a := s.backups()
	all, err := a.Generations(s.Context())
	require.NoError(s, err)
	newest := all[len(all)-1]
	head, err := a.Head(s.Context(), newest.Number)
	require.NoError(s, err)
	return newest, head
}

// succeed ends the newest generation as a restore does that has read all there is, and returns the revision it has.
func (s *stand) succeed() int64 {
	s.Helper()
	a := s.backups()
	for {
		of, head := s.newest()
		err := a.End(s.Context(), of, head, "theirs", format.Ending{Successor: of.Number + 1, Nonce: "nonce", At: time.Now()})
		if errors.Is(err, archive.ErrMoved) {
			continue
		}
		require.NoError(s, err)
		return head.Revision()
	}
}

// awaitSuperseded waits for the reason to close etcd.
func (s *stand) awaitSuperseded(why, says string) {
	s.Helper()
	select {
	case told := <-s.superseded:
		require.ErrorContains(s, told, why)
		assert.ErrorContains(s, told, says)
	case <-time.After(patience):
		require.Fail(s, "it goes on")
	}
}

func (s *stand) requireNotSuperseded() {
	s.Helper()
	select {
	case told := <-s.superseded:
		require.NoError(s, told)
	default:
	}
}

// requireSuperseded checks that the member was replaced and has stored nothing after the end.
func (s *stand) requireSuperseded(upTo int64) {
	s.Helper()
	s.awaitSuperseded("another cluster was restored", "generation 2")
	s.eventually(func(f Facts) bool { return f.Role == facts.Waiting && f.Problem != nil }, "it is told")
	require.ErrorContains(s, s.Flush(s.Context()), "another cluster was restored")
	_, err := s.FullNow(s.Context(), "asked for")
	require.ErrorContains(s, err, "another cluster was restored")
	_, head := s.newest()
	assert.Equal(s, upTo, head.Revision())
	assert.LessOrEqual(s, s.Facts().Revision, upTo, "what is told as stored is in the successor")
}

func TestGenerationEnd_foundAtTheNextUpload(t *testing.T) {
	s := startedStand(t)
	upTo := s.succeed()
	s.put("a", "behind the end")
	s.requireSuperseded(upTo)
}

func TestGenerationEnd_foundByAHeartbeat(t *testing.T) {
	s := newStand(t).run(func(w *Writer) { w.pace.heartbeat = 100 * time.Millisecond })
	s.putAndFlush("a", "1")
	before := s.Facts().Segments
	s.eventually(func(f Facts) bool { return f.Segments > before+2 }, "it shows that it lives")
	s.requireAllKept()
	s.requireSuperseded(s.succeed())
}

// The member is paused while its successor reads, and resumes before, after or across the end.
func TestGenerationEnd_pausedWriterConfirmsNothing(t *testing.T) {
	for name, after := range map[string]bool{"before its upload arrives": false, "with the answer on its way": true} {
		t.Run(name, func(t *testing.T) {
			c, member, resume := pausedMember(t, after)
			c.put("a", "while it is paused")
			c.pauses[0].awaitInside(t)
			upTo := c.succeed()
			resume()
			c.put("a", "behind the end")
			member.requireSuperseded(upTo)
		})
	}
}

// remoteEnd returns the end of the chain as far as the member knows.
func (s *stand) remoteEnd() (end format.Position) {
	s.Helper()
	s.do(func() { end = s.remote.head.Position })
	return end
}

func TestGenerationEnd_membersLearnOfTheNextGeneration(t *testing.T) {
	c := newMembers(t, 2)
	for _, member := range c.members {
		member.run(func(w *Writer) { w.pace.successor = 50 * time.Millisecond })
	}
	writing, watching := c.members[0], c.members[1]
	c.requireEventuallyStored(c.put("a", "1"))
	require.NoError(t, writing.Flush(t.Context()))
	watching.eventually(func(f Facts) bool {
		end := writing.head().Position
		return f.Role == facts.Standby && watching.remoteEnd() == end
	}, "it knows the end of the chain")
	watching.do(func() { watching.pace.watch, watching.pace.headValid = time.Hour, time.Hour }) // only the check for a successor is left
	c.succeed()
	c.restored()
	writing.do(func() { writing.pace.heartbeat = 100 * time.Millisecond })
	for _, member := range c.members {
		member.awaitSuperseded("another cluster was restored", "generation 2")
	}
}

// A full snapshot that starts a chain continues after the position where a restore ends the generation.
func TestGenerationEnd_noChainStartsAfterIt(t *testing.T) {
	s := startedStand(t)
	s.compactedMeanwhile()
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Err: memory.ErrUnreachable})
	s.run()
	s.eventually(func(f Facts) bool { return f.RunningFullSnapshot != nil && f.Problem != nil }, "another chain is about to begin")
	upTo := s.succeed()
	s.store.ClearFaults()
	s.requireSupersededBeside(upTo)
}

// The caller is answered at once, although its full snapshot is being uploaded.
func TestGenerationEnd_answersARequestThatIsBeingStored(t *testing.T) {
	s := startedStand(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Hang: true})
	asked := s.asked()
	s.eventually(storesItsCopy, "it is uploaded")
	s.succeed()
	s.put("a", "behind the end")
	err := <-asked
	require.ErrorContains(t, err, "another cluster was restored from the backups of this one")
	require.NotContains(t, err.Error(), "is made when this is resolved")
}

// requireSupersededBeside is requireSuperseded with a full snapshot after the end, which does not count.
func (s *stand) requireSupersededBeside(upTo int64) {
	s.Helper()
	s.awaitSuperseded("another cluster was restored", "generation 2")
	assert.LessOrEqual(s, s.Facts().Revision, upTo, "what is told as stored is in the successor")
	_, head := s.newest()
	require.NotNil(s, head.Ending(), "for whoever looks, it has ended")
}

// The process was killed between the full snapshot and the segment that makes it count.
func TestChain_interruptedStartIsCompleted(t *testing.T) {
	s := startedStand(t)
	s.compactedMeanwhile()
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/segment/", Err: memory.ErrUnreachable})
	s.run()
	s.eventually(func(f Facts) bool { return f.Problem != nil && f.RunningFullSnapshot != nil }, "it does not count")
	_, head := s.newest()
	require.NotNil(t, head.Unlinked)
	s.end()
	s.store.ClearFaults()
	s.run()
	s.requireContinues()
	_, head = s.newest()
	require.Nil(t, head.Unlinked)
}

func TestStop_lastObjectIsFinal(t *testing.T) {
	s := startedStand(t)
	_, head := s.newest()
	require.False(t, head.Newest().Released)
	s.end()
	etcd := Server(s.etcd.Server)
	s.options.Etcd, s.options.Release = s.frozen(etcd.Identity()), true
	s.run()
	require.NoError(t, s.Flush(t.Context()))
	require.NoError(t, s.Flush(t.Context()), "once is enough")
	_, again := s.newest()
	require.True(t, again.Newest().Released)
	assert.NotEmpty(t, again.Newest().Session)
	s.end()
	s.options.Etcd, s.options.Release = etcd, false
	s.run()
	s.awaitStored(s.put("a", "2"))
	_, on := s.newest()
	require.False(t, on.Newest().Released, "it lives again")
	s.requireAllKept()
}

func TestGenerationEnd_oneOfTwoStartsTheNext(t *testing.T) {
	s := startedStand(t)
	s.succeed()
	a := s.backups()
	of, head := s.newest()
	require.ErrorIs(t, a.End(t.Context(), of, head, "others", format.Ending{Successor: 2, Nonce: "another", At: time.Now()}), archive.ErrEnded)
	begin := func(session string) error {
		return a.BeginGeneration(t.Context(), archive.Generation{Number: 2, Cluster: "c" + session, Parent: 1, Session: session, Created: time.Now()})
	}
	require.NoError(t, begin("theirs"))
	require.NoError(t, begin("theirs"), "its reply was lost")
	require.Error(t, begin("others"))
	lineage, err := a.Lineage(context.Background())
	require.NoError(t, err)
	assert.Equal(t, "theirs", lineage.Newest().Session)
}

func (s *stand) requireNothingFlushed() {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Second)
	defer cancel()
	require.Error(s, s.Flush(ctx))
}

// Everyone with write access to the store can create such objects, so they end nothing: backups continue after them.
func TestGenerationEnd_untrustedSignature(t *testing.T) {
	ours, theirs := formattest.NewKeys(t), formattest.NewKeys(t)
	other := formattest.LoadKeys(t, format.KeyFiles{SigningKey: theirs.SigningKey, TrustedKeys: theirs.TrustedKeys})
	for name, late := range map[string]bool{"generation before": false, "generation after": true} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			s.with(formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey, TrustedKeys: ours.TrustedKeys}))
			s.run(func(w *Writer) { w.pace.successor = 50 * time.Millisecond })
			s.awaitStored(s.put("a", "1"))
			s.putAndFlush("a", "2")
			end := segment(t, other, s.head().Start, format.Source{Session: "theirs", Ends: &format.Ending{Successor: 2, Nonce: "nonce", At: time.Now()}})
			begin := func() {
				require.NoError(t, archive.New(s.store, other).BeginGeneration(t.Context(), archive.Generation{
					Number: 2, Cluster: clusterID, Parent: 1, Session: "theirs", Created: time.Now(),
				}))
			}
			if !late {
				begin()
			}
			s.lay(end)
			s.put("a", "behind the end")
			s.eventually(func(f Facts) bool { return f.Fulls == 2 && f.BrokenSince.IsZero() }, "another chain begins behind it")
			if late {
				begin()
			}
			s.putAndFlush("a", "more")
			s.requireNotSuperseded()
			assert.Contains(t, s.log.String(), "the end of the chain is damaged")
		})
	}
}

// Another cluster with the same keys may have stored it. etcd's data is not a copy of that cluster's.
func TestFullSnapshot_ofAnotherClusterStopsUploads(t *testing.T) {
	s := startedStand(t)
	s.putAndFlush("a", "1")
	last := s.head().Revision()
	s.end()
	a := s.backups()
	full, err := a.PutData(t.Context(), archive.Full{
		Cluster: "beef", Generation: 1, Revision: last - 1, Next: format.After(last - 1), Time: time.Now().Add(time.Minute),
		Chain: format.Digest{1}, Last: format.Digest{9}, Reason: "theirs",
	}, strings.NewReader("theirs"))
	require.NoError(t, err)
	require.NoError(t, a.Commit(t.Context(), full))
	before := s.contents()
	s.run()
	s.requireProblem("is another cluster's: it has backups of cluster beef, and this is " + clusterID)
	s.put("a", "2")
	s.requireNothingFlushed()
	assert.Empty(t, s.superseded)
	s.requireUnchanged(before)
}
