package datadir

import (
	"context"
	"errors"
	"fmt"
	"io"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
)

// history is what a WAL tells when it is read from its first record to its last.
type history struct {
	last      uint64           // index of the last entry
	committed uint64           // highest index that was recorded as committed
	received  uint64           // index of the newest snapshot that stands for entries which are not in the log
	snapshots []walpb.Snapshot // every snapshot the WAL knows of, oldest first
	checksum  uint32           // running checksum, carried from segment to segment
	entry     raftpb.Entry     // the last one; its memory serves for the next
}

// readLog reads every record. Segments are read one by one, so that an error names the segment, and so that a torn record
// is forgiven in the last one only: there etcd cuts it off when it starts, anywhere else etcd gives up.
func readLog(ctx context.Context, m *member) (history, error) {
	segments := m.segments()
	_, before, _ := parseSegmentName(segments[0])
	written := history{last: before}
	for i, name := range segments {
		path := m.segment(name)
		err := readSegment(path, func(s *segment) error { return written.takeSegment(ctx, s) })
		if errors.Is(err, io.ErrUnexpectedEOF) && i == len(segments)-1 {
			break
		}
		if errors.Is(err, errNoRecord) && i == 0 && len(segments) > 1 {
			written.beginAt(segments[1])
			m.warn("WAL segment %s: %v; etcd goes on with the next one", path, err)
			continue
		}
		if err != nil {
			return history{}, fmt.Errorf("WAL segment %s: %w", path, err)
		}
	}
	return written, nil
}

// errNoRecord is of a segment that is empty, or holds nothing but zeros.
var errNoRecord = errors.New("it holds no record")

// beginAt has the log begin with that segment. What was before it is lost, which matters only to an etcd that starts from
// before it.
func (h *history) beginAt(segment string) {
	_, h.last, _ = parseSegmentName(segment)
	h.received = h.last
}

// takeSegment refuses a segment without a record: etcd writes the first ones before it gives a segment its name.
func (h *history) takeSegment(ctx context.Context, s *segment) error {
	count := 0
	for record, err := range s.records() {
		if count%recordsPerLook == 0 && ctx.Err() != nil {
			return fmt.Errorf("reading it was stopped: %w", context.Cause(ctx))
		}
		if err != nil {
			return err
		}
		if err := h.take(record); err != nil {
			return err
		}
		count, h.checksum = count+1, record.sum
	}
	if count == 0 {
		return errNoRecord
	}
	return nil
}

// take adds one record to the history. Records that tell nothing here are left to etcd's own wal.Verify.
func (h *history) take(record record) error {
	switch record.kind {
	case wal.CrcType:
		if h.checksum != 0 && record.crc != h.checksum {
			return wal.ErrCRCMismatch
		}
	case wal.EntryType:
		return h.takeEntry(record.data)
	case wal.StateType:
		var state raftpb.HardState
		if err := state.Unmarshal(record.data); err != nil {
			return fmt.Errorf("unreadable hard state: %w", err)
		}
		h.committed = state.Commit
	case wal.SnapshotType:
		return h.takeSnapshot(record.data)
	}
	return nil
}

// takeEntry lets an entry override those from its index on, as raft does after a change of leader, but leave no gap.
func (h *history) takeEntry(data []byte) error {
	h.entry = raftpb.Entry{Data: h.entry.Data[:0]}
	if err := h.entry.Unmarshal(data); err != nil {
		return fmt.Errorf("unreadable entry: %w", err)
	}
	if h.entry.Index > h.last+1 {
		return fmt.Errorf("entry %d follows entry %d", h.entry.Index, h.last)
	}
	h.last = h.entry.Index
	return nil
}

// takeSnapshot knows that a snapshot received from a leader stands for entries that this member never saw.
func (h *history) takeSnapshot(data []byte) error {
	var snapshot walpb.Snapshot
	if err := snapshot.Unmarshal(data); err != nil {
		return fmt.Errorf("unreadable snapshot record: %w", err)
	}
	h.snapshots = append(h.snapshots, snapshot)
	if snapshot.Index > h.last {
		h.last, h.received = snapshot.Index, snapshot.Index
	}
	return nil
}

// knows says whether the WAL has a record of the snapshot, and whether it was committed when the WAL ended.
func (h *history) knows(index, term uint64) bool {
	for _, recorded := range h.snapshots {
		if recorded.Index == index && recorded.Term == term && index <= h.committed {
			return true
		}
	}
	return false
}
