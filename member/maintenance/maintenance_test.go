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
	runFixture(t, func(*fixture) {}, func(s *fixture) {
		assert.Equal(t, HandingOff, s.State().Phase)
		time.Sleep(time.Second)
		current := s.State()
		assert.Equal(t, Running, current.Phase)
		assert.InDelta(t, 0.25, current.Progress, 0.01)
		assert.Equal(t, "the database is being defragmented", s.RedirectReason())
		assert.True(t, s.schedule.hasTurn())
		require.ErrorIs(t, s.Trigger(), errUnderWay)

		time.Sleep(4 * time.Second)
		current = s.State()
		assert.Equal(t, Idle, current.Phase)
		assert.Empty(t, s.RedirectReason())
		assert.Equal(t, 1, current.Completed)
		assert.EqualValues(t, gibibyte/2, current.FreedBytes)
		assert.Equal(t, state.Defragmentation{At: current.LastDefragmentation.At, Seconds: 4, Origin: ByThreshold, BytesBefore: gibibyte, BytesAfter: gibibyte / 2}, *current.LastDefragmentation)
		assert.Empty(t, s.cluster.transferredTo(), "a follower has no leadership to transfer")
		time.Sleep(time.Hour)
		assert.Equal(t, 1, s.State().Completed, "the database is not defragmented again")
	})
}

func TestMaintainer_redirectsUntilCaughtUp(t *testing.T) {
	runFixture(t, func(s *fixture) { s.cluster.lagging = 10 * time.Second }, func(s *fixture) {
		time.Sleep(10 * time.Second)
		assert.Equal(t, CatchingUp, s.State().Phase)
		assert.NotEmpty(t, s.RedirectReason())
		assert.True(t, s.schedule.hasTurn(), "the turn lasts until the member has caught up")
		time.Sleep(10 * time.Second)
		assert.Empty(t, s.RedirectReason())
	})
}

func TestMaintainer_nextAfterTheEnd(t *testing.T) {
	runFixture(t, func(s *fixture) { s.schedule.releaseTime = time.Second }, func(s *fixture) {
		for current := s.State(); current.Completed == 0 || current.Busy(); current = s.State() {
			time.Sleep(time.Millisecond)
		}
		assert.False(t, s.schedule.hasTurn())
		assert.NoError(t, defragmentAsClient(s, func() error { return nil }))
	})
}

// A member must wait, report the given reason, and defragment once the reason no longer applies.
func TestMaintainer_waits(t *testing.T) {
	for reason, c := range map[string]struct {
		change        func(*fixture)
		end           func(*fixture)
		transferredTo []string
	}{
		"this member is the leader and defragments after etcd-1": {func(s *fixture) {
			s.cluster.now.leader, s.schedule.waiting = 1, []peer{{id: 2, name: "etcd-1"}}
		}, func(s *fixture) { s.schedule.setTurn("") }, []string{"etcd-2"}},
		"but etcd-0 must defragment first": {func(s *fixture) { // etcd-2 goes last, because it is the leader
			s.cluster.now.self, s.cluster.now.leader = 2, 3
			s.schedule.waiting = []peer{{id: 1, name: "etcd-0"}, {id: 3, name: "etcd-2"}}
		}, func(s *fixture) { s.schedule.setTurn("") }, nil},
		"member etcd-1 is being defragmented; wait for it to finish": {
			func(s *fixture) { s.schedule.turn = "etcd-1" }, func(s *fixture) { s.schedule.setTurn("") }, nil,
		},
		"no other member is up to date enough": {
			func(s *fixture) { s.cluster.now.leader, s.cluster.noSuccessor = 1, true },
			func(s *fixture) { s.cluster.change(func(*facts) { s.cluster.noSuccessor = false }) },
			[]string{"etcd-2"},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			runFixture(t, c.change, func(s *fixture) {
				leads := s.cluster.facts().leader == s.cluster.facts().self
				assert.Equal(t, leads, strings.Contains(s.State().Reason, "lets the other members go first"))
				time.Sleep(time.Minute)
				assert.Zero(t, s.State().Completed)
				assert.Equal(t, Waiting, s.State().Phase)
				assert.Contains(t, s.State().Reason, reason)
				assert.Empty(t, s.RedirectReason(), "a waiting member serves clients")
				_, before := s.schedule.now()
				c.end(s)
				time.Sleep(10 * time.Second)
				assert.Equal(t, 1, s.State().Completed)
				assert.Equal(t, c.transferredTo, s.cluster.transferredTo())
				_, announced := s.schedule.now()
				assert.Equal(t, len(c.transferredTo), announced-before, "the leader asks all members to pause their writes")
			})
		})
	}
}

