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
)

// newest returns the newest generation in the store and the end of its chain.
func (s *harness) newest() (archive.Generation, archive.Head) {
	s.Helper()
	a := s.backups()
	all, err := a.Generations(s.Context())
	require.NoError(s, err)
	newest := all[len(all)-1]
	head, err := a.Head(s.Context(), newest.Number)
	require.NoError(s, err)
	return newest, head
}

// endGeneration stores the object that ends the newest generation, as a restore would.
func (s *harness) endGeneration() {
	s.Helper()
	a := s.backups()
	for {
		generation, head := s.newest()
		ending := format.Ending{Successor: generation.Number + 1, Nonce: "nonce", At: time.Now()}
		err := a.End(s.Context(), generation, head, "theirs", ending)
		if errors.Is(err, archive.ErrMoved) {
			continue
		}
		require.NoError(s, err)
		return
	}
}

// awaitSuperseded waits until the writer requests that etcd be closed, and requires that the reason contains both
// texts.
func (s *harness) awaitSuperseded(text, other string) {
	s.Helper()
	select {
	case reason := <-s.superseded:
		require.ErrorContains(s, reason, text)
		assert.ErrorContains(s, reason, other)
	case <-time.After(patience):
		require.Fail(s, "the writer has not requested that etcd be closed")
	}
}

func (s *harness) requireNotSuperseded() {
	s.Helper()
	select {
	case reason := <-s.superseded:
		require.NoError(s, reason)
	default:
	}
}

// remoteEnd returns the position at which the chain ends according to the writer's last read of the store.
func (s *harness) remoteEnd() (end format.Position) {
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
	}, "the follower knows the end of the chain")
	// Prevent inspections, so that only the check for a successor can detect the end of the generation.
	watching.do(func() { watching.pace.watch, watching.pace.headValid = time.Hour, time.Hour })
	c.endGeneration()
	c.startGeneration()
	writing.do(func() { writing.pace.heartbeat = 100 * time.Millisecond })
	for _, member := range c.members {
		member.awaitSuperseded("another cluster was restored", "generation 2")
	}
}

func TestGenerationEnd_oneOfTwoStartsTheNext(t *testing.T) {
	s := newStartedHarness(t)
	s.endGeneration()
	a := s.backups()
	generation, head := s.newest()
	require.ErrorIs(t, a.End(t.Context(), generation, head, "others", format.Ending{Successor: 2, Nonce: "another", At: time.Now()}), archive.ErrEnded)
	begin := func(session string) error {
		return a.BeginGeneration(t.Context(), archive.Generation{Number: 2, Cluster: "c" + session, Parent: 1, Session: session, Created: time.Now()})
	}
	require.NoError(t, begin("theirs"))
	require.NoError(t, begin("theirs"), "a request whose response was lost is repeated")
	require.Error(t, begin("others"))
	lineage, err := a.Lineage(context.Background())
	require.NoError(t, err)
	assert.Equal(t, "theirs", lineage.Newest().Session)
}

func (s *harness) requireNothingFlushed() {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Second)
	defer cancel()
	require.Error(s, s.Flush(ctx))
}

// Anyone with write access to the store can create an object that claims to end the generation. If its signature is
// not trusted, etcd must not be closed, and the writer starts a new chain after the object.
func TestGenerationEnd_untrustedSignature(t *testing.T) {
	ours, theirs := formattest.NewKeys(t), formattest.NewKeys(t)
	untrusted := formattest.LoadKeys(t, format.KeyFiles{SigningKey: theirs.SigningKey, TrustedKeys: theirs.TrustedKeys})
	for name, late := range map[string]bool{"generation before": false, "generation after": true} {
		t.Run(name, func(t *testing.T) {
			s := newHarness(t)
			s.useKeys(formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey, TrustedKeys: ours.TrustedKeys}))
			s.run(func(w *Writer) { w.pace.successor = 50 * time.Millisecond })
			s.awaitStored(s.put("a", "1"))
			s.putAndFlush("a", "2")
			end := segment(t, untrusted, s.head().Start, format.Source{Session: "theirs", Ends: &format.Ending{Successor: 2, Nonce: "nonce", At: time.Now()}})
			begin := func() {
				require.NoError(t, archive.New(s.store, untrusted).BeginGeneration(t.Context(), archive.Generation{
					Number: 2, Cluster: clusterID, Parent: 1, Session: "theirs", Created: time.Now(),
				}))
			}
			if !late {
				begin()
			}
			s.putSegment(end)
			s.put("a", "after the untrusted end")
			s.eventually(func(f Facts) bool { return f.Fulls == 2 && f.BrokenSince.IsZero() }, "a new chain is started")
			if late {
				begin()
			}
			s.putAndFlush("a", "more")
			s.requireNotSuperseded()
			assert.Contains(t, s.log.String(), "the end of the chain is unusable")
		})
	}
}

// A store whose newest full snapshot belongs to another cluster must not be changed. The snapshot is trusted if both
// clusters use the same signing key.
func TestFullSnapshot_ofAnotherClusterStopsUploads(t *testing.T) {
	s := newStartedHarness(t)
	s.putAndFlush("a", "1")
	last := s.head().Revision()
	s.stop()
	a := s.backups()
	full, err := a.PutData(t.Context(), archive.Full{
		Cluster: "beef", Generation: 1, Revision: last - 1, Next: format.After(last - 1), Time: time.Now().Add(time.Minute),
		Chain: format.Digest{1}, Last: format.Digest{9}, Reason: "theirs",
	}, strings.NewReader("theirs"))
	require.NoError(t, err)
	require.NoError(t, a.Commit(t.Context(), full))
	before := s.contents()
	s.run()
	s.requireProblem(": cluster ID mismatch: the store contains backups of cluster beef, but this is cluster " + clusterID)
	s.put("a", "2")
	s.requireNothingFlushed()
	assert.Empty(t, s.superseded)
	s.requireUnchanged(before)
}

// Without signatures, anyone with write access to the store can copy the object that ends another cluster's generation
// to the next position. The writer must ignore it.
func TestGenerationEnd_ofAnotherClusterIsIgnored(t *testing.T) {
	s := newStartedHarness(t)
	generation, head := s.newest()
	generation.Cluster = "another"
	require.NoError(t, s.backups().End(t.Context(), generation, head, "theirs", format.Ending{Successor: 2, Nonce: "nonce", At: time.Now()}))
	before := len(s.store.Calls())
	s.do(func() {
		s.remote.successorChecked = time.Time{}
		s.remote.findSuccessor()
	})
	s.eventually(func(Facts) bool { return len(s.store.Calls()) > before }, "the writer has checked for a successor")
	s.do(func() {})
	s.requireNotSuperseded()
	s.putAndFlush("a", "after the other cluster's end")
}
