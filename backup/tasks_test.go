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
	s.proof.before = func() {
		in.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Err: &store.Unavailable{}})
	}
	s.beginUntil(t, func(f backup.Facts) bool { return f.Listed.LastVerification != nil }, "the result")
	assert.False(t, s.Facts().Listed.LastVerification.Passed)
}

// A full snapshot that failed a restore test must be replaced even if the test was run by another process.
func TestAFullSnapshotThatFailedElsewhereIsReplaced(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.beginUntil(t, func(f backup.Facts) bool { return f.Listed.LastVerification != nil }, "the first full snapshot")
	made := s.Facts().Shipped
	s.nextRun(t)
	require.NoError(t, archive.New(s.store, &format.Keys{}).PutResult(t.Context(), archive.Result{
		Cluster: made.Cluster, Generation: made.Generation, Full: made.LastFull.Name(), Revision: made.LastFull.Revision,
		Outcome: archive.Failed, Why: "it was tested by hand", At: time.Now().Add(time.Minute),
	}))
	s.beginUntil(t, func(f backup.Facts) bool { return f.Shipped.LastFull != nil && s.has(f.Shipped.LastFull.Name()) }, "another full snapshot, which is tested as well")
	assert.Contains(t, s.Facts().Shipped.LastFull.Reason, "restore test")
}

func TestARandomRevisionIsRestoredOnceADayDespiteRestarts(t *testing.T) {
	s := newSubject(t, archive.Verified)
	once := func(seen func(backup.Facts) bool, what string) {
		s.beginUntil(t, func(f backup.Facts) bool { return f.Listed.LastVerification != nil }, "the first full snapshot")
		s.put(t, 5)
		made, err := s.Now(soon(t))
		require.NoError(t, err)
		s.eventually(t, func(f backup.Facts) bool { return seen(f) && s.has(made.Name()) }, what)
		s.nextRun(t)
	}
	once(func(f backup.Facts) bool { return f.Listed.Window != nil && f.Listed.Window.ToRevision > 5 }, "revisions to restore")
	once(func(backup.Facts) bool { return s.proof.restoreTests() == 1 }, "a restore test")
	once(func(f backup.Facts) bool { return f.Listed.LastVerification != nil }, "a restore test of the third run")
	assert.Equal(t, 1, s.proof.restoreTests())
}

// has reports whether the restore of a full snapshot has been tested.
func (s *subject) has(full string) bool {
	s.proof.mu.Lock()
	defer s.proof.mu.Unlock()
	for _, path := range s.proof.paths {
		if path.Revision == path.Full.Revision && path.Full.Name() == full {
			return true
		}
	}
	return false
}

func TestAFailedRestoreTestOfSegmentsIsReported(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.beginUntil(t, func(f backup.Facts) bool { return f.Listed.LastVerification != nil }, "the first full snapshot")
	s.put(t, 5)
	s.eventually(t, func(f backup.Facts) bool { return f.Shipped.Revision == s.etcd.Revision() }, "segments behind it")
	s.nextRun(t)
	s.proof.outcome = archive.Failed
	s.beginUntil(t, func(f backup.Facts) bool {
		return f.Listed.LastVerification != nil && !f.Listed.LastVerification.Passed
	}, "the failed restore test")
	assert.Greater(t, s.Facts().Listed.LastVerification.Revision, s.Facts().Listed.LastFullSnapshot.Revision)
}

func TestARestoreTestThatCannotRunIsReportedAndRetried(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.proof.fail(errors.New("no room"))
	s.beginUntil(t, func(f backup.Facts) bool { return f.Undone != nil }, "the problem")
	assert.Equal(t, "no room", s.Facts().Undone.Message)
	assert.WithinDuration(t, time.Now(), s.Facts().Undone.NextRetry, time.Minute)
	s.proof.fail(nil)
	s.eventually(t, func(f backup.Facts) bool { return f.Undone == nil && f.Listed.LastVerification != nil }, "the restore test")
}

