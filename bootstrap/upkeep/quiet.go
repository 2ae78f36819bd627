package upkeep

import (
	"context"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"google.golang.org/grpc/status"
)

// longestQuiet bounds how long writes are held back for a change of leadership, whether it comes or not.
const longestQuiet = time.Second

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
			if slices.ContainsFunc(reply.Events, announced) {
				k.hush(ctx, server.LeaderChangedNotify())
			}
		}
	}
}

// hush holds writes back until the leader has changed.
func (k *Keeper) hush(ctx context.Context, changed <-chan struct{}) {
	defer k.quiet.begin("leadership moves")()
	select {
	case <-changed:
	case <-ctx.Done():
	case <-time.After(longestQuiet):
	}
}

// whenQuietIsOver returns once a write may go on. The error is the context's, as gRPC has it.
func (k *Keeper) whenQuietIsOver(ctx context.Context, method string) error {
	over := k.quiet.over()
	if over == nil || !slices.Contains(writes, method) {
		return nil
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}
