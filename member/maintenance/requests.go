package maintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"etcd-wrapper/member/state"
)

// Methods for which the interceptors have special handling.
const (
	snapshotMethod   = "/etcdserverpb.Maintenance/Snapshot"
	defragmentMethod = "/etcdserverpb.Maintenance/Defragment"
	moveLeaderMethod = "/etcdserverpb.Maintenance/MoveLeader"
	keepAliveMethod  = "/etcdserverpb.Lease/LeaseKeepAlive"
)

// Stream is an interceptor for etcd's gRPC server. It makes client snapshots acquire the Gate, so that they wait for
// defragmentations to finish.
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

// Unary is an interceptor for etcd's gRPC server. It coordinates defragmentations and leadership transfers requested
// by clients, and redirects clients while the database is blocked.
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
	if isRedirectable(info.FullMethod) {
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

// defragmentForClient runs a defragmentation requested by a client. It is up to the client to check that the
// defragmentation is worthwhile and that the other members have a quorum. The request is rejected while the whole
// database is being read or another member is being defragmented.
func (k *Maintainer) defragmentForClient(ctx context.Context, handle func() (any, error)) (reply any, err error) {
	s := k.serving.Load()
	if s == nil || !s.cluster.isAdmin(ctx) {
		return handle() // before Run, there is nothing to coordinate; without permission, etcd rejects the request
	}
	if k.busy() { // during a defragmentation, reading the facts would block
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

// waitError returns a gRPC error that describes what the client has to wait for.
func waitError(why error) error {
	return status.Error(codes.FailedPrecondition, "etcd-wrapper: cannot defragment: "+why.Error())
}

func client(ctx context.Context) string {
	if p, ok := grpcpeer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return "a client"
}

// isRedirectable reports whether any member can handle requests of this method.
func isRedirectable(method string) bool {
	return strings.HasPrefix(method, "/etcdserverpb.KV/") || strings.HasPrefix(method, "/etcdserverpb.Lease/")
}

// redirectAfter delays each redirection. etcd's client retries a hundred times, so even a client without another
// endpoint keeps trying for 20 s.
const redirectAfter = 200 * time.Millisecond

// errElsewhere makes etcd's client, and therefore every API server, retry immediately on another endpoint. Code
// Unavailable with this message tells the client that the request had no effect. After any other error, the client
// does not retry writes.
var errElsewhere = status.Error(codes.Unavailable, "there is no connection available")

// pause controls whether requests have to wait or are redirected. Checking it is lock-free, because every request does
// so. Only one goroutine at a time may call begin.
type pause struct{ period atomic.Pointer[period] } // nil while requests proceed

// period is a time span during which requests or readers wait.
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

// redirect returns errElsewhere, after a delay, if the pause continues and the client is known to retry on another
// endpoint. Otherwise, it returns nil, and the request waits in etcd while the database is blocked.
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

// Gate prevents defragmentations while the whole database is being read, and vice versa. A defragmentation holds all
// of the database's locks while it waits for open read transactions, so a single slow reader, such as a client that
// does not read the snapshot it requested, would block all of the member's reads and writes.
//
// Client snapshots, backups and verifications call Acquire, because they hold a read transaction for a long time. A
// defragmentation calls Close. Any number of readers may hold the Gate at the same time. The zero Gate is open. All
// methods are safe for concurrent use.
type Gate struct {
	mu      sync.Mutex
	readers []*state.DatabaseReader
	closed  *period // nil while the gate is open
}

// describeReaders describes the readers that a defragmentation has to wait for.
func describeReaders(readers []state.DatabaseReader) string {
	names := make([]string, len(readers))
	for i, reader := range readers {
		names[i] = fmt.Sprintf("%s (since %s)", reader.Name, reader.Since.UTC().Format("15:04:05Z"))
	}
	return "the database is being read: wait for " + strings.Join(names, " and ") + " to finish"
}

// Acquire admits a reader, and blocks while the gate is closed. what is a noun phrase that describes the reader. The
// reader must call end once its read transaction is closed, and should not wait for the network until then. end may
// be called more than once. If ctx is done first, the error contains the reason passed to Close.
func (g *Gate) Acquire(ctx context.Context, what string) (end func(), err error) {
	for {
		reader, closed := g.enter(what)
		if closed == nil {
			return sync.OnceFunc(func() { g.leave(reader) }), nil
		}
		select {
		case <-closed.over:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s gave up waiting for %s: %w", what, closed.why, ctx.Err())
		}
	}
}

func (g *Gate) enter(what string) (*state.DatabaseReader, *period) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		return nil, g.closed
	}
	reader := &state.DatabaseReader{Name: what, Since: time.Now()}
	g.readers = append(g.readers, reader)
	return reader, nil
}

func (g *Gate) leave(reader *state.DatabaseReader) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.readers = slices.DeleteFunc(g.readers, func(r *state.DatabaseReader) bool { return r == reader })
}

// Close closes the gate if it is open and has no readers. Close never blocks. why is a noun phrase such as "a
// defragmentation". The caller must call open afterwards, and may call it more than once. If the gate cannot be
// closed, the error describes what to wait for.
func (g *Gate) Close(why string) (open func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed != nil:
		return nil, fmt.Errorf("%s is in progress; wait for it to finish", g.closed.why)
	case len(g.readers) > 0:
		return nil, errors.New(describeReaders(g.inside()))
	}
	g.closed = &period{why: why, over: make(chan struct{})}
	return sync.OnceFunc(g.open), nil
}

func (g *Gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.closed.over)
	g.closed = nil
}

// Inside returns the current readers, longest-running first.
func (g *Gate) Inside() []state.DatabaseReader {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inside()
}

func (g *Gate) inside() (readers []state.DatabaseReader) {
	for _, reader := range g.readers {
		readers = append(readers, *reader)
	}
	return readers
}
