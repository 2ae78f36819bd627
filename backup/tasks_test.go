package backup_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer"
)

func TestAFailedRestoreTestIsReportedBeforeTheNextFullSnapshotIsStored(t *testing.T) {
	in := memory.New()
	s := newSubjectIn(t, in, archive.Failed)
	s.verifier.before = func() {
		in.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Err: &store.Unavailable{}})
	}
	s.beginUntil(t, func(f backup.Facts) bool {
		return f.Listed.LastVerification != nil
	}, "the failed restore test is reported")
	assert.False(t, s.Facts().Listed.LastVerification.Passed)
}

// A full snapshot that failed a restore test must be replaced, even if another process ran the test.
func TestAFullSnapshotThatFailedElsewhereIsReplaced(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.beginUntil(t, func(f backup.Facts) bool {
		return f.Listed.LastVerification != nil
	}, "the first full snapshot is tested")
	writerFacts := s.Facts().Writer
	s.nextRun(t)
	require.NoError(t, archive.New(s.store, &format.Keys{}).PutResult(t.Context(), archive.Result{
		Cluster: writerFacts.Cluster, Generation: writerFacts.Generation, Full: writerFacts.LastFull.Name(), Revision: writerFacts.LastFull.Revision,
		Outcome: archive.Failed, Why: "result stored by the test", At: time.Now().Add(time.Minute),
	}))
	s.beginUntil(t, func(f backup.Facts) bool {
		return f.Writer.LastFull != nil && s.wasTested(f.Writer.LastFull.Name())
	}, "a second full snapshot is stored and tested")
	assert.Contains(t, s.Facts().Writer.LastFull.Reason, "restore test")
}

func TestARandomRevisionIsRestoredOnceADayDespiteRestarts(t *testing.T) {
	s := newSubject(t, archive.Verified)
	runUntil := func(condition func(backup.Facts) bool, what string) {
		s.beginUntil(t, func(f backup.Facts) bool {
			return f.Listed.LastVerification != nil
		}, "a full snapshot is tested")
		s.put(t, 5)
		full, err := s.Now(soon(t))
		require.NoError(t, err)
		s.eventually(t, func(f backup.Facts) bool { return condition(f) && s.wasTested(full.Name()) }, what)
		s.nextRun(t)
	}
	runUntil(func(f backup.Facts) bool {
		return f.Listed.Window != nil && f.Listed.Window.ToRevision > 5
	}, "the first run has stored revisions between full snapshots")
	runUntil(func(backup.Facts) bool {
		return s.verifier.restoreTests() == 1
	}, "the second run has tested a random revision")
	runUntil(func(f backup.Facts) bool {
		return f.Listed.LastVerification != nil
	}, "the third run has listed the result")
	assert.Equal(t, 1, s.verifier.restoreTests())
}

// wasTested reports whether Options.Verify has been called for a full snapshot without segments.
func (s *subject) wasTested(full string) bool {
	s.verifier.mu.Lock()
	defer s.verifier.mu.Unlock()
	for _, path := range s.verifier.paths {
		if path.Revision == path.Full.Revision && path.Full.Name() == full {
			return true
		}
	}
	return false
}

func TestAFailedRestoreTestOfSegmentsIsReported(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.beginUntil(t, func(f backup.Facts) bool {
		return f.Listed.LastVerification != nil
	}, "the first full snapshot is tested")
	s.put(t, 5)
	s.eventually(t, func(f backup.Facts) bool {
		return f.Writer.Revision == s.etcd.Revision()
	}, "the segments after the full snapshot are stored")
	s.nextRun(t)
	s.verifier.outcome = archive.Failed
	s.beginUntil(t, func(f backup.Facts) bool {
		return f.Listed.LastVerification != nil && !f.Listed.LastVerification.Passed
	}, "the failed restore test is reported")
	assert.Greater(t, s.Facts().Listed.LastVerification.Revision, s.Facts().Listed.LastFullSnapshot.Revision)
}

