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

// history is the state of a log after its records were read in order.
type history struct {
	last      uint64           // index of the last entry
	committed uint64           // highest index recorded as committed
	received  uint64           // index of the newest snapshot that replaces entries missing from the log
	snapshots []snapshotRecord // all snapshots that the log records, oldest first
	checksum  uint32           // running checksum, carried from segment to segment
	metadata  []byte           // identity of the cluster and the member, as encoded in the log
	cut       cut              // end of the last segment
	segment   int              // number of the segment being read, starting at 0
	notes     []note           // entries that later decisions depend on
	lowest    uint64           // lowest index of an entry; 0 without entries
	unread    error            // why a segment cannot be read

	listsWrites bool     // whether writes is filled in
	writes      []uint64 // indexes of the entries that may have created a revision each

	puts *loggedPuts // puts after the newest received snapshot; nil if not requested
}

// snapshotRecord is a snapshot that the log records.
type snapshotRecord struct {
	walpb.Snapshot

	segment int
}

// readLog reads every record. It reads segments one by one, so that an error names the segment, and so that a torn
// record is tolerated only in the last one: there etcd cuts it off when it starts; in any other segment etcd gives
// up.
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
			m.warn("WAL segment %s: %v; etcd starts with the next one", path, err)
			continue
		}
		if err != nil {
			return written, fmt.Errorf("WAL segment %s: %w", path, err)
		}
	}
	return written, nil
}

// readLast reads the last segment, and searches it beyond the position where it becomes unreadable.
func (h *history) readLast(ctx context.Context, s *segment) error {
	err := h.read(ctx, s)
	h.cut = cutIn(s, h)
	return err
}

// errNoRecord means that a segment is empty or contains only zeros.
var errNoRecord = errors.New("it holds no record")

// startAt makes the log start with a segment. Earlier segments are lost, which only matters if etcd starts from an
// entry in one of them.
func (h *history) startAt(segment string) {
	h.last = lastBefore(segment)
	h.received = h.last
}

// read rejects a segment without a record: etcd writes the first records before it gives a segment its name.
func (h *history) read(ctx context.Context, s *segment) error {
	count := 0
	for r, err := range s.records() {
		if count%checkInterval == 0 && ctx.Err() != nil {
			return fmt.Errorf("reading it was stopped: %w", context.Cause(ctx))
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

// add adds one record to the history. It rejects the records that etcd rejects when it replays the log. All segments
// belong to the same member.
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
			return fmt.Errorf("unreadable hard state: %w", err)
		}
		h.committed = state.Commit
	case wal.SnapshotType:
		return h.addSnapshot(r.data)
	default:
		return fmt.Errorf("a record of unknown type %d", r.kind)
	}
	return nil
}

