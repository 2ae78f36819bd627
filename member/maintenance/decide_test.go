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

// usual is the default threshold.
var usual = Threshold{Free: 0.45, Min: 100 * mebibyte}

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
		worth  string
	}{
		"half of it":                      {func(*facts) {}, "512.0 MiB of the 1.0 GiB database is free"},
		"exactly the part":                {func(f *facts) { f.size, f.inUse = 1000*mebibyte, 550*mebibyte }, "450.0 MiB of the 1000.0 MiB database is free"},
		"not the part":                    {func(f *facts) { f.inUse = 700 * mebibyte }, ""},
		"not the bytes":                   {func(f *facts) { f.size, f.inUse = 150*mebibyte, 51*mebibyte }, ""},
		"the quota, and it would help":    {func(f *facts) { f.full, f.quota, f.inUse = []types.ID{f.self}, gibibyte, 900*mebibyte }, "the NOSPACE alarm can be disarmed after defragmentation frees 124.0 MiB of the 1.0 GiB database"},
		"the quota, and it would not":     {func(f *facts) { f.full, f.quota, f.inUse = []types.ID{f.self}, gibibyte, 930*mebibyte }, ""},
		"the quota is another member's":   {func(f *facts) { f.full, f.quota, f.inUse = []types.ID{f.self + 1}, gibibyte, 900*mebibyte }, ""},
		"the quota, and it is room again": {func(f *facts) { f.full, f.quota, f.inUse = []types.ID{f.self}, 2*gibibyte, 900*mebibyte }, ""},
	} {
		f := healthy()
		c.change(&f)
		assert.Equal(t, c.worth, f.reason(usual), name)
	}
	assert.Empty(t, healthy().reason(Threshold{}), "never is never")
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
	assert.Equal(t, 5*time.Second, p.expected(1000*mebibyte), "a small one says nothing")
}

func TestByClock(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for inUse, every := range map[int64]time.Duration{mebibyte: 9 * time.Second, 900 * mebibyte: 72 * time.Second, 4 * gibibyte: 288 * time.Second} {
		f := healthy()
		f.inUse, f.full = inUse, []types.ID{1, 2, 3}
		turns := map[types.ID]int{}
		for s := range int(every.Seconds()) {
			have := 0
			for _, p := range f.members {
				f.self = p.id
				if byClock(began.Add(time.Duration(s)*time.Second), f) {
					turns[p.id]++
					have++
				}
			}
			require.LessOrEqual(t, have, 1)
		}
		assert.Len(t, turns, 3, "with %d in use each has its turn within %s", inUse, every)
		f.full, f.self = f.full[1:], 2
		assert.True(t, byClock(began, f), "who has lifted the alarm leaves the round")
		assert.False(t, byClock(began.Add(every/3-time.Second), f), "late in its slot nobody begins")
		f.self = 1
		assert.False(t, byClock(began, f))
	}
}

func keeperWith(threshold Threshold, maxPause time.Duration) *Maintainer {
	return New(Options{Threshold: threshold, MaxPause: maxPause, Gate: &Gate{}})
}

func TestAtStart(t *testing.T) {
	dir := t.TempDir()
	k := keeperWith(usual, 15*time.Second)
	assert.EqualValues(t, 450, k.AtStart(dir, 1000*mebibyte), "45% of it")
	assert.EqualValues(t, 100, k.AtStart(dir, 150*mebibyte), "at least so many bytes")
	assert.Zero(t, k.AtStart(dir, 50*mebibyte), "it cannot be worth it")
	assert.Zero(t, k.AtStart(dir, 1<<60), "the copy has no room")
	assert.Zero(t, k.AtStart(filepath.Join(dir, "missing"), 1000*mebibyte), "nobody knows whether it has")
	assert.Zero(t, keeperWith(usual, time.Second).AtStart(dir, 1000*mebibyte), "550 MiB may be kept, which takes longer than a second")
	assert.Zero(t, keeperWith(Threshold{}, time.Hour).AtStart(dir, 1000*mebibyte), "never is never")
}

func TestStartProgress(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data[1]") // the path must not be interpreted as a pattern
	require.NoError(t, os.Mkdir(dir, 0o700))
	assert.Empty(t, StartProgress(dir))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "db.tmp.1234"), make([]byte, 3*mebibyte), 0o600))
	assert.Equal(t, "defragmenting the database before serving clients: 3.0 MiB copied", StartProgress(dir))
}

// leaveStand returns a stand whose member is a leader that is stopping.
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
		// While an alarm is raised, writes are not paused, because etcd rejects them anyway and cannot grant leases.
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
