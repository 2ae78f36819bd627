package datadir

import (
	"errors"
	"strconv"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
)

// checkReplay says whether etcd can start from the newest snapshot with what follows in the WAL. It is what is left of
// wal.Verify when every record has been read: that would read them once more.
func checkReplay(m *member, written *history, newest walpb.Snapshot) error {
	if err := written.beginsWith(newest, firstReplayed(m.segments(), newest.Index)); err != nil {
		return brokenReplay.because(m.wal.path, newest.Index, err)
	}
	return nil
}

// firstReplayed is the segment from which on etcd reads the WAL, the last one that begins before the index or at it, and
// -1 if there is none.
func firstReplayed(segments []string, index uint64) int {
	for i := len(segments) - 1; i >= 0; i-- {
		if firstIn(segments[i]) <= index {
			return i
		}
	}
	return -1
}

// firstIn is the index of the first entry in a segment, as its name has it.
func firstIn(name string) uint64 {
	parts := segmentName.FindStringSubmatch(name)
	if parts == nil {
		return 0
	}
	first, _ := strconv.ParseUint(parts[2], 16, 64) // 16 hex digits always fit
	return first
}

// beginsWith says whether the snapshot is recorded in that segment or a later one. An empty log's is recorded, too: its
// index is 0.
func (h *history) beginsWith(snapshot walpb.Snapshot, segment int) error {
	if segment < 0 {
		return errors.New("no segment goes back so far")
	}
	found := false
	for _, recorded := range h.snapshots {
		if recorded.segment < segment || recorded.Index != snapshot.Index {
			continue
		}
		if recorded.Term != snapshot.Term {
			return wal.ErrSnapshotMismatch
		}
		found = true
	}
	if !found {
		return wal.ErrSnapshotNotFound
	}
	return nil
}