// addEntry adds an entry. Like raft after a change of leader, an entry replaces those from its index on. A gap is an
// error.
func (h *history) addEntry(data []byte) error {
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

// addSnapshot adds a snapshot. A snapshot received from a leader replaces entries that this member never had.
func (h *history) addSnapshot(data []byte) error {
	var snapshot walpb.Snapshot
	if err := snapshot.Unmarshal(data); err != nil {
		return fmt.Errorf("unreadable snapshot record: %w", err)
	}
	h.snapshots = append(h.snapshots, snapshotRecord{snapshot, h.segment})
	if snapshot.Index > h.last {
		h.last, h.received = snapshot.Index, snapshot.Index
	}
	if snapshot.Index > h.committed { // must be a received snapshot, because etcd's own snapshots end at a committed entry
		h.puts.clear()
	}
	return nil
}

// skim adds the entries and snapshots of a segment without verifying checksums. It skips records that it cannot
// parse.
func (h *history) skim(s *segment) {
	for f := range s.frames() {
		r, _ := f.parse()
		switch r.kind {
		case wal.EntryType:
			h.note(r.data)
			h.last = entryIndex(r.data)
		case wal.SnapshotType:
			_ = h.addSnapshot(r.data) // errors are ignored, as for entries
		}
	}
}

// skimSegments skims segments, including entries that are not known to be committed: a follower learns of a commit
// one message later. It returns an error if it cannot read a segment.
func (h *history) skimSegments(m *member, segments []string) (unread error) {
	for _, name := range segments {
		unread = errors.Join(unread, readSegment(m.segment(name), func(s *segment) error {
			h.skim(s)
			return nil
		}))
	}
	return unread
}

// isCommitted reports whether the log records the snapshot, and whether the snapshot was committed when the log
// ended.
func (h *history) isCommitted(index, term uint64) bool {
	return index <= h.committed && slices.ContainsFunc(h.snapshots, func(r snapshotRecord) bool { return r.Index == index && r.Term == term })
}

// has reports whether a snapshot at that entry is recorded.
func (h *history) has(snapshot uint64) bool {
	return slices.ContainsFunc(h.snapshots, func(r snapshotRecord) bool { return r.Index == snapshot })
}

// unfinished reports whether etcd died while it wrote a snapshot file. etcd records a snapshot in the log after
// writing its file, so such a file is newer than every recorded snapshot. etcd renames it when it starts.
func (h *history) unfinished(name string) bool {
	index, ok := snapshotIndex(name)
	return ok && !slices.ContainsFunc(h.snapshots, func(r snapshotRecord) bool { return r.Index >= index })
}

// checkStart returns an error unless the snapshot is recorded in that segment or a later one. An empty log records a
// snapshot with index 0.
func (h *history) checkStart(snapshot walpb.Snapshot, segment int) error {
	if segment < 0 {
		return errors.New("no segment reaches back that far")
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

// startSegment returns the number of the segment at which etcd starts to read the log: the last one that starts at or
// before the index. It returns -1 if there is none.
func startSegment(segments []string, index uint64) int {
	for i, name := range slices.Backward(segments) {
		if _, first, _ := parseSegmentName(name); first <= index {
			return i
		}
	}
	return -1
}

// segmentsFrom returns the segments that may hold that entry or later ones. A segment's name contains the index of
// its first entry.
func (m *member) segmentsFrom(index uint64) []string {
	segments := m.segments()
	return segments[max(startSegment(segments, index), 0):]
}

// identity returns the cluster and the member that the log belongs to. Like etcd, it skips a first segment without a
// record.
func (m *member) identity() (identity etcdserverpb.Metadata, err error) {
	for _, name := range m.segments() {
		head, err := readHead(m.segment(name))
		if head.identity.NodeID != 0 {
			return head.identity, nil // the identity was read, regardless of the error
		}
		if err != nil {
			return identity, err
		}
	}
	return identity, nil
}

// firstSegment is the name of the first segment of any log.
const firstSegment = "0000000000000000-0000000000000000.wal"

// namesNoVoter reports whether there is no log, or whether there is no snapshot and the log's only segment contains
// nothing but its head. The first entries name the voters, so it reads only these.
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

// head describes the start of a segment, up to the first entry from a client or the first snapshot with data.
type head struct {
	identity etcdserverpb.Metadata
	restored bool // a snapshot with data comes first, as after a restore
	used     bool // the segment has an entry or a hard state
}

// readHead reads the start of a segment. A restore writes the first members, and a snapshot that includes the
// database. A member that was never restored takes no snapshot before it has elected a leader, and an election writes
// an entry.
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

// firstRecords calls take with the records of a segment until take returns false. It ignores a torn end, which etcd
// repairs.
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

// membersNamed returns the members named by the log's membership changes and snapshots. An etcd before 3.5 records no
// members with a snapshot.
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

// A note holds the parts of a log entry that decisions depend on. Most entries have none.
type note struct {
	index   uint64
	version string             // cluster version that the entry sets, such as 3.6.0
	change  *raftpb.ConfChange // member that the entry adds, promotes, updates or removes
	method  string             // method of a v2 API request, which etcd 3.6 refuses to replay
}

// note reads one entry. Like raft after a change of leader, it discards the notes of earlier entries from its index
// on.
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

// trimNotes returns the notes of the entries before an index. Notes are in the order of their entries.
func trimNotes(notes []note, index uint64) []note {
	kept, _ := slices.BinarySearchFunc(notes, index, func(n note, at uint64) int { return cmp.Compare(n.index, at) })
	return notes[:kept]
}

// longestRequest is an upper bound, in bytes, for entries that set a version or a member's attributes, or read
// through the v2 API. Larger entries, which hold most of a log's bytes, are not searched.
const longestRequest = 512

// attributesPath matches the paths of requests that set a member's attributes.
var attributesPath = regexp.MustCompile("^" + membership.StoreMembersPrefix + "/[[:xdigit:]]{1,16}/attributes$")

// noteOf returns the note of an entry. A v2 API request is either an entry of its own or part of a v3 API request.
// etcd 3.5 and older set the cluster version and members' attributes with v2 requests. etcd 3.6 replays these two
// kinds and panics on all others; etcd 3.4 writes one for each probe of its /health.
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

// Field numbers of an entry (raft's raft.proto), of its v2 API and cluster version requests (etcd's
// raft_internal.proto), and of a snapshot record (etcd's walpb/record.proto).
const (
	entryType          = 1
	entryIndexField    = 3
	entryData          = 4
	requestV2          = 2
	clusterVersionSet  = 1300
	snapshotIndexField = 1
)

// changesMembers reports whether an entry changes the members.
func changesMembers(entry []byte) bool { return varint(entry, entryType) != 0 }

// entryIndex returns the index of an entry, which is stored near its start: the rest may be large. 0 means none.
func entryIndex(entry []byte) uint64 { return varint(entry, entryIndexField) }

// skipTo returns the rest of a message from the value of a field on, or nil if the field is missing. It skips other
// fields by their lengths and reads nothing after the field, because each start reads all entries of a long log.
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

// message returns a string or embedded message field of a message, or nil if it is missing. An entry that changes
// members holds another message type, which has no such field.
func message(of []byte, number protowire.Number) []byte {
	text, _ := protowire.ConsumeBytes(skipTo(of, number, protowire.BytesType))
	return text
}
