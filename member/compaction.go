package member

import (
	"context"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3compactor"
	"google.golang.org/grpc"
)

// autoCompaction is etcd's configured automatic compaction. With Options.BeforeCompaction the member runs etcd's compactor itself,
// because etcd offers no hook: a retention of few revisions or of seconds would remove what backups have not read yet.
type autoCompaction struct {
	mode      string
	retention time.Duration // in the mode "revision" a number of revisions, as in etcd
}

// takeAutoCompaction removes it from etcd's configuration and returns it.
func takeAutoCompaction(config *embed.Config) autoCompaction {
	retention, err := retentionOf(config.AutoCompactionMode, config.AutoCompactionRetention)
	if err != nil || retention == 0 {
		return autoCompaction{} // etcd reports what is wrong with it
	}
	config.AutoCompactionRetention = "0"
	return autoCompaction{mode: config.AutoCompactionMode, retention: retention}
}

// retentionOf parses a retention as etcd does: a bare number counts hours, or revisions.
func retentionOf(mode, text string) (time.Duration, error) {
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

// compact runs etcd's compactor until ctx ends.
func (m *Member) compact(ctx context.Context) {
	server := m.etcd.Server
	first := readingFirst{server, m.options.BeforeCompaction}
	compactor, err := v3compactor.New(server.Logger(), m.compaction.mode, m.compaction.retention, server.KV(), first)
	if err != nil {
		m.options.Log.Error().Err(err).Msg("etcd does not compact by itself")
		return
	}
	compactor.Run()
	defer compactor.Stop()
	for ctx.Err() == nil {
		changed := server.LeaderChangedNotify()
		if server.Leader() == server.MemberID() { // as in etcd, it is the leader that compacts
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

// readingFirst compacts revisions only after they were read.
type readingFirst struct {
	server *etcdserver.EtcdServer
	read   func(context.Context)
}

// Compact implements v3compactor.Compactable.
func (r readingFirst) Compact(ctx context.Context, request *etcdserverpb.CompactionRequest) (*etcdserverpb.CompactionResponse, error) {
	readBefore(ctx, r.read)
	return r.server.Compact(ctx, request)
}

// compactionPatience bounds how long a compaction waits for the backups to read what it will remove. That takes milliseconds, and longer
// on a busy machine; a compaction that does not wait costs a full snapshot. Compactions are rare, and no other request waits for one.
const compactionPatience = 3 * time.Second

// beforeCompaction returns an interceptor that calls read before a client's compaction. Automatic compactions go through readingFirst.
func beforeCompaction(read func(context.Context)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if info.FullMethod == "/etcdserverpb.KV/Compact" {
			readBefore(ctx, read)
		}
		return handler(ctx, request)
	}
}

// readBefore calls read and waits up to compactionPatience for it.
func readBefore(ctx context.Context, read func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, compactionPatience)
	defer cancel()
	read(ctx)
}
