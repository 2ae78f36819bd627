package member

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Confirmation waits for changes to be stored, so that a client never receives a reply that depends on data missing
// from the store.
type Confirmation interface {
	// Wait returns nil once the revision is in the store and the store is known to belong to this cluster.
	Wait(ctx context.Context, revision int64) error
	// WaitAll returns nil once all changes made before the call are in the store, including changes without a
	// revision.
	WaitAll(ctx context.Context) error
	// Revision returns the last confirmed revision, or 0 if there is none.
	Revision() int64
}

// confirmed delays each reply until the store has all data that the reply depends on. In-process clients of etcd
// bypass confirmed, but replies from the Lock and Election services, which use an in-process client, do not.
type confirmed struct{ Confirmation }

// ErrSeveralMembers is returned if the data belongs to a multi-member cluster.
var ErrSeveralMembers = errors.New("--backup-ack=stored supports only single-member clusters, but this data belongs to a multi-member cluster: " +
	"start with --backup-ack=local, or remove the other members first")

// errAdds rejects the addition of a second member, because its replies would not wait for the store.
var errAdds = status.Error(codes.FailedPrecondition,
	"--backup-ack=stored supports only single-member clusters: restart with --backup-ack=local before you add members")

// unary implements grpc.UnaryServerInterceptor.
func (c confirmed) unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, adds := request.(*etcdserverpb.MemberAddRequest); adds {
		return nil, errAdds
	}
	reply, err := handler(ctx, request)
	if waiting := c.await(ctx, reply, err); waiting != nil {
		return nil, waiting
	}
	return reply, err
}

// stream implements grpc.StreamServerInterceptor.
func (c confirmed) stream(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(service, &confirmedStream{ServerStream: stream, confirmed: c})
}

// confirmedStream waits before it sends each message. etcd sends the messages of a stream one after another, so
// waiting preserves their order.
type confirmedStream struct {
	grpc.ServerStream
	confirmed

	snapshot bool // the first part of a snapshot was sent; the remaining parts do not have to wait
}

// SendMsg implements grpc.ServerStream.
func (s *confirmedStream) SendMsg(message any) error {
	if _, part := message.(*etcdserverpb.SnapshotResponse); !part || !s.snapshot {
		if err := s.await(s.Context(), message, nil); err != nil {
			return err
		}
		s.snapshot = part
	}
	return s.ServerStream.SendMsg(message)
}

// await waits until the store has all data that a reply depends on. A reply to a KV request depends on its revision.
// Other replies and errors may depend on any state of etcd, because leases, users and compactions have no revision.
func (c confirmed) await(ctx context.Context, reply any, failed error) (err error) {
	var header *etcdserverpb.ResponseHeader
	switch reply := reply.(type) {
	case *etcdserverpb.RangeResponse:
		header = reply.GetHeader()
	case *etcdserverpb.PutResponse:
		header = reply.GetHeader()
	case *etcdserverpb.DeleteRangeResponse:
		header = reply.GetHeader()
	case *etcdserverpb.TxnResponse:
		header = reply.GetHeader()
	case *etcdserverpb.WatchResponse:
		if !reply.Canceled { // a compaction may have canceled the watch
			header = reply.GetHeader()
		}
	case *etcdserverpb.LeaseKeepAliveResponse:
		if reply.TTL > 0 { // a lease must not expire while unrelated data is being stored
			err = c.Wait(ctx, 0)
			c.limit(reply.GetHeader())
			return asStatus(ctx, err)
		}
	case *etcdserverpb.StatusResponse: // must work while nothing is confirmed, so that users can find the cause
		if c.Revision() == 0 { // otherwise the revision would go back after a restart
			err = c.Wait(ctx, 0)
		}
		c.limit(reply.GetHeader())
		return asStatus(ctx, err)
	case *grpc_health_v1.HealthCheckResponse:
		return nil
	}
	if failed == nil && header != nil {
		err = c.Wait(ctx, header.Revision)
	} else {
		err = c.WaitAll(ctx)
	}
	return asStatus(ctx, err)
}

// limit lowers the revision in a header to the last confirmed one, because the reply does not depend on later
// revisions.
func (c confirmed) limit(header *etcdserverpb.ResponseHeader) {
	header.Revision = min(header.Revision, c.Revision())
}

// asStatus converts an error from Wait or WaitAll to a gRPC status. As with any lost reply, the client does not know
// whether the request succeeded.
func asStatus(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	default:
		return status.Error(codes.Unavailable, err.Error())
	}
}