// If a test result cannot be read back, the store must be listed again instead of reusing the previous listing for
// another minute.
func TestAnUnreadableResultIsReadAgain(t *testing.T) {
	in := memory.New()
	s := newSubjectIn(t, in, archive.Verified)
	in.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/verified/", Times: 1, First: func() {
		in.Inject(memory.Fault{Op: memory.Get, Prefix: "gen/000001/verified/", Times: 1, Err: memory.ErrDenied})
	}})
	s.beginUntil(t, func(f backup.Facts) bool { return f.Undone == nil && f.Listed.LastVerification != nil }, "the problem ends")
	assert.GreaterOrEqual(t, in.CountCalls(memory.Get, "gen/000001/verified/"), 2, "the first read failed")
}

// A successful listing by another task must clear the error, because the failed task lists the store again only after
// an hour.
func TestAFailedListingIsForgottenAfterASuccessfulOne(t *testing.T) {
	in := memory.New()
	s := newSubjectIn(t, in, archive.Verified)
	in.Inject(memory.Fault{Op: memory.List, Prefix: "gen/000001/tested/", Times: 1, Err: memory.ErrDenied})
	s.beginUntil(t, func(f backup.Facts) bool { return f.Listed.LastVerification != nil }, "a full snapshot was tested")
	s.eventually(t, func(f backup.Facts) bool { return f.Undone == nil }, "the problem ends")
	assert.GreaterOrEqual(t, in.CountCalls(memory.List, "gen/000001/tested/"), 2)
}

func TestMissingIdentitiesAreReported(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.Backups = s.another(t, formattest.LoadKeys(t, format.KeyFiles{Recipients: formattest.NewKeys(t).Recipients}))
	s.beginUntil(t, func(f backup.Facts) bool { return f.Undone != nil }, "the problem")
	assert.Contains(t, s.Facts().Undone.Message, "--backup-identities is not set")
	assert.Zero(t, s.proof.count())
}

func TestMissingRecipientsAreReported(t *testing.T) {
	s := newSubject(t, archive.Verified)
	made := formattest.NewKeys(t)
	s.Backups = s.another(t, formattest.LoadKeys(t, format.KeyFiles{Recipients: made.Recipients, Identities: made.Identities}))
	s.beginUntil(t, func(f backup.Facts) bool { return f.Listed.LastVerification != nil }, "an encrypted full snapshot")
	assert.Nil(t, s.Facts().Undone)

	s.nextRun(t)
	s.beginUntil(t, func(f backup.Facts) bool { return f.Undone != nil }, "the problem")
	assert.Contains(t, s.Facts().Undone.Message, "--backup-recipients is not set")
	_, err := s.Now(soon(t))
	require.NoError(t, err)
	s.eventually(t, func(f backup.Facts) bool { return f.Undone == nil }, "the next full snapshot ends the problem")
}

// lost returns a subject with a segment missing from its store, and the last revision before that segment.
func lost(t *testing.T, merged bool) (s *subject, before int64) {
	t.Helper()
	t.Parallel()
	in := memory.New()
	in.Now = func() time.Time { return time.Now().Add(-10 * time.Minute) }                       // make objects old enough to be merged
	in.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/minute/", Err: memory.ErrDenied}) // or a merged object would contain the segment
	s = newSubjectIn(t, in, archive.Verified)
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	var objects []archive.Object
	for len(objects) < 6 {
		s.put(t, 1)
		last := s.etcd.Revision()
		s.eventually(t, func(f backup.Facts) bool { return f.Shipped.Revision == last }, "a segment")
		var err error
		objects, err = archive.New(in, &format.Keys{}).Objects(t.Context(), 1, archive.Segment)
		require.NoError(t, err)
	}
	s.nextRun(t)
	in.ClearFaults()
	a, from := archive.New(in, &format.Keys{}), objects[len(objects)-3]
	if merged {
		_, err := a.Merge(t.Context(), archive.Minute, objects[len(objects)-5:len(objects)-3])
		require.NoError(t, err)
	}
	require.NoError(t, in.Delete(t.Context(), from.Name()))
	return s, from.Start.Revision - 1
}

