package member

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// endless are the streams that end only when their client wants. etcd's close waits its whole request timeout for
// them, 7 s by default, and every API server holds hundreds.
var endless = map[string]bool{
	"/etcdserverpb.Watch/Watch":          true,
	"/etcdserverpb.Lease/LeaseKeepAlive": true,
	"/v3electionpb.Election/Observe":     true,
}

// drain ends endless streams when etcd is about to close.
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

// intercept gives endless streams a context that ends when the drain begins. Their clients are told Unavailable, on
// which etcd's client resumes at another member from the revision it has seen.
func (d *drain) intercept(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !endless[info.FullMethod] {
		return handler(service, stream)
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	err := handler(service, drainedStream{stream, ctx})
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
