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
)

// leaving bounds how long a member that stops tries to give its leadership away before its clients are sent to others.
const leaving = 2 * time.Second

// longestQuiet bounds how long writes are held back for a change of leadership, whether it comes or not.
const longestQuiet = 2 * time.Second

// confirming is how long the members have to say that they hold their writes back. Plain etcd never does.
const confirming = time.Second

// leave gives leadership away, if this member has it. raft drops what comes to a leader on its way out, so all members hold
// their writes back for that moment. Where that is not possible, etcd does it at the end of its close, when this member has
// no clients left.
func (k *Maintainer) leave(ctx context.Context, s *service) {
	if k.busy() { // for a client; to ask etcd for facts would have to wait
		return
	}
	f := s.cluster.facts()
	if f.alone() || f.leader != f.self {
		return
	}
	to, ok := s.cluster.successor()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaving)
	defer cancel()
	seat, began := s.seat(), time.Now()
	defer seat.end(ctx)
	var err error
	if !f.grantsNoLease() { // nobody writes then either
		err = seat.announce(ctx)
	}
	if err == nil {
		err = s.cluster.handOver(ctx, to)
	}
	if err != nil {
		k.options.Log.Info().Err(err).Msg("leadership stays here until the clients were sent away")
		return
	}
	k.options.Log.Info().Str("to", to.name).Dur("took_ms", time.Since(began)).Msg("leadership was moved before the stop")
}

// quietly has all members hold their writes back for a client that is about to move leadership, until what it returns is
// called. If that is not possible, leadership moves all the same. Nobody waits for what etcd will refuse.
func (k *Maintainer) quietly(ctx context.Context, asked any) (done func()) {
	s := k.served()
	to, is := asked.(*etcdserverpb.MoveLeaderRequest)
	if s == nil || !is || k.busy() {
		return func() {}
	}
	if f := s.cluster.facts(); f.leader != f.self || f.grantsNoLease() || !f.couldLead(types.ID(to.TargetID)) || !s.cluster.permits(ctx) {
		return func() {}
	}
	if !k.moving.CompareAndSwap(false, true) {
		return func() {} // another client does: writes are held back already
	}
	seat := s.seat()
	if err := seat.announce(ctx); err != nil {
		k.options.Log.Info().Err(err).Msg("a client moves leadership, and the others were not told; a write may have to wait for its answer")
	}
	return func() {
		seat.end(ctx)
		k.moving.Store(false)
	}
}

// couldLead reports whether a member is another one that has a vote and a connection to this one.
func (f facts) couldLead(id types.ID) bool {
	return slices.ContainsFunc(f.members, func(p peer) bool { return p.id == id && id != f.self && p.active && !p.learner })
}

// announce has all members hold their writes back until the leader has changed, and returns when each of them does and has none
// under way any more. Those that do not say so, such as plain etcd, have a moment.
func (p *place) announce(ctx context.Context) error {
	said := p.own(handover)
	if err := p.say(ctx, said, longestQuiet); err != nil {
		return fmt.Errorf("the others were not told that leadership moves: %w", err)
	}
	moment, cancel := context.WithTimeout(ctx, confirming)
	defer cancel()
	loud := p.loud()
	for i, id := range loud {
		err := p.await(moment, claim{quiet, said.nonce, uint32(id)}, true) //nolint:gosec // its end
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			p.log.Info().Int("members", len(loud)-i).Msg("not all hold their writes back while leadership moves; a write may have to wait for its answer")
			return nil
		}
	}
	return nil
}

// loud are the members that may write: this one, and all that there is a connection to.
func (p *place) loud() (all []types.ID) {
	self := p.server.MemberID()
	active := p.active(self)
	for _, m := range p.server.Cluster().Members() {
		if m.ID == self || active[m.ID] && !m.IsLearner {
			all = append(all, m.ID)
		}
	}
	return all
}

// writes are the requests that members send on to their leader. While leadership moves, raft drops what still comes to the
// old one, and nobody learns of it: the client waits until its request times out, 7 s with etcd's own settings.
var writes = []string{
	"/etcdserverpb.KV/Put", "/etcdserverpb.KV/DeleteRange", "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Compact",
	"/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Lease/LeaseRevoke",
}

const (
	// lookout is how often a member looks whether a change of leadership is announced.
	lookout = 10 * time.Millisecond
	// seldomLookout is how often it does when nobody writes.
	seldomLookout = 100 * time.Millisecond
)

// listen hears of every change of leadership that the leader announces, and holds this member's writes back meanwhile.
func (k *Maintainer) listen(ctx context.Context, server *etcdserver.EtcdServer) {
	there, heard, applied := claims{server}, []claim{}, uint64(0)
	for pause := lookout; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		before := applied
		if applied = server.AppliedIndex(); applied == before {
			pause = min(2*pause, seldomLookout)
			continue
		}
		pause = lookout
		changed := server.LeaderChangedNotify() // before the look at who leads, so that no change is missed
		known := heard
		heard = there.all(handover)
		for _, announced := range heard { // each once, however long its lease is, and only the leader's
			if !slices.Contains(known, announced) && announced.names(server.Leader()) {
				k.hush(ctx, changed, func(ctx context.Context) {
					confirmed := there.own(quiet)
					confirmed.nonce = announced.nonce
					_ = there.propose(ctx, confirmed, longestQuiet) // if it is lost, the leader goes on after a moment
				})
			}
		}
	}
}

// hush holds writes back until the leader has changed, and confirms once none is under way any more.
func (k *Maintainer) hush(ctx context.Context, changed <-chan struct{}, confirm func(ctx context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, longestQuiet)
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
	began, end := time.Now(), k.quiet.begin("leadership moves")
	defer func() {
		end()
		k.options.Log.Debug().Dur("took_ms", time.Since(began)).Msg("writes were held back while leadership moved")
	}()
	if k.settled(ctx) {
		confirm(ctx) // which the leader may drop, on its way out
		<-ctx.Done()
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		k.options.Log.Info().Dur("after_ms", longestQuiet).Msg("leadership has not moved; writes go on, and one may have to wait for its answer")
	}
}

// settled waits until no write is under way. It says no if that does not matter any more.
func (k *Maintainer) settled(ctx context.Context) bool {
	clock := time.NewTicker(lookAgain)
	defer clock.Stop()
	for k.writes.Load() > 0 {
		select {
		case <-clock.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// admit counts a write as under way, until left is called, once it may go on. The error is the context's, as gRPC has it.
func (k *Maintainer) admit(ctx context.Context) error {
	for {
		k.writes.Add(1) // before it is looked at, so that whoever begins a quiet and waits misses none
		over := k.quiet.over()
		if over == nil {
			return nil
		}
		k.left()
		select {
		case <-over:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

func (k *Maintainer) left() { k.writes.Add(-1) }
