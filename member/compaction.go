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

// autoCompaction is what etcd compacts by itself, as configured. Where somebody wants to read first what a compaction removes,
// the member runs etcd's compactor, since nobody could step in where etcd does: a retention of few revisions or of seconds
// would remove what nobody has read.
type autoCompaction struct {
	mode      string
	retention time.Duration // in the mode of revisions so many of these, as etcd has it
}

// takeAutoCompaction takes it out of etcd's configuration.
func takeAutoCompaction(config *embed.Config) autoCompaction {
	retention, err := retentionOf(config.AutoCompactionMode, config.AutoCompactionRetention)
	if err != nil || retention == 0 {
		return autoCompaction{} // etcd says what is wrong with it
	}
	config.AutoCompactionRetention = "0"
	return autoCompaction{mode: config.AutoCompactionMode, retention: retention}
}

// retentionOf reads it as etcd does: a number is one of hours, or of revisions.
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

// readingFirst is an etcd whose revisions are read before they are compacted.
type readingFirst struct {
	server *etcdserver.EtcdServer
	read   func(context.Context)
}

// Compact is v3compactor.Compactable's.
func (r readingFirst) Compact(ctx context.Context, request *etcdserverpb.CompactionRequest) (*etcdserverpb.CompactionResponse, error) {
	readBefore(ctx, r.read)
	return r.server.Compact(ctx, request)
}

// compactionPatience is how long a client's compaction waits at most for backups to take what it will remove. That takes
// milliseconds; on a machine that is busy it takes longer, and a compaction that did not wait would cost a full backup.
// Compactions are rare, and no other request waits for one.
const compactionPatience = 3 * time.Second

// beforeCompaction lets somebody read what a client's compaction would remove. What etcd compacts by itself does not come by
// here, but by readingFirst.
func beforeCompaction(read func(context.Context)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if info.FullMethod == "/etcdserverpb.KV/Compact" {
			readBefore(ctx, read)
		}
		return handler(ctx, request)
	}
}

// readBefore ends in time: what takes longer misses the compaction.
func readBefore(ctx context.Context, read func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, compactionPatience)
	defer cancel()
	read(ctx)
}
