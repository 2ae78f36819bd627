package maintenance

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
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
	err := hear(ctx, server.KV(), func(handover *mvccpb.KeyValue) {
		changed := server.LeaderChangedNotify() // before the look at who leads, so that no change is missed
		if server.Leader().String() != string(handover.Value) {
			return // it was heard late, and leadership has moved
		}
		k.hush(ctx, changed, func(ctx context.Context) { confirm(ctx, server, handover) })
	})
	if err != nil {
		k.options.Log.Warn().Err(err).Msg("changes of leadership are not heard of; they may cost a write its answer")
	}
}

// hear tells of each change of leadership that is announced until ctx ends. When a leader has sent this member its database, etcd
// ends a watch whose beginning is compacted there; then it begins again.
func hear(ctx context.Context, kv mvcc.WatchableKV, announced func(handover *mvccpb.KeyValue)) error {
	stream := kv.NewWatchStream()
	defer stream.Close()
	watch := func() error {
		_, err := stream.Watch(clientv3.AutoWatchID, []byte(handoverKey), nil, 0)
		return err
	}
	for err := watch(); ; {
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case reply, open := <-stream.Chan():
			if !open {
				return nil
			}
			if reply.CompactRevision != 0 {
				err = watch()
			}
			isPut := func(e mvccpb.Event) bool { return e.Type == mvccpb.PUT }
			if i := slices.IndexFunc(reply.Events, isPut); i >= 0 {
				announced(reply.Events[i].Kv)
			}
		}
	}
}

// hush holds writes back until the leader has changed, and confirms once none is under way any more.
func (k *Keeper) hush(ctx context.Context, changed <-chan struct{}, confirm func(ctx context.Context)) {
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
	defer k.tellOfQuiet(time.Now())
	defer k.quiet.begin("leadership moves")()
	if k.settled(ctx) {
		confirm(ctx) // which the leader may drop, on its way out
		<-ctx.Done()
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		k.options.Log.Info().Dur("after_ms", longestQuiet).Msg("leadership has not moved; writes go on, and one may have to wait for its answer")
	}
}

func (k *Keeper) tellOfQuiet(since time.Time) {
	k.options.Log.Debug().Dur("took_ms", time.Since(since)).Msg("writes were held back while leadership moved")
}

// lookAgain is the pause between two looks at what is under way. To have the last write tell would cost each of them.
const lookAgain = time.Millisecond

// settled waits until no write is under way. It says no if that does not matter any more.
func (k *Keeper) settled(ctx context.Context) bool {
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
