package maintenance

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"etcd-wrapper/member/state"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/types"
)

func TestMaintainer_follower(t *testing.T) {
	runStand(t, func(*stand) {}, func(s *stand) {
		assert.Equal(t, HandingOff, s.State().Phase)
		time.Sleep(time.Second)
		current := s.State()
		assert.Equal(t, Running, current.Phase)
		assert.InDelta(t, 0.25, current.Progress, 0.01)
		assert.Equal(t, "the database is being defragmented", s.RedirectReason())
		assert.True(t, s.table.isMine())
		require.ErrorIs(t, s.Trigger(), errUnderWay)

		time.Sleep(4 * time.Second)
		current = s.State()
		assert.Equal(t, Idle, current.Phase)
		assert.Empty(t, s.RedirectReason())
		assert.Equal(t, 1, current.Completed)
		assert.EqualValues(t, gibibyte/2, current.FreedBytes)
		assert.Equal(t, state.Defragmentation{At: current.LastDefragmentation.At, Seconds: 4, Origin: ByThreshold, BytesBefore: gibibyte, BytesAfter: gibibyte / 2}, *current.LastDefragmentation)
		assert.Empty(t, s.cluster.gaveTo(), "it does not lead")
		time.Sleep(time.Hour)
		assert.Equal(t, 1, s.State().Completed, "once is enough")
	})
}

func TestMaintainer_redirectsUntilCaughtUp(t *testing.T) {
	runStand(t, func(s *stand) { s.cluster.lagging = 10 * time.Second }, func(s *stand) {
		time.Sleep(10 * time.Second)
		assert.Equal(t, CatchingUp, s.State().Phase)
		assert.NotEmpty(t, s.RedirectReason())
		assert.True(t, s.table.isMine(), "the next member waits for that")
		time.Sleep(10 * time.Second)
		assert.Empty(t, s.RedirectReason())
	})
}

func TestMaintainer_nextAfterTheEnd(t *testing.T) {
	runStand(t, func(s *stand) { s.table.ending = time.Second }, func(s *stand) {
		for is := s.State(); is.Completed == 0 || is.Busy(); is = s.State() {
			time.Sleep(time.Millisecond)
		}
		assert.False(t, s.table.isMine())
		assert.NoError(t, asked(s, func() error { return nil }))
	})
}

// A member must wait, report the given reason, and defragment once the reason no longer applies.
func TestMaintainer_waits(t *testing.T) {
	for reason, c := range map[string]struct {
		change func(*stand)
		ends   func(*stand)
		gaveTo []string
	}{
		"this member is the leader, so etcd-1 goes first": {func(s *stand) {
			s.cluster.now.leader, s.table.waiting = 1, []peer{{id: 2, name: "etcd-1"}}
		}, func(s *stand) { s.table.seats("") }, []string{"etcd-2"}},
		"but etcd-0 goes first": {func(s *stand) { // the leader does not go first
			s.cluster.now.self, s.cluster.now.leader = 2, 3
			s.table.waiting = []peer{{id: 1, name: "etcd-0"}, {id: 3, name: "etcd-2"}}
		}, func(s *stand) { s.table.seats("") }, nil},
		"member etcd-1 is being defragmented; wait for it to finish": {
			func(s *stand) { s.table.turn = "etcd-1" }, func(s *stand) { s.table.seats("") }, nil,
		},
		"no other member is up to date enough": {
			func(s *stand) { s.cluster.now.leader, s.cluster.nobody = 1, true },
			func(s *stand) { s.cluster.change(func(*facts) { s.cluster.nobody = false }) },
			[]string{"etcd-2"},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			runStand(t, c.change, func(s *stand) {
				leads := s.cluster.facts().leader == s.cluster.facts().self
				assert.Equal(t, leads, strings.Contains(s.State().Reason, "lets the other members go first"))
				time.Sleep(time.Minute)
				assert.Zero(t, s.State().Completed)
				assert.Equal(t, Waiting, s.State().Phase)
				assert.Contains(t, s.State().Reason, reason)
				assert.Empty(t, s.RedirectReason(), "clients are welcome meanwhile")
				_, before := s.table.now()
				c.ends(s)
				time.Sleep(10 * time.Second)
				assert.Equal(t, 1, s.State().Completed)
				assert.Equal(t, c.gaveTo, s.cluster.gaveTo())
				_, announced := s.table.now()
				assert.Equal(t, len(c.gaveTo), announced-before, "the others have held their writes back")
			})
		})
	}
}