func TestRevisionsAfterALostSegmentAreNotRestorePoints(t *testing.T) {
	s, before := lost(t, false)
	last := s.etcd.Revision()
	s.proof.fail(errors.New("no room")) // prevents restore tests from detecting the loss
	s.beginUntil(t, func(f backup.Facts) bool { return !f.Listed.At.IsZero() }, "a listing")
	listed := s.Facts().Listed.Window
	made := func(f backup.Facts) bool { return f.Shipped.LastFull != nil && f.Listed.Window.FromRevision >= last }
	if listed.FromRevision < last {
		assert.Equal(t, before, listed.ToRevision)
		s.eventually(t, made, "a full snapshot, although nothing changes")
	}
	assert.Equal(t, "segments are missing from the store", s.Facts().Shipped.LastFull.Reason)
	s.proof.fail(nil)
	s.eventually(t, func(f backup.Facts) bool { return f.Undone == nil }, "the problem ends")
}

func TestLostSegmentsAreReportedBeforeTheFullSnapshotIsMade(t *testing.T) {
	s, before := lost(t, false)
	s.store.(*memory.Store).Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Hang: true})
	s.beginUntil(t, func(f backup.Facts) bool { return f.Shipped.RunningFullSnapshot != nil && f.Undone != nil }, "the problem is reported")
	assert.Contains(t, s.Facts().Undone.Message, fmt.Sprintf("segments are missing from the store: the last restorable revision is %d", before))
}

func TestLostSegmentsCauseAFullSnapshot(t *testing.T) {
	s, _ := lost(t, true)
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	s.put(t, 1)
	s.eventually(t, func(f backup.Facts) bool { return f.Shipped.LastFull != nil }, "a full snapshot replaces it")
	assert.Equal(t, "segments are missing from the store", s.Facts().Shipped.LastFull.Reason)
	s.eventually(t, func(f backup.Facts) bool { return f.Undone == nil }, "the problem ends")
}

func TestACheckThatBlocksDeletionsIsReported(t *testing.T) {
	kept := memory.New()
	kept.Now = func() time.Time { return time.Now().Add(20 * time.Minute) }
	s := newSubjectIn(t, kept, archive.Verified)
	s.beginUntil(t, func(f backup.Facts) bool { return f.Undone != nil }, "the problem is reported")
	undone := s.Facts().Undone
	require.Contains(t, undone.Message, "not deleting any backups because a safety check failed: ")
	require.Contains(t, undone.Message, "check the clocks of the members")
	require.True(t, undone.NextRetry.After(time.Now()))
}

// If the tasks start before the first full snapshot is stored, they must not report a problem.
func TestNothingIsReportedBeforeTheFirstFullSnapshot(t *testing.T) {
	kept := memory.New()
	kept.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Delay: 2500 * time.Millisecond, Times: 1})
	s := newSubjectIn(t, kept, archive.Verified)
	s.beginUntil(t, func(f backup.Facts) bool {
		require.Nil(t, f.Undone)
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
	s.eventually(t, func(backup.Facts) bool { return s.reserved(t) >= atLeast }, "a reservation")
}

func TestReservation_isMadeWhenEtcdApproachesTheLastOne(t *testing.T) {
	for name, near := range map[string]int64{"there is none": 0, "etcd is near its end": archive.Renewal / 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSubject(t, archive.Verified)
			if near > 0 {
				reservation := archive.Reservation{Cluster: "c", Generation: 1, Revision: near, Created: time.Now()}
				require.NoError(t, archive.New(s.store, &format.Keys{}).Reserve(t.Context(), reservation))
			}
			s.Begin(writer.Server(s.etcd.Server), s.dir, "")
			s.awaitReserved(t, archive.Margin)
			first := s.reserved(t)
			assert.Equal(t, first, archive.SafeRevision(first, s.etcd.Revision()), "a restore continues above the reservation")
			s.nextRun(t)
			s.put(t, 1)
			s.Begin(writer.Server(s.etcd.Server), s.dir, "")
			s.eventually(t, func(f backup.Facts) bool { return !f.Listed.At.IsZero() }, "a listing, which follows the reservation")
			assert.Equal(t, first, s.reserved(t), "the reservation is far ahead")
		})
	}
}

