package datadir

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/encoding/protowire"
)

// history accumulates the state of a log while its records are read in order.
type history struct {
	last      uint64           // index of the last entry
	committed uint64           // highest commit index
	received  uint64           // index of the newest snapshot that was received from a leader
	snapshots []snapshotRecord // snapshots in the log, oldest first
	checksum  uint32           // running checksum, carried from segment to segment
	metadata  []byte           // IDs of the cluster and the member, as encoded in the log
	cut       cut              // where the last segment becomes unreadable, and what follows
	segment   int              // index of the segment being read, starting at 0
	notes     []note           // notes on the entries, sorted by index
	lowest    uint64           // lowest index of an entry; 0 if there are no entries
	unread    error            // error from reading a segment

	listsWrites bool     // whether writes is collected
	writes      []uint64 // indexes of entries that may have created a revision

	puts *loggedPuts // puts since the newest received snapshot; nil if not collected
}

// snapshotRecord is a snapshot record and the index of the segment that contains it.
type snapshotRecord struct {
	walpb.Snapshot

	segment int
}

// readLog reads all records, segment by segment, and names the segment in errors. Only the last segment may end
// with a torn record, which etcd truncates at startup. A torn record in any other segment makes etcd fail.
func readLog(ctx context.Context, m *member, puts *loggedPuts) (*history, error) {
	segments := m.segments()
	written := &history{last: lastBefore(segments[0]), puts: puts}
	for written.segment = range segments {
		path, read := m.segment(segments[written.segment]), written.read
		isLast := written.segment == len(segments)-1
		if isLast {
			read = written.readLast
		}
		err := readSegment(path, func(s *segment) error { return read(ctx, s) })
		if errors.Is(err, io.ErrUnexpectedEOF) && isLast {
			break
		}
		if errors.Is(err, errNoRecord) && written.segment == 0 && len(segments) > 1 {
			written.startAt(segments[1])
			m.warn("WAL segment %s: %v; etcd starts with the next segment", path, err)
			continue
		}
		if err != nil {
			return written, fmt.Errorf("WAL segment %s: %w", path, err)
		}
	}
	return written, nil
}

// readLast reads the last segment and searches for records after the position where the segment becomes unreadable.
func (h *history) readLast(ctx context.Context, s *segment) error {
	err := h.read(ctx, s)
	h.cut = cutIn(s, h)
	return err
}

// errNoRecord means that a segment is empty or contains only zeros.
var errNoRecord = errors.New("no records found")

// startAt makes the history start at the given segment. All earlier entries count as covered by a received snapshot,
// so checkConsistency rejects the log only if etcd would have to replay one of them.
func (h *history) startAt(segment string) {
	h.last = lastBefore(segment)
	h.received = h.last
}

// read reads all records of a segment. A segment without records is an error, because etcd writes the first records
// before it renames the file to its final name.
func (h *history) read(ctx context.Context, s *segment) error {
	count := 0
	for r, err := range s.records() {
		if count%checkInterval == 0 && ctx.Err() != nil {
			return fmt.Errorf("read interrupted: %w", context.Cause(ctx))
		}
		if err != nil {
			return err
		}
		if err := h.add(r); err != nil {
			return err
		}
		count, h.checksum = count+1, r.sum
	}
	if count == 0 {
		return errNoRecord
	}
	return nil
}

// add adds a record to the history. It returns an error if etcd would reject the record on replay, for example
// because the metadata belongs to a different member than that of the preceding segments.
func (h *history) add(r record) error {
	switch r.kind {
	case wal.MetadataType:
		if h.metadata != nil && !bytes.Equal(h.metadata, r.data) {
			return wal.ErrMetadataConflict
		}
		h.metadata = bytes.Clone(r.data)
	case wal.CrcType:
		if h.checksum != 0 && r.crc != h.checksum {
			return wal.ErrCRCMismatch
		}
	case wal.EntryType:
		h.note(r.data)
		h.puts.addEntry(r.data)
		return h.addEntry(r.data)
	case wal.StateType:
		var state raftpb.HardState
		if err := state.Unmarshal(r.data); err != nil {
			return fmt.Errorf("cannot decode hard state: %w", err)
		}
		h.committed = state.Commit
	case wal.SnapshotType:
		return h.addSnapshot(r.data)
	default:
		return fmt.Errorf("unknown record type %d", r.kind)
	}
	return nil
}

