package backup_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer"
)

// reserved returns the highest reserved revision; 0 if none is.
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
			assert.Equal(t, first, archive.SafeRevision(first, s.etcd.Revision()), "a restore continues above it, without a guess")
			require.NoError(t, s.End(soon(t)))
			s.Backups = s.another(t, &format.Keys{})
			s.put(t, 1)
			s.Begin(writer.Server(s.etcd.Server), s.dir, "")
			s.eventually(t, func(f backup.Facts) bool { return !f.Listed.At.IsZero() }, "a listing, which follows the reservation")
			assert.Equal(t, first, s.reserved(t), "it is far ahead")
			require.NoError(t, s.End(soon(t)))
		})
	}
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
	require.NoError(t, s.End(soon(t)))
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
	s.eventually(t, func(f backup.Facts) bool { return f.Undone == nil }, "it is solved")
	assert.Positive(t, s.reserved(t))
	require.NoError(t, s.End(soon(t)))
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
	require.NoError(t, s.End(soon(t)))
	s.Backups = s.another(t, &format.Keys{})
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	s.put(t, 1)
	s.eventually(t, func(backup.Facts) bool {
		merged, err := archive.New(in, &format.Keys{}).Objects(t.Context(), 1, archive.Minute)
		return err == nil && len(merged) > 0
	}, "a merged object")
	require.NoError(t, s.End(soon(t)))
}
