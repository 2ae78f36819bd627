package writer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

func TestUnreachableStore_spoolsWithoutGaps(t *testing.T) {
	for name, fault := range map[string]memory.Fault{
		"unreachable":   {Err: memory.ErrUnreachable},
		"throttled":     {Err: memory.ErrThrottled},
		"broken":        {Err: memory.ErrServerError},
		"denied":        {Err: memory.ErrDenied},
		"no bucket":     {Err: memory.ErrNoBucket},
		"no folder":     {Err: fmt.Errorf("%w: %w", store.ErrNoBucket, fs.ErrNotExist)}, // the queued data exists
		"skewed":        {Err: memory.ErrSkewed},
		"expired":       {Err: memory.ErrExpired},
		"only readable": {Err: memory.ErrDenied, Op: memory.Put},
	} {
		t.Run(name, func(t *testing.T) {
			s := startedStand(t)
			s.store.Inject(fault)
			var last int64
			for round := range 3 {
				for i := range 20 {
					last = s.put(fmt.Sprint("key", i), fmt.Sprint(round))
				}
				s.BeforeCompaction(t.Context())
				s.compact(last)
			}
			s.eventually(func(f Facts) bool { return f.Problem != nil && f.SpoolBytes > 0 }, "it is said")
			trouble := s.Facts().Problem
			assert.Contains(t, trouble.Message, "cannot ")
			assert.NotEqual(t, facts.Waiting, s.Facts().Role)
			assert.False(t, trouble.NextRetry.IsZero())

			s.store.ClearFaults()
			require.NoError(t, s.Flush(t.Context()))
			assert.Equal(t, last, s.Facts().Revision)
			s.requireChains(1)
			assert.Equal(t, last, s.history().Chains[0].To)
			_, _, path := kept(t, s.store, archive.Target{Revision: last - 30})
			assert.Equal(t, last-30, path.Revision)
			s.eventually(func(f Facts) bool { return f.Problem == nil }, "it is over")
			assert.Equal(t, 1, strings.Count(s.log.String(), "backups: recovered"))
		})
	}
}

func TestLostReplies_areNoProblem(t *testing.T) {
	s := newStand(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrLostReply, ReplyLost: true})
	s.run()
	for i := range 5 {
		s.awaitStored(s.put("a", fmt.Sprint(i)))
	}
	assert.Zero(t, s.Facts().Failures)
	s.requireWhole()
}

func TestHangingStore_delaysNoCapture(t *testing.T) {
	s := startedStand(t)
	s.store.Inject(memory.Fault{Hang: true})
	for round := range 3 {
		last := s.put("a", fmt.Sprint(round))
		s.BeforeCompaction(t.Context())
		s.compact(last)
		s.eventually(func(Facts) bool { return s.waits() > round }, "it is captured")
	}
	s.closesTransactions()
	s.store.ClearFaults()
	s.end() // which abandons the request
	s.run()
	require.NoError(t, s.Flush(t.Context()))
	s.requireChains(1)
}

// It stopped all backups without a sign: each segment was captured, rejected and captured again.
func TestWriter_reportsUntrustedSigningKey(t *testing.T) {
	s := newStand(t)
	ours, theirs := formattest.NewKeys(t), formattest.NewKeys(t)
	s.options.Archive = archive.New(s.store, formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey, TrustedKeys: ours.TrustedKeys}))
	s.run(func(w *Writer) { w.pace.fullPatience = 100 * time.Millisecond })
	s.awaitStored(s.put("a", "1"))
	own, err := os.ReadFile(ours.SigningKey)
	require.NoError(t, err)
	other, err := os.ReadFile(theirs.SigningKey)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(ours.SigningKey, other, 0o600))
	start := time.Now()
	last := s.put("a", "2")

	s.requireProblem("--backup-signing-key: its public key is not in --backup-trusted-keys")
	s.eventually(func(f Facts) bool { return f.Lag > 300*time.Millisecond && f.LagRevisions == 1 }, "the lag grows")
	assert.LessOrEqual(t, s.Facts().Lag, time.Since(start))
	_, err = s.FullNow(t.Context(), "asked for")
	require.ErrorContains(t, err, "--backup-signing-key")

	require.NoError(t, os.WriteFile(ours.SigningKey, own, 0o600))
	s.awaitStored(last)
	s.eventually(func(f Facts) bool { return f.Problem == nil && f.Lag == 0 }, "it is over")
}

