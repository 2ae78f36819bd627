package member

import (
	"context"
	"strings"
	"time"

	"go.etcd.io/raft/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// betweenLeaders is how long a write is tried again that raft has dropped for want of a leader. An election takes one to
	// two seconds with etcd's own timeouts, and a change of leadership that was asked for a few milliseconds.
	betweenLeaders = 3 * time.Second
	// nextTry is the pause before each try.
	nextTry = 10 * time.Millisecond
)

// again is for etcd's gRPC server. Between two leaders, raft drops what a member is asked to write, and plain etcd makes an
// error of it, which no client takes for harmless. It is harmless: nothing was proposed, so it can be tried again here.
func again(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	reply, err = handler(ctx, request)
	if !wasDropped(err) || !isWrite(info.FullMethod) {
		return reply, err
	}
	last := time.Now().Add(betweenLeaders)
	for wasDropped(err) && time.Now().Before(last) {
		select {
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-time.After(nextTry):
		}
		reply, err = handler(ctx, request)
	}
	return reply, err
}

// isWrite reports whether a method is one of those that make at most one proposal.
func isWrite(method string) bool {
	return strings.HasPrefix(method, "/etcdserverpb.KV/") || strings.HasPrefix(method, "/etcdserverpb.Lease/")
}

// wasDropped reports whether raft has refused a proposal, of which etcd hands out nothing but the text.
func wasDropped(err error) bool {
	return err != nil && status.Code(err) == codes.Unknown && status.Convert(err).Message() == raft.ErrProposalDropped.Error()
}
