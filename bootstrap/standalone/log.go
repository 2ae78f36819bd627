package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
)

// history is what a WAL tells when it is read from its first record to its last.
type history struct {
	last      uint64           // index of the last entry
	committed uint64           // highest index that was recorded as committed
	snapshots []walpb.Snapshot // every snapshot the WAL knows of, oldest first
	checksum  uint32           // running checksum, carried from segment to segment
}

// readWAL reads every record. Segments are decoded one by one, so that an error names the segment, and so that a torn
// record is forgiven in the last one only: there etcd cuts it off when it starts, anywhere else etcd gives up.
func readWAL(ctx context.Context, found *member) (history, error) {
	written := history{last: entryBefore(found.segments[0])}
	for i, name := range found.segments {
		path := filepath.Join(found.walDir, name)
		err := guarded(func() error { return written.readSegment(ctx, path) })
		if errors.Is(err, io.ErrUnexpectedEOF) && i == len(found.segments)-1 {
			break
		}
		if err != nil {
			return history{}, fmt.Errorf("WAL segment %s: %w", path, err)
		}
	}
	return written, nil
}

// entryBefore returns the index of the last entry before a segment. After etcd has purged old segments, the name of the
// first one left is all that tells of it.
func entryBefore(segment string) uint64 {
	first, _ := strconv.ParseUint(segmentName.FindStringSubmatch(segment)[2], 16, 64) // 16 hex digits always fit
	return max(first, 1) - 1
}

func (h *history) readSegment(ctx context.Context, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	decoder, record := wal.NewDecoder(fileutil.NewFileReader(file)), walpb.Record{}
	for count := 0; ; count++ {
		if count%recordsPerLook == 0 && ctx.Err() != nil {
			return fmt.Errorf("reading it was stopped: %w", context.Cause(ctx))
		}
		if err := decoder.Decode(&record); errors.Is(err, io.EOF) {
			return h.endSegment(count)
		} else if err != nil {
			return err
		}
		if err := h.take(&record, decoder); err != nil {
			return err
		}
		h.checksum = decoder.LastCRC()
	}
}

// endSegment refuses a segment without a record: etcd writes the first ones before it gives a segment its name.
func (h *history) endSegment(records int) error {
	if records == 0 {
		return errors.New("it holds no record")
	}
	return nil
}

// take adds one record to the history. Records that tell nothing here are left to etcd's own wal.Verify.
func (h *history) take(record *walpb.Record, decoder wal.Decoder) error {
	switch record.Type {
	case wal.CrcType:
		if h.checksum != 0 && record.Crc != h.checksum {
			return wal.ErrCRCMismatch
		}
		decoder.UpdateCRC(record.Crc)
	case wal.EntryType:
		return h.takeEntry(record.Data)
	case wal.StateType:
		var state raftpb.HardState
		if err := state.Unmarshal(record.Data); err != nil {
			return fmt.Errorf("unreadable hard state: %w", err)
		}
		h.committed = state.Commit
	case wal.SnapshotType:
		return h.takeSnapshot(record.Data)
	}
	return nil
}

// takeEntry lets an entry override those from its index on, as raft does after a change of leader, but leave no gap.
func (h *history) takeEntry(data []byte) error {
	var entry raftpb.Entry
	if err := entry.Unmarshal(data); err != nil {
		return fmt.Errorf("unreadable entry: %w", err)
	}
	if entry.Index > h.last+1 {
		return fmt.Errorf("entry %d follows entry %d", entry.Index, h.last)
	}
	h.last = entry.Index
	return nil
}

// takeSnapshot knows that a snapshot received from a leader stands for entries that this member never saw.
func (h *history) takeSnapshot(data []byte) error {
	var snapshot walpb.Snapshot
	if err := snapshot.Unmarshal(data); err != nil {
		return fmt.Errorf("unreadable snapshot record: %w", err)
	}
	h.snapshots = append(h.snapshots, snapshot)
	h.last = max(h.last, snapshot.Index)
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
