package member

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3compactor"
	"go.etcd.io/raft/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"etcd-wrapper/internal/clock"
	"etcd-wrapper/member/state"
)

// requests counts the requests of clients and their durations. In etcd itself, only the extensive metrics include
// the duration of a write with raft and the disk.
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
	// electionWait bounds the time for which a write is retried that raft dropped because there was no leader. With
	// etcd's default timeouts, an election takes one to two seconds, and a requested change of leadership a few
	// milliseconds.
	electionWait = 3 * time.Second
	// retryPause is the pause before each retry.
	retryPause = 10 * time.Millisecond
)

// retryDropped is an interceptor that retries writes that raft dropped. While there is no leader, raft drops
// proposals, and etcd returns an error that clients cannot distinguish from a failed write. Nothing was proposed,
// so a retry is safe.
func retryDropped(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	proposesOnce := strings.HasPrefix(info.FullMethod, "/etcdserverpb.KV/") || strings.HasPrefix(info.FullMethod, "/etcdserverpb.Lease/")
	for deadline := (time.Time{}); ; {
		reply, err := handler(ctx, request)
		if deadline.IsZero() { // the first proposal may have waited for a leader
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

// isDropped reports whether raft has dropped the proposal. etcd passes on only the text of the error.
func isDropped(err error) bool {
	return err != nil && status.Code(err) == codes.Unknown && status.Convert(err).Message() == raft.ErrProposalDropped.Error()
}

// autoCompaction is etcd's configured automatic compaction. With Options.BeforeCompaction, the member runs etcd's
// compactor itself, because etcd offers no hook, and a retention of a few revisions or seconds would remove
// revisions that the backups have not read yet.
type autoCompaction struct {
	mode      string
	retention time.Duration // in the mode "revision", a number of revisions, as in etcd
}

// takeAutoCompaction removes the auto-compaction from etcd's configuration and returns it.
func takeAutoCompaction(config *embed.Config) autoCompaction {
	retention, err := parseRetention(config.AutoCompactionMode, config.AutoCompactionRetention)
	if err != nil || retention == 0 {
		return autoCompaction{} // etcd reports the error
	}
	config.AutoCompactionRetention = "0"
	return autoCompaction{mode: config.AutoCompactionMode, retention: retention}
}

// parseRetention parses a retention as etcd does: a bare number counts hours, or revisions.
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
		options.Log.Error().Err(err).Msg("etcd does not compact by itself")
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

// readFirst compacts revisions only after the backups have read them.
type readFirst struct {
	server *etcdserver.EtcdServer
	read   func(context.Context)
}

// Compact implements v3compactor.Compactable.
func (r readFirst) Compact(ctx context.Context, request *etcdserverpb.CompactionRequest) (*etcdserverpb.CompactionResponse, error) {
	readBefore(ctx, r.read)
	return r.server.Compact(ctx, request)
}

// compactionWait bounds the time that a compaction waits for the backups to read the revisions that it will remove.
// Reading takes milliseconds, or longer on a busy machine; if it is cut short, a full snapshot is necessary.
// Compactions are rare, and no other request waits for them.
const compactionWait = 3 * time.Second

// beforeCompaction returns an interceptor that calls read before a client's compaction. Automatic compactions use
// readFirst instead.
func beforeCompaction(read func(context.Context)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if info.FullMethod == "/etcdserverpb.KV/Compact" {
			readBefore(ctx, read)
		}
		return handler(ctx, request)
	}
}

// readBefore calls read and waits for at most compactionWait until it returns.
func readBefore(ctx context.Context, read func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, compactionWait)
	defer cancel()
	read(ctx)
}
