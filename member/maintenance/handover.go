package maintenance

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
)

// leaving bounds how long a member that stops tries to give its leadership away before its clients are sent to others.
const leaving = 2 * time.Second

// confirming is how long the members have to say that they hold their writes back. Plain etcd never does.
const confirming = time.Second

// leave gives leadership away, if this member has it. raft drops what comes to a leader on its way out, so all members hold
// their writes back for that moment. Where that is not possible, etcd does it at the end of its close, when this member has
// no clients left.
func (k *Keeper) leave(ctx context.Context, s *service) {
	if k.busy() { // for a client; to ask etcd for facts would have to wait
		return
	}
	if f := s.cluster.facts(); f.alone() || f.leader != f.self {
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
	err := seat.announce(ctx)
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
func (k *Keeper) quietly(ctx context.Context, asked any) (done func()) {
	s := k.served()
	to, is := asked.(*etcdserverpb.MoveLeaderRequest)
	if s == nil || !is || k.busy() {
		return func() {}
	}
	if f := s.cluster.facts(); f.leader != f.self || f.noSpace || !f.couldLead(types.ID(to.TargetID)) || !permitted(ctx, s) {
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
func (t *turn) announce(ctx context.Context) error {
	if t.lease == 0 {
		if err := t.begin(ctx); err != nil {
			return err
		}
	}
	stream := t.server.KV().NewWatchStream()
	defer stream.Close()
	if _, err := stream.Watch(clientv3.AutoWatchID, []byte(quietKeys), endOf(quietKeys), 0); err != nil {
		return fmt.Errorf("it cannot be heard when the others hold their writes back: %w", err)
	}
	within, cancel := t.root(ctx)
	defer cancel()
	id := []byte(t.server.MemberID().String())
	put, err := t.server.Put(within, &etcdserverpb.PutRequest{Key: []byte(handoverKey), Value: id, Lease: t.lease})
	if err != nil {
		return fmt.Errorf("the others were not told that leadership moves: %w", err)
	}
	return t.awaitQuiet(ctx, stream.Chan(), put.Header.Revision)
}

func (t *turn) awaitQuiet(ctx context.Context, heard <-chan mvcc.WatchResponse, handover int64) error {
	loud, patience := t.loud(), time.NewTimer(confirming)
	defer patience.Stop()
	for len(loud) > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-patience.C:
			t.log.Info().Int("members", len(loud)).Msg("not all hold their writes back while leadership moves; a write may have to wait for its answer")
			return nil
		case reply, open := <-heard:
			if !open {
				return nil
			}
			for _, event := range reply.Events {
				if event.Kv != nil && string(event.Kv.Value) == strconv.FormatInt(handover, 10) {
					delete(loud, strings.TrimPrefix(string(event.Kv.Key), quietKeys))
				}
			}
		}
	}
	return nil
}

// loud are the IDs of the members that may write: this one, and all that there is a connection to.
func (t *turn) loud() map[string]bool {
	self := t.server.MemberID()
	active, all := t.active(self), map[string]bool{}
	for _, m := range t.server.Cluster().Members() {
		if m.ID == self || active[m.ID] && !m.IsLearner {
			all[m.ID.String()] = true
		}
	}
	return all
}
