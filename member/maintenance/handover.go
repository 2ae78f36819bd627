package maintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"google.golang.org/grpc/status"

	"etcd-wrapper/internal/clock"
)

// leaveTimeout bounds the time for which a stopping member tries to transfer its leadership before its clients are
// disconnected.
const leaveTimeout = 2 * time.Second

// maxWritePause bounds the time for which writes are held back during a change of leadership.
const maxWritePause = 2 * time.Second

// confirmTimeout bounds the time for which the leader waits for confirmations from the members. Plain etcd never
// confirms.
const confirmTimeout = time.Second

// leave transfers the leadership if this member is the leader. raft drops proposals that reach a leader during a
// transfer, so all members hold back their writes. If the transfer fails, etcd transfers the leadership at the end
// of its close, when this member has no clients.
func (k *Maintainer) leave(ctx context.Context, s *service) {
	if k.busy() { // during a client's defragmentation, reading facts would block
		return
	}
	f := s.cluster.facts()
	if f.isSingle() || f.leader != f.self {
		return
	}
	to, ok := s.cluster.successor()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	turns, started := s.newSchedule(), time.Now()
	defer turns.release(ctx)
	var err error
	if !f.leasesDisabled() { // otherwise etcd rejects all writes anyway
		err = turns.proposeTransfer(ctx)
	}
	if err == nil {
		err = s.cluster.handOver(ctx, to)
	}
	if err != nil {
		k.options.Log.Info().Err(err).Msg("leadership stays with this member until its clients are disconnected")
		return
	}
	k.options.Log.Info().Str("to", to.name).Dur("took_ms", time.Since(started)).Msg("leadership was moved before the stop")
}

// pauseWritesForClient makes all members hold back their writes until done is called, because a client transfers
// the leadership. If that fails, the leadership is transferred anyway. Requests that etcd will reject do not hold
// back writes.
func (k *Maintainer) pauseWritesForClient(ctx context.Context, message any) (done func()) {
	s := k.serving.Load()
	to, ok := message.(*etcdserverpb.MoveLeaderRequest)
	if s == nil || !ok || k.busy() {
		return func() {}
	}
	if f := s.cluster.facts(); f.leader != f.self || f.leasesDisabled() || !f.canLead(types.ID(to.TargetID)) || !s.cluster.isAdmin(ctx) {
		return func() {}
	}
	if !k.moving.CompareAndSwap(false, true) {
		return func() {} // another client is moving the leadership, so writes are already held back
	}
	turns := s.newSchedule()
	if err := turns.proposeTransfer(ctx); err != nil {
		k.options.Log.Info().Err(err).Msg("a client moves leadership, and the other members do not hold their writes; a write may time out")
	}
	return func() {
		turns.release(ctx)
		k.moving.Store(false)
	}
}

// canLead reports whether id is another voting member that is connected to this one.
func (f facts) canLead(id types.ID) bool {
	return slices.ContainsFunc(f.members, func(p peer) bool { return p.id == id && id != f.self && p.active && !p.learner })
}

// proposeTransfer makes all members hold back their writes until the leader changes. It returns once every member
// has confirmed that none of its writes is running, or after confirmTimeout, because plain etcd never confirms.
func (p *claimSchedule) proposeTransfer(ctx context.Context) error {
	announced := p.newClaim(handover)
	if err := p.grant(ctx, announced, maxWritePause); err != nil {
		return fmt.Errorf("cannot announce the change of leadership: %w", err)
	}
	moment, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	active := p.activeMembers()
	for i, id := range active {
		err := p.await(moment, claim{quiet, announced.nonce, uint32(id)}, true) //nolint:gosec // its end
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			p.log.Info().Int("members", len(active)-i).Msg("not all members hold their writes back while leadership moves; a write may be delayed")
			return nil
		}
	}
	return nil
}

// activeMembers returns the members that may write: this member and all connected voters.
func (p *claimSchedule) activeMembers() (all []types.ID) {
	self := p.server.MemberID()
	active := p.active(self)
	for _, m := range p.server.Cluster().Members() {
		if m.ID == self || active[m.ID] && !m.IsLearner {
			all = append(all, m.ID)
		}
	}
	return all
}

// writes lists the requests that members forward to the leader. During a transfer, raft silently drops those that
// reach the old leader, and the client then waits for its timeout, 7 s with etcd's defaults.
var writes = []string{
	"/etcdserverpb.KV/Put", "/etcdserverpb.KV/DeleteRange", "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Compact",
	"/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Lease/LeaseRevoke",
}

const (
	// listenInterval is the pause between two polls for an announced handover.
	listenInterval = 10 * time.Millisecond
	// idleListenInterval is the pause while clients are not writing.
	idleListenInterval = 100 * time.Millisecond
)

// listen polls for handovers that the leader announces, and holds back this member's writes for each of them.
func (k *Maintainer) listen(ctx context.Context, server *etcdserver.EtcdServer) {
	leases, heard, applied := claims{server}, []claim{}, uint64(0)
	for pause := listenInterval; clock.Sleep(ctx, pause) == nil; {
		before := applied
		if applied = server.AppliedIndex(); applied == before {
			pause = min(2*pause, idleListenInterval)
			continue
		}
		pause = listenInterval
		changed := server.LeaderChangedNotify() // called before reading the leader, so that no change is missed
		known := heard
		heard = leases.list(handover)
		for _, announced := range heard { // each announcement once, and only those of the leader
			if !slices.Contains(known, announced) && announced.names(server.Leader()) {
				k.pauseWrites(ctx, changed, func(ctx context.Context) {
					confirmed := leases.newClaim(quiet)
					confirmed.nonce = announced.nonce
					_ = leases.propose(ctx, confirmed, maxWritePause) // if the response is lost, the leader continues after confirmTimeout
				})
			}
		}
	}
}

// pauseWrites holds back writes until the leader changes, and calls confirm once no write is running.
func (k *Maintainer) pauseWrites(ctx context.Context, changed <-chan struct{}, confirm func(ctx context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, maxWritePause)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		defer cancel()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	})
	started, end := time.Now(), k.writePause.begin("leadership moves")
	defer func() {
		end()
		k.options.Log.Debug().Dur("took_ms", time.Since(started)).Msg("writes were held back while leadership moved")
	}()
	if poll(ctx, pollInterval, nil, func() bool { return k.writes.Load() == 0 }) == nil {
		confirm(ctx) // the old leader may drop the proposal
		<-ctx.Done()
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		k.options.Log.Info().Dur("after_ms", maxWritePause).Msg("leadership has not moved; writes continue, and one may be delayed")
	}
}

// startWrite waits while writes are held back, and counts the write as running until finishWrite is called. It
// returns the context's error as a gRPC status.
func (k *Maintainer) startWrite(ctx context.Context) error {
	for {
		k.writes.Add(1) // incremented before the check, so that pauseWrites counts every write
		over := k.writePause.endNotify()
		if over == nil {
			return nil
		}
		k.finishWrite()
		select {
		case <-over:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

func (k *Maintainer) finishWrite() { k.writes.Add(-1) }
