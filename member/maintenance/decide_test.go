package maintenance

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"google.golang.org/grpc"

	"etcd-wrapper/internal/logtest"
	"etcd-wrapper/member/state"
)

const gibibyte = 1 << 30

// defaultThreshold is the default value of --defrag-threshold, except for pause.
var defaultThreshold = Threshold{Free: 0.45, Min: 100 * mebibyte}

// healthy returns the facts for a healthy follower in a three-member cluster, half of whose database is free.
func healthy() facts {
	return facts{
		size: gibibyte, inUse: gibibyte / 2, quota: 8 * gibibyte, room: 100 * gibibyte, self: 1, leader: 2,
		members: []peer{{id: 1, name: "etcd-0", active: true}, {id: 2, name: "etcd-1", active: true}, {id: 3, name: "etcd-2", active: true}},
	}
}

func TestReason(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*facts)
		reason string
	}{
		"half of the file is free":                        {func(*facts) {}, "512.0 MiB of the 1.0 GiB database is free"},
		"exactly 45% is free":                             {func(f *facts) { f.size, f.inUse = 1000*mebibyte, 550*mebibyte }, "450.0 MiB of the 1000.0 MiB database is free"},
		"less than 45% is free":                           {func(f *facts) { f.inUse = 700 * mebibyte }, ""},
		"fewer than Min bytes are free":                   {func(f *facts) { f.size, f.inUse = 150*mebibyte, 51*mebibyte }, ""},
		"NOSPACE, and the data is below the relief ratio": {func(f *facts) { f.full, f.quota, f.inUse = []types.ID{f.self}, gibibyte, 900*mebibyte }, "the NOSPACE alarm can be disarmed after defragmentation frees 124.0 MiB of the 1.0 GiB database"},
		"NOSPACE, and the data is above the relief ratio": {func(f *facts) { f.full, f.quota, f.inUse = []types.ID{f.self}, gibibyte, 930*mebibyte }, ""},
		"NOSPACE raised by another member":                {func(f *facts) { f.full, f.quota, f.inUse = []types.ID{f.self + 1}, gibibyte, 900*mebibyte }, ""},
		"NOSPACE, and the file is already small enough":   {func(f *facts) { f.full, f.quota, f.inUse = []types.ID{f.self}, 2*gibibyte, 900*mebibyte }, ""},
	} {
		f := healthy()
		c.change(&f)
		assert.Equal(t, c.reason, f.reason(defaultThreshold), name)
	}
	assert.Empty(t, healthy().reason(Threshold{}), "the zero threshold disables defragmentation")
}

func TestBlockReason(t *testing.T) {
	for obstacle, change := range map[string]func(*facts){
		"": func(*facts) {},
		"the defragmentation is expected to take 20s, longer than pause=15s in --defrag-threshold": func(f *facts) { f.inUse = 2000 * mebibyte },
		"the volume has only 500.0 MiB free and the copy needs 544.0 MiB":                          func(f *facts) { f.room = 500 * mebibyte },
		"the CORRUPT alarm is raised": func(f *facts) { f.corrupt = true },
		"the cluster has no leader":   func(f *facts) { f.leader = 0 },
		"the other members would have no quorum without this one: no connection to etcd-2": func(f *facts) {
			f.members[2].active = false
		},
		"a cluster of 2 voting members has no quorum without this member": func(f *facts) { f.members[2].learner = true },
		"a snapshot is being sent to another member":                      func(f *facts) { f.sending = true },
		"the database is being read: wait for the backup (since 10:00:00Z) to finish": func(f *facts) {
			f.readers = []state.DatabaseReader{{Name: "the backup", Since: time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)}}
		},
	} {
		f := healthy()
		change(&f)
		assert.Equal(t, obstacle, f.blockReason(new(estimator).expected(f.inUse), 15*time.Second))
	}
}

func TestBlockReason_singleMember(t *testing.T) {
	f := healthy()
	f.members, f.leader, f.room = f.members[:1], 1, -1
	require.Empty(t, f.blockReason(new(estimator).expected(f.inUse), 15*time.Second))
}

