package member

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

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