func TestMaintainer_reader(t *testing.T) {
	var end func()
	runStand(t, func(s *stand) { end, _ = s.gate.Acquire(context.Background(), "the backup") }, func(s *stand) {
		time.Sleep(time.Hour)
		assert.Zero(t, s.State().Completed)
		assert.Contains(t, s.State().Reason, "512.0 MiB of the 1.0 GiB database is free, but the database is being read: wait for the backup")
		assert.Equal(t, 1, strings.Count(s.log.String(), "waiting to defragment the database"))
		require.ErrorContains(t, s.Trigger(), "wait for the backup")
		end()
		time.Sleep(30 * time.Second)
		assert.Equal(t, 1, s.State().Completed)
	})
}

func TestMaintainer_waitingReader(t *testing.T) {
	runStand(t, func(*stand) {}, func(s *stand) {
		start := time.Now()
		end, err := s.gate.Acquire(context.Background(), "the backup")
		require.NoError(t, err)
		assert.Equal(t, 4*time.Second+drainTime, time.Since(start))
		end()
	})
}

func TestMaintainer_failure(t *testing.T) {
	runStand(t, func(s *stand) { s.cluster.fails = errors.New("no space left on device") }, func(s *stand) {
		time.Sleep(5 * time.Second)
		current := s.State()
		assert.Equal(t, 1, current.Failed)
		assert.Equal(t, "no space left on device", current.LastDefragmentation.Error)
		assert.Empty(t, s.RedirectReason())
		assert.Contains(t, s.log.String(), "cannot defragment the database")
	})
}

func TestTrigger(t *testing.T) {
	runStand(t, func(s *stand) { s.cluster.now.inUse = gibibyte - 1 }, func(s *stand) {
		require.NoError(t, s.Trigger())
		time.Sleep(10 * time.Second)
		assert.Equal(t, ByCommand, s.State().LastDefragmentation.Origin)
		s.table.seats("etcd-2")
		require.NoError(t, s.Trigger())
		time.Sleep(10 * time.Second)
		assert.Equal(t, "member etcd-2 is being defragmented; wait for it to finish", s.State().LastDefragmentation.Error)
		s.cluster.change(func(f *facts) { f.inUse = 8 * gibibyte })
		require.ErrorContains(t, s.Trigger(), "--defrag-threshold")
	})
}

func TestTrigger_notServing(t *testing.T) {
	require.ErrorIs(t, New(Options{}).Trigger(), errNotServing)
}

func TestNoSpace_fileSize(t *testing.T) {
	full := func(s *stand) {
		s.cluster.now.full = []types.ID{s.cluster.now.self}
		s.cluster.now.quota, s.cluster.now.inUse = gibibyte, gibibyte*95/100
	}
	runStand(t, full, func(s *stand) {
		time.Sleep(time.Hour)
		assert.Zero(t, s.cluster.liftedTimes(), "there is nothing to give back")
		s.cluster.change(func(f *facts) { f.inUse = gibibyte * 85 / 100 })
		time.Sleep(5 * time.Minute)
		assert.Equal(t, 1, s.State().Completed, "when its slot comes")
		assert.Equal(t, 1, s.State().NoSpaceDisarmed)
		assert.Contains(t, s.log.String(), "disarmed the NOSPACE alarm: the database size is 870.4 MiB, below 90% of the 1.0 GiB quota")
	})
}

func TestNoSpace_removedMember(t *testing.T) {
	raised := func(s *stand) { s.cluster.now.full = []types.ID{0xdead} }
	leads := func(s *stand) { raised(s); s.cluster.now.leader = s.cluster.now.self }
	runStand(t, raised, func(s *stand) {
		time.Sleep(time.Hour)
		assert.Zero(t, s.cluster.liftedTimes(), "it is the leader's to do")
	})
	runStand(t, leads, func(s *stand) {
		time.Sleep(time.Minute)
		assert.Equal(t, 1, s.cluster.liftedTimes())
		assert.Contains(t, s.log.String(), "disarmed the NOSPACE alarm: member dead, which raised the alarm, has left the cluster")
	})
}

func TestMaintainer_singleMember(t *testing.T) {
	runStand(t, func(s *stand) {
		s.cluster.now.members, s.cluster.now.leader = s.cluster.now.members[:1], 1
		s.table.turn = "nobody may ask"
	}, func(s *stand) {
		time.Sleep(time.Second)
		assert.Equal(t, Running, s.State().Phase)
		assert.Empty(t, s.RedirectReason())
		time.Sleep(5 * time.Second)
		assert.Equal(t, 1, s.State().Completed)
	})
}

func TestMaintainer_lateSnapshot(t *testing.T) {
	runStand(t, full, func(s *stand) {
		require.NoError(t, s.Trigger())
		time.Sleep(drainTime / 2)
		s.cluster.change(func(f *facts) { f.sending = true })
		time.Sleep(10 * time.Second)
		assert.Zero(t, s.State().Completed)
		assert.Equal(t, "a snapshot is being sent to another member", s.State().LastDefragmentation.Error)
		assert.Empty(t, s.RedirectReason())
	})
}
