package member

import (
	"context"
	"sync/atomic"
	"time"

	"etcd-wrapper/member/state"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// requests counts the requests of clients. Only etcd's extensive metrics have the duration of a write with raft and the disk.
type requests struct{ writes, reads added }

type added struct{ count, nanoseconds atomic.Int64 }

func (a *added) total() state.Requests {
	return state.Requests{Count: a.count.Load(), Took: time.Duration(a.nanoseconds.Load())}
}

// Requests returns clients' writes (puts, deletions and transactions) and reads. It may be called from any goroutine.
func (m *Member) Requests() (writes, reads state.Requests) {
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
