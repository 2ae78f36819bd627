package member

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/auth"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3compactor"
	"go.etcd.io/raft/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"etcd-wrapper/internal/clock"
	"etcd-wrapper/member/state"
)

// requests counts client requests and measures their durations. etcd itself measures the full duration of a write only
// if its extensive metrics are enabled.
type requests struct{ writes, reads counter }

type counter struct{ count, nanoseconds atomic.Int64 }

func (c *counter) total() state.Requests {
	return state.Requests{Count: c.count.Load(), Took: time.Duration(c.nanoseconds.Load())}
}

// unary implements grpc.UnaryServerInterceptor.
func (r *requests) unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	var kind *counter
	switch request.(type) {
	case *etcdserverpb.PutRequest, *etcdserverpb.DeleteRangeRequest, *etcdserverpb.TxnRequest:
		kind = &r.writes
	case *etcdserverpb.RangeRequest:
		kind = &r.reads
	default:
		return handler(ctx, request)
	}
	start := time.Now()
	reply, err := handler(ctx, request)
	if err == nil {
		kind.nanoseconds.Add(int64(time.Since(start)))
		kind.count.Add(1)
	}
	return reply, err
}

const (
	// electionWait limits how long a dropped write is retried. With etcd's default timeouts, an election takes one to
	// two seconds, and a leadership transfer takes a few milliseconds.
	electionWait = 3 * time.Second
	// retryPause is the pause between attempts.
	retryPause = 10 * time.Millisecond
)

// retryDropped is an interceptor that retries writes that raft dropped. raft drops proposals while there is no leader.
// Clients must not retry these writes themselves, because etcd's error does not exclude that the write took effect. A
// retry by the interceptor is safe, because a dropped write was never proposed.
func retryDropped(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	proposesOnce := strings.HasPrefix(info.FullMethod, "/etcdserverpb.KV/") || strings.HasPrefix(info.FullMethod, "/etcdserverpb.Lease/")
	for deadline := (time.Time{}); ; {
		reply, err := handler(ctx, request)
		if deadline.IsZero() { // not set earlier, because the first call may have waited for a leader
			deadline = time.Now().Add(electionWait)
		}
		if !isDropped(err) || !proposesOnce || !time.Now().Before(deadline) {
			return reply, err
		}
		if err := clock.Sleep(ctx, retryPause); err != nil {
			return nil, status.FromContextError(err).Err()
		}
	}
}

// isDropped reports whether raft dropped the proposal. It compares strings, because etcd preserves only the error
// message.
func isDropped(err error) bool {
	return err != nil && status.Code(err) == codes.Unknown && status.Convert(err).Message() == raft.ErrProposalDropped.Error()
}

// autoCompaction contains the auto-compaction settings from etcd's configuration. If Options.BeforeCompaction is set,
// the member runs etcd's compactor itself. etcd cannot call a function before a compaction, so with a short retention,
// it would remove revisions that the backups have not read yet.
type autoCompaction struct {
	mode      string
	retention time.Duration // a number of revisions if mode is "revision"
}

// takeAutoCompaction disables auto-compaction in etcd's configuration and returns the original settings.
func takeAutoCompaction(config *embed.Config) autoCompaction {
	retention, err := parseRetention(config.AutoCompactionMode, config.AutoCompactionRetention)
	if err != nil || retention == 0 {
		return autoCompaction{} // disabled or invalid; etcd reports an invalid retention
	}
	config.AutoCompactionRetention = "0"
	return autoCompaction{mode: config.AutoCompactionMode, retention: retention}
}

// parseRetention parses a retention as etcd does: a plain number means hours or revisions, depending on the mode.
func parseRetention(mode, text string) (time.Duration, error) {
	number, err := strconv.Atoi(text)
	switch {
	case text == "":
		return 0, nil
	case err != nil || number < 0:
		return time.ParseDuration(text)
	case mode == embed.CompactorModePeriodic:
		return time.Duration(number) * time.Hour, nil
	default:
		return time.Duration(number), nil
	}
}

