package standalone

import (
	"context"
	"fmt"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// verifySnapshots reads every snapshot file and returns the one that etcd would start from: the newest that the WAL knows
// of, or none, which is index 0.
func verifySnapshots(ctx context.Context, found *member, written history) (newest walpb.Snapshot, err error) {
	for _, name := range found.snapshots {
		if ctx.Err() != nil {
			return newest, fmt.Errorf("reading %s was stopped: %w", found.snapDir, context.Cause(ctx))
		}
		path := filepath.Join(found.snapDir, name)
		content, err := readSnapshot(path)
		if err != nil && written.unfinished(name) {
			continue
		}
		if err != nil {
			return newest, fmt.Errorf("snapshot %s is corrupt: %w", path, err)
		}
		if m := content.Metadata; written.knows(m.Index, m.Term) {
			newest = walpb.Snapshot{Index: m.Index, Term: m.Term, ConfState: &m.ConfState}
		}
	}
	return newest, nil
}

func readSnapshot(path string) (content *raftpb.Snapshot, err error) {
	err = guarded(func() error {
		content, err = snap.Read(zap.NewNop(), path)
		return err
	})
	return content, err
}

// unfinished says whether a snapshot file is one that etcd was writing when it died: newer than every snapshot in the WAL,
// where a snapshot is recorded after its file was written. etcd sets such a file aside when it starts.
func (h *history) unfinished(name string) bool {
	var term, index uint64
	if _, err := fmt.Sscanf(name, "%016x-%016x.snap", &term, &index); err != nil {
		return false
	}
	for _, recorded := range h.snapshots {
		if recorded.Index >= index {
			return false
		}
	}
	return true
}
