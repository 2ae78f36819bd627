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
	rootUser    = "root"                 // name of etcd's user and role with all permissions
	rootTimeout = 5 * time.Second        // timeout of each attempt to create the user
	rootPause   = 100 * time.Millisecond // between attempts
	// rootPatience is the time for the leader to create the user. A leader that was started without the password
	// never does.
	rootPatience = 10 * time.Second
)

// rootAuth creates the root user in an empty cluster and enables authentication. Clients are rejected until it is
// decided whether that is necessary, so no client can write anonymously before. A cluster with a key or another
// user is never changed, because it may run without authentication on purpose.
type rootAuth struct {
	password string
	log      zerolog.Logger
	decided  atomic.Bool
}

var errNoRootYet = status.Error(codes.Unavailable, "etcd-wrapper: authentication is not enabled yet; retry")

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

// awaitRoot returns nil once authentication is enabled, or the cluster is not empty.
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

// run reports whether authentication is enabled or the cluster is not empty. It returns false when ctx is done.
func (r *rootAuth) run(ctx context.Context, server *etcdserver.EtcdServer) bool {
	began, failure := time.Now(), ""
	for !r.decide(server) {
		if server.Leader() == server.MemberID() || time.Since(began) > rootPatience {
			if err := r.enable(ctx, server); err != nil && err.Error() != failure {
				failure = err.Error()
				r.log.Warn().Err(err).Msg("the user root cannot be created yet: clients are refused; retrying")
			}
		}
		if clock.Sleep(ctx, rootPause) != nil {
			return false
		}
	}
	return true
}

// decide reports whether clients may be served. It uses only what this member has applied, which cannot be undone.
func (r *rootAuth) decide(server *etcdserver.EtcdServer) bool {
	enabled := server.AuthStore().IsAuthEnabled()
	if !enabled && !isEmpty(server) {
		r.log.Warn().Msg("--root-password-file is ignored: the cluster has keys or users, and runs without authentication; " +
			"etcdctl user add root, user grant-role root root and auth enable change that")
		enabled = true
	}
	r.decided.Store(enabled)
	return enabled
}

// isEmpty reports whether the cluster, as far as this member has applied its log, has no keys and no users except
// root.
func isEmpty(server *etcdserver.EtcdServer) bool {
	users, err := server.AuthStore().UserList(nil)
	return err == nil && server.KV().Rev() == 1 && !slices.ContainsFunc(users.Users, func(name string) bool { return name != rootUser })
}

// enable creates the user and enables authentication. An interrupted attempt is repeated with the password of this
// process.
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
		r.log.Info().Msg("authentication is enabled: the new cluster has the user root, with the password in --root-password-file")
	}
	return err
}
