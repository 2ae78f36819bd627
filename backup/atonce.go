package backup

import (
	"context"
	"fmt"
	"path/filepath"

	"etcd-wrapper/backup/writer/capture"
)

// FlushAtRest brings what the database of a data directory has into the store, for a cluster of one whose etcd does not run
// and will not run again on these data. The error says what is missing.
func (b *Backups) FlushAtRest(ctx context.Context, dataDir string, member, cluster uint64) error {
	closed, err := capture.OpenClosed(filepath.Join(dataDir, "member", "snap", "db"), capture.Identity{
		MemberID: fmt.Sprintf("%x", member), ClusterID: fmt.Sprintf("%x", cluster), Leader: true,
	})
	if err != nil {
		return err
	}
	defer closed.Close()
	if err := b.bringFrom(ctx, closed, former{wrote: true}); err != nil {
		return err
	}
	return b.FlushSpool(ctx, 0, 0) // it keeps the last segment, for an etcd that goes on from there
}