func TestARestoreTestThatCannotRunIsReportedAndRetried(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.verifier.fail(errors.New("no room"))
	s.beginUntil(t, func(f backup.Facts) bool { return f.TaskProblem != nil }, "the problem is reported")
	assert.Equal(t, "no room", s.Facts().TaskProblem.Message)
	assert.WithinDuration(t, time.Now(), s.Facts().TaskProblem.NextRetry, time.Minute)
	s.verifier.fail(nil)
	s.eventually(t, func(f backup.Facts) bool {
		return f.TaskProblem == nil && f.Listed.LastVerification != nil
	}, "the restore test has run")
}

// If the result of a restore test cannot be read back, the store must be listed again. The previous listing, which
// does not contain the result, must not be used any longer.
func TestAnUnreadableResultIsReadAgain(t *testing.T) {
	in := memory.New()
	s := newSubjectIn(t, in, archive.Verified)
	in.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/verified/", Times: 1, First: func() {
		in.Inject(memory.Fault{Op: memory.Get, Prefix: "gen/000001/verified/", Times: 1, Err: memory.ErrDenied})
	}})
	s.beginUntil(t, func(f backup.Facts) bool {
		return f.TaskProblem == nil && f.Listed.LastVerification != nil
	}, "the problem is resolved")
	assert.GreaterOrEqual(t, in.CountCalls(memory.Get, "gen/000001/verified/"), 2, "the result is read again after the first read failed")
}

// A successful listing by another task must clear the error, because the failed task lists the store again only after
// an hour.
func TestAFailedListingIsForgottenAfterASuccessfulOne(t *testing.T) {
	in := memory.New()
	s := newSubjectIn(t, in, archive.Verified)
	in.Inject(memory.Fault{Op: memory.List, Prefix: "gen/000001/tested/", Times: 1, Err: memory.ErrDenied})
	s.beginUntil(t, func(f backup.Facts) bool { return f.Listed.LastVerification != nil }, "a full snapshot is tested")
	s.eventually(t, func(f backup.Facts) bool { return f.TaskProblem == nil }, "the problem is resolved")
	assert.GreaterOrEqual(t, in.CountCalls(memory.List, "gen/000001/tested/"), 2)
}

func TestMissingIdentitiesAreReported(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.Backups = s.newBackups(t, formattest.LoadKeys(t, format.KeyFiles{Recipients: formattest.NewKeys(t).Recipients}))
	s.beginUntil(t, func(f backup.Facts) bool { return f.TaskProblem != nil }, "the problem is reported")
	assert.Contains(t, s.Facts().TaskProblem.Message, "--backup-identities is not set")
	assert.Zero(t, s.verifier.count())
}

func TestMissingRecipientsAreReported(t *testing.T) {
	s := newSubject(t, archive.Verified)
	keys := formattest.NewKeys(t)
	s.Backups = s.newBackups(t, formattest.LoadKeys(t, format.KeyFiles{Recipients: keys.Recipients, Identities: keys.Identities}))
	s.beginUntil(t, func(f backup.Facts) bool {
		return f.Listed.LastVerification != nil
	}, "an encrypted full snapshot is tested")
	assert.Nil(t, s.Facts().TaskProblem)

	s.nextRun(t)
	s.beginUntil(t, func(f backup.Facts) bool { return f.TaskProblem != nil }, "the problem is reported")
	assert.Contains(t, s.Facts().TaskProblem.Message, "--backup-recipients is not set")
	_, err := s.Now(soon(t))
	require.NoError(t, err)
	s.eventually(t, func(f backup.Facts) bool {
		return f.TaskProblem == nil
	}, "the next full snapshot clears the problem")
}

