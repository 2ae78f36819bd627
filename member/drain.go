package member

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// endless are the requests that end only when their client wants, or another one lets go. etcd's close waits its whole
// request timeout for them, 7 s by default, and every API server holds hundreds of watches.
var endless = map[string]bool{
	"/etcdserverpb.Watch/Watch":          true,
	"/etcdserverpb.Lease/LeaseKeepAlive": true,
	"/v3electionpb.Election/Observe":     true,
	"/v3electionpb.Election/Campaign":    true,
	"/v3lockpb.Lock/Lock":                true,
}

// drain ends endless requests when etcd is about to close. All others have the time that etcd's close gives them. By then
// upkeep has given leadership away, while all members held their writes back. Where that was not possible, etcd's close does
// it when clients were sent away and have what they had asked for: raft would drop their writes the other way round.
type drain struct {
	ctx    context.Context //nolint:containedctx // it is the signal that AfterFunc waits for
	cancel context.CancelFunc
	began  time.Time    // set before ctx ends, read after
	took   atomic.Int64 // nanoseconds until the last stream so far had ended
}

func newDrain() *drain {
	ctx, cancel := context.WithCancel(context.Background())
	return &drain{ctx: ctx, cancel: cancel}
}

// begin is called once.
func (d *drain) begin() {
	d.began = time.Now()
	d.cancel()
}

// stream gives endless streams a context that ends when the drain begins.
func (d *drain) stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !endless[info.FullMethod] {
		return handler(service, stream)
	}
	ctx, end := d.until(stream.Context())
	defer end()
	return d.told(handler(service, drainedStream{stream, ctx}))
}

// unary does the same for endless requests with one reply.
func (d *drain) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !endless[info.FullMethod] {
		return handler(ctx, request)
	}
	ctx, end := d.until(ctx)
	defer end()
	reply, err := handler(ctx, request)
	if err != nil {
		err = d.told(err)
	}
	return reply, err
}

func (d *drain) until(ctx context.Context) (drained context.Context, end func()) {
	drained, cancel := context.WithCancel(ctx)
	release := context.AfterFunc(d.ctx, cancel)
	return drained, func() {
		release()
		cancel()
	}
}

// told is the error for a client whose request has ended. Unavailable has etcd's client resume at another member, from
// the revision it has seen.
func (d *drain) told(err error) error {
	if d.ctx.Err() != nil {
		d.took.Store(int64(time.Since(d.began)))
		return status.Error(codes.Unavailable, "etcd is stopping")
	}
	return err
}

// drainedStream is a stream with a context of our own.
type drainedStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // gRPC hands a stream's context out this way
}

func (s drainedStream) Context() context.Context { return s.ctx }
