package datadir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// verifySnapshots reads every snapshot file and returns the one that etcd would start from: the newest that can be read
// and that the WAL knows of, or none, which is index 0. etcd sets a file aside that it can't read; whether the log holds
// everything from the snapshot before it is checkReplay's and checkConsistency's concern.
func verifySnapshots(ctx context.Context, m *member, written history) (newest walpb.Snapshot, err error) {
	for _, name := range m.snapshots() {
		if ctx.Err() != nil {
			return newest, fmt.Errorf("reading %s was stopped: %w", m.snap.path, context.Cause(ctx))
		}
		path := m.snapshot(name)
		content, err := readSnapshot(path)
		if errors.Is(err, errPipe) {
			return newest, blockedSnapshot.because(path)
		}
		if err != nil && written.unfinished(name) {
			continue
		}
		if err != nil {
			m.warn("snapshot %s is corrupt: %v; etcd sets it aside and goes on from an older one, or from the log alone", path, err)
			continue
		}
		if of := content.Metadata; written.knows(of.Index, of.Term) {
			newest = walpb.Snapshot{Index: of.Index, Term: of.Term, ConfState: &of.ConfState}
		}
	}
	return newest, nil
}

// errPipe is of a file that may keep its reader waiting.
var errPipe = errors.New("it is a pipe")

func readSnapshot(path string) (content *raftpb.Snapshot, err error) {
	if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
		return nil, errPipe
	}
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