// run runs etcd's compactor until ctx is done.
func (a autoCompaction) run(ctx context.Context, server *etcdserver.EtcdServer, options Options) {
	compactor, err := v3compactor.New(server.Logger(), a.mode, a.retention, server.KV(), readFirst{server, options.BeforeCompaction})
	if err != nil {
		options.Log.Error().Err(err).Msg("cannot start auto-compaction")
		return
	}
	compactor.Run()
	defer compactor.Stop()
	for ctx.Err() == nil {
		changed := server.LeaderChangedNotify()
		if server.Leader() == server.MemberID() { // as in etcd, only the leader compacts
			compactor.Resume()
		} else {
			compactor.Pause()
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// readFirst calls read, which gives the backup writer time to read revisions, before each compaction.
type readFirst struct {
	server *etcdserver.EtcdServer
	read   func(context.Context)
}

// Compact implements v3compactor.Compactable.
func (r readFirst) Compact(ctx context.Context, request *etcdserverpb.CompactionRequest) (*etcdserverpb.CompactionResponse, error) {
	readBefore(ctx, r.read)
	return r.server.Compact(ctx, request)
}

// compactionWait limits how long a compaction waits for the backup writer to read the revisions about to be removed.
// Reading normally takes milliseconds. If it takes too long, the next backup must be a full snapshot. Compactions are
// rare and do not delay other requests.
const compactionWait = 3 * time.Second

// beforeCompaction returns an interceptor that calls read before each client compaction. Auto-compaction uses
// readFirst instead.
func beforeCompaction(read func(context.Context)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if info.FullMethod == "/etcdserverpb.KV/Compact" {
			readBefore(ctx, read)
		}
		return handler(ctx, request)
	}
}

// readBefore calls read with a timeout of compactionWait.
func readBefore(ctx context.Context, read func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, compactionWait)
	defer cancel()
	read(ctx)
}

// Confirmation waits for changes to be stored, so that no client ever receives a reply that depends on data missing
// from the store.
type Confirmation interface {
	// Wait returns nil once the revision is in the store and the store is known to belong to this cluster.
	Wait(ctx context.Context, revision int64) error
	// WaitAll returns nil once all changes made before the call are in the store, including those without a revision.
	WaitAll(ctx context.Context) error
	// Revision returns the last confirmed revision, or 0 if there is none.
	Revision() int64
}

// confirmed delays each reply until the store has all data that the reply depends on. Requests from etcd's in-process
// clients are not intercepted. The Lock and Election services use such a client, but their own replies are delayed.
type confirmed struct{ Confirmation }

// ErrSeveralMembers is returned if the data belongs to a multi-member cluster.
var ErrSeveralMembers = errors.New("--backup-ack=stored supports only single-member clusters, but this data belongs to a multi-member cluster: " +
	"start with --backup-ack=local, or remove the other members first")

// errMemberAdd rejects the addition of a second member, because that member's replies would not wait for the store.
var errMemberAdd = status.Error(codes.FailedPrecondition,
	"--backup-ack=stored supports only single-member clusters: restart with --backup-ack=local before you add members")

// unary implements grpc.UnaryServerInterceptor.
func (c confirmed) unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, adds := request.(*etcdserverpb.MemberAddRequest); adds {
		return nil, errMemberAdd
	}
	reply, err := handler(ctx, request)
	if awaitErr := c.await(ctx, reply, err); awaitErr != nil {
		return nil, awaitErr
	}
	return reply, err
}

// stream implements grpc.StreamServerInterceptor.
func (c confirmed) stream(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(service, &confirmedStream{ServerStream: stream, confirmed: c})
}

