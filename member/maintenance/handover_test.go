package maintenance

import (
	"context"
	"errors"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"google.golang.org/grpc"

	"etcd-wrapper/internal/logtest"
)

// leaveStand returns a stand for a leader that is stopping.
func leaveStand(t *testing.T, change func(*stand)) *stand {
	t.Helper()
	g, log := &Gate{}, &logtest.Lines{}
	s := &stand{cluster: &fake{now: healthy(), readable: g}, table: &table{}, gate: g, log: log}
	s.cluster.now.leader = s.cluster.now.self
	change(s)
	s.Maintainer = New(Options{Gate: g, Log: zerolog.New(log), Name: "etcd-0"})
	if s.busy {
		s.enter(Running, "etcd copies", facts{})
	}
	s.leave(context.WithoutCancel(t.Context()), &service{cluster: s.cluster, newSchedule: func() schedule { return s.table }})
	return s
}

func TestLeave(t *testing.T) {
	for why, c := range map[string]struct {
		change    func(*stand)
		moved     bool
		announced int
	}{
		"it leads": {func(*stand) {}, true, 1},
		// etcd does not grant leases and rejects writes while an alarm is raised.
		"NOSPACE is raised":       {func(s *stand) { s.cluster.now.full = []types.ID{2} }, true, 0},
		"CORRUPT is raised":       {func(s *stand) { s.cluster.now.corrupt = true }, true, 0},
		"another one leads":       {func(s *stand) { s.cluster.now.leader = 2 }, false, 0},
		"it is alone":             {func(s *stand) { s.cluster.now.members = s.cluster.now.members[:1] }, false, 0},
		"a client defragments it": {func(s *stand) { s.busy = true }, false, 0},
		"no member is up to date": {func(s *stand) { s.cluster.nobody = true }, false, 0},
		"the announcement fails":  {func(s *stand) { s.table.deaf = errors.New("etcdserver: request timed out") }, false, 1},
	} {
		s := leaveStand(t, c.change)
		_, announced := s.table.now()
		assert.Equal(t, c.announced, announced, why)
		assert.Equal(t, announced, min(announced, s.table.ended), "%s: the claims are revoked", why)
		if !c.moved {
			assert.Empty(t, s.cluster.gaveTo(), why)
			continue
		}
		assert.Equal(t, []string{"etcd-2"}, s.cluster.gaveTo(), why)
		assert.Contains(t, s.log.String(), "transferred leadership before stopping")
	}
}

func TestMoveLeader_byAClient(t *testing.T) {
	move := func(s *stand, while func()) {
		_, err := s.Unary(t.Context(), &etcdserverpb.MoveLeaderRequest{TargetID: 2}, &grpc.UnaryServerInfo{FullMethod: moveLeaderMethod}, func(context.Context, any) (any, error) { while(); return "done", nil })
		assert.NoError(t, err)
	}
	runStand(t, func(s *stand) { s.cluster.now.leader, s.cluster.now.size = 1, s.cluster.now.inUse }, func(s *stand) {
		ended := s.table.ended
		move(s, func() {
			_, announced := s.table.now()
			assert.Equal(t, 1, announced)
			assert.Equal(t, ended, s.table.ended)
		})
		assert.Equal(t, ended+1, s.table.ended)
		s.table.deaf = errors.New("etcdserver: request timed out")
		moved := false
		move(s, func() { moved = true })
		assert.True(t, moved, "whatever the others know")

		s.cluster.change(func(f *facts) { f.leader = 2 })
		move(s, func() {})
		_, announced := s.table.now()
		assert.Equal(t, 2, announced, "etcd itself refuses where another member leads")
	})
}

func TestMoveLeader_refusedByEtcd(t *testing.T) {
	runStand(t, func(s *stand) { s.cluster.now.leader, s.cluster.now.size = 1, s.cluster.now.inUse }, func(s *stand) {
		s.cluster.change(func(f *facts) { f.members[2].learner = true })
		for _, to := range []uint64{0, 1, 3, 77} { // no member, this member, a learner, and an unknown member
			s.pauseWritesForClient(t.Context(), &etcdserverpb.MoveLeaderRequest{TargetID: to})()
		}
		s.cluster.stranger = true
		s.pauseWritesForClient(t.Context(), &etcdserverpb.MoveLeaderRequest{TargetID: 2})()
		_, announced := s.table.now()
		assert.Zero(t, announced)
	})
}

func TestMoveLeader_concurrentClients(t *testing.T) {
	runStand(t, func(s *stand) { s.cluster.now.leader, s.cluster.now.size = 1, s.cluster.now.inUse }, func(s *stand) {
		to := &etcdserverpb.MoveLeaderRequest{TargetID: 2}
		first, second := s.pauseWritesForClient(t.Context(), to), s.pauseWritesForClient(t.Context(), to)
		second()
		third := s.pauseWritesForClient(t.Context(), to)
		_, announced := s.table.now()
		assert.Equal(t, 1, announced, "each announcement that leads to nothing takes a second")
		third()
		first()
		s.pauseWritesForClient(t.Context(), to)()
		_, announced = s.table.now()
		assert.Equal(t, 2, announced)
	})
}
