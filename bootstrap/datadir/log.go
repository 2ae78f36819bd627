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

// history is the state of a log after reading its records in order.
type history struct {
	last      uint64           // index of the last entry
	committed uint64           // highest index that was recorded as committed
	received  uint64           // index of the newest snapshot that stands for entries which are not in the log
	snapshots []snapshotRecord // every snapshot that it knows of, oldest first
	checksum  uint32           // running checksum, carried from segment to segment
	metadata  []byte           // whose log it is
	cut       cut              // where the last segment ends
	segment   int              // which one is read, from 0 on
	notes     []note           // the entries that a decision needs
	lowest    uint64           // index of the entry with the lowest index; 0 if there is none
	unread    error            // why its segment can't be read

	listsWrites bool     // whether writes is filled in
	writes      []uint64 // the indexes of entries that may each have made a revision

	puts *loggedPuts // of the requests after the newest received snapshot; nil if they are not wanted
}

// snapshotRecord is a snapshot that the log knows.
type snapshotRecord struct {
	walpb.Snapshot

	segment int
}

// readLog reads every record. Segments are read one by one, so that an error names the segment, and so that a torn record
// is forgiven in the last one only: there etcd cuts it off when it starts, anywhere else etcd gives up.
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

// readLast reads the last segment, and searches behind the place where it becomes unreadable.
func (h *history) readLast(ctx context.Context, s *segment) error {
	err := h.read(ctx, s)
	h.cut = cutIn(s, h)
	return err
}

// errNoRecord means that a segment is empty, or holds nothing but zeros.
var errNoRecord = errors.New("it holds no record")

// startAt makes the log start with that segment. What came before is lost, which matters only to an etcd that starts
// from before it.
func (h *history) startAt(segment string) {
	h.last = lastBefore(segment)
	h.received = h.last
}

// read refuses a segment without a record: etcd writes the first ones before it gives a segment its name.
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

// add adds one record to the history, and refuses what etcd refuses when it replays the log. All segments belong to the
// same member.
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

// addEntry lets an entry override those from its index on, as raft does after a change of leader, but leave no gap.
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

// addSnapshot adds a snapshot. One that was received from a leader stands for entries that this member never saw.
func (h *history) addSnapshot(data []byte) error {
	var snapshot walpb.Snapshot
	if err := snapshot.Unmarshal(data); err != nil {
		return fmt.Errorf("unreadable snapshot record: %w", err)
	}
	h.snapshots = append(h.snapshots, snapshotRecord{snapshot, h.segment})
	if snapshot.Index > h.last {
		h.last, h.received = snapshot.Index, snapshot.Index
	}
	if snapshot.Index > h.committed { // received, perhaps over entries that were not committed; etcd's own end at a committed one
		h.puts.clear()
	}
	return nil
}

// skim adds the entries and snapshots of a segment without comparing checksums. Records that cannot be parsed are skipped.
func (h *history) skim(s *segment) {
	for f := range s.frames() {
		r, _ := f.parse()
		switch r.kind {
		case wal.EntryType:
			h.note(r.data)
			h.last = entryIndex(r.data)
		case wal.SnapshotType:
			_ = h.addSnapshot(r.data) // see above
		}
	}
}

// skimSegments skims segments, including entries that are not known to be committed: a follower learns of a commit one message
// later. The error means that a segment cannot be read.
func (h *history) skimSegments(m *member, segments []string) (unread error) {
	for _, name := range segments {
		unread = errors.Join(unread, readSegment(m.segment(name), func(s *segment) error {
			h.skim(s)
			return nil
		}))
	}
	return unread
}

// isCommitted reports whether the log has a record of the snapshot, and whether it was committed when the log ended.
func (h *history) isCommitted(index, term uint64) bool {
	return index <= h.committed && slices.ContainsFunc(h.snapshots, func(r snapshotRecord) bool { return r.Index == index && r.Term == term })
}

// has reports whether a snapshot of that entry is recorded.
func (h *history) has(snapshot uint64) bool {
	return slices.ContainsFunc(h.snapshots, func(r snapshotRecord) bool { return r.Index == snapshot })
}

// unfinished reports whether etcd was writing a snapshot file when it died: the file is newer than every snapshot in
// the log, where a snapshot is recorded after its file was written. etcd renames such a file when it starts.
func (h *history) unfinished(name string) bool {
	index, ok := snapshotIndex(name)
	return ok && !slices.ContainsFunc(h.snapshots, func(r snapshotRecord) bool { return r.Index >= index })
}