// addEntry adds an entry. An entry replaces all entries with the same or a higher index, because a new leader may
// overwrite entries. A gap between entries is an error.
func (h *history) addEntry(data []byte) error {
	index := entryIndex(data)
	switch {
	case index == 0:
		return errors.New("cannot decode entry")
	case index > h.last+1:
		return fmt.Errorf("entries are missing: entry %d follows entry %d", index, h.last)
	}
	h.last = index
	return nil
}

// addSnapshot adds a snapshot. A snapshot after the last entry was received from the leader, and covers entries that
// were never in this member's log.
func (h *history) addSnapshot(data []byte) error {
	var snapshot walpb.Snapshot
	if err := snapshot.Unmarshal(data); err != nil {
		return fmt.Errorf("cannot decode snapshot record: %w", err)
	}
	h.snapshots = append(h.snapshots, snapshotRecord{snapshot, h.segment})
	if snapshot.Index > h.last {
		h.last, h.received = snapshot.Index, snapshot.Index
	}
	if snapshot.Index > h.committed { // received from a leader: etcd's own snapshots end at a committed entry
		h.puts.clear()
	}
	return nil
}

// skim adds the entries and snapshots of a segment without verifying checksums. Records that cannot be parsed are
// skipped.
func (h *history) skim(s *segment) {
	for f := range s.frames() {
		r, _ := f.parse()
		switch r.kind {
		case wal.EntryType:
			h.note(r.data)
			h.last = entryIndex(r.data)
		case wal.SnapshotType:
			_ = h.addSnapshot(r.data) // a snapshot record that cannot be decoded is skipped
		}
	}
}

// skimSegments adds the entries and snapshots of the given segments. Entries after the commit index in the log are
// included, because they may be committed: a follower learns about a commit only with the next message. skimSegments
// returns an error if a segment cannot be read.
func (h *history) skimSegments(m *member, segments []string) (unread error) {
	for _, name := range segments {
		unread = errors.Join(unread, readSegment(m.segment(name), func(s *segment) error {
			h.skim(s)
			return nil
		}))
	}
	return unread
}

// isCommitted reports whether the log contains the snapshot and the snapshot is committed.
func (h *history) isCommitted(index, term uint64) bool {
	return index <= h.committed && slices.ContainsFunc(h.snapshots, func(r snapshotRecord) bool { return r.Index == index && r.Term == term })
}

// has reports whether the log contains a snapshot record with the given index.
func (h *history) has(snapshot uint64) bool {
	return slices.ContainsFunc(h.snapshots, func(r snapshotRecord) bool { return r.Index == snapshot })
}

// unfinished reports whether etcd was killed while writing a snapshot file. etcd adds a snapshot to the log only
// after writing the file, so an unfinished file is newer than every snapshot in the log. etcd renames unfinished
// files at startup.
func (h *history) unfinished(name string) bool {
	index, ok := snapshotIndex(name)
	return ok && !slices.ContainsFunc(h.snapshots, func(r snapshotRecord) bool { return r.Index >= index })
}