func TestEstimator(t *testing.T) {
	var p estimator
	assert.Equal(t, 10*time.Second, p.expected(1000*mebibyte))
	p.record(400*mebibyte, 2*time.Second)
	assert.Equal(t, 5*time.Second, p.expected(1000*mebibyte))
	p.record(mebibyte, time.Minute)
	assert.Equal(t, 5*time.Second, p.expected(1000*mebibyte), "a small database does not change the estimate")
}

func TestByClock(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for inUse, round := range map[int64]time.Duration{mebibyte: 9 * time.Second, 900 * mebibyte: 72 * time.Second, 4 * gibibyte: 288 * time.Second} {
		f := healthy()
		f.inUse, f.full = inUse, []types.ID{1, 2, 3}
		turns := map[types.ID]int{}
		for s := range int(round.Seconds()) {
			count := 0
			for _, p := range f.members {
				f.self = p.id
				if byClock(start.Add(time.Duration(s)*time.Second), f) {
					turns[p.id]++
					count++
				}
			}
			require.LessOrEqual(t, count, 1)
		}
		assert.Len(t, turns, 3, "with %d bytes in use, each member has a turn within %s", inUse, round)
		f.full, f.self = f.full[1:], 2
		assert.True(t, byClock(start, f), "a member whose alarm is disarmed leaves the rotation")
		assert.False(t, byClock(start.Add(round/3-time.Second), f), "no defragmentation starts in the second half of a slot")
		f.self = 1
		assert.False(t, byClock(start, f))
	}
}

func maintainerWith(threshold Threshold, maxPause time.Duration) *Maintainer {
	return New(Options{Threshold: threshold, MaxPause: maxPause, Gate: &Gate{}})
}

func TestAtStart(t *testing.T) {
	dir := t.TempDir()
	k := maintainerWith(defaultThreshold, 15*time.Second)
	assert.EqualValues(t, 450, k.AtStart(dir, 1000*mebibyte), "45% of the file")
	assert.EqualValues(t, 100, k.AtStart(dir, 150*mebibyte), "at least Min bytes")
	assert.Zero(t, k.AtStart(dir, 50*mebibyte), "the file is smaller than Min")
	assert.Zero(t, k.AtStart(dir, 1<<60), "the copy would not fit on the volume")
	assert.Zero(t, k.AtStart(filepath.Join(dir, "missing"), 1000*mebibyte), "the free space is unknown")
	assert.Zero(t, maintainerWith(defaultThreshold, time.Second).AtStart(dir, 1000*mebibyte), "copying up to 550 MiB would take longer than MaxPause")
	assert.Zero(t, maintainerWith(Threshold{}, time.Hour).AtStart(dir, 1000*mebibyte), "the zero threshold disables defragmentation")
}

func TestStartProgress(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data[1]") // the brackets must not be interpreted as a filepath.Match pattern
	require.NoError(t, os.Mkdir(dir, 0o700))
	assert.Empty(t, StartProgress(dir))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "db.tmp.1234"), make([]byte, 3*mebibyte), 0o600))
	assert.Equal(t, "defragmenting the database before serving clients: 3.0 MiB copied", StartProgress(dir))
}

// leaveFixture calls leave on a fixture whose member is the leader, unless change makes another member the leader.
func leaveFixture(t *testing.T, change func(*fixture)) *fixture {
	t.Helper()
	g, log := &Gate{}, &logtest.Lines{}
	s := &fixture{cluster: &fake{now: healthy(), gate: g}, schedule: &fakeSchedule{}, gate: g, log: log}
	s.cluster.now.leader = s.cluster.now.self
	change(s)
	s.Maintainer = New(Options{Gate: g, Log: zerolog.New(log), Name: "etcd-0"})
	if s.busy {
		s.enter(Running, "copying", facts{})
	}
	s.leave(context.WithoutCancel(t.Context()), &service{cluster: s.cluster, newSchedule: func() schedule { return s.schedule }})
	return s
}

