package maintenance

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	from "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// The requests that maintenance has a word in.
const (
	snapshotMethod   = "/etcdserverpb.Maintenance/Snapshot"
	defragmentMethod = "/etcdserverpb.Maintenance/Defragment"
	moveLeaderMethod = "/etcdserverpb.Maintenance/MoveLeader"
	keepAliveMethod  = "/etcdserverpb.Lease/LeaseKeepAlive"
)

// Stream is for etcd's gRPC server: a client's snapshot is one of the readers of the whole database, and waits while that is
// defragmented.
func (k *Maintainer) Stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	switch info.FullMethod {
	case keepAliveMethod:
		return handler(service, unreserved{stream})
	case snapshotMethod:
	default:
		return handler(service, stream)
	}
	end, err := k.options.Gate.Begin(stream.Context(), "the snapshot for "+client(stream.Context()))
	if err != nil {
		return status.Error(codes.Unavailable, "etcd-wrapper: "+err.Error())
	}
	defer end()
	return handler(service, stream)
}

// Unary is for etcd's gRPC server: a client's defragmentation is refused where plain etcd would freeze, and while the database
// stands still, clients that try again by themselves are sent to another member.
func (k *Maintainer) Unary(ctx context.Context, asked any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	if err := k.refuseReserved(ctx, asked); err != nil {
		return nil, err
	}
	if info.FullMethod == defragmentMethod {
		return k.forClient(ctx, func() (any, error) { return handler(ctx, asked) })
	}
	if info.FullMethod == moveLeaderMethod {
		defer k.quietly(ctx, asked)()
	}
	if isRequest(info.FullMethod) {
		if err := k.away.elsewhere(ctx); err != nil {
			return nil, err
		}
	}
	if slices.Contains(writes, info.FullMethod) {
		if err := k.admit(ctx); err != nil {
			return nil, err
		}
		defer k.left()
	}
	return handler(ctx, asked)
}

// forClient defragments for a client. Whether it is worth it, and whether the others can do without this member, is for the
// client to know; what would freeze etcd, or two members at once, is refused.
func (k *Maintainer) forClient(ctx context.Context, handle func() (any, error)) (reply any, err error) {
	s := k.served()
	if s == nil || !s.cluster.permits(ctx) {
		return handle() // which refuses, or there is nobody yet to take turns with
	}
	if k.busy() { // to ask etcd for facts would have to wait
		return nil, refused(errUnderWay)
	}
	f := s.cluster.facts()
	if reading := f.beingRead(); reading != "" {
		return nil, refused(errors.New(reading))
	}
	r := request{origin: ByClient, do: func() error { reply, err = handle(); return err }}
	if !f.alone() && !f.grantsNoLease() && f.leader != 0 {
		r.seat = s.seat()
		defer r.seat.end(ctx)
	}
	var failed failure
	switch outcome := k.defragment(ctx, f, r); {
	case outcome == nil, errors.As(outcome, &failed):
		return reply, err
	default:
		return nil, refused(outcome)
	}
}

// refused is what a client is told that has to wait.
func refused(why error) error {
	return status.Error(codes.FailedPrecondition, "etcd-wrapper: not defragmented: "+why.Error())
}

func client(ctx context.Context) string {
	if who, ok := from.FromContext(ctx); ok && who.Addr != nil {
		return who.Addr.String()
	}
	return "a client"
}

// isRequest reports whether a method is one of those that need the database.
func isRequest(method string) bool {
	return strings.HasPrefix(method, "/etcdserverpb.KV/") || strings.HasPrefix(method, "/etcdserverpb.Lease/")
}

// hold is how long a request waits before its client is sent elsewhere. etcd's client tries a hundred times, so that one
// that has no other member to turn to gives up only after 20 s.
const hold = 200 * time.Millisecond

// errElsewhere has etcd's own client, and so every API server, try another member at once: by these words, of code
// Unavailable, it knows that nothing has been done. Nothing else makes it try a write again.
var errElsewhere = status.Error(codes.Unavailable, "there is no connection available")

// away is a time in which requests had better not go to this member, or not yet. Each request looks at it, so that it is
// read without a lock; one goroutine at a time begins one.
type away struct{ period atomic.Pointer[period] }

type period struct {
	why  string
	over chan struct{}
}

func (a *away) begin(why string) (end func()) {
	p := &period{why: why, over: make(chan struct{})}
	a.period.Store(p)
	return func() {
		a.period.Store(nil)
		close(p.over)
	}
}

// over is closed at the end of the time; nil if there is none.
func (a *away) over() <-chan struct{} {
	if p := a.period.Load(); p != nil {
		return p.over
	}
	return nil
}

// elsewhere sends away a client that is known to try elsewhere by itself. All others wait, as with plain etcd.
func (a *away) elsewhere(ctx context.Context) error {
	over := a.over()
	if over == nil || len(metadata.ValueFromIncomingContext(ctx, rpctypes.MetadataClientAPIVersionKey)) == 0 {
		return nil
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-time.After(hold):
		return errElsewhere
	}
}

// Away says why clients should turn to other members now; empty if they need not, or there are none.
func (k *Maintainer) Away() string {
	if p := k.away.period.Load(); p != nil {
		return p.why
	}
	return ""
}