// checkStart returns an error unless the log contains the snapshot in the given segment or a later one. A new log
// contains a snapshot record with index 0.
func (h *history) checkStart(snapshot walpb.Snapshot, segment int) error {
	if segment < 0 {
		return errors.New("the oldest segment starts after that entry")
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

// startSegment returns the index of the segment at which etcd starts to read the log, which is the last segment that
// starts at or before the given entry. If there is none, startSegment returns -1.
func startSegment(segments []string, index uint64) int {
	for i, name := range slices.Backward(segments) {
		if _, first, _ := parseSegmentName(name); first <= index {
			return i
		}
	}
	return -1
}

// segmentsFrom returns the segments that may contain the given entry or later ones. The name of a segment contains
// the index of its first entry.
func (m *member) segmentsFrom(index uint64) []string {
	segments := m.segments()
	return segments[max(startSegment(segments, index), 0):]
}

// identity returns the IDs of the cluster and the member in the log. Like etcd, identity skips a first segment that
// has no records.
func (m *member) identity() (identity etcdserverpb.Metadata, err error) {
	for _, name := range m.segments() {
		head, err := readHead(m.segment(name))
		if head.identity.NodeID != 0 {
			return head.identity, nil // errors after the metadata record do not matter
		}
		if err != nil {
			return identity, err
		}
	}
	return identity, nil
}

// firstSegment is the name of the first segment of every log.
const firstSegment = "0000000000000000-0000000000000000.wal"

// namesNoVoter reports whether the log is missing, or whether its only segment contains no entries and there is no
// snapshot. namesNoVoter reads only the first entries, because they name the voters.
func (m *member) namesNoVoter() bool {
	segments := m.segments()
	if len(segments) == 0 {
		return true
	}
	if m.snap.readError() != nil || m.hadSnapshot() || !slices.Equal(segments, []string{firstSegment}) {
		return false
	}
	head, err := readHead(m.segment(firstSegment))
	return err == nil && !head.used && !head.restored
}

// head describes the start of a segment, up to the first client request or the first snapshot with data.
type head struct {
	identity etcdserverpb.Metadata
	restored bool // starts with a snapshot with data, as after a restore
	used     bool // contains an entry or a hard state
}

// readHead reads the start of a segment. A restore writes the initial members and a snapshot that includes the
// database. Without a restore, an entry always comes before the first snapshot: a member elects a leader first, and
// the election writes an entry.
func readHead(path string) (h head, err error) {
	var unreadable error
	err = firstRecords(path, func(r record) (more bool) {
		switch r.kind {
		case wal.MetadataType:
			unreadable = h.identity.Unmarshal(r.data)
		case wal.SnapshotType:
			h.restored = varint(r.data, snapshotIndexField) > 0
		case wal.EntryType:
			h.used = true
			return changesMembers(r.data)
		case wal.StateType:
			h.used = true
		}
		return !h.restored
	})
	return h, errors.Join(err, unreadable)
}

// firstRecords calls take for the records of a segment until take returns false. A torn record at the end is ignored,
// because etcd truncates it.
func firstRecords(path string, take func(r record) (more bool)) error {
	return readSegment(path, func(s *segment) error {
		for r, err := range s.records() {
			if err != nil {
				return ignoreIncomplete(err)
			}
			if !take(r) {
				break
			}
		}
		return nil
	})
}

// membersNamed returns the members in the membership changes and snapshots of the log. Snapshot records written by
// etcd 3.4 or earlier contain no members.
func (m *member) membersNamed() (named []uint64, unread error) {
	var log history
	unread = log.skimSegments(m, m.segments())
	for _, n := range log.notes {
		if n.change != nil && n.change.NodeID != 0 {
			named = append(named, n.change.NodeID)
		}
	}
	for _, snapshot := range log.snapshots {
		if state := snapshot.ConfState; state != nil {
			named = slices.Concat(named, state.Voters, state.VotersOutgoing, state.Learners)
		}
	}
	return named, unread
}

// A note holds the parts of a log entry that an Inspection uses: the cluster version, the membership change, or the
// v2 API request. Most entries have no note.
type note struct {
	index   uint64
	version string             // cluster version set by the entry, such as 3.6.0
	change  *raftpb.ConfChange // member added, promoted, updated or removed by the entry
	method  string             // method of a v2 API request that etcd 3.6 cannot replay
}

// note adds the note on an entry if the entry has one. Notes on entries with the same or a higher index are
// discarded, because a new leader may overwrite entries.
func (h *history) note(entry []byte) {
	index := entryIndex(entry)
	if index == 0 {
		return
	}
	if h.lowest == 0 || index < h.lowest {
		h.lowest = index
	}
	h.notes = trimNotes(h.notes, index)
	if h.listsWrites {
		kept, _ := slices.BinarySearch(h.writes, index)
		if h.writes = h.writes[:kept]; mayChange(entry) {
			h.writes = append(h.writes, index)
		}
	}
	if n, ok := noteOf(entry); ok {
		n.index = index
		h.notes = append(h.notes, n)
	}
}

// trimNotes returns the notes on entries before an index. Notes are sorted by index.
func trimNotes(notes []note, index uint64) []note {
	kept, _ := slices.BinarySearchFunc(notes, index, func(n note, at uint64) int { return cmp.Compare(n.index, at) })
	return notes[:kept]
}

// longestRequest is the maximum size in bytes of an entry with a cluster version, member attributes or a v2 API
// read. Larger entries, which make up most of the log, are not decoded.
const longestRequest = 512

// attributesPath matches the paths of requests that set member attributes.
var attributesPath = regexp.MustCompile("^" + membership.StoreMembersPrefix + "/[[:xdigit:]]{1,16}/attributes$")

// noteOf returns the note on an entry. A v2 API request is either a separate entry or part of a v3 API request.
// etcd 3.5 and earlier set the cluster version and member attributes with v2 requests. etcd 3.6 replays only those
// two kinds of v2 requests and panics on all others. etcd 3.4 logs a v2 request for each /health probe.
func noteOf(entry []byte) (n note, ok bool) {
	if changesMembers(entry) {
		n.change = &raftpb.ConfChange{}
		return n, n.change.Unmarshal(message(entry, entryData)) == nil
	}
	if len(entry) > longestRequest {
		return n, false
	}
	data := message(entry, entryData)
	if message(data, clusterVersionSet) == nil && message(data, requestV2) == nil {
		return n, false
	}
	var request etcdserverpb.InternalRaftRequest
	if err := request.Unmarshal(data); err != nil {
		request = etcdserverpb.InternalRaftRequest{V2: &etcdserverpb.Request{}}
		if err := request.V2.Unmarshal(data); err != nil {
			return n, false
		}
	}
	switch v2 := request.V2; {
	case request.ClusterVersionSet != nil:
		return note{version: request.ClusterVersionSet.Ver}, true
	case v2 == nil:
		return n, false
	case v2.Method == http.MethodPut && v2.Path == membership.StoreClusterVersionKey():
		return note{version: v2.Val}, true
	default:
		return note{method: v2.Method}, v2.Method != http.MethodPut || !attributesPath.MatchString(v2.Path)
	}
}

// Field numbers of entries (raft.proto), of v2 API and cluster version requests (raft_internal.proto) and of snapshot
// records (walpb/record.proto).
const (
	entryType          = 1
	entryIndexField    = 3
	entryData          = 4
	requestV2          = 2
	clusterVersionSet  = 1300
	snapshotIndexField = 1
)

// changesMembers reports whether an entry is a membership change.
func changesMembers(entry []byte) bool { return varint(entry, entryType) != 0 }

// entryIndex returns the index of an entry without decoding the data, or 0 if there is no index.
func entryIndex(entry []byte) uint64 { return varint(entry, entryIndexField) }

// skipTo returns the rest of a message, starting at the value of a field, or nil if the field is missing. To be fast,
// skipTo does not decode the other fields and stops at the field: every start reads all log entries that etcd
// replays.
func skipTo(message []byte, wanted protowire.Number, kind protowire.Type) []byte {
	for len(message) > 0 {
		number, found, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		message = message[n:]
		if number == wanted && found == kind {
			return message
		}
		if n = protowire.ConsumeFieldValue(number, found, message); n < 0 {
			return nil
		}
		message = message[n:]
	}
	return nil
}

// varint returns a numeric field of a message, or 0 if it is missing.
func varint(message []byte, number protowire.Number) uint64 {
	value, _ := protowire.ConsumeVarint(skipTo(message, number, protowire.VarintType))
	return value
}

// message returns a string or an embedded message in a message, or nil if the field is missing.
func message(of []byte, number protowire.Number) []byte {
	text, _ := protowire.ConsumeBytes(skipTo(of, number, protowire.BytesType))
	return text
}
