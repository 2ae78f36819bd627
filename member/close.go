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

// Close stops etcd and returns once etcd has fully stopped. opened is false if etcd has not opened the data. opened is
// also true if Open rejected the data, so that the caller does not treat the data as valid. Close returns an error if
// etcd did not shut down cleanly. Close has no timeout of its own, so the caller must enforce one.
func (m *Member) Close() (opened bool, err error) {
	if !m.opened {
		return false, nil
	}
	closed := make(chan error, 1)
	go func() { closed <- m.closeInOrder() }()
	select {
	case err := <-closed:
		if m.inert {
			return false, nil // Open has already returned the error
		}
		return true, err
	case <-m.crashed:
		return true, errCrashed
	}
}

// Drained returns how long it took to close the open client streams, or 0 if there were none. Call Drained only after
// Close.
func (m *Member) Drained() time.Duration { return time.Duration(m.drain.took.Load()) }

// describeClose describes what Close is waiting for, which on a leader includes the leadership transfer.
func (m *Member) describeClose(what string) string {
	server := m.etcd.Server
	if server.Leader() == server.MemberID() && len(server.Cluster().Members()) > 1 {
		return what + " and for another member to become the leader"
	}
	return what
}

func (m *Member) closeInOrder() error {
	m.doing.Store("opening the data directory, which cannot be interrupted")
	<-m.started
	defer m.doing.Store("")
	if m.etcd == nil {
		return m.startErr
	}
	hardStop := time.AfterFunc(m.options.CloseTimeout, m.etcd.Server.HardStop)
	defer hardStop.Stop()
	m.doing.Store(m.describeClose("waiting for database maintenance to finish"))
	if m.stopServing != nil {
		m.stopServing()
	}
	m.serving.Wait()
	first := m.describeClose("waiting for client requests to finish")
	m.doing.Store(first)
	closed := make(chan struct{})
	defer close(closed)
	m.drain.start()
	go m.watchClose(first, closed)
	if left := m.leave(); left || !isClosed(m.etcd.Server.ReadyNotify()) || !m.HasLeader() {
		// Without a quorum, or once this member has left the cluster, a normal close would wait for responses that
		// never arrive.
		m.etcd.Server.HardStop()
	}
	m.etcd.Close()
	m.starting.Wait()
	m.files.check(m.options.Log)
	return m.LostData()
}

// leaveReserve is the part of CloseTimeout that is reserved for closing etcd if the member cannot leave the cluster.
const leaveReserve = 5 * time.Second

// leave removes this member from the cluster if the cluster was scaled down, and reports whether the member has left.
// The removal may depend on this member's own vote: in a two-member cluster, neither member can remove the other on
// its own. If the member cannot leave in time, it stays in the member list.
func (m *Member) leave() bool {
	server := m.etcd.Server
	if m.options.Unwanted == nil || !isClosed(server.ReadyNotify()) || len(server.Cluster().Members()) == 1 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.options.CloseTimeout-leaveReserve)
	defer cancel()
	if !m.options.Unwanted(ctx) {
		return false
	}
	m.doing.Store("leaving the cluster because it was scaled down")
	left := func() bool { return server.Cluster().Member(server.MemberID()) == nil }
	retry(ctx, server, m.options.Log, stoppingPolicy, "remove this member from the scaled-down cluster", func(ctx context.Context) error {
		_, err := server.RemoveMember(ctx, uint64(server.MemberID()))
		if left() {
			return nil // the removal may have succeeded even though the response was lost
		}
		return err
	})
	if left() {
		m.options.Log.Info().Msg("left the cluster because it was scaled down")
	} else {
		m.options.Log.Warn().Stringer("member", server.MemberID()).
			Msg("cannot leave the cluster after it was scaled down: restart this member, or run \"etcdctl member remove\" with its ID")
	}
	return left()
}

// watchClose keeps Doing up to date while etcd is closing, and disconnects clients that delay the close because they
// do not read their responses. waits is the initial value of Doing.
func (m *Member) watchClose(waits string, closed <-chan struct{}) {
	doing, stopping := waits, m.etcd.Server.StoppingNotify()
	report := func(next string) {
		m.doing.CompareAndSwap(doing, next)
		doing = next
	}
	deadline := time.Now().Add(m.etcd.Server.Cfg.ReqTimeout())
	poll := time.NewTicker(drainPoll)
	defer poll.Stop()
	for {
		select {
		case <-closed:
			return
		case <-stopping:
			stopping = nil
			report("flushing the data to disk")
		case now := <-poll.C:
			if stalled := m.drain.unreadResponses(); len(stalled) > 0 {
				report(waits + "; " + strings.Join(stalled, "; "))
			}
			if m.drain.isExpired() || now.After(deadline) {
				m.drain.closeConnections(m.options.Log)
				<-closed
				return
			}
		}
	}
}

