package writer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// reserved is the highest revision that is; 0 if none is.
func (s *stand) reserved() int64 {
	s.Helper()
	reservation, err := archive.New(s.store, keys).Reserved(s.Context())
	if err != nil {
		require.ErrorIs(s, err, store.ErrNotFound)
	}
	return reservation.Revision
}

func TestARevisionIsReservedBeforeEtcdComesNearIt(t *testing.T) {
	s := newStand(t)
	s.run()
	s.awaitStored(s.put("a", "1"))
	require.Eventually(t, func() bool { return s.reserved() >= archive.Margin }, patience, poll, "without one it is made at once")
	s.end()
	first := s.reserved()

	s.run()
	s.awaitStored(s.put("a", "2"))
	s.eventually(func(f Facts) bool { return f.Role == Writing }, "it writes")
	assert.Equal(t, first, s.reserved(), "it is far ahead still")
	s.end()
}

func TestAServingMemberRenewsItsReservation(t *testing.T) {
	s := newStand(t)
	a := archive.New(s.store, keys)
	_, err := a.Found(t.Context(), archive.Cluster{Cluster: clusterID, Created: time.Now()})
	require.NoError(t, err)
	near := s.etcd.Revision() + archive.Renewal
	require.NoError(t, a.Reserve(t.Context(), archive.Reservation{Cluster: "1", Generation: 1, Revision: near, Created: time.Now()}))
	s.run()
	last := s.put("a", "1")
	s.awaitStored(last)
	require.Eventually(t, func() bool { return s.reserved() > near }, patience, poll, "it comes near")
	assert.Equal(t, s.reserved(), archive.Above(s.reserved(), last), "a restore goes on above it, without a guess")
}

func TestAReservationThatCannotBeMadeIsTroubleUntilItIs(t *testing.T) {
	s := newStand(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "reservation/", Err: memory.ErrDenied})
	s.run()
	s.eventually(func(f Facts) bool { return f.Trouble != nil }, "it is told")
	assert.Contains(t, s.Facts().Trouble.Text, "cannot reserve revisions")
	s.awaitStored(s.put("a", "segments go on all the same"))
	require.NotNil(t, s.Facts().Trouble)
	s.store.Heal()
	s.eventually(func(f Facts) bool { return f.Trouble == nil }, "it is over")
	assert.Positive(t, s.reserved())
}

func TestAReservationThatIsMadeEndsNoOtherTrouble(t *testing.T) {
	s := &Writer{options: Options{Now: time.Now}}
	s.trouble(aboutFull)
	s.trouble(aboutReservation)
	s.succeeded(aboutFull)
	assert.NotNil(t, s.troubles[aboutReservation])
	s.trouble(aboutFull)
	s.succeeded(aboutReservation)
	assert.Nil(t, s.troubles[aboutReservation])
	assert.NotNil(t, s.troubles[aboutFull])
}