// A disk may return different bytes than were written, at each read.
func TestWriter_reportsUnreadableSegments(t *testing.T) {
	s := startedStand(t)
	s.end()
	theirs := formattest.NewKeys(t)
	s.run(func(w *Writer) {
		w.spool.keys, w.pace.fullPatience = formattest.LoadKeys(t, format.KeyFiles{TrustedKeys: theirs.TrustedKeys}), 100*time.Millisecond
	})
	start := time.Now()
	s.put("a", "1")
	s.requireProblem("the segment cannot be read back from the volume; capturing it again")
	times := s.Facts().Problem.Count
	s.eventually(func(f Facts) bool {
		return f.Problem != nil && f.Problem.Count > times+1 && f.Lag > 300*time.Millisecond
	}, "the lag grows")
	assert.LessOrEqual(t, s.Facts().Lag, time.Since(start))
	_, err := s.FullNow(t.Context(), "asked for")
	require.ErrorContains(t, err, "cannot be read back")
	s.do(func() { s.spool.keys = keys })
	s.requireWhole()
	s.eventually(func(f Facts) bool { return f.Problem == nil && f.Lag == 0 }, "it is over")
}

func TestWriter_reportsNoProgress(t *testing.T) {
	s := startedStand(t)
	s.do(func() { s.pace.overdue, s.health.notBefore = 50*time.Millisecond, time.Now().Add(time.Hour) })
	last := s.put("a", "1")
	s.requireProblem(fmt.Sprintf("revision %d is not stored after ", last))
	s.do(func() { s.health.notBefore = time.Time{} })
	s.eventually(func(f Facts) bool { return f.Problem == nil }, "it is over")
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
	assert.LessOrEqual(t, l[0].at.Sub(start), time.Duration(2*maxObservations)+1, "never later than the revision was seen")
	assert.Greater(t, l[0].revision, int64(2*maxObservations))
}

// If the store is unreachable from the start, an earlier process's knowledge of it is used.
func TestFlush_failureReportsWhatIsMissing(t *testing.T) {
	for name, starts := range map[string]bool{"it is away": false, "it is away from the start": true} {
		t.Run(name, func(t *testing.T) {
			s := startedStand(t)
			stored := s.put("a", "1")
			s.awaitStored(stored)
			if starts {
				s.end()
			}
			s.store.Inject(memory.Fault{Err: memory.ErrUnreachable})
			if starts {
				s.run()
			}
			last := s.put("a", "2")
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			err := s.Flush(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.ErrorContains(t, err, fmt.Sprintf("revisions %d to %d are not in the store", stored+1, last))
			assert.EqualValues(t, last-stored, s.Facts().LagRevisions)
		})
	}
}

func TestRestart_continuesFromSpoolAndDatabase(t *testing.T) {
	s := startedStand(t)
	s.store.Inject(memory.Fault{Err: memory.ErrUnreachable})
	last := s.put("a", "spooled")
	s.BeforeCompaction(t.Context())
	s.compact(last)
	s.end()
	s.put("a", "only in the database")

	s.run() // the store is still unreachable, and the spool has the position to continue at
	last = s.put("a", "compacted while the store is away")
	s.BeforeCompaction(t.Context())
	s.compact(last)
	s.end()
	s.store.ClearFaults()
	s.run()
	require.NoError(t, s.Flush(t.Context()))
	s.requireChains(1)
	assert.Equal(t, s.etcd.Revision(), s.history().Chains[0].To)
}

func TestGap_causesAFullSnapshotAtOnce(t *testing.T) {
	s := startedStand(t)
	s.end()
	s.put("a", "1")
	s.put("a", "2")
	last := s.put("a", "3")
	s.compact(last)
	s.run()
	s.awaitStored(last)
	s.eventually(func(f Facts) bool { return f.LastFull != nil }, "a full is made")
	assert.Contains(t, s.Facts().LastFull.Reason, "gap: etcd was compacted at revision")
	require.NoError(t, s.Flush(t.Context()))
	s.requireChains(2)
	s.awaitStored(s.put("a", "4"))
	s.requireAllKept()
	s.eventually(func(f Facts) bool { return f.BrokenSince.IsZero() && f.Problem == nil }, "nothing is wrong any more")
}

func TestOverwritingStore_onlyTheLeaderWrites(t *testing.T) {
	s := newStand(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Overwrite: true})
	s.run()
	s.awaitStored(s.put("a", "1"))
	s.do(func() { assert.False(t, s.remote.capabilities.CreateIfAbsent) })
	s.requireAllKept()
	assert.False(t, memberState{guest: true}.isWriter())
	assert.True(t, memberState{guest: true, creates: true}.isWriter())
}

