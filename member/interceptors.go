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

// requests counts client requests and their durations. In etcd, only the extensive metrics include the full duration
// of a write.
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
	// electionWait bounds how long a dropped write is retried. With etcd's default timeouts, an election takes one
	// to two seconds, and a leadership transfer takes a few milliseconds.
	electionWait = 3 * time.Second
	// retryPause is the pause between two attempts.
	retryPause = 10 * time.Millisecond
)

// retryDropped is an interceptor that retries writes that raft dropped. raft drops proposals while there is no
// leader, and clients cannot distinguish etcd's error from a failed write. A retry is safe because the write was
// never proposed.
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

// isDropped reports whether raft has dropped the proposal. etcd preserves only the text of the error.
func isDropped(err error) bool {
	return err != nil && status.Code(err) == codes.Unknown && status.Convert(err).Message() == raft.ErrProposalDropped.Error()
}

// autoCompaction is the auto-compaction from etcd's configuration. With Options.BeforeCompaction, the member runs
// etcd's compactor itself, because etcd has no hook for it and a short retention would remove revisions before the
// backups have read them.
type autoCompaction struct {
	mode      string
	retention time.Duration // in mode "revision", a number of revisions
}

// takeAutoCompaction disables auto-compaction in etcd's configuration and returns the previous setting.
func takeAutoCompaction(config *embed.Config) autoCompaction {
	retention, err := parseRetention(config.AutoCompactionMode, config.AutoCompactionRetention)
	if err != nil || retention == 0 {
		return autoCompaction{} // etcd reports the error
	}
	config.AutoCompactionRetention = "0"
	return autoCompaction{mode: config.AutoCompactionMode, retention: retention}
}

// parseRetention parses a retention like etcd: a plain number means hours or revisions, depending on the mode.
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
		if server.Leader() == server.MemberID() { // only the leader compacts, as in etcd
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

// readFirst lets the backups read revisions before it compacts them.
type readFirst struct {
	server *etcdserver.EtcdServer
	read   func(context.Context)
}

// Compact implements v3compactor.Compactable.
func (r readFirst) Compact(ctx context.Context, request *etcdserverpb.CompactionRequest) (*etcdserverpb.CompactionResponse, error) {
	readBefore(ctx, r.read)
	return r.server.Compact(ctx, request)
}

// compactionWait bounds how long a compaction waits for the backups to read the revisions that it removes. Reading
// normally takes milliseconds. If reading is interrupted, the backups need a new full snapshot. Compactions are rare
// and do not delay other requests.
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