// newSubjectWithLoss returns a subject whose store has lost a segment, and the last revision before that segment. If
// merged is set, the segments before it have been merged.
func newSubjectWithLoss(t *testing.T, merged bool) (s *subject, before int64) {
	t.Helper()
	t.Parallel()
	in := memory.New()
	in.Now = func() time.Time { return time.Now().Add(-10 * time.Minute) } // objects are old enough to be merged
	// Prevent merges for now, because a merged object would contain the segment that is to be lost.
	in.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/minute/", Err: memory.ErrDenied})
	s = newSubjectIn(t, in, archive.Verified)
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	var objects []archive.Object
	for len(objects) < 6 {
		s.put(t, 1)
		last := s.etcd.Revision()
		s.eventually(t, func(f backup.Facts) bool { return f.Writer.Revision == last }, "the revision is stored")
		var err error
		objects, err = archive.New(in, &format.Keys{}).Objects(t.Context(), 1, archive.Segment)
		require.NoError(t, err)
	}
	s.nextRun(t)
	in.ClearFaults()
	a, lost := archive.New(in, &format.Keys{}), objects[len(objects)-3]
	if merged {
		_, err := a.Merge(t.Context(), archive.Minute, objects[len(objects)-5:len(objects)-3])
		require.NoError(t, err)
	}
	require.NoError(t, in.Delete(t.Context(), lost.Name()))
	return s, lost.Start.Revision - 1
}

func TestRevisionsAfterALostSegmentAreNotRestorePoints(t *testing.T) {
	s, before := newSubjectWithLoss(t, false)
	last := s.etcd.Revision()
	s.verifier.fail(errors.New("no room")) // without restore tests, only the listing can detect the loss
	s.beginUntil(t, func(f backup.Facts) bool { return !f.Listed.At.IsZero() }, "the store is listed")
	listed := s.Facts().Listed.Window
	hasFull := func(f backup.Facts) bool { return f.Writer.LastFull != nil && f.Listed.Window.FromRevision >= last }
	if listed.FromRevision < last {
		assert.Equal(t, before, listed.ToRevision)
		s.eventually(t, hasFull, "a full snapshot is made although etcd has not changed")
	}
	assert.Equal(t, "segments are missing from the store", s.Facts().Writer.LastFull.Reason)
	s.verifier.fail(nil)
	s.eventually(t, func(f backup.Facts) bool { return f.TaskProblem == nil }, "the problem is resolved")
}

func TestLostSegmentsAreReportedBeforeTheFullSnapshotIsMade(t *testing.T) {
	s, before := newSubjectWithLoss(t, false)
	s.store.(*memory.Store).Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Hang: true})
	s.beginUntil(t, func(f backup.Facts) bool {
		return f.Writer.RunningFullSnapshot != nil && f.TaskProblem != nil
	}, "the problem is reported")
	assert.Contains(t, s.Facts().TaskProblem.Message, fmt.Sprintf("segments are missing from the store: the last restorable revision is %d", before))
}

func TestLostSegmentsCauseAFullSnapshot(t *testing.T) {
	s, _ := newSubjectWithLoss(t, true)
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	s.put(t, 1)
	s.eventually(t, func(f backup.Facts) bool { return f.Writer.LastFull != nil }, "a full snapshot is made")
	assert.Equal(t, "segments are missing from the store", s.Facts().Writer.LastFull.Reason)
	s.eventually(t, func(f backup.Facts) bool { return f.TaskProblem == nil }, "the problem is resolved")
}

func TestACheckThatBlocksDeletionsIsReported(t *testing.T) {
	kept := memory.New()
	kept.Now = func() time.Time { return time.Now().Add(20 * time.Minute) }
	s := newSubjectIn(t, kept, archive.Verified)
	s.beginUntil(t, func(f backup.Facts) bool { return f.TaskProblem != nil }, "the problem is reported")
	problem := s.Facts().TaskProblem
	require.Contains(t, problem.Message, "not deleting any backups because a safety check failed: ")
	require.Contains(t, problem.Message, "check the clocks of the members")
	require.True(t, problem.NextRetry.After(time.Now()))
}

// Tasks that run before the first full snapshot is stored must not report a problem.
func TestNothingIsReportedBeforeTheFirstFullSnapshot(t *testing.T) {
	kept := memory.New()
	kept.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Delay: 2500 * time.Millisecond, Times: 1})
	s := newSubjectIn(t, kept, archive.Verified)
	s.beginUntil(t, func(f backup.Facts) bool {
		require.Nil(t, f.TaskProblem)
		return f.Listed.LastVerification != nil
	}, "the first full snapshot is tested")
}

