package member

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/auth"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"etcd-wrapper/internal/clock"
)

const (
	rootUser    = "root"                 // name of the user and the role with all permissions
	rootTimeout = 5 * time.Second        // timeout of each attempt to create the user
	rootPause   = 100 * time.Millisecond // pause between attempts
	// rootPatience bounds how long a follower waits for the leader to create the user. A leader without the password
	// never does.
	rootPatience = 10 * time.Second
)

// rootAuth creates the root user in an empty cluster and enables authentication. Until then, clients are rejected,
// so that none can write anonymously. A cluster with keys or other users is never changed, because it may run
// without authentication on purpose.
type rootAuth struct {
	password string
	log      zerolog.Logger
	decided  atomic.Bool
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

// awaitRoot returns nil once authentication is enabled or the cluster turns out not to be empty.
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

// run returns true once authentication is enabled or the cluster turns out not to be empty, and false if ctx is done
// first.
func (r *rootAuth) run(ctx context.Context, server *etcdserver.EtcdServer) bool {
	began, failure := time.Now(), ""
	for !r.decide(server) {
		if server.Leader() == server.MemberID() || time.Since(began) > rootPatience {
			if err := r.enable(ctx, server); err != nil && err.Error() != failure {
				failure = err.Error()
				r.log.Warn().Err(err).Msg("cannot create the root user yet; rejecting clients and retrying")
			}
		}
		if clock.Sleep(ctx, rootPause) != nil {
			return false
		}
	}
	return true
}

// decide reports whether clients may be served. The decision is final because it uses only entries that this member
// has applied.
func (r *rootAuth) decide(server *etcdserver.EtcdServer) bool {
	enabled := server.AuthStore().IsAuthEnabled()
	if !enabled && !isEmpty(server) {
		r.log.Warn().Msg("ignoring --root-password-file: the cluster already has keys or users and runs without authentication; " +
			"to enable authentication, run etcdctl user add root, user grant-role root root and auth enable")
		enabled = true
	}
	r.decided.Store(enabled)
	return enabled
}

// isEmpty reports whether the entries applied so far contain no keys and no users except root.
func isEmpty(server *etcdserver.EtcdServer) bool {
	users, err := server.AuthStore().UserList(nil)
	return err == nil && server.KV().Rev() == 1 && !slices.ContainsFunc(users.Users, func(name string) bool { return name != rootUser })
}

// enable creates the root user and enables authentication. If an earlier attempt created the user, enable sets the
// password again.
func (r *rootAuth) enable(ctx context.Context, server *etcdserver.EtcdServer) error {
	ctx, cancel := context.WithTimeout(ctx, rootTimeout)
	defer cancel()
	if err := server.LinearizableReadNotify(ctx); err != nil { // a new leader may not have applied its log yet
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
