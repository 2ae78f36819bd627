package datadir

import (
	"bytes"
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
	last      uint64     // index of the last entry
	committed uint64     // highest index that was recorded as committed
	received  uint64     // index of the newest snapshot that stands for entries which are not in the log
	snapshots []recorded // every snapshot the WAL knows of, oldest first
	checksum  uint32     // running checksum, carried from segment to segment
	metadata  []byte     // whose log it is
	breach    breach     // where the last segment ends
	segment   int        // which one is read, from 0 on
	versions  []versionSet
	unread    error // why its segment can't be read
}

// recorded is a snapshot that the WAL knows of.
type recorded struct {
	walpb.Snapshot

	segment int
}

// readLog reads every record. Segments are read one by one, so that an error names the segment, and so that a torn record
// is forgiven in the last one only: there etcd cuts it off when it starts, anywhere else etcd gives up.
func readLog(ctx context.Context, m *member) (*history, error) {
	segments := m.segments()
	_, before, _ := parseSegmentName(segments[0])
	written := &history{last: before}
	for written.segment = range segments {
		path, take := m.segment(segments[written.segment]), written.takeSegment
		isLast := written.segment == len(segments)-1
		if isLast {
			take = written.takeTail
		}
		err := readSegment(path, func(s *segment) error { return take(ctx, s) })
		if errors.Is(err, io.ErrUnexpectedEOF) && isLast {
			break
		}
		if errors.Is(err, errNoRecord) && written.segment == 0 && len(segments) > 1 {
			written.beginAt(segments[1])
			m.warn("WAL segment %s: %v; etcd goes on with the next one", path, err)
			continue
		}
		if err != nil {
			return written, fmt.Errorf("WAL segment %s: %w", path, err)
		}
	}
	return written, nil
}

// takeTail takes the last segment, and looks behind the place where it can't be read on.
func (h *history) takeTail(ctx context.Context, s *segment) error {
	err := h.takeSegment(ctx, s)
	h.breach = breachIn(s, h)
	return err
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

// take adds one record to the history, and refuses what etcd refuses when it replays it.
func (h *history) take(record record) error {
	switch record.kind {
	case wal.MetadataType:
		return h.takeMetadata(record.data)
	case wal.CrcType:
		if h.checksum != 0 && record.crc != h.checksum {
			return wal.ErrCRCMismatch
		}
	case wal.EntryType:
		h.takeVersion(record.data)
		return h.takeEntry(record.data)
	case wal.StateType:
		var state raftpb.HardState
		if err := state.Unmarshal(record.data); err != nil {
			return fmt.Errorf("unreadable hard state: %w", err)
		}
		h.committed = state.Commit
	case wal.SnapshotType:
		return h.takeSnapshot(record.data)
	default:
		return fmt.Errorf("a record of unknown type %d", record.kind)
	}
	return nil
}

// takeMetadata wants each segment to be of the same member.
func (h *history) takeMetadata(data []byte) error {
	if h.metadata != nil && !bytes.Equal(h.metadata, data) {
		return wal.ErrMetadataConflict
	}
	if h.metadata == nil {
		h.metadata = bytes.Clone(data)
	}
	return nil
}

// takeEntry lets an entry override those from its index on, as raft does after a change of leader, but leave no gap.
func (h *history) takeEntry(data []byte) error {
	index := entryIndex(data)
	switch {
	case index == 0:
		return errors.New("unreadable entry")
	case index > h.last+1:
		return fmt.Errorf("entry %d follows entry %d", index, h.last)
	}
	h.last = index
	return nil
}

// takeSnapshot knows that a snapshot received from a leader stands for entries that this member never saw.
func (h *history) takeSnapshot(data []byte) error {
	var snapshot walpb.Snapshot
	if err := snapshot.Unmarshal(data); err != nil {
		return fmt.Errorf("unreadable snapshot record: %w", err)
	}
	h.snapshots = append(h.snapshots, recorded{snapshot, h.segment})
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
