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
	// betweenLeaders bounds how long a write is retried that raft dropped because there was no leader. An election takes one to two
	// seconds with etcd's default timeouts, and a requested change of leadership a few milliseconds.
	betweenLeaders = 3 * time.Second
	// nextTry is the pause before each retry.
	nextTry = 10 * time.Millisecond
)

// again is an interceptor that retries writes that raft dropped. Between two leaders raft drops proposals, and etcd returns an error that
// clients cannot tell from a failed write. Nothing was proposed, so a retry is safe.
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

// wasDropped reports whether raft has dropped the proposal. etcd passes on only the text of that error.
func wasDropped(err error) bool {
	return err != nil && status.Code(err) == codes.Unknown && status.Convert(err).Message() == raft.ErrProposalDropped.Error()
}
