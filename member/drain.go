package member

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// endless lists the requests that end only when their client ends them, or when another client releases something.
// etcd's close waits its whole request timeout for them, 7 s by default, and every API server holds hundreds of
// watches.
var endless = map[string]bool{
	"/etcdserverpb.Watch/Watch":          true,
	"/etcdserverpb.Lease/LeaseKeepAlive": true,
	"/v3electionpb.Election/Observe":     true,
	"/v3electionpb.Election/Campaign":    true,
	"/v3lockpb.Lock/Lock":                true,
	"/grpc.health.v1.Health/Watch":       true,
}

const (
	drainPoll    = 100 * time.Millisecond
	stalledAfter = time.Second             // a send that blocks for longer counts as stalled
	drainGrace   = 1500 * time.Millisecond // time for which stalled requests may delay a close
	drainQuiet   = 2 * drainPoll           // minimum time without other running requests, so that their responses can be sent

	largeResponse = 32 << 10 // in bytes; a smaller response never waits for its client
)

// drain ends the requests of clients when etcd is about to close.
//
// The contexts of endless requests are canceled. All other requests have as much time as etcd's close gives them.
// Before that, package maintenance transferred the leadership while all members held back their writes. If the
// transfer was not possible, etcd's close transfers the leadership after clients have received their responses; in
// the opposite order, raft would drop their writes.
//
// A client that does not read its response blocks the handler that sends it, and canceling a context does not help.
// etcd waits its request timeout for the handler. With TLS it waits forever, because grpc.Server.Stop waits for the
// handlers of http.Server. Once all remaining requests belong to such clients, drain closes the connections.
type drain struct {
	ctx     context.Context //nolint:containedctx // it is the signal that AfterFunc waits for
	cancel  context.CancelFunc
	started time.Time    // set before ctx is done, read after
	took    atomic.Int64 // nanoseconds until the last of the endless requests ended

	unaries atomic.Int64 // number of running handlers of unary requests

	mu      sync.Mutex
	calls   map[*call]struct{}
	grpc    []*grpc.Server
	https   map[*http.Server]struct{} // with TLS, these servers handle HTTP/2
	running time.Time                 // when a request that is not stalled was last seen
}

// call is a request whose response may wait for its client.
type call struct {
	method  string
	client  string
	sending atomic.Pointer[time.Time] // start of the blocked send; nil if no send is blocked
}

func newDrain() *drain {
	ctx, cancel := context.WithCancel(context.Background())
	return &drain{ctx: ctx, cancel: cancel, calls: map[*call]struct{}{}, https: map[*http.Server]struct{}{}}
}

// register adds one of etcd's gRPC servers.
func (d *drain) register(server *grpc.Server) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.grpc = append(d.grpc, server)
}

// start ends the endless requests. It is called once.
func (d *drain) start() {
	d.started = time.Now()
	d.cancel()
}

// stream implements grpc.StreamServerInterceptor.
func (d *drain) stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c := d.track(stream.Context(), info.FullMethod)
	defer d.finish(stream.Context(), c)
	if !endless[info.FullMethod] {
		return handler(service, drainedStream{stream, stream.Context(), c})
	}
	ctx, release := d.withDrain(stream.Context())
	defer release()
	return d.unavailable(handler(service, drainedStream{stream, ctx, c}))
}

// unary implements grpc.UnaryServerInterceptor.
func (d *drain) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if endless[info.FullMethod] {
		ctx, release := d.withDrain(ctx)
		defer release()
		reply, err := handler(ctx, request)
		if err != nil {
			err = d.unavailable(err)
		}
		return reply, err
	}
	d.unaries.Add(1)
	defer d.unaries.Add(-1)
	reply, err := handler(ctx, request)
	if sized, ok := reply.(interface{ Size() int }); ok && err == nil && sized.Size() >= largeResponse {
		d.finish(ctx, d.track(ctx, info.FullMethod))
	}
	return reply, err
}

// track adds a call.
func (d *drain) track(ctx context.Context, method string) *call {
	c := &call{method: strings.TrimPrefix(method, "/etcdserverpb."), client: "unknown"}
	if from, ok := peer.FromContext(ctx); ok {
		c.client = from.Addr.String()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls[c] = struct{}{}
	if server, ok := ctx.Value(http.ServerContextKey).(*http.Server); ok {
		d.https[server] = struct{}{}
	}
	return c
}

// finish removes a call whose handler has returned. It waits until gRPC ends the call's context, which over TLS
// happens after the response was sent.
func (d *drain) finish(ctx context.Context, c *call) {
	now := time.Now()
	c.sending.Store(&now)
	context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.calls, c)
	})
}

// isUnread reports whether the client is not reading the response of the call.
func (c *call) isUnread() bool {
	since := c.sending.Load()
	return since != nil && time.Since(*since) >= stalledAfter
}

// unreadResponses describes the clients that are not reading their responses.
func (d *drain) unreadResponses() (clients []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.calls {
		if c.isUnread() {
			clients = append(clients, fmt.Sprintf("the client %s does not read its response to %s", c.client, c.method))
		}
	}
	slices.Sort(clients)
	return clients
}

// isExpired reports whether only stalled requests have delayed the close for drainGrace.
func (d *drain) isExpired() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	runs := d.unaries.Load() > 0
	for c := range d.calls {
		runs = runs || !c.isUnread()
	}
	if runs {
		d.running = time.Now()
	}
	return time.Since(d.started) >= drainGrace && time.Since(d.running) >= drainQuiet
}

// closeConnections closes the connections of all clients and logs the clients whose requests are cut off.
func (d *drain) closeConnections(log zerolog.Logger) {
	for _, client := range d.unreadResponses() {
		log.Warn().Msgf("etcd is stopping, and %s: its connection is closed", client)
	}
	d.mu.Lock()
	servers, https := slices.Clone(d.grpc), maps.Keys(maps.Clone(d.https))
	d.mu.Unlock()
	for server := range https {
		_ = server.Close() // etcd has already closed its listeners
	}
	for _, server := range servers {
		server.Stop()
	}
}

func (d *drain) withDrain(ctx context.Context) (drained context.Context, end func()) {
	drained, cancel := context.WithCancel(ctx)
	release := context.AfterFunc(d.ctx, cancel)
	return drained, func() {
		release()
		cancel()
	}
}

// unavailable returns the error for a client whose request was ended. etcd's client then resumes on another member,
// from the last revision that it received.
func (d *drain) unavailable(err error) error {
	if d.ctx.Err() != nil {
		d.took.Store(int64(time.Since(d.started)))
		return status.Error(codes.Unavailable, "etcd is stopping")
	}
	return err
}

// drainedStream is a stream with its own context that observes blocked sends.
type drainedStream struct {
	grpc.ServerStream
	ctx  context.Context //nolint:containedctx // gRPC hands a stream's context out this way
	call *call
}

func (s drainedStream) Context() context.Context { return s.ctx }

func (s drainedStream) SendMsg(message any) error {
	now := time.Now()
	s.call.sending.Store(&now)
	defer s.call.sending.Store(nil)
	return s.ServerStream.SendMsg(message)
}