// confirmedStream waits before sending each message. This preserves the order of messages, because etcd sends them
// one at a time.
type confirmedStream struct {
	grpc.ServerStream
	confirmed

	snapshot bool // the first chunk of a snapshot has been sent; the other chunks need not wait
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

// await waits until the store has all data that a reply depends on. A reply to a KV request depends on the revision
// in its header. Any other reply, and any error, may depend on state without a revision, such as leases, users and
// compactions.
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
		if !reply.Canceled { // a cancellation may be due to a compaction, which has no revision to wait for
			header = reply.GetHeader()
		}
	case *etcdserverpb.LeaseKeepAliveResponse:
		if reply.TTL > 0 { // a lease must not expire because unrelated data has not been stored yet
			err = c.Wait(ctx, 0)
			c.limit(reply.GetHeader())
			return asStatus(ctx, err)
		}
	case *etcdserverpb.StatusResponse: // for troubleshooting, must not wait until the store has all data
		if c.Revision() == 0 { // otherwise, clients would see revision 0 after a restart
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

// limit caps the revision in a header at the last confirmed revision, because the reply does not depend on any later
// one.
func (c confirmed) limit(header *etcdserverpb.ResponseHeader) {
	header.Revision = min(header.Revision, c.Revision())
}

// asStatus converts an error from Wait or WaitAll to a gRPC status. To the client, it looks like a lost reply: the
// request may or may not have succeeded.
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

const (
	rootUser    = "root"                 // name of both the superuser and its role
	rootTimeout = 5 * time.Second        // timeout of each attempt to create the user
	rootPause   = 100 * time.Millisecond // pause between attempts
	// leaderWait limits how long a follower waits for the leader to create the user, which never happens if the leader
	// has no password. After that, the follower creates the user.
	leaderWait = 10 * time.Second
)

// rootAuth creates the root user in an empty cluster and enables authentication. Until then, clients are rejected so
// that none can write anonymously. A cluster that has keys or other users is not changed, because authentication may
// be disabled on purpose.
type rootAuth struct {
	password string
	log      zerolog.Logger
	decided  atomic.Bool // clients may be served
}

var errNoRootYet = status.Error(codes.Unavailable, "etcd-wrapper: authentication has not been enabled yet; retry")

// unary implements grpc.UnaryServerInterceptor.
func (r *rootAuth) unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !r.decided.Load() {
		return nil, errNoRootYet
	}
	return handler(ctx, request)
}

// stream implements grpc.StreamServerInterceptor.
func (r *rootAuth) stream(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !r.decided.Load() {
		return errNoRootYet
	}
	return handler(server, stream)
}

// awaitRoot returns nil once authentication is enabled or the cluster is known not to be empty.
func (m *Member) awaitRoot(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	decided := make(chan struct{})
	m.starting.Go(func() {
		if m.root.run(ctx, m.etcd.Server) {
			close(decided)
		}
	})
	return m.wait(ctx, decided)
}

// run returns true once authentication is enabled or the cluster is known not to be empty, and false if ctx is done
// first.
func (r *rootAuth) run(ctx context.Context, server *etcdserver.EtcdServer) bool {
	started, failure := time.Now(), ""
	for !r.decide(server) {
		if server.Leader() == server.MemberID() || time.Since(started) > leaderWait {
			if err := r.enable(ctx, server); err != nil && err.Error() != failure {
				failure = err.Error()
				r.log.Warn().Err(err).Msg("cannot create the root user and enable authentication yet; rejecting clients and retrying")
			}
		}
		if clock.Sleep(ctx, rootPause) != nil {
			return false
		}
	}
	return true
}

// decide reports whether clients may be served: authentication is enabled, or the cluster is not empty. A result of
// true is final, because it is based only on applied entries.
func (r *rootAuth) decide(server *etcdserver.EtcdServer) bool {
	enabled := server.AuthStore().IsAuthEnabled()
	if !enabled && !isEmpty(server) {
		r.log.Warn().Msg("ignoring --root-password-file: the cluster already has keys or users and runs without authentication; " +
			"to enable authentication, run \"etcdctl user add root\", \"etcdctl user grant-role root root\" and \"etcdctl auth enable\"")
		enabled = true
	}
	r.decided.Store(enabled)
	return enabled
}

// isEmpty reports whether this member has applied no keys and no users other than root.
func isEmpty(server *etcdserver.EtcdServer) bool {
	users, err := server.AuthStore().UserList(nil)
	return err == nil && server.KV().Rev() == 1 && !slices.ContainsFunc(users.Users, func(name string) bool { return name != rootUser })
}

// enable creates the root user and enables authentication. If the user exists from a previous attempt, enable resets
// the password.
func (r *rootAuth) enable(ctx context.Context, server *etcdserver.EtcdServer) error {
	ctx, cancel := context.WithTimeout(ctx, rootTimeout)
	defer cancel()
	if err := server.LinearizableReadNotify(ctx); err != nil { // wait until a new leader has applied its log
		return err
	}
	if server.AuthStore().IsAuthEnabled() || !isEmpty(server) {
		return nil
	}
	_, err := server.UserAdd(ctx, &etcdserverpb.AuthUserAddRequest{Name: rootUser, Password: r.password})
	if errors.Is(err, auth.ErrUserAlreadyExist) {
		_, err = server.UserChangePassword(ctx, &etcdserverpb.AuthUserChangePasswordRequest{Name: rootUser, Password: r.password})
	}
	if err == nil {
		_, err = server.UserGrantRole(ctx, &etcdserverpb.AuthUserGrantRoleRequest{User: rootUser, Role: rootUser})
	}
	if err == nil {
		_, err = server.AuthEnable(ctx, &etcdserverpb.AuthEnableRequest{})
	}
	if err == nil {
		r.log.Info().Msg("created the root user with the password in --root-password-file and enabled authentication")
	}
	return err
}