func TestMaintainer_reader(t *testing.T) {
	var end func()
	runFixture(t, func(s *fixture) { end, _ = s.gate.Acquire(context.Background(), "the backup") }, func(s *fixture) {
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
	runFixture(t, func(*fixture) {}, func(s *fixture) {
		start := time.Now()
		end, err := s.gate.Acquire(context.Background(), "the backup")
		require.NoError(t, err)
		assert.Equal(t, 4*time.Second+drainTime, time.Since(start))
		end()
	})
}

func TestMaintainer_failure(t *testing.T) {
	runFixture(t, func(s *fixture) { s.cluster.err = errors.New("no space left on device") }, func(s *fixture) {
		time.Sleep(5 * time.Second)
		current := s.State()
		assert.Equal(t, 1, current.Failed)
		assert.Equal(t, "no space left on device", current.LastDefragmentation.Error)
		assert.Empty(t, s.RedirectReason())
		assert.Contains(t, s.log.String(), "cannot defragment the database")
	})
}

func TestTrigger(t *testing.T) {
	runFixture(t, func(s *fixture) { s.cluster.now.inUse = gibibyte - 1 }, func(s *fixture) {
		require.NoError(t, s.Trigger())
		time.Sleep(10 * time.Second)
		assert.Equal(t, ByCommand, s.State().LastDefragmentation.Origin)
		s.schedule.setTurn("etcd-2")
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
	full := func(s *fixture) {
		s.cluster.now.full = []types.ID{s.cluster.now.self}
		s.cluster.now.quota, s.cluster.now.inUse = gibibyte, gibibyte*95/100
	}
	runFixture(t, full, func(s *fixture) {
		time.Sleep(time.Hour)
		assert.Zero(t, s.cluster.disarmCount(), "defragmentation cannot free enough space")
		s.cluster.change(func(f *facts) { f.inUse = gibibyte * 85 / 100 })
		time.Sleep(5 * time.Minute)
		assert.Equal(t, 1, s.State().Completed, "the member defragments in its time slot")
		assert.Equal(t, 1, s.State().NoSpaceDisarmed)
		assert.Contains(t, s.log.String(), "disarmed the NOSPACE alarm: the database size is 870.4 MiB, below 90% of the 1.0 GiB quota")
	})
}

func TestNoSpace_removedMember(t *testing.T) {
	raised := func(s *fixture) { s.cluster.now.full = []types.ID{0xdead} }
	leads := func(s *fixture) { raised(s); s.cluster.now.leader = s.cluster.now.self }
	runFixture(t, raised, func(s *fixture) {
		time.Sleep(time.Hour)
		assert.Zero(t, s.cluster.disarmCount(), "only the leader disarms alarms of removed members")
	})
	runFixture(t, leads, func(s *fixture) {
		time.Sleep(time.Minute)
		assert.Equal(t, 1, s.cluster.disarmCount())
		assert.Contains(t, s.log.String(), "disarmed the NOSPACE alarm: member dead, which raised the alarm, has left the cluster")
	})
}

func TestMaintainer_singleMember(t *testing.T) {
	runFixture(t, func(s *fixture) {
		s.cluster.now.members, s.cluster.now.leader = s.cluster.now.members[:1], 1
		s.schedule.turn = "etcd-1" // acquire would fail, but a single member does not call it
	}, func(s *fixture) {
		time.Sleep(time.Second)
		assert.Equal(t, Running, s.State().Phase)
		assert.Empty(t, s.RedirectReason())
		time.Sleep(5 * time.Second)
		assert.Equal(t, 1, s.State().Completed)
	})
}

func TestMaintainer_lateSnapshot(t *testing.T) {
	runFixture(t, noFreePages, func(s *fixture) {
		require.NoError(t, s.Trigger())
		time.Sleep(drainTime / 2)
		s.cluster.change(func(f *facts) { f.sending = true })
		time.Sleep(10 * time.Second)
		assert.Zero(t, s.State().Completed)
		assert.Equal(t, "a snapshot is being sent to another member", s.State().LastDefragmentation.Error)
		assert.Empty(t, s.RedirectReason())
	})
}