func TestFullSnapshot_waitsForTheGate(t *testing.T) {
	s := newStand(t)
	s.run()
	s.awaitStored(s.put("a", "1"))
	s.end()
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
	asked := s.asked()
	s.eventually(func(f Facts) bool { return f.RunningFullSnapshot != nil }, "it waits")
	s.awaitStored(s.put("a", "2"))
	s.closesTransactions()
	close(open)
	require.NoError(t, <-asked)
	s.requireWhole()
}

// gate is a Gate that a test controls.
type gate func(ctx context.Context, what string) (func(), error)

func (g gate) Acquire(ctx context.Context, what string) (func(), error) { return g(ctx, what) }

func TestUnreachableStore_capturesLessOften(t *testing.T) {
	c := &chain{health: newHealth(time.Second)}
	c.driver = c.health.driver
	assert.Equal(t, time.Second, c.interval())
	c.health.record(opSegment, "failed", true).Since = time.Now().Add(-5 * time.Second)
	assert.Equal(t, unreachableFactor*time.Second, c.interval(), "every segment costs a request later")
}

func TestHangingStore_isReported(t *testing.T) {
	h := newHealth(0)
	h.requestedAt = time.Now()
	assert.Nil(t, h.current())
	h.requestedAt = time.Now().Add(-time.Minute)
	assert.Contains(t, h.current().Message, "the store has not answered for 1m")
	assert.True(t, h.isUnreachable())
}

func TestFailures_areCounted(t *testing.T) {
	s := startedStand(t)
	s.do(func() {
		s.health.failed(opSegment, "cannot", memory.ErrUnreachable)
		assert.Equal(t, 1, s.currentProblem().Count)
		for range 3 {
			s.health.failed(opFull, "cannot", memory.ErrUnreachable)
		}
		assert.Equal(t, 3, s.currentProblem().Count, "of two the one that fails more often")
		s.chain.captureFailed(memory.ErrUnreachable)
		s.health.succeeded(opFull)
		assert.Equal(t, 1, s.currentProblem().Count)
		s.chain.captureFailed(memory.ErrUnreachable)
		assert.Equal(t, 2, s.currentProblem().Count)
		s.health.problems[opCapture] = nil
		assert.Nil(t, s.currentProblem())
		s.health.failed(opFull, "cannot", memory.ErrUnreachable)
		assert.Equal(t, 1, s.currentProblem().Count, "it begins anew")
	})
}

func TestSpool_damagedSegmentIsRecaptured(t *testing.T) {
	s := startedStand(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable})
	for i := range 3 {
		s.put("a", fmt.Sprint(i))
		s.BeforeCompaction(t.Context())
	}
	s.eventually(func(Facts) bool { return s.waits() >= 3 }, "they wait")
	waiting, err := filepath.Glob(filepath.Join(s.options.SpoolDir, "segments", "*"))
	require.NoError(t, err)
	path := waiting[len(waiting)-1]
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	content[len(content)-5] ^= 1
	require.NoError(t, os.WriteFile(path, content, 0o600))
	s.store.ClearFaults()
	s.requireWhole()
}

