package member

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Close ends etcd and returns when nothing of it runs any more. opened says whether it ever touched the data, or they
// were found unfit; an error means that it was not closed in order. It takes as long as etcd does: the caller bounds it.
func (m *Member) Close() (opened bool, err error) {
	if !m.opened {
		return false, nil
	}
	closed := make(chan error, 1)
	go func() { closed <- m.closeInOrder() }()
	select {
	case err := <-closed:
		if m.inert {
			return false, nil // Open has said why
		}
		return true, err
	case <-m.crashed:
		return true, errCrashed
	}
}

// Drained returns how long the clients' endless streams took to end; 0 if there were none. It is for after Close.
func (m *Member) Drained() time.Duration { return time.Duration(m.drain.took.Load()) }

// farewell is what a close waits for, with what a leader of others waits for besides.
func (m *Member) farewell(what string) string {
	server := m.etcd.Server
	if server.Leader() == server.MemberID() && len(server.Cluster().Members()) > 1 {
		return what + ", and for another member to take its leadership over"
	}
	return what
}

func (m *Member) closeInOrder() error {
	m.doing.Store("cannot be closed before its data is open")
	<-m.started
	defer m.doing.Store("")
	if m.etcd == nil {
		return m.startErr
	}
	impatient := time.AfterFunc(m.options.ClosePatience, m.etcd.Server.HardStop)
	defer impatient.Stop()
	m.doing.Store(m.farewell("waits for what looks after its database to end"))
	m.keeping.end()
	first := m.farewell("waits for its clients' requests to end")
	m.doing.Store(first)
	closed := make(chan struct{})
	defer close(closed)
	go m.tellOfTheDisk(first, closed)
	m.drain.begin()
	if left := m.leave(); left || !m.ready() || !m.HasLeader() {
		// Without a quorum, or a place in it, etcd's own close would wait for answers that cannot come.
		m.etcd.Server.HardStop()
	}
	m.etcd.Close()
	m.catchingUp.Wait()
	return nil
}

// leaveReserve is what is left of ClosePatience for the close of a member that cannot leave.
const leaveReserve = 5 * time.Second

// leave has the cluster go on without a member that is not wanted any more. While it asks, it is one of those that have to agree: of two,
// neither can let the other go alone. What has not left when the time is up stays a member that is down.
func (m *Member) leave() bool {
	if m.options.Unwanted == nil || !m.ready() || len(m.etcd.Server.Cluster().Members()) == 1 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.options.ClosePatience-leaveReserve)
	defer cancel()
	if !m.options.Unwanted(ctx) {
		return false
	}
	m.doing.Store("waits for its cluster to go on without it, as fewer members are wanted")
	server := m.etcd.Server
	left := func() bool { return server.Cluster().Member(server.MemberID()) == nil }
	m.insist(ctx, hurried, "fewer members are wanted: the cluster is to go on without this one", func(ctx context.Context) error {
		_, err := server.RemoveMember(ctx, uint64(server.MemberID()))
		if left() {
			return nil // an answer may be lost
		}
		return err
	})
	if left() {
		m.options.Log.Info().Msg("this member has left its cluster, as fewer members are wanted")
	} else {
		m.options.Log.Warn().Stringer("member", server.MemberID()).
			Msg("this member could not leave its cluster, though fewer members are wanted: start it again, or have it removed with etcdctl member remove")
	}
	return left()
}

// tellOfTheDisk says when all that a close still waits for is the disk.
func (m *Member) tellOfTheDisk(first string, closed <-chan struct{}) {
	select {
	case <-m.etcd.Server.StoppingNotify():
		m.doing.CompareAndSwap(first, "writes its data to the disk and closes it")
	case <-closed:
	}
}

func (m *Member) ready() bool {
	select {
	case <-m.etcd.Server.ReadyNotify():
		return true
	default:
		return false
	}
}

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
// maintenance has given leadership away, while all members held their writes back. Where that was not possible, etcd's close does
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