// reserved returns the highest reserved revision, or 0 if there is none.
func (s *subject) reserved(t *testing.T) int64 {
	t.Helper()
	reservation, err := archive.New(s.store, &format.Keys{}).Reserved(t.Context())
	if err != nil {
		require.ErrorIs(t, err, store.ErrNotFound)
	}
	return reservation.Revision
}

func (s *subject) awaitReserved(t *testing.T, atLeast int64) {
	t.Helper()
	s.eventually(t, func(backup.Facts) bool { return s.reserved(t) >= atLeast }, "the revisions are reserved")
}

func TestReservation_isMadeWhenEtcdApproachesTheLastOne(t *testing.T) {
	for name, reserved := range map[string]int64{"no reservation": 0, "etcd is close to the reserved revision": archive.Renewal / 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSubject(t, archive.Verified)
			if reserved > 0 {
				reservation := archive.Reservation{Cluster: "c", Generation: 1, Revision: reserved, Created: time.Now()}
				require.NoError(t, archive.New(s.store, &format.Keys{}).Reserve(t.Context(), reservation))
			}
			s.Begin(writer.Server(s.etcd.Server), s.dir, "")
			s.awaitReserved(t, archive.Margin)
			first := s.reserved(t)
			assert.Equal(t, first, archive.SafeRevision(first, s.etcd.Revision()), "a restored cluster continues from the reserved revision")
			s.nextRun(t)
			s.put(t, 1)
			s.Begin(writer.Server(s.etcd.Server), s.dir, "")
			s.eventually(t, func(f backup.Facts) bool {
				return !f.Listed.At.IsZero()
			}, "the store is listed, after the reservation task has run")
			assert.Equal(t, first, s.reserved(t), "no new reservation is made while etcd is far from the reserved revision")
		})
	}
}

// The reserved revision must be ahead of etcd and not only of the store, because a restored cluster continues from the
// reserved revision.
func TestReservation_isAheadOfUnstoredRevisions(t *testing.T) {
	t.Parallel()
	in := memory.New()
	in.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Err: &store.Unavailable{}})
	s := newSubjectIn(t, in, archive.Verified)
	s.put(t, 10)
	reservation := archive.Reservation{Cluster: "c", Generation: 1, Revision: archive.Renewal + 5, Created: time.Now()}
	require.NoError(t, archive.New(s.store, &format.Keys{}).Reserve(t.Context(), reservation))
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	s.awaitReserved(t, s.etcd.Revision()+archive.Margin)
	require.Zero(t, s.Facts().Writer.Revision, "no revision is stored")
}

func TestReservation_followsAFullSnapshotInAStoreThatWasEmptied(t *testing.T) {
	t.Parallel()
	s := newSubject(t, archive.Verified)
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	s.awaitReserved(t, archive.Margin)
	for object, err := range s.store.List(t.Context(), "reservation/", "") {
		require.NoError(t, err)
		require.NoError(t, s.store.Delete(t.Context(), object.Name))
	}
	_, err := s.Now(soon(t))
	require.NoError(t, err)
	s.awaitReserved(t, archive.Margin)
}

func TestReservation_isAProblemUntilItIsMade(t *testing.T) {
	t.Parallel()
	s := newSubject(t, archive.Verified)
	faults := s.store.(*memory.Store)
	faults.Inject(memory.Fault{Op: memory.Put, Prefix: "reservation/", Err: memory.ErrDenied})
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	s.eventually(t, func(f backup.Facts) bool { return f.TaskProblem != nil }, "the problem is reported")
	assert.Contains(t, s.Facts().TaskProblem.Message, "cannot reserve revisions for a restore")
	faults.ClearFaults()
	s.eventually(t, func(f backup.Facts) bool { return f.TaskProblem == nil }, "the problem is resolved")
	assert.Positive(t, s.reserved(t))
}