// The volume may be full, or become read-only.
func TestUnwritableVolume_stillUploads(t *testing.T) {
	s := startedStand(t)
	making := filepath.Join(s.options.SpoolDir, "making")
	require.NoError(t, os.RemoveAll(making))
	for i := range 5 {
		s.awaitStored(s.put("a", fmt.Sprint(i)))
	}
	_, err := s.FullNow(t.Context(), "asked for")
	require.ErrorContains(t, err, "cannot write to the spool")
	s.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable})
	for i := range 5 {
		s.put("b", fmt.Sprint(i))
		s.BeforeCompaction(t.Context())
	}
	s.eventually(func(f Facts) bool { return f.Problem != nil && s.waits() == 1 }, "one waits in memory, and the rest in etcd")
	require.NoError(t, os.Mkdir(making, 0o700))
	s.put("b", "the volume takes it again")
	s.BeforeCompaction(t.Context())
	assert.Equal(t, 1, s.waits(), "nothing waits on the volume behind what is in memory")
	s.store.ClearFaults()
	s.requireWhole()
	s.full()
	s.eventually(func(f Facts) bool { return f.Problem == nil }, "it is over")
}

func TestFullSpool_endsTheChainAfterCompaction(t *testing.T) {
	for name, compacts := range map[string]bool{"compacted": true, "not compacted": false} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			s.options.SpoolLimit = 3000
			s.run()
			s.awaitStored(s.put("a", "1"))
			s.store.Inject(memory.Fault{Err: memory.ErrUnreachable})
			for s.Facts().Problem == nil || !strings.Contains(s.Facts().Problem.Message, "spool is full") {
				require.NoError(t, t.Context().Err())
				s.put("a", "2")
				s.BeforeCompaction(t.Context())
			}
			last := s.put("a", "3")
			if compacts {
				s.compact(last)
			}
			s.store.ClearFaults()
			s.awaitStored(last)
			require.NoError(t, s.Flush(t.Context()))
			s.requireAllKept()
			if compacts {
				s.requireChains(2)
			} else {
				s.requireChains(1)
			}
		})
	}
}

// The spool keeps the last stored segment, which a member uses that has just started.
func TestLateListing_startsNoNewChain(t *testing.T) {
	for name, test := range map[string]struct {
		hidden string
		starts bool
	}{
		"everything":          {"", false},
		"every full":          {"/full/", false},
		"all behind the full": {"/(segment|minute)/", false},
		"all behind the full, which a former process has stored": {"/(segment|minute)/", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t).run()
			for i := range 3 {
				s.awaitStored(s.put("a", fmt.Sprint(i)))
			}
			if test.starts {
				require.NoError(t, s.Flush(t.Context()))
				s.end()
			}
			s.mergeAll()
			s.store.Inject(memory.Fault{Op: memory.List, Hides: regexp.MustCompile(test.hidden).MatchString})
			fulls := int64(1)
			if test.starts {
				fulls = 0
				s.run()
			} else {
				s.do(func() { s.take(expired, payload{}) })
			}
			s.requireProblem("its listing ends at revision")
			assert.Contains(t, s.Facts().Problem.Message, " is there")
			last := s.put("a", "meanwhile")
			s.BeforeCompaction(t.Context())
			s.compact(last)
			s.store.ClearFaults()
			s.awaitStored(last)
			require.NoError(t, s.Flush(t.Context()))
			s.requireChains(1)
			assert.Equal(t, fulls, s.Facts().Fulls)
			assert.NotContains(t, s.log.String(), "the store was emptied")
		})
	}
}

func TestSegment_replacedByAnotherCluster(t *testing.T) {
	s := startedStand(t)
	s.end()
	generation, head := s.newest()
	for cluster, gone := range map[string]bool{clusterID: false, "beef": true} {
		s.store.ClearFaults()
		object := segmentAt(t, format.Start{Cluster: cluster, Generation: 1, Position: format.After(head.Revision() + 5)})
		s.lay(object)
		s.store.Inject(memory.Fault{Op: memory.List, Hides: regexp.MustCompile(object.Position.String()).MatchString})
		seen, err := inspection{Options: Options{Archive: s.backups()}, storeView: storeView{generation: generation}, queued: object.Position}.run(t.Context())
		if gone {
			require.NoError(t, err)
			assert.Equal(t, head.Position, seen.head.Position, "the chain goes on from there")
		} else {
			require.ErrorContains(t, err, "its listing ends at revision")
		}
	}
}

// mergeAll merges all segments and deletes them but for the last, and what was merged as well: as if a listing's page were lost.
func (s *stand) mergeAll() {
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
