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

// Methods that the interceptors handle specially.
const (
	snapshotMethod   = "/etcdserverpb.Maintenance/Snapshot"
	defragmentMethod = "/etcdserverpb.Maintenance/Defragment"
	moveLeaderMethod = "/etcdserverpb.Maintenance/MoveLeader"
	keepAliveMethod  = "/etcdserverpb.Lease/LeaseKeepAlive"
)

// Stream is an interceptor for etcd's gRPC server. Stream makes client snapshots acquire the Gate, which blocks them
// during a defragmentation.
func (k *Maintainer) Stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	switch info.FullMethod {
	case keepAliveMethod:
		return handler(service, reservedFilter{stream, k.checkReserved})
	case snapshotMethod:
	default:
		return handler(service, stream)
	}
	end, err := k.options.Gate.Acquire(stream.Context(), "the snapshot for "+client(stream.Context()))
	if err != nil {
		return status.Error(codes.Unavailable, "etcd-wrapper: "+err.Error())
	}
	defer end()
	return handler(service, stream)
}

// Unary is an interceptor for etcd's gRPC server. Unary coordinates defragmentations and leadership transfers
// requested by clients, and redirects clients while the database is blocked.
func (k *Maintainer) Unary(ctx context.Context, message any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	if err := k.checkReserved(ctx, message); err != nil {
		return nil, err
	}
	if info.FullMethod == defragmentMethod {
		return k.defragmentForClient(ctx, func() (any, error) { return handler(ctx, message) })
	}
	if info.FullMethod == moveLeaderMethod {
		defer k.pauseWritesForClient(ctx, message)()
	}
	if isRequest(info.FullMethod) {
		if err := k.redirecting.redirect(ctx); err != nil {
			return nil, err
		}
	}
	if slices.Contains(writes, info.FullMethod) {
		if err := k.startWrite(ctx); err != nil {
			return nil, err
		}
		defer k.finishWrite()
	}
	return handler(ctx, message)
}

// defragmentForClient runs a defragmentation requested by a client, who decides whether it is worthwhile and whether
// the other members have a quorum. A request is rejected while the database is being read or another member is being
// defragmented.
func (k *Maintainer) defragmentForClient(ctx context.Context, handle func() (any, error)) (reply any, err error) {
	s := k.serving.Load()
	if s == nil || !s.cluster.isAdmin(ctx) {
		return handle() // etcd rejects the request, or no coordination is needed yet
	}
	if k.busy() { // reading facts blocks
		return nil, waitError(errUnderWay)
	}
	f := s.cluster.facts()
	if reading := f.readReason(); reading != "" {
		return nil, waitError(errors.New(reading))
	}
	r := request{origin: ByClient, do: func() error { reply, err = handle(); return err }}
	if !f.isSingle() && !f.leasesDisabled() && f.leader != 0 {
		r.schedule = s.newSchedule()
		defer r.schedule.release(ctx)
	}
	outcome := k.defragment(ctx, f, r)
	if _, started := errors.AsType[failure](outcome); started || outcome == nil {
		return reply, err
	}
	return nil, waitError(outcome)
}

// waitError returns an error that tells a client what to wait for.
func waitError(why error) error {
	return status.Error(codes.FailedPrecondition, "etcd-wrapper: cannot defragment: "+why.Error())
}

func client(ctx context.Context) string {
	if who, ok := from.FromContext(ctx); ok && who.Addr != nil {
		return who.Addr.String()
	}
	return "a client"
}

// isRequest reports whether a method may be redirected to another member.
func isRequest(method string) bool {
	return strings.HasPrefix(method, "/etcdserverpb.KV/") || strings.HasPrefix(method, "/etcdserverpb.Lease/")
}

// redirectAfter delays each redirection. etcd's client retries a hundred times, so a client without another endpoint
// gives up only after 20 s.
const redirectAfter = 200 * time.Millisecond

// errElsewhere makes etcd's client, and therefore every API server, retry immediately on another endpoint: code
// Unavailable with this message means that the request had no effect. After any other error, the client does not
// retry writes.
var errElsewhere = status.Error(codes.Unavailable, "there is no connection available")

// pause is a period in which requests wait or are redirected. Reads are lock-free, because every request reads it.
// Only one goroutine at a time may set it.
type pause struct{ period atomic.Pointer[period] }

// period is a time span in which requests or readers wait.
type period struct {
	why  string
	over chan struct{}
}

func (a *pause) begin(why string) (end func()) {
	p := &period{why: why, over: make(chan struct{})}
	a.period.Store(p)
	return func() {
		a.period.Store(nil)
		close(p.over)
	}
}

// endNotify returns a channel that is closed when the current pause ends, or nil if there is no pause.
func (a *pause) endNotify() <-chan struct{} {
	if p := a.period.Load(); p != nil {
		return p.over
	}
	return nil
}

// redirect returns errElsewhere for clients that are known to retry on another endpoint. Other clients wait, as with
// plain etcd.
func (a *pause) redirect(ctx context.Context) error {
	over := a.endNotify()
	if over == nil || len(metadata.ValueFromIncomingContext(ctx, rpctypes.MetadataClientAPIVersionKey)) == 0 {
		return nil
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-time.After(redirectAfter):
		return errElsewhere
	}
}

// RedirectReason returns why clients are being redirected to other members, or "" if they are not.
func (k *Maintainer) RedirectReason() string {
	if p := k.redirecting.period.Load(); p != nil {
		return p.why
	}
	return ""
}
