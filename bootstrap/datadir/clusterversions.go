package datadir

import (
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/protobuf/encoding/protowire"
)

// The numbers of fields: of an entry's data (raft's raft.proto), of the request in it that sets the cluster's version
// (etcd's raft_internal.proto), and of the version in that (membership.proto).
const (
	entryData         = 4
	clusterVersionSet = 1300
	setVersion        = 1
)

// longest is more than a record takes, in bytes, which sets a version or tells of a snapshot: both are below a hundred.
const longest = 512

// versionSet is that of the cluster, such as 3.6.0, which an entry sets.
type versionSet struct {
	index   uint64
	version string
}

// ClusterVersions are the versions of the cluster that etcd meets when it opens the data, such as 3.6.0: it dies on one
// that is newer than itself. One is in the database, and others may be in the part of the log that etcd replays, which is
// what comes behind the newest snapshot, even if the database has all of that. An error says that the database or the log
// can't be read.
func (f *Findings) ClusterVersions() (met []string, err error) {
	if err := errors.Join(f.contentsErr, f.versionErr); err != nil {
		return nil, err
	}
	return append([]string{f.contents.version}, f.versions...), nil
}

// versionsReplayed are those in the log. If it does not have a snapshot, etcd was killed between writing that and noting it
// there, and goes on from the one before.
func (f *Findings) versionsReplayed() (versions []string, err error) {
	for _, index := range f.startingPoints() {
		known := index == 0
		for _, read := range f.histories(f.segmentsFrom(index)) {
			versions, known, err = append(versions, read.versionsBehind(index)...), known || read.has(index), errors.Join(err, read.unread)
		}
		if known || err != nil {
			break
		}
	}
	return versions, err
}

// startingPoints are the indexes that the names of snapshots tell, the newest first, and 0 for the beginning of the log.
func (m *member) startingPoints() (indexes []uint64) {
	for _, name := range slices.Backward(m.snapshots()) {
		var term, index uint64
		if _, err := fmt.Sscanf(name, "%016x-%016x.snap", &term, &index); err == nil {
			indexes = append(indexes, index)
		}
	}
	return append(indexes, 0)
}

// segmentsFrom are the segments that may hold an entry or what comes behind it. A segment's name tells its first.
func (m *member) segmentsFrom(index uint64) []string {
	segments, from := m.segments(), 0
	for i, name := range segments {
		if _, before, ok := parseSegmentName(name); ok && before < index {
			from = i
		}
	}
	return segments[from:]
}

// skim goes from record to record without a look at their checksums, and takes what they say of versions and snapshots.
func (h *history) skim(s *segment) {
	for frame := range s.frames() {
		if len(frame.record) > longest {
			continue
		}
		r, _ := frame.parse() // one that can't be read tells nothing
		switch r.kind {
		case wal.EntryType:
			h.takeVersion(r.data)
		case wal.SnapshotType:
			_ = h.takeSnapshot(r.data) // see above
		}
	}
}

// takeVersion takes the version that an entry sets, if it does.
func (h *history) takeVersion(entry []byte) {
	if len(entry) > longest {
		return
	}
	request := message(message(entry, entryData), clusterVersionSet)
	if version := message(request, setVersion); version != nil {
		h.versions = append(h.versions, versionSet{entryIndex(entry), string(version)})
	}
}

// versionsBehind are the versions that entries behind an index set.
func (h *history) versionsBehind(index uint64) (versions []string) {
	for _, set := range h.versions {
		if set.index > index {
			versions = append(versions, set.version)
		}
	}
	return versions
}

// has says whether the snapshot of an entry is recorded.
func (h *history) has(snapshot uint64) bool {
	return slices.ContainsFunc(h.snapshots, func(recorded recorded) bool { return recorded.Index == snapshot })
}

// message is what a field of a protobuf message holds that is a text or a message itself; nil if it has none. Other
// fields are stepped over by their lengths. An entry that changes the members holds another message, which has no such
// field.
func message(of []byte, wanted protowire.Number) []byte {
	for len(of) > 0 {
		number, kind, n := protowire.ConsumeTag(of)
		if n < 0 {
			return nil
		}
		of = of[n:]
		if number == wanted && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(of)
			return value
		}
		if n = protowire.ConsumeFieldValue(number, kind, of); n < 0 {
			return nil
		}
		of = of[n:]
	}
	return nil
}
