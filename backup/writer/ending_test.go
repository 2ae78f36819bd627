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

// succeed ends the newest generation as a restore would.
func (s *stand) succeed() {
	s.Helper()
	a := s.backups()
	for {
		of, head := s.newest()
		err := a.End(s.Context(), of, head, "theirs", format.Ending{Successor: of.Number + 1, Nonce: "nonce", At: time.Now()})
		if errors.Is(err, archive.ErrMoved) {
			continue
		}
		require.NoError(s, err)
		return
	}
}

// awaitSuperseded waits until the writer requests that etcd be closed, and checks the reason.
func (s *stand) awaitSuperseded(why, says string) {
	s.Helper()
	select {
	case told := <-s.superseded:
		require.ErrorContains(s, told, why)
		assert.ErrorContains(s, told, says)
	case <-time.After(patience):
		require.Fail(s, "etcd is not closed")
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

// remoteEnd returns the last known end of the chain in the store.
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
	}, "the end of the chain is known")
	// Disable all checks except the check for a successor.
	watching.do(func() { watching.pace.watch, watching.pace.headValid = time.Hour, time.Hour })
	c.succeed()
	c.restored()
	writing.do(func() { writing.pace.heartbeat = 100 * time.Millisecond })
	for _, member := range c.members {
		member.awaitSuperseded("another cluster was restored", "generation 2")
	}
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
	require.NoError(t, begin("theirs"), "the reply was lost")
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

// Anyone with write access to the store can create an object that claims to end the generation. The writer must
// ignore an untrusted object.
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
			s.eventually(func(f Facts) bool { return f.Fulls == 2 && f.BrokenSince.IsZero() }, "another chain starts")
			if late {
				begin()
			}
			s.putAndFlush("a", "more")
			s.requireNotSuperseded()
			assert.Contains(t, s.log.String(), "the end of the chain is damaged")
		})
	}
}

// The full snapshot may come from another cluster with the same signing key.
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
	s.requireProblem(": cluster ID mismatch: the store contains backups of cluster beef, but this is cluster " + clusterID)
	s.put("a", "2")
	s.requireNothingFlushed()
	assert.Empty(t, s.superseded)
	s.requireUnchanged(before)
}

// Without signatures, anyone with write access to the bucket can store another cluster's end at the next position.
func TestGenerationEnd_ofAnotherClusterIsIgnored(t *testing.T) {
	s := startedStand(t)
	of, head := s.newest()
	of.Cluster = "another"
	require.NoError(t, s.backups().End(t.Context(), of, head, "theirs", format.Ending{Successor: 2, Nonce: "nonce", At: time.Now()}))
	before := len(s.store.Calls())
	s.do(func() {
		s.remote.successorChecked = time.Time{}
		s.remote.findSuccessor()
	})
	s.eventually(func(Facts) bool { return len(s.store.Calls()) > before }, "the store is checked")
	s.do(func() {})
	s.requireNotSuperseded()
	s.putAndFlush("a", "behind the foreign end")
}