func TestLeave(t *testing.T) {
	for name, c := range map[string]struct {
		change      func(*fixture)
		transferred bool
		announced   int
	}{
		"the member is the leader": {func(*fixture) {}, true, 1},
		// While an alarm is raised, the transfer is not announced, because etcd grants no leases and rejects writes
		// anyway.
		"NOSPACE is raised":                {func(s *fixture) { s.cluster.now.full = []types.ID{2} }, true, 0},
		"CORRUPT is raised":                {func(s *fixture) { s.cluster.now.corrupt = true }, true, 0},
		"another member is the leader":     {func(s *fixture) { s.cluster.now.leader = 2 }, false, 0},
		"the cluster has one member":       {func(s *fixture) { s.cluster.now.members = s.cluster.now.members[:1] }, false, 0},
		"a defragmentation is in progress": {func(s *fixture) { s.busy = true }, false, 0},
		"no other member is up to date":    {func(s *fixture) { s.cluster.noSuccessor = true }, false, 0},
		"the announcement fails":           {func(s *fixture) { s.schedule.transferErr = errors.New("etcdserver: request timed out") }, false, 1},
	} {
		s := leaveFixture(t, c.change)
		_, announced := s.schedule.now()
		assert.Equal(t, c.announced, announced, name)
		assert.Equal(t, announced, min(announced, s.schedule.released), "%s: each announcement is revoked", name)
		if !c.transferred {
			assert.Empty(t, s.cluster.transferredTo(), name)
			continue
		}
		assert.Equal(t, []string{"etcd-2"}, s.cluster.transferredTo(), name)
		assert.Contains(t, s.log.String(), "transferred leadership before stopping")
	}
}

func TestMoveLeader_byAClient(t *testing.T) {
	move := func(s *fixture, while func()) {
		_, err := s.Unary(t.Context(), &etcdserverpb.MoveLeaderRequest{TargetID: 2}, &grpc.UnaryServerInfo{FullMethod: moveLeaderMethod}, func(context.Context, any) (any, error) { while(); return "done", nil })
		assert.NoError(t, err)
	}
	runFixture(t, func(s *fixture) { s.cluster.now.leader, s.cluster.now.size = 1, s.cluster.now.inUse }, func(s *fixture) {
		ended := s.schedule.released
		move(s, func() {
			_, announced := s.schedule.now()
			assert.Equal(t, 1, announced)
			assert.Equal(t, ended, s.schedule.released)
		})
		assert.Equal(t, ended+1, s.schedule.released)
		s.schedule.transferErr = errors.New("etcdserver: request timed out")
		moved := false
		move(s, func() { moved = true })
		assert.True(t, moved, "the transfer takes place even if it cannot be announced")

		s.cluster.change(func(f *facts) { f.leader = 2 })
		move(s, func() {})
		_, announced := s.schedule.now()
		assert.Equal(t, 2, announced, "a member that is not the leader announces nothing, because etcd rejects the request")
	})
}

func TestMoveLeader_refusedByEtcd(t *testing.T) {
	runFixture(t, func(s *fixture) { s.cluster.now.leader, s.cluster.now.size = 1, s.cluster.now.inUse }, func(s *fixture) {
		s.cluster.change(func(f *facts) { f.members[2].learner = true })
		for _, to := range []uint64{0, 1, 3, 77} { // no member, this member, a learner, and an unknown member
			s.pauseWritesForClient(t.Context(), &etcdserverpb.MoveLeaderRequest{TargetID: to})()
		}
		s.cluster.notAdmin = true
		s.pauseWritesForClient(t.Context(), &etcdserverpb.MoveLeaderRequest{TargetID: 2})()
		_, announced := s.schedule.now()
		assert.Zero(t, announced)
	})
}

func TestMoveLeader_concurrentClients(t *testing.T) {
	runFixture(t, func(s *fixture) { s.cluster.now.leader, s.cluster.now.size = 1, s.cluster.now.inUse }, func(s *fixture) {
		to := &etcdserverpb.MoveLeaderRequest{TargetID: 2}
		first, second := s.pauseWritesForClient(t.Context(), to), s.pauseWritesForClient(t.Context(), to)
		second()
		third := s.pauseWritesForClient(t.Context(), to)
		_, announced := s.schedule.now()
		assert.Equal(t, 1, announced, "only the first of several concurrent requests is announced")
		third()
		first()
		s.pauseWritesForClient(t.Context(), to)()
		_, announced = s.schedule.now()
		assert.Equal(t, 2, announced)
	})
}