// checkStart returns an error unless the snapshot is recorded in that segment or a later one. The snapshot of an
// empty log, of index 0, is recorded, too.
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

// startSegment returns the number of the segment from which on etcd reads the log, the last one that starts at or
// before the index, and -1 if there is none.
func startSegment(segments []string, index uint64) int {
	for i, name := range slices.Backward(segments) {
		if _, first, _ := parseSegmentName(name); first <= index {
			return i
		}
	}
	return -1
}

// segmentsFrom returns the segments that may hold an entry or a later one. A segment's name has the index of its
// first.
func (m *member) segmentsFrom(index uint64) []string {
	segments := m.segments()
	return segments[max(startSegment(segments, index), 0):]
}

// identity returns the cluster and the member that the log belongs to. etcd skips a first segment without a record.
func (m *member) identity() (identity etcdserverpb.Metadata, err error) {
	for _, name := range m.segments() {
		head, err := readHead(m.segment(name))
		if head.identity.NodeID != 0 {
			return head.identity, nil // whatever follows it
		}
		if err != nil {
			return identity, err
		}
	}
	return identity, nil
}

// firstSegment is the name of the first segment of any log.
const firstSegment = "0000000000000000-0000000000000000.wal"

// namesNoVoter reports whether there is no log, or no snapshot and nothing in the log's only segment but its head.
// The voters are in the first entries, so it reads no more than these.
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

// head describes the start of a segment, up to the first entry of a client or the first snapshot with data.
type head struct {
	identity etcdserverpb.Metadata
	restored bool // such a snapshot comes first
	used     bool // there is an entry or a state
}

// readHead reads the start of a segment. A restore writes the first members and a snapshot that includes the database. A
// member that was never restored takes no snapshot before it has elected a leader, for which it writes an entry.
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

// firstRecords calls take with the records of a segment until take returns false. A torn end, which etcd repairs, is not
// an error.
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

// membersNamed returns the members in the log's changes and snapshots. An etcd before 3.5 records none with a snapshot.
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

// A note has the parts of an entry of the log that a decision needs. Most entries get none.
type note struct {
	index   uint64
	version string             // the cluster version that the entry sets, such as 3.6.0
	change  *raftpb.ConfChange // the member that it adds, promotes, updates or removes
	method  string             // of a request of the v2 API that etcd 3.6 refuses to replay
}

// note reads one entry. An entry overrides what was noted from its index on, as raft does after a change of leader.
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

// longestRequest is more than an entry takes, in bytes, that sets a version or a member's attributes, or reads through the
// v2 API. Larger entries are not searched: most of a log's bytes are in them.
const longestRequest = 512

// attributesPath matches the paths of requests that set a member's attributes.
var attributesPath = regexp.MustCompile("^" + membership.StoreMembersPrefix + "/[[:xdigit:]]{1,16}/attributes$")

// noteOf returns what is noted of an entry. A request of the v2 API is an entry of its own, or is in a request of the v3 API.
// etcd 3.5 and older set the cluster version and the members' attributes that way, and etcd 3.6 replays these two and panics
// over any other: etcd 3.4 writes one for each probe of its /health.
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

// The numbers of fields: of an entry (raft's raft.proto), of the requests in it of the v2 API and for the cluster's version
// (etcd's raft_internal.proto), and of a snapshot's record (etcd's walpb/record.proto).
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

// entryIndex returns the index of an entry, which is near its start: the rest may be large. 0 means none.
func entryIndex(entry []byte) uint64 { return varint(entry, entryIndexField) }

// skipTo returns a message from the value of a field on, or nil if it has no such field. Other fields are skipped by their
// lengths, and nothing behind the field is read: all entries of a long log are read at each start.
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

// varint returns a numeric field of a message, 0 if it is missing.
func varint(message []byte, number protowire.Number) uint64 {
	value, _ := protowire.ConsumeVarint(skipTo(message, number, protowire.VarintType))
	return value
}

// message returns a field of a message that is a text or a message itself; nil if it is missing. An entry that changes the
// members holds another message, which has no such field.
func message(of []byte, number protowire.Number) []byte {
	text, _ := protowire.ConsumeBytes(skipTo(of, number, protowire.BytesType))
	return text
}