// The reserved revision must be ahead of etcd and not only of the store, because a restored cluster continues above
// the reserved revision.
func TestReservation_isAheadOfWhatIsNotStored(t *testing.T) {
	t.Parallel()
	in := memory.New()
	in.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Err: &store.Unavailable{}})
	s := newSubjectIn(t, in, archive.Verified)
	s.put(t, 10)
	reservation := archive.Reservation{Cluster: "c", Generation: 1, Revision: archive.Renewal + 5, Created: time.Now()}
	require.NoError(t, archive.New(s.store, &format.Keys{}).Reserve(t.Context(), reservation))
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	s.awaitReserved(t, s.etcd.Revision()+archive.Margin)
	require.Zero(t, s.Facts().Shipped.Revision, "nothing is stored")
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
	s.eventually(t, func(f backup.Facts) bool { return f.Undone != nil }, "a problem")
	assert.Contains(t, s.Facts().Undone.Message, "cannot reserve revisions for a restore")
	faults.ClearFaults()
	s.eventually(t, func(f backup.Facts) bool { return f.Undone == nil }, "the problem ends")
	assert.Positive(t, s.reserved(t))
}

func TestMerge_mergesSegmentsOnceTheyAreOldEnough(t *testing.T) {
	t.Parallel()
	in := memory.New()
	in.Now = func() time.Time { return time.Now().Add(-40 * time.Minute) }
	s := newSubjectIn(t, in, archive.Verified)
	stored := func() bool { return s.Facts().Shipped.Revision == s.etcd.Revision() }
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
	}, "a merged object")
}

// counted counts the listings of all backups and of restore tests.
type counted struct {
	*memory.Store
	kept, tests atomic.Int64
}

func (c *counted) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	switch {
	case strings.HasSuffix(prefix, "/verified/"):
		c.kept.Add(1)
	case strings.HasSuffix(prefix, "/tested/"):
		c.tests.Add(1)
	}
	return c.Store.List(ctx, prefix, after)
}

// Pruning must not list all backups each time, because a listing takes seven requests.
func TestPruneUsesARecentListing(t *testing.T) {
	in := &counted{Store: memory.New()}
	s := newSubjectIn(t, in, archive.Verified)
	s.beginUntil(t, func(backup.Facts) bool { return in.tests.Load() > in.kept.Load() }, "the tests are listed more often than everything")
}

func TestNothingIsDeletedAfterTheClockJumped(t *testing.T) {
	s := newSubject(t, archive.Verified)
	var jump atomic.Int64
	s.now = func() time.Time { return time.Now().Add(time.Duration(jump.Load())) }
	s.Backups = s.another(t, &format.Keys{})
	s.beginUntil(t, func(f backup.Facts) bool { return !f.Listed.At.IsZero() && f.Undone == nil }, "the store was listed")
	jump.Store(int64(8 * time.Hour))
	_, err := s.Now(soon(t))
	require.NoError(t, err)
	s.eventually(t, func(f backup.Facts) bool {
		return f.Undone != nil && strings.Contains(f.Undone.Message, "the system clock jumped by 8h0m0s")
	}, "the jump is reported")
}

// littered is a store that contains incomplete uploads.
type littered struct {
	store.Store
	left atomic.Int32
}

func (l *littered) Sweep(context.Context) (removed int, err error) {
	return int(l.left.Swap(0)), nil
}

func TestRemainsOfInterruptedUploadsAreRemoved(t *testing.T) {
	in := &littered{Store: memory.New()}
	in.left.Store(3)
	s := newSubjectIn(t, in, archive.Verified)
	s.beginUntil(t, func(backup.Facts) bool { return in.left.Load() == 0 }, "the remains are removed")
}

func TestFilesOfKilledRestoreTestsAreRemoved(t *testing.T) {
	s := newSubject(t, archive.Verified)
	volume := filepath.Dir(s.dir)
	left := func(name string, age time.Duration) string {
		dir := filepath.Join(volume, name)
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "db"), []byte("half a database"), 0o600))
		require.NoError(t, os.Chtimes(dir, time.Time{}, time.Now().Add(-age)))
		return dir
	}
	gone := []string{left("scratch", 0), left("scratch-1", 48*time.Hour)}
	stays := []string{left("scratch-2", 0), left("scratched", 48*time.Hour)}
	s.start(t)
	s.end(t)
	for _, dir := range gone {
		assert.NoDirExists(t, dir)
	}
	for _, dir := range stays {
		assert.DirExists(t, dir)
	}
}
