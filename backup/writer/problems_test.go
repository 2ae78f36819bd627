package writer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store/memory"
)

func TestWriter_reportsUntrustedSigningKey(t *testing.T) {
	s := newHarness(t)
	ours, theirs := formattest.NewKeys(t), formattest.NewKeys(t)
	s.options.Archive = archive.New(s.store, formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey, TrustedKeys: ours.TrustedKeys}))
	s.run(func(w *Writer) { w.pace.fullTimeout = 100 * time.Millisecond })
	s.awaitStored(s.put("a", "1"))
	own, err := os.ReadFile(ours.SigningKey)
	require.NoError(t, err)
	other, err := os.ReadFile(theirs.SigningKey)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(ours.SigningKey, other, 0o600))
	start := time.Now()
	last := s.put("a", "2")

	s.requireProblem("--backup-signing-key: the public key is not in --backup-trusted-keys")
	s.eventually(func(f Facts) bool { return f.Lag > 300*time.Millisecond && f.LagRevisions == 1 }, "the lag grows")
	assert.LessOrEqual(t, s.Facts().Lag, time.Since(start))
	_, err = s.FullNow(t.Context(), "requested")
	require.ErrorContains(t, err, "--backup-signing-key")

	require.NoError(t, os.WriteFile(ours.SigningKey, own, 0o600))
	s.awaitStored(last)
	s.eventually(func(f Facts) bool { return f.Problem == nil && f.Lag == 0 }, "the problem is resolved")
}

func TestWriter_reportsUnreadableSegments(t *testing.T) {
	s := newStartedHarness(t)
	s.stop()
	theirs := formattest.NewKeys(t)
	s.run(func(w *Writer) {
		w.spool.keys, w.pace.fullTimeout = formattest.LoadKeys(t, format.KeyFiles{TrustedKeys: theirs.TrustedKeys}), 100*time.Millisecond
	})
	start := time.Now()
	s.put("a", "1")
	s.requireProblem("the queued segment is unreadable and must be captured again")
	times := s.Facts().Problem.Count
	s.eventually(func(f Facts) bool {
		return f.Problem != nil && f.Problem.Count > times+1 && f.Lag > 300*time.Millisecond
	}, "the lag grows")
	assert.LessOrEqual(t, s.Facts().Lag, time.Since(start))
	_, err := s.FullNow(t.Context(), "requested")
	require.ErrorContains(t, err, "the queued segment is unreadable")
	s.do(func() { s.spool.keys = keys })
	s.requireWhole()
	s.eventually(func(f Facts) bool { return f.Problem == nil && f.Lag == 0 }, "the problem is resolved")
}

func TestWriter_reportsNoProgress(t *testing.T) {
	s := newStartedHarness(t)
	s.do(func() { s.pace.overdue, s.health.notBefore = 50*time.Millisecond, time.Now().Add(time.Hour) })
	last := s.put("a", "1")
	s.requireProblem(fmt.Sprintf("revision %d is still not stored after ", last))
	s.do(func() { s.health.notBefore = time.Time{} })
	s.eventually(func(f Facts) bool { return f.Problem == nil }, "the problem is resolved")
}

func TestLag_keepsTheOldestTime(t *testing.T) {
	var l lag
	start := time.Now()
	for i := range int64(5 * maxObservations) {
		l.add(i, start.Add(time.Duration(i)))
	}
	assert.LessOrEqual(t, len(l), maxObservations)
	assert.Equal(t, start, l[0].at)
	l.drop(2 * maxObservations)
	assert.LessOrEqual(t, l[0].at.Sub(start), time.Duration(2*maxObservations)+1, "the revision is not reported as younger")
	assert.Greater(t, l[0].revision, int64(2*maxObservations))
}

func TestOverwritingStore_onlyTheLeaderWrites(t *testing.T) {
	s := newHarness(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Overwrite: true})
	s.run()
	s.awaitStored(s.put("a", "1"))
	s.do(func() { assert.False(t, s.remote.capabilities.CreateIfAbsent) })
	s.requireAllStored()
	assert.False(t, memberState{tookOver: true}.isWriter())
	assert.True(t, memberState{tookOver: true, refusesOverwrite: true}.isWriter())
}

