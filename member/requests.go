package member

import (
	"context"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// Requests counts the successful requests of this member's clients since etcd was created, and their total duration: raft, the disk and
// all waiting, but not the network.
type Requests struct {
	Count int64
	Took  time.Duration
}

// requests accumulates them. Only etcd's extensive metrics have the duration of a write with raft and the disk.
type requests struct{ writes, reads added }

type added struct{ count, nanoseconds atomic.Int64 }

func (a *added) total() Requests {
	return Requests{Count: a.count.Load(), Took: time.Duration(a.nanoseconds.Load())}
}

// Requests returns clients' writes (puts, deletions and transactions) and reads. It may be called from any goroutine.
func (m *Member) Requests() (writes, reads Requests) {
	return m.requests.writes.total(), m.requests.reads.total()
}

// unary implements grpc.UnaryServerInterceptor.
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