// endless lists the methods whose calls can run indefinitely, such as watches and locks. On close, etcd would wait
// for them until its request timeout (7 s by default) expires, and each API server has hundreds of open watches.
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
	stalledAfter = time.Second             // a send that blocks longer than this is stalled
	drainGrace   = 1500 * time.Millisecond // how long stalled requests may delay the close
	drainQuiet   = 2 * drainPoll           // pause after the last request that was not stalled, so that its response is sent

	largeResponse = 32 << 10 // in bytes; the client cannot block the sending of a smaller response
)

// drain finishes or cancels client requests before etcd closes.
//
// Endless requests are canceled. All other requests may continue until etcd's own shutdown timeout expires. Package
// maintenance transfers leadership before the drain, while all members hold back writes. If that fails, etcd
// transfers leadership only after clients have received their responses, because raft drops writes that arrive during
// a transfer.
//
// A client that does not read its response blocks the handler, even if the context is canceled. etcd waits for such a
// handler until its request timeout expires. With TLS, etcd waits forever, because grpc.Server.Stop waits for
// http.Server's handlers. Once the only requests left are from clients that do not read their responses, all
// connections are closed.
type drain struct {
	ctx     context.Context //nolint:containedctx // AfterFunc needs a context
	cancel  context.CancelFunc
	started time.Time    // start of the drain; written before ctx is canceled, and read only afterwards
	took    atomic.Int64 // time from started until the last endless request finished, in nanoseconds

	unaries atomic.Int64 // number of active unary handlers

	mu      sync.Mutex
	calls   map[*call]struct{}
	grpc    []*grpc.Server
	https   map[*http.Server]struct{} // servers for HTTP/2 over TLS
	running time.Time                 // last time at which a request was active and not stalled
}

// call is a request whose client may block the response by not reading it.
type call struct {
	method  string
	client  string
	sending atomic.Pointer[time.Time] // start of the current send; nil if none
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

// start cancels all endless requests. It must be called only once.
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

// track records the start of a call.
func (d *drain) track(ctx context.Context, method string) *call {
	c := &call{method: strings.TrimPrefix(method, "/etcdserverpb."), client: "unknown"}
	if p, ok := peer.FromContext(ctx); ok {
		c.client = p.Addr.String()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls[c] = struct{}{}
	if server, ok := ctx.Value(http.ServerContextKey).(*http.Server); ok {
		d.https[server] = struct{}{}
	}
	return c
}

// finish arranges for c to be removed once gRPC cancels the call's context. With TLS, that happens only after the
// response has been sent.
func (d *drain) finish(ctx context.Context, c *call) {
	now := time.Now()
	c.sending.Store(&now)
	context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.calls, c)
	})
}

// isUnread reports whether the call is stalled because the client is not reading the response.
func (c *call) isUnread() bool {
	since := c.sending.Load()
	return since != nil && time.Since(*since) >= stalledAfter
}

// unreadResponses describes each client that is not reading its response.
func (d *drain) unreadResponses() (clients []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.calls {
		if c.isUnread() {
			clients = append(clients, fmt.Sprintf("client %s is not reading the response to %s", c.client, c.method))
		}
	}
	slices.Sort(clients)
	return clients
}

// isExpired reports whether drainGrace has elapsed and all remaining requests are stalled.
func (d *drain) isExpired() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	active := d.unaries.Load() > 0
	for c := range d.calls {
		active = active || !c.isUnread()
	}
	if active {
		d.running = time.Now()
	}
	return time.Since(d.started) >= drainGrace && time.Since(d.running) >= drainQuiet
}

// closeConnections closes all client connections and logs the clients that have not read their responses.
func (d *drain) closeConnections(log zerolog.Logger) {
	for _, client := range d.unreadResponses() {
		log.Warn().Msgf("closing a connection so that etcd can stop: %s", client)
	}
	d.mu.Lock()
	servers, https := slices.Clone(d.grpc), maps.Keys(maps.Clone(d.https))
	d.mu.Unlock()
	for server := range https {
		_ = server.Close() // the listeners are already closed
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

// unavailable returns an error with code Unavailable if the drain has started, and err otherwise. After Unavailable,
// etcd's client resumes its watch on another member, starting after the last revision that it received.
func (d *drain) unavailable(err error) error {
	if d.ctx.Err() != nil {
		d.took.Store(int64(time.Since(d.started)))
		return status.Error(codes.Unavailable, "etcd is stopping")
	}
	return err
}

// drainedStream overrides the context of a stream and records when each send starts.
type drainedStream struct {
	grpc.ServerStream
	ctx  context.Context //nolint:containedctx // grpc.ServerStream.Context returns it
	call *call
}

func (s drainedStream) Context() context.Context { return s.ctx }

func (s drainedStream) SendMsg(message any) error {
	now := time.Now()
	s.call.sending.Store(&now)
	defer s.call.sending.Store(nil)
	return s.ServerStream.SendMsg(message)
}