func TestFullSnapshot_waitsForTheGate(t *testing.T) {
	s := newHarness(t)
	s.run()
	s.awaitStored(s.put("a", "1"))
	s.stop()
	open := make(chan struct{})
	s.options.Gate = gate(func(ctx context.Context, _ string) (func(), error) {
		select {
		case <-open:
			return func() {}, nil
		case <-ctx.Done():
			return nil, errors.New("gave up")
		}
	})
	s.run()
	full := s.requestFull()
	s.eventually(func(f Facts) bool { return f.RunningFullSnapshot != nil }, "the full snapshot waits for the gate")
	s.awaitStored(s.put("a", "2"))
	s.awaitNoTransaction()
	close(open)
	require.NoError(t, <-full)
	s.requireWhole()
}

// gate implements Gate with a function.
type gate func(ctx context.Context, what string) (func(), error)

func (g gate) Acquire(ctx context.Context, what string) (func(), error) { return g(ctx, what) }

func TestUnreachableStore_capturesLessOften(t *testing.T) {
	c := &chain{health: newHealth(time.Second)}
	c.driver = c.health.driver
	assert.Equal(t, time.Second, c.interval())
	c.health.record(opSegment, "failed", true).Since = time.Now().Add(-5 * time.Second)
	assert.Equal(t, unreachableFactor*time.Second, c.interval(), "captures are less frequent")
}

func TestHangingStore_isReported(t *testing.T) {
	h := newHealth(0)
	h.requestedAt = time.Now()
	assert.Nil(t, h.current())
	h.requestedAt = time.Now().Add(-time.Minute)
	assert.Contains(t, h.current().Message, "the store has not responded for 1m")
	assert.True(t, h.isUnreachable())
}

func TestFailures_areCounted(t *testing.T) {
	s := newStartedHarness(t)
	s.do(func() {
		s.health.failed(opSegment, "cannot", memory.ErrUnreachable)
		assert.Equal(t, 1, s.currentProblem().Count)
		for range 3 {
			s.health.failed(opFull, "cannot", memory.ErrUnreachable)
		}
		assert.Equal(t, 3, s.currentProblem().Count, "the count is that of the problem with more failures")
		s.chain.captureFailed(memory.ErrUnreachable)
		s.health.succeeded(opFull)
		assert.Equal(t, 1, s.currentProblem().Count)
		s.chain.captureFailed(memory.ErrUnreachable)
		assert.Equal(t, 2, s.currentProblem().Count)
		s.health.problems[opCapture] = nil
		assert.Nil(t, s.currentProblem())
		s.health.failed(opFull, "cannot", memory.ErrUnreachable)
		assert.Equal(t, 1, s.currentProblem().Count, "the count restarts after all problems are resolved")
	})
}

func TestSegment_replacedByAnotherCluster(t *testing.T) {
	s := newStartedHarness(t)
	s.stop()
	generation, head := s.newest()
	for cluster, isForeign := range map[string]bool{clusterID: false, "beef": true} {
		s.store.ClearFaults()
		object := segmentAt(t, format.Start{Cluster: cluster, Generation: 1, Position: format.After(head.Revision() + 5)})
		s.putSegment(object)
		s.store.Inject(memory.Fault{Op: memory.List, Hides: regexp.MustCompile(object.Position.String()).MatchString})
		seen, err := inspection{Options: Options{Archive: s.backups()}, storeView: storeView{generation: generation}, queued: object.Position}.run(t.Context())
		if isForeign {
			require.NoError(t, err)
			assert.Equal(t, head.Position, seen.head.Position, "the other cluster's segment is ignored")
		} else {
			require.ErrorContains(t, err, "the listing ends at revision")
		}
	}
}

// mergeAll merges all segments into one object, and then deletes the source segments except the last one.
func (s *harness) mergeAll() {
	s.Helper()
	a := s.backups()
	segments, err := a.Objects(s.Context(), 1, archive.Segment)
	require.NoError(s, err)
	require.Greater(s, len(segments), 1)
	_, err = a.Merge(s.Context(), archive.Minute, segments)
	require.NoError(s, err)
	for _, object := range segments[:len(segments)-1] {
		require.NoError(s, s.store.Delete(s.Context(), object.Name()))
	}
}
