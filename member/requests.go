package member

import (
	"context"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// Requests are those that clients of this member had answered since etcd was made, and how long these took together: with raft, the
// disk and whatever a request had to wait for, but without the network.
type Requests struct {
	Count int64
	Took  time.Duration
}

// requests adds them up. etcd's own metrics have no time of a write that includes raft and the disk, unless they are extensive.
type requests struct{ writes, reads added }

type added struct{ count, nanoseconds atomic.Int64 }

func (a *added) total() Requests {
	return Requests{Count: a.count.Load(), Took: time.Duration(a.nanoseconds.Load())}
}

// Requests are clients' writes, which are puts, deletions and transactions, and their reads. They may be asked for from any goroutine.
func (m *Member) Requests() (writes, reads Requests) {
	return m.requests.writes.total(), m.requests.reads.total()
}

// unary is for etcd's gRPC server.
func (r *requests) unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	var kind *added
	switch request.(type) {
	case *etcdserverpb.PutRequest, *etcdserverpb.DeleteRangeRequest, *etcdserverpb.TxnRequest:
		kind = &r.writes
	case *etcdserverpb.RangeRequest:
		kind = &r.reads
	default:
		return handler(ctx, request)
	}
	began := time.Now()
	reply, err := handler(ctx, request)
	if err == nil {
		kind.nanoseconds.Add(int64(time.Since(began)))
		kind.count.Add(1)
	}
	return reply, err
}