func TestMerge_mergesSegmentsOnceTheyAreOldEnough(t *testing.T) {
	t.Parallel()
	in := memory.New()
	in.Now = func() time.Time { return time.Now().Add(-40 * time.Minute) }
	s := newSubjectIn(t, in, archive.Verified)
	stored := func() bool { return s.Facts().Writer.Revision == s.etcd.Revision() }
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	for range 12 {
		s.put(t, 1)
		s.eventually(t, func(backup.Facts) bool { return stored() }, "a segment")
	}
	s.nextRun(t)
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	s.put(t, 1)
	s.eventually(t, func(backup.Facts) bool {
		merged, err := archive.New(in, &format.Keys{}).Objects(t.Context(), 1, archive.Minute)
		return err == nil && len(merged) > 0
	}, "a merged object is stored")
}

// listCounter counts how often all backups are listed, and how often the results of restore tests are.
type listCounter struct {
	*memory.Store
	backups, tests atomic.Int64
}

func (c *listCounter) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	switch {
	case strings.HasSuffix(prefix, "/verified/"):
		c.backups.Add(1)
	case strings.HasSuffix(prefix, "/tested/"):
		c.tests.Add(1)
	}
	return c.Store.List(ctx, prefix, after)
}

// Pruning must use the last listing of the backups if it is recent, because a listing takes seven requests.
func TestPruneUsesARecentListing(t *testing.T) {
	in := &listCounter{Store: memory.New()}
	s := newSubjectIn(t, in, archive.Verified)
	s.beginUntil(t, func(backup.Facts) bool {
		return in.tests.Load() > in.backups.Load()
	}, "pruning lists only the restore tests")
}

func TestNothingIsDeletedAfterTheClockJumped(t *testing.T) {
	s := newSubject(t, archive.Verified)
	var jump atomic.Int64
	s.now = func() time.Time { return time.Now().Add(time.Duration(jump.Load())) }
	s.Backups = s.newBackups(t, &format.Keys{})
	s.beginUntil(t, func(f backup.Facts) bool {
		return !f.Listed.At.IsZero() && f.TaskProblem == nil
	}, "the store is listed")
	jump.Store(int64(8 * time.Hour))
	_, err := s.Now(soon(t))
	require.NoError(t, err)
	s.eventually(t, func(f backup.Facts) bool {
		return f.TaskProblem != nil && strings.Contains(f.TaskProblem.Message, "the system clock jumped by 8h0m0s")
	}, "the jump is reported")
}

// sweptStore is a store that contains incomplete uploads.
type sweptStore struct {
	store.Store
	incomplete atomic.Int32 // number of incomplete uploads
}

func (s *sweptStore) Sweep(context.Context) (removed int, err error) {
	return int(s.incomplete.Swap(0)), nil
}

func TestRemainsOfInterruptedUploadsAreRemoved(t *testing.T) {
	in := &sweptStore{Store: memory.New()}
	in.incomplete.Store(3)
	s := newSubjectIn(t, in, archive.Verified)
	s.beginUntil(t, func(backup.Facts) bool { return in.incomplete.Load() == 0 }, "the incomplete uploads are removed")
}

func TestFilesOfKilledRestoreTestsAreRemoved(t *testing.T) {
	s := newSubject(t, archive.Verified)
	volume := filepath.Dir(s.dir)
	makeDir := func(name string, age time.Duration) string {
		dir := filepath.Join(volume, name)
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "db"), []byte("incomplete database"), 0o600))
		require.NoError(t, os.Chtimes(dir, time.Time{}, time.Now().Add(-age)))
		return dir
	}
	removed := []string{makeDir("scratch", 0), makeDir("scratch-1", 48*time.Hour)}
	kept := []string{makeDir("scratch-2", 0), makeDir("scratched", 48*time.Hour)}
	s.start(t)
	s.end(t)
	for _, dir := range removed {
		assert.NoDirExists(t, dir)
	}
	for _, dir := range kept {
		assert.DirExists(t, dir)
	}
}
