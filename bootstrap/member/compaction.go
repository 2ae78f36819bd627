package member

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

// compactionPatience is how long a client's compaction waits at most for backups to take what it will remove.
const compactionPatience = 100 * time.Millisecond

// beforeCompaction lets somebody read what a client's compaction would remove. What takes longer misses it: etcd's
// clients come first.
func beforeCompaction(read func(context.Context)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if info.FullMethod == "/etcdserverpb.KV/Compact" {
			bounded, cancel := context.WithTimeout(ctx, compactionPatience)
			read(bounded)
			cancel()
		}
		return handler(ctx, request)
	}
}
