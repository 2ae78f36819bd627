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

// Confirmation waits until backups are stored. With it, a reply leaves the member only after the store has
// everything that the reply depends on.
type Confirmation interface {
	// Wait returns nil once the store has the revision and is known to belong to this cluster.
	Wait(ctx context.Context, revision int64) error
	// WaitAll returns nil once the store has all changes made before the call, with or without a revision.
	WaitAll(ctx context.Context) error
	// Revision returns the last confirmed revision; 0 if there is none.
	Revision() int64
}

// confirmed holds back replies until the store has everything that they depend on. It does not apply to etcd's own
// clients in this process; the replies of Lock and Election, which use such a client, do pass through it.
type confirmed struct{ Confirmation }

// ErrSeveralMembers reports that the data belongs to a cluster of several members.
var ErrSeveralMembers = errors.New("--backup-ack=stored is for clusters of one member, and this member's data has several: " +
	"start with --backup-ack=local, or remove the other members first")

// errAdds rejects a second member, whose replies would not wait for the store.
var errAdds = status.Error(codes.FailedPrecondition,
	"--backup-ack=stored is for clusters of one member: restart with --backup-ack=local before you add members")

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

// confirmedStream waits before each message. etcd sends the messages of a stream sequentially, so their order is
// preserved.
type confirmedStream struct {
	grpc.ServerStream
	confirmed

	snapshot bool // the first part of a snapshot was sent; the remaining parts are equally old
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

// await waits until the store has everything that a reply depends on. The reply to a request for keys depends on
// its revision. All other replies, and errors, may depend on any state of etcd, because leases, users and
// compactions change without a revision.
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
		if !reply.Canceled { // otherwise the error may be caused by a compaction
			header = reply.GetHeader()
		}
	case *etcdserverpb.LeaseKeepAliveResponse:
		if reply.TTL > 0 { // a lease must not expire because something else must be stored first
			err = c.Wait(ctx, 0)
			c.limit(reply.GetHeader())
			return asStatus(ctx, err)
		}
	case *etcdserverpb.StatusResponse: // lets users find out why nothing is confirmed anymore
		if c.Revision() == 0 { // after a restart, the revision would be lower than before
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

// limit hides a revision that the reply does not depend on.
func (c confirmed) limit(header *etcdserverpb.ResponseHeader) {
	header.Revision = min(header.Revision, c.Revision())
}

// asStatus returns the error of a wait as a gRPC status. As always with etcd, a client whose reply is lost does not
// know the outcome.
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
