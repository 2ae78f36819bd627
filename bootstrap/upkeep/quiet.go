package upkeep

import (
	"context"
	"slices"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"google.golang.org/grpc/status"
)

// longestQuiet bounds how long writes are held back for a change of leadership, whether it comes or not.
const longestQuiet = 2 * time.Second

// writes are the requests that members send on to their leader. While leadership moves, raft drops what still comes to the
// old one, and nobody learns of it: the client waits until its request times out, 7 s with etcd's own settings.
var writes = []string{
	"/etcdserverpb.KV/Put", "/etcdserverpb.KV/DeleteRange", "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Compact",
	"/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Lease/LeaseRevoke",
}

// listen hears of every change of leadership that a member announces, and holds this member's writes back meanwhile.
func (k *Keeper) listen(ctx context.Context, server *etcdserver.EtcdServer) {
	stream := server.KV().NewWatchStream()
	defer stream.Close()
	if _, err := stream.Watch(clientv3.AutoWatchID, []byte(handoverKey), nil, 0); err != nil {
		k.options.Log.Warn().Err(err).Msg("changes of leadership are not heard of; they may cost a write its answer")
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case reply, open := <-stream.Chan():
			if !open {
				return
			}
			announced := func(e mvccpb.Event) bool { return e.Type == mvccpb.PUT }
			if i := slices.IndexFunc(reply.Events, announced); i >= 0 {
				handover := reply.Events[i].Kv
				k.hush(ctx, server.LeaderChangedNotify(), func(ctx context.Context) { confirm(ctx, server, handover) })
			}
		}
	}
}

// hush holds writes back until the leader has changed, and confirms once none is under way any more.
func (k *Keeper) hush(ctx context.Context, changed <-chan struct{}, confirm func(ctx context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, longestQuiet)
	defer cancel()
	defer k.tellOfQuiet(time.Now())
	defer k.quiet.begin("leadership moves")()
	if !k.settled(ctx, changed) {
		return
	}
	confirm(ctx)
	select {
	case <-changed:
	case <-ctx.Done():
		k.options.Log.Info().Stringer("after", longestQuiet).Msg("leadership has not moved; writes go on, and one may have to wait for its answer")
	}
}

func (k *Keeper) tellOfQuiet(since time.Time) {
	k.options.Log.Debug().Stringer("duration", rounded(time.Since(since))).Msg("writes were held back while leadership moved")
}

// lookAgain is the pause between two looks at what is under way. To have the last write tell would cost each of them.
const lookAgain = time.Millisecond

// settled waits until no write is under way. It says no if that does not matter any more.
func (k *Keeper) settled(ctx context.Context, changed <-chan struct{}) bool {
	clock := time.NewTicker(lookAgain)
	defer clock.Stop()
	for k.writes.Load() > 0 {
		select {
		case <-clock.C:
		case <-changed:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// confirm tells the leader that gives its leadership away that it will get no writes from here. If that fails, it goes on after
// a moment all the same.
func confirm(ctx context.Context, server *etcdserver.EtcdServer, handover *mvccpb.KeyValue) {
	_, _ = server.Put(server.AuthStore().WithRoot(ctx), &etcdserverpb.PutRequest{
		Key: []byte(quietKeys + server.MemberID().String()), Value: []byte(strconv.FormatInt(handover.ModRevision, 10)), Lease: handover.Lease,
	})
}

// admit counts a write as under way, until left is called, once it may go on. The error is the context's, as gRPC has it.
func (k *Keeper) admit(ctx context.Context) error {
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

func (k *Keeper) left() { k.writes.Add(-1) }
